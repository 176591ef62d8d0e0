"""What the steps of an expansion work with: both topics, the relays, the consumers, the view."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import (
    BacklogError,
    KafkaFailure,
    LeaseHeld,
    PlanStale,
    Refused,
)
from backlogctl.fanout.launchers.interface import Fleet, Role
from backlogctl.fanout.quiet import await_decided
from backlogctl.fanout.relay.commits import (
    CommitWithMetadata,
    read_positions,
)
from backlogctl.fanout.relay.guard import GroupGuard
from backlogctl.fanout.relay.interface import ConsumerCameBack, RelayTask, SourceRange
from backlogctl.fanout.relay.session import Hooks, RelaySession, fence_relays
from backlogctl.fanout.relay.worker import choose_relay_engine
from backlogctl.fanout.temporary_topic import start_recovery_group
from backlogctl.fanout.unread import Lags, find_unread, read_lags
from backlogctl.kafka.admin import committed_offsets
from backlogctl.kafka.groups import read_standing
from backlogctl.kafka.markers import find_hidden
from backlogctl.kafka.raw_fetch import find_codec
from backlogctl.kafka.room import RoomBrake
from backlogctl.ledger import BurndownSample, TemporaryTopic
from backlogctl.replay.consumers.copy_group import CopyGroup
from backlogctl.replay.consumers.fleet import (
    Answer,
    BrokerRetry,
    StoppingContext,
    fleet_of,
)
from backlogctl.replay.consumers.kept_copy import ABSENT_SECONDS, KeptCopy, refuse_other_copy
from backlogctl.replay.consumers.outsiders import record_outsiders
from backlogctl.replay.consumers.stopped_group import (
    find_expired_relayed,
    note_overtaken,
    put_back_commits,
)
from backlogctl.replay.kinds.expand.plan import ExpandPlan
from backlogctl.replay.observe.snapshot import take_share
from backlogctl.replay.observe.stream import note_stream
from backlogctl.replay.present.burndown import BurndownView

ASK_SECONDS = 10.0  # then it is said that the brokers are away
_TOPICS_PAUSE_SECONDS = 0.3
_SAMPLE_EACH = 1.0
_NOTE_EACH = 5.0
# The log of commits since then is read each time, and it is cleaned after a while.
_REACH_EACH = 600.0
# Where the same is asked again and again: a topic that is gone, or Ctrl-C, is noticed soon.
LAGS_SECONDS = 5.0
_TOPICS_EACH = 2.0
COPY_GONE = "somebody deleted the temporary topic, with what was in it and not handled"
SOURCE_GONE = "the source topic is gone, and the counters with it"


@dataclass
class ExpandContext(StoppingContext[ExpandPlan]):
    """One run of one expansion.

    Attributes:
        restarted_at: where the temporary topic's consumers stood still, and were started again.
        room: while the relays copy.
    """

    room: RoomBrake | None = None
    restarted_at: dict[int, int] = field(default_factory=dict)
    _relayed_before: dict[int, int] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)
    _sample_at: float = 0.0
    _tells_throttling: bool = False
    _note_at: float = 0.0
    _reach_at: float = field(default_factory=lambda: time.monotonic() + _REACH_EACH)
    _topics_at: float = 0.0

    @property
    def again(self) -> str:
        """What to do where the source is another topic now."""
        return "cancelled, it drains what is copied and restores the layout; then plan again"

    @property
    def starts(self) -> Mapping[int, int]:
        """Where the relay of a partition begins that has no commit."""
        return {row.partition: row.start for row in self.plan.partitions}

    @property
    def temporary_topic(self) -> str:
        """The temporary topic's name."""
        return self.plan.temporary.topic

    @property
    def temporary_partitions(self) -> int:
        return self.plan.temporary.partitions

    @property
    def recovery_group(self) -> str:
        """The group that reads the temporary topic."""
        return self.plan.recovery_group

    @property
    def temporary(self) -> TemporaryTopic | None:
        """The temporary topic as the ledger has it; None before it was announced."""
        return self.workspace.ledger.temporary_topics.get(self.recovery.id)

    @property
    def has_temporary(self) -> bool:
        """Whether the temporary topic was created, and is not deleted yet."""
        known = self.temporary
        return known is not None and known.topic_id is not None and known.deleted_at is None

    def is_complete(self, step: str) -> bool:
        """From the ledger: a crash does not make a step start anew."""
        if step == "drain" and not self.is_complete("cut_over"):
            # Between them the backlog may have grown again: nobody has read since.
            return False
        return super().is_complete(step)

    def read_source_lag(self) -> int:
        """Offsets left in the source; the temporary topic may be gone."""
        return self._count_left(self.recovery.group, self.recovery.topic, self.partitions)

    def read_temporary_lag(self) -> int:
        """Offsets left in the temporary topic; the source may be gone."""
        return self._count_left(
            self.recovery_group, self.temporary_topic, self.temporary_partitions
        )

    def _count_left(self, group: str, topic: str, partitions: int) -> int:
        numbers = range(partitions)
        found = self.ask(
            lambda: read_standing(self.admin, group, topic, numbers, Deadline(ASK_SECONDS))
        )
        return sum(found.lag.values())

    def read_handled(self) -> int:
        """Offsets of the temporary topic that its group has committed past."""
        numbers = range(self.temporary_partitions)
        group, topic = self.recovery_group, self.temporary_topic
        done = self.ask(
            lambda: committed_offsets(self.admin, group, topic, numbers, Deadline(ASK_SECONDS))
        )
        return sum(at or 0 for at in done.values())

    def find_unread(self) -> dict[int, int]:
        """Temporary partitions with unread data records, by reading them.

        Raises:
            PlanStale: somebody deleted unread records, and it is not closing.
        """
        if not self.closing:
            self.check_kept()
        return self.ask(
            lambda: find_unread(
                self.admin,
                self.properties,
                self.temporary_topic,
                self.recovery_group,
                self.temporary_partitions,
                expires=self.closing,  # what was deleted is on record; the rest is handled
            )
        )

    def find_undecided(self) -> dict[int, int]:
        """Temporary partitions where an open transaction hides what is behind it."""
        places = dict.fromkeys(range(self.temporary_partitions))
        return self.ask(lambda: find_hidden(self.admin, self.temporary_topic, places))

    def is_drained(self) -> bool:
        """Whether nothing of the temporary topic is unread, or hidden by an open transaction."""
        return not (self.find_undecided() or self.find_unread())

    def find_commit(self, partition: int) -> int:
        """Where the original group is."""
        commits = committed_offsets(
            self.admin, self.recovery.group, self.recovery.topic, [partition], require_stable=True
        )
        return commits[partition] or 0

    def read_positions(self, *, stable: bool = True) -> dict[int, CommitWithMetadata]:
        """The relays' own positions and counters, of partitions of which something was relayed."""
        return read_positions(
            self.admin,
            self.recovery_group,
            self.recovery.topic,
            list(range(self.partitions)),
            self.recovery.id,
            Deadline(60.0),
            stable=stable,
        )

    def check_copy(self) -> None:
        """The temporary topic, once it was made, is that one; raises PlanStale where it is not."""
        known = self.temporary
        if known is not None and known.topic_id is not None and known.deleted_at is None:
            refuse_other_copy(self.admin, self.temporary_topic, known.topic_id)

    @cached_property
    def kept_copy(self) -> KeptCopy:
        """That nothing of the temporary topic is deleted."""
        return KeptCopy(
            ledger=self.workspace.ledger,
            recovery_id=self.recovery.id,
            admin=self.admin,
            topic=self.temporary_topic,
            partitions=self.temporary_partitions,
            group=self.recovery_group,
            record=self.record,
            say=self.say,
        )

    def check_kept(self) -> None:
        """All of the temporary topic that is not handled is there; raises PlanStale where not."""
        if self.has_temporary:
            self.ask(self.kept_copy.check)

    def has_copy(self) -> bool:
        """Whether the temporary topic is there, and the one that was made."""
        limit = Deadline(ABSENT_SECONDS)
        while True:
            try:
                self.check_copy()
                return self.has_temporary
            except PlanStale:
                if limit.expired:
                    return False
            time.sleep(_TOPICS_PAUSE_SECONDS)

    def find_expired(self) -> dict[int, int]:
        """By partition, offsets behind the recorded commits that the source has no more."""
        events = self.workspace.ledger.events.list(self.recovery.id)
        ends = {number: position.offset for number, position in self.read_positions().items()}
        return find_expired_relayed(self.admin, self.recovery.topic, self.begun, events, ends)

    def has_all_relayed(self) -> bool:
        """Whether the source has all that was relayed, so that the group can read it again."""
        if not self.was_started("canary") or self.is_complete("restore"):
            return False
        return self.has_source() and not self.find_expired()

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

    @cached_property
    def copy_group(self) -> CopyGroup:
        """The group of these consumers."""
        return CopyGroup(
            ledger=self.workspace.ledger,
            recovery_id=self.recovery.id,
            stream=self.stream.name,
            properties=self.properties,
            admin=self.admin,
            group=self.recovery_group,
            topic=self.temporary_topic,
            partitions=self.temporary_partitions,
            record=self.record,
            look=self.look,
            stop=lambda: self.launcher.stop(self.fleet, self.look),
            within=self.consumers.stop_within.total_seconds(),
            trusts_simple=lambda: self.is_complete("canary"),
        )

    def settle_copy(self) -> bool:
        """What of the copy was handled; whether some of it is unread again."""
        return self.ask(lambda: self.copy_group.settle(self.say))

    @property
    def logs(self) -> Path:
        """The log of the relays' processes."""
        return self.workspace.staging_of(self.recovery.id) / "relay.log"

    @cached_property
    def session(self) -> RelaySession:
        """Guard and relays of this run."""
        return RelaySession(
            lambda: GroupGuard(
                self.properties,
                self.recovery.group,
                self.recovery.topic,
                self.partitions,
                self.recovery.id,
            ),
            self._make_task,
            self.logs,
            Hooks(self.look, self.check_ground, lambda: note_overtaken(self)),
            engine=self._engine,
            find_rate=lambda: take_share(self.workspace, self.stream, "the relays write", self.say),
        )

    @property
    def _engine(self) -> str:
        """The plan's, where this machine has it too: both copy the same."""
        wanted = "auto" if self.plan.engine == "wire" else self.plan.engine
        return choose_relay_engine(wanted, self.properties)[0]

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
        if self.room is not None:
            self._brake_relays(self.room)
        if time.monotonic() >= self._sample_at:
            self._sample_at = time.monotonic() + _SAMPLE_EACH
            with suppress(KafkaFailure):  # a broker is away: the next one shows it
                self.sample()
        if self.has_temporary and time.monotonic() >= self._note_at:
            self._note_at = time.monotonic() + _NOTE_EACH
            with suppress(KafkaFailure):
                self.copy_group.note()
        if self.has_temporary and time.monotonic() >= self._reach_at:
            self._reach_at = time.monotonic() + _REACH_EACH
            with suppress(KafkaFailure):
                self.copy_group.note_reached()

    def brake_on(self) -> None:
        """From now on the relays wait before the disks of the temporary topic are full."""
        floor = self.stream.limits.floor
        self.room = RoomBrake(self.properties, self.temporary_topic, floor)

    def _brake_relays(self, room: RoomBrake) -> None:
        """Meanwhile the consumers go on with what is copied, and the guard stays in the group."""
        was_held, was_unknown = room.held, room.unknown
        why = room.look()
        if room.unknown and not was_unknown:
            self.say(f"whether the disks have room is unknown, and brakes nothing: {room.unknown}")
        if why and not was_held:
            self.say(f"the relays wait, and the consumers go on with what is copied: {why}")
            with suppress(KafkaFailure):  # one that does not end is killed, and fenced by the next
                self.session.stop_relays()
            self.session.abandon()
        elif was_held and not why:
            self.say("the disks have room again: the relays go on")
            try:
                self.session.start(self.make_ranges)
            except KafkaFailure as error:
                if not error.retryable:
                    raise
                room.held = True  # brokers are away: the next look tries again

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
        self.tell_throttling()
        return lags

    def tell_throttling(self, *, is_last: bool = False) -> None:
        """Says once that a quota holds the relays up, and `is_last` for how long it did."""
        told = self.session.throttling.describe("the relays")
        if told and (is_last or not self._tells_throttling):
            self._tells_throttling = True
            self.say(told)

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
        if not self.session.has_guard:  # with it nobody can delete them
            put_back_commits(self)
        self.session.join()

    def find_left_at(self) -> dict[int, int]:
        """At the relay's position, or where its consumers were stopped."""
        return {**self.begun, **{n: at.offset for n, at in self.read_positions().items()}}

    def await_decided(self) -> None:
        """No transaction is open on the temporary topic; the relays have stopped.

        Raises:
            HangingTransaction: one is, for too long.
        """
        place = (self.admin, self.temporary_topic, self.temporary_partitions)
        self.ask(lambda: await_decided(*place, self.look))

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
        if not self.launcher.count_running(self.fleet):
            self.settle_copy()  # before somebody goes on behind what nobody handled
        self.launcher.scale(self.fleet, count, self.tick)

    @cached_property
    def brokers(self) -> BrokerRetry:
        """Waits for those that are away."""
        return BrokerRetry(self.tick, self.say)

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """What the brokers answer; those that are away are waited for."""
        return self.brokers.ask(question)

    def note_counters(self) -> None:
        """Takes what earlier runs relayed from the relays' positions, for the totals shown; what is
        undecided the relays decide."""
        self._relayed_before = {
            number: position.counters(self.recovery.id).relayed
            for number, position in self.read_positions(stable=False).items()
        }

    def make_ranges(self) -> list[SourceRange]:
        """Every partition, from its commit on, without an end.

        What retention removed in front of a commit is on record as a gap before the relay goes on
        behind it.
        """
        record_outsiders(self, lambda stable: self.read_positions(stable=stable), self.say)
        _, lows = note_overtaken(self)
        return [SourceRange(number, low) for number, low in sorted(lows.items())]

    def check_ground(self) -> None:
        """Before a relay starts: the lease is ours, and the topic is the planned one.

        Raises:
            LeaseHeld: another runner has it.
            PlanStale: the topic was made anew, or has more partitions (faults 15, 16).
        """
        self.lease.confirm()
        self.check_topic()

    def fence_relays(self, *, ends: bool) -> None:
        """No relay can commit any more; `ends`: and what they have left open in the copy is ended,
        where there is one."""
        task, numbers = self._make_task(b"", codec="none"), range(self.partitions)
        fence_relays(self._engine, task, numbers, ends=ends and self.has_copy())

    def _make_task(self, metadata: bytes, codec: str | None = None) -> RelayTask:
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
            compression=codec or self._codec,
        )

    @cached_property
    def _codec(self) -> str:
        """By where the consumers stopped: what was relayed since, they have not read. Where nothing
        tells, as before: the canary shows whether they read it, and the disk was reckoned so."""
        return find_codec(self.properties, self.recovery.topic, self.begun) or "lz4"

    def _look_at_topics(self) -> None:
        if self.closing or time.monotonic() < self._topics_at:
            return
        self._topics_at = time.monotonic() + _TOPICS_EACH
        try:
            self.check_topic()
            self.check_copy()
            if self.has_temporary:
                self.kept_copy.check()
                self.kept_copy.keep_settings()
        except KafkaFailure:
            return  # a broker is away: the next look shows it

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
                self.copy_group.note_reached()
