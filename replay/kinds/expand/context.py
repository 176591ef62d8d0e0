"""What the steps of an expansion work with: both topics, the relays, the consumers, the view."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from backlog.clock import Deadline, utc_now
from backlog.errors import BacklogError, KafkaFailure, LeaseHeld, PlanStale, Refused
from backlog.kafka.admin import committed_offsets, list_offsets
from backlog.ledger import BurndownSample
from fanout.decided import await_decided
from fanout.lags import Lags, read_lags
from fanout.launchers.interface import Fleet, Role
from fanout.relay.guard import Guard
from fanout.relay.interface import ConsumerCameBack, RelayTask, SourceRange
from fanout.relay.session import Hooks, RelaySession
from fanout.temporary import start_recovery_group
from replay.around.fleets import fleet_of
from replay.around.observation import note_stream
from replay.kinds.expand.brokers import Brokers
from replay.kinds.expand.outsiders import note_outsiders
from replay.kinds.expand.topics import Answer, ExpandTopics
from replay.kinds.expand.view import BurndownView

_SAMPLE_EACH = 1.0
# Where the same is asked again and again: a topic that is gone, or Ctrl-C, is noticed soon.
LAGS_SECONDS = 5.0
_TOPICS_EACH = 2.0
COPY_GONE = "somebody deleted the temporary topic, with what was in it and not handled"
SOURCE_GONE = "the source topic is gone, and the counters with it"


@dataclass
class ExpandContext(ExpandTopics):
    """One run of one expansion."""

    _relayed_before: dict[int, int] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)
    _sample_at: float = 0.0
    _topics_at: float = 0.0

    @property
    def fleet(self) -> Fleet:
        """The consumers on the temporary topic."""
        return fleet_of(
            self.workspace,
            self.stream,
            Role.RECOVERY,
            self.recovery.id,
            topic=self.temporary_topic,
            group=self.recovery_group,
        )

    @property
    def logs(self) -> Path:
        """The log of the relays' processes."""
        return self.workspace.staging_of(self.recovery.id) / "relay.log"

    @cached_property
    def session(self) -> RelaySession:
        """Guard and relays of this run."""
        return RelaySession(
            lambda: Guard(
                self.properties,
                self.recovery.group,
                self.recovery.topic,
                self.partitions,
                self.recovery.id,
            ),
            self._make_task,
            self.logs,
            Hooks(self.look, self.check_ground, self._note_expired),
        )

    @cached_property
    def view(self) -> BurndownView:
        """What people see while it runs."""
        return BurndownView(self.console, self.workspace.ledger, self.recovery)

    def say(self, text: str) -> None:
        """A sentence for people, and for the record."""
        self.view.say(text)
        self.record("said", message=text)

    def open(self) -> None:
        """Ctrl-C stops between two looks; shows the view."""
        self._stack.enter_context(self.interrupts.deferred())
        self._stack.callback(self.view.stop)
        self.view.start()

    def close(self, error: BaseException | None) -> None:
        """Ends what belongs to this run; the recovery's consumers only where the lease is ours."""
        try:
            if "session" in self.__dict__:
                if error is None or not self._is_lost(error):
                    if isinstance(error, PlanStale):
                        self.session.abandon()  # a topic is gone: they would wait for it
                    self.session.close()
                else:
                    self.session.abandon()
                    self.session.leave()
            if error is not None and not self._is_lost(error):
                self._end_consumers()
        finally:
            self._stack.close()

    def begin(self, step: str) -> None:
        """On record, and in the view."""
        super().begin(step)
        self.view.note_step(step)

    def tick(self) -> None:
        """Called again and again while the relays and consumers work.

        Raises:
            PlanStale: a topic is not the one it was any more, unless it is closing.
            LeaseHeld: another runner took over, and gave the group its consumers back.
        """
        self.look()
        self._look_at_topics()
        try:
            self.session.check()
        except ConsumerCameBack:
            self.lease.confirm()  # those that another runner started are no intruders
            raise
        except Refused:
            self.check_topic()  # commits go with their topic: then that is what to say
            raise
        if time.monotonic() >= self._sample_at:
            self._sample_at = time.monotonic() + _SAMPLE_EACH
            with suppress(KafkaFailure):  # a broker is away: the next one shows it
                self.sample()

    def note_sample(self) -> None:
        """A sample of the stream while the guard is in its group.

        Else the relay's commits would look as if they were made while nobody was in the group.
        """
        if self.session.has_guard:
            with suppress(BacklogError):
                note_stream(self.workspace, self.stream)

    def sample(self) -> Lags:
        """Reads both lags, keeps the sample, shows it."""
        lags = self.read_lags(LAGS_SECONDS)
        positions = self.session.positions
        relayed = sum(
            {**self._relayed_before, **{n: p.relayed for n, p in positions.items()}}.values()
        )
        known = BurndownSample(
            recovery_id=self.recovery.id,
            at=utc_now(),
            step=self.step,
            source_lag=lags.source_total,
            temporary_lag=lags.temporary_total,
            relayed=relayed,
            handled=max(0, relayed - lags.temporary_total),
            consumers=self._count_consumers(),
        )
        self.workspace.ledger.burndown.add(known)
        self.view.note_sample(known)
        return lags

    def read_lags(self, within: float = 30.0) -> Lags:
        """What is left in both topics now; `within` seconds, or an error."""
        return read_lags(
            self.admin,
            source=self.recovery.topic,
            group=self.recovery.group,
            partitions=self.partitions,
            temporary=self.temporary_topic,
            recovery_group=self.recovery_group,
            temporary_partitions=self.temporary_partitions,
            last_offsets=self.session.last_offsets,
            limit=Deadline(within),
        )

    def join(self) -> None:
        """The guard joins the original group.

        Where this run has not stopped the consumers itself, somebody may have started one since:
        the group is watched first, as in that step (faults 65, 66).
        """
        if not self.quiet:
            self.await_quiet()
        self.session.join()

    def await_decided(self) -> None:
        """No transaction is open on the temporary topic; the relays have stopped.

        Raises:
            HangingTransaction: one is, for too long.
        """
        await_decided(self.admin, self.temporary_topic, self.temporary_partitions, self.look)

    def launch(self, count: int) -> None:
        """Makes `count` consumers run on the temporary topic, whose group has a commit everywhere.

        A group that was empty for days loses its commits, and consumers begin where they like.
        """
        start_recovery_group(
            self.admin,
            group=self.recovery_group,
            topic=self.temporary_topic,
            partitions=self.temporary_partitions,
        )
        self.launcher.scale(self.fleet, count, self.tick)

    @cached_property
    def brokers(self) -> Brokers:
        """Waits for those that are away."""
        return Brokers(self.tick, self.say)

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """What the brokers answer; those that are away are waited for."""
        return self.brokers.ask(question)

    def note_counters(self) -> None:
        """Takes what earlier runs relayed from the relays' positions, for the totals shown."""
        self._relayed_before = {
            number: position.counters(self.recovery.id).relayed
            for number, position in self.read_positions().items()
        }

    def make_ranges(self) -> list[SourceRange]:
        """Every partition, from its commit on, without an end.

        What retention removed in front of a commit is on record as a gap before the relay goes on
        behind it.
        """
        note_outsiders(self, self.say)
        topic, numbers = self.recovery.topic, range(self.partitions)
        lows = list_offsets(self.admin, topic, numbers, "earliest")
        commits = committed_offsets(self.admin, self.recovery.group, topic, numbers)
        if any((commits[number] or 0) < low for number, low in lows.items()):
            note_stream(self.workspace, self.stream)
        return [SourceRange(number, low) for number, low in sorted(lows.items())]

    def check_ground(self) -> None:
        """Before a relay starts: the lease is ours, and the topic is the planned one.

        Raises:
            LeaseHeld: another runner has it.
            PlanStale: the topic was made anew, or has more partitions (faults 15, 16).
        """
        self.lease.confirm()
        self.check_topic()

    def _make_task(self, metadata: bytes) -> RelayTask:
        plan = self.plan
        return RelayTask(
            properties=self.properties,
            recovery_id=self.recovery.id,
            source=self.recovery.topic,
            target=self.temporary_topic,
            target_partitions=self.temporary_partitions,
            group=self.recovery.group,
            group_metadata=metadata,
            recovery_group=self.recovery_group,
            order=plan.order,
            partitioner=plan.partitioner,
            transactional_prefix=plan.transactional_prefix,
        )

    def _look_at_topics(self) -> None:
        if self.closing or time.monotonic() < self._topics_at:
            return
        self._topics_at = time.monotonic() + _TOPICS_EACH
        try:
            self.check_topic()
            self.check_copy()
        except KafkaFailure:
            return  # a broker is away: the next look shows it

    def _note_expired(self) -> None:
        """Retention was faster: the gap is on record before the commit moves past it."""
        self.say("retention removed messages before they were relayed; `backlogctl gaps` shows it")
        note_stream(self.workspace, self.stream)

    def _count_consumers(self) -> int | None:
        try:
            return self.launcher.count_running(self.fleet)
        except BacklogError:
            return None

    def _is_lost(self, error: BaseException) -> bool:
        return isinstance(error, LeaseHeld) or self.lease.lost

    def _end_consumers(self) -> None:
        """They end with the run; people are not asked to stop theirs for a pause."""
        if self.stream.consumers is None or self.consumers.launcher == "manual":
            return
        if self.has_temporary:
            with suppress(BacklogError):
                self.launcher.stop(self.fleet, lambda: None)
