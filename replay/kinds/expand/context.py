"""What the steps of an expansion work with: both topics, the relays, the consumers, the view."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import BacklogError, KafkaFailure, LeaseHeld, PlanStale, Refused
from backlogctl.fanout.launchers.interface import Fleet, Role
from backlogctl.fanout.quiet import await_decided, await_empty
from backlogctl.fanout.relay.commits import fence_relays
from backlogctl.fanout.relay.guard import GroupGuard, find_others, refuse_others
from backlogctl.fanout.relay.interface import ConsumerCameBack, RelayTask, SourceRange
from backlogctl.fanout.relay.session import Hooks, RelaySession
from backlogctl.fanout.temporary_topic import start_recovery_group
from backlogctl.fanout.unread import Lags, read_lags
from backlogctl.formats import format_plural
from backlogctl.kafka.admin import committed_offsets, delete_group, list_offsets
from backlogctl.kafka.clients import make_admin
from backlogctl.ledger import BurndownSample
from backlogctl.replay.consumers.fleet import CONSUMERS_STAY, fleet_of
from backlogctl.replay.engine.plan import find_identity
from backlogctl.replay.kinds.expand.describe import BurndownView
from backlogctl.replay.kinds.expand.plan import NAME
from backlogctl.replay.kinds.expand.topics import (
    Answer,
    BrokerRetry,
    ExpandTopics,
    record_expand_gap,
    record_outsiders,
)
from backlogctl.replay.observe.stream import note_stream
from backlogctl.values import Certainty
from backlogctl_delivery.crashpoints import reach

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
            lambda: GroupGuard(
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
    def brokers(self) -> BrokerRetry:
        """Waits for those that are away."""
        return BrokerRetry(self.tick, self.say)

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
        record_outsiders(self, self.say)
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


# Recovery groups that are of no more use: deleted at the end, or by the stream's next run.

LEFT, GONE = "the recovery's group is still there", "the recovery's group is deleted"
_SECONDS = 15.0


def delete_recovery_group(context: ExpandContext) -> None:
    """Deletes this recovery's group; one that stays is told, and does no harm."""
    try:
        delete_group(context.admin, context.recovery_group, Deadline(_SECONDS))
    except BacklogError as error:
        context.say(
            f"group {context.recovery_group} is still there: {error.message}. It is of no more "
            f"use; the next expansion of {context.stream.name} deletes it"
        )
        context.record(LEFT, group=context.recovery_group)


def delete_left_groups(context: ExpandContext) -> None:
    """Deletes those of the stream's earlier expansions; one that still stays is told again."""
    ledger = context.workspace.ledger
    for earlier in ledger.recoveries.list(context.stream.name):
        if earlier.kind != NAME or earlier.cluster != context.recovery.cluster:
            continue
        left = [e for e in ledger.events.list(earlier.id) if e.action in (LEFT, GONE)]
        if not left or left[-1].action == GONE:
            continue
        group = left[-1].detail["group"]
        try:
            delete_group(context.admin, group, Deadline(_SECONDS))
        except BacklogError as error:
            context.say(f"group {group} of {earlier.id} is still there: {error.message}")
            continue
        ledger.events.append(earlier.id, str(find_identity()), GONE, {"group": group})


# Watches the recovery's consumers: starts them again, and reports where they stand still.

LOOK_SECONDS = 5.0
STALL_SECONDS = 60.0


class StallWatch:
    """Watches what is left in the temporary topic; made when its consumers run."""

    def __init__(self, context: ExpandContext) -> None:
        self._context = context
        self._look_at = time.monotonic() + LOOK_SECONDS
        self._left = -1
        self._moved_at = self._told_at = time.monotonic()
        self._explained_at = -STALL_SECONDS

    def look(self) -> None:
        """Starts consumers that are all gone; says each minute where nothing is handled."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        context = self._context
        self._look_at_consumers(now)
        try:
            left = context.read_temporary_lag()
        except KafkaFailure:
            return  # a broker is away: the next look shows it
        if left != self._left:
            self._left, self._moved_at, self._told_at = left, now, now
        elif left and now - self._told_at >= STALL_SECONDS:
            self._told_at = now
            self._describe_stall(now - self._moved_at)

    def _look_at_consumers(self, now: float) -> None:
        context = self._context
        if context.launcher.count_running(context.fleet) == 0:
            context.say("none of the recovery's consumers runs: they are started again")
            context.launch(count_wanted(context))
            return
        if now - self._explained_at < STALL_SECONDS:
            return
        ended = context.launcher.explain(context.fleet)
        if ended is not None:
            self._explained_at = now
            context.say(f"a consumer of the recovery does not stay, and is started again: {ended}")

    def _describe_stall(self, seconds: float) -> None:
        context = self._context
        unread = context.find_unread()
        if not unread:
            return
        places = ", ".join(f"{number} from {offset}" for number, offset in sorted(unread.items()))
        context.say(
            f"nothing was handled for {seconds:.0f} s. Unread in {context.temporary_topic}: "
            f"{format_plural(len(unread), 'partition')} ({places}). Look at the consumers' logs in "
            f"{context.fleet.directory}; a message that they cannot handle must be committed past"
        )


def count_wanted(context: ExpandContext) -> int:
    """How many consumers are to run on the temporary topic, with the cap."""
    wanted = context.plan.consumers
    cap = context.consumers.max_consumers
    return wanted if cap is None else min(wanted, cap)


# Ends the relays and reads the temporary topic to its end (protocol P4.8 and 9).

DRAINED = "the temporary topic is read to its end"
_POLL_SECONDS = 0.1
_STILL_SECONDS = 2.0
_OTHERS_EACH = 2.0


def close_relays(context: ExpandContext) -> dict[str, Any]:
    """What was relayed is handled, and nobody relays any more. Safe to call again.

    Returns:
        What was relayed: `{"relayed": {source partition: messages}, "placed": {temporary
        partition: messages} or None}`; empty where nothing can have been relayed.

    Raises:
        ConsumerCameBack: somebody else is in the original group while messages are unread.
    """
    if not context.has_temporary or not context.was_started("stop_consumers"):
        return {}
    relayed = _end_relays(context) if context.was_started("canary") else {}
    if CONSUMERS_STAY not in context.leftovers:  # said once; what is unread decides, not they
        with context.leftovers.noting(CONSUMERS_STAY):
            end_consumers(context)  # 5.
    reach("p4.8.consumers.stopped")
    with suppress(KafkaFailure):  # a topic may be gone; a missing sample is no failure
        context.sample()
    return relayed


def end_consumers(context: ExpandContext) -> None:
    """The recovery's consumers are gone, and its group says so too."""
    context.launcher.stop(context.fleet, context.look)
    await_empty(
        make_admin(context.properties),
        context.recovery_group,
        context.look,
        within=context.consumers.stop_within.total_seconds(),
    )


def _end_relays(context: ExpandContext) -> dict[str, Any]:
    """Nobody relays any more, and nothing is unread; what was relayed."""
    context.session.stop_relays()  # 1. between two transactions
    reach("p4.8.relays.stopped")
    fence_relays(  # 2. one that was forgotten can commit no more, and its offsets are decided
        context.properties,
        context.plan.transactional_prefix,
        context.recovery.topic,
        range(context.partitions),
    )
    reach("p4.9.fenced")
    # 3. Waits while an offset commit is undecided.
    relayed = {} if context.is_complete("cut_over") else _read_relayed(context)
    was_drained = context.is_complete("cut_over")
    if not (was_drained or context.cancelling) or context.has_copy():
        context.await_decided()
        _drain_rest(context)  # 4. by reading: lag is no test
        if context.has_source():
            context.record(DRAINED, positions=_list_positions(context))
    elif not was_drained:
        _note_lost_copy(context)  # somebody deleted it: cancel restores the rest
    reach("p4.9.drained")
    return relayed


def _list_positions(context: ExpandContext) -> dict[str, int]:
    return {str(number): at.offset for number, at in context.read_positions().items()}


def _note_lost_copy(context: ExpandContext) -> None:
    """What was relayed since the temporary topic was last read to its end is a gap."""
    if not context.has_source():
        context.say(COPY_GONE)
        return
    events = context.workspace.ledger.events.list(context.recovery.id)
    drained = [event.detail["positions"] for event in events if event.action == DRAINED]
    starts = dict(context.begun)
    if drained:
        starts |= {int(number): at for number, at in drained[-1].items()}
    lost = 0
    for number, position in context.read_positions().items():
        start, end = starts.get(number, position.offset), position.offset
        if start < end:
            lost += end - start
            record_expand_gap(context, number, start, end, Certainty.BOUNDED, COPY_GONE)
    if lost:
        context.say(
            f"{COPY_GONE}: at most {format_plural(lost, 'message')}, a gap on record; `backlogctl "
            f"plan rebuild {context.stream.name}` puts back what was not handled"
        )


def _read_relayed(context: ExpandContext) -> dict[str, Any]:
    """The counters of the group's stable commits; empty where they went with the source topic."""
    if not context.has_source():
        context.record(SOURCE_GONE)
        return {}
    commits = context.read_positions()
    counters = {number: commit.counters(context.recovery.id) for number, commit in commits.items()}
    placed: dict[int, int] | None = {}
    for each in counters.values():
        if each.counts is None or placed is None:
            placed = None
            continue
        for place, count in each.counts.items():
            placed[place] = placed.get(place, 0) + count
    return {
        "committed": {str(number): commit.offset for number, commit in commits.items()},
        "relayed": {str(number): each.relayed for number, each in counters.items()},
        "placed": None if placed is None else {str(n): c for n, c in sorted(placed.items()) if c},
    }


def _drain_rest(context: ExpandContext) -> None:
    """Waits until nothing is unread; starts the recovery's consumers where they do not run."""
    if not context.find_unread():
        return
    if context.leaves_consumers:
        many = format_plural(context.read_temporary_lag(), "message")
        raise Refused(
            f"at most {many} in it are not handled, and nobody is started to handle them",
            subject=f"topic {context.temporary_topic}",
            hint=f"`backlogctl cancel {context.recovery.id} --rewind --leave-consumers` lets the "
            "group read them again; or start consumers on it yourself, and cancel again when they "
            "are through",
        )
    if (context.launcher.count_running(context.fleet) or 0) == 0:
        context.launch(count_wanted(context))
    others_at, moved_at, before = 0.0, time.monotonic(), -1
    stall = StallWatch(context)
    while True:
        context.tick()
        stall.look()
        # With a guard in the group it is the guard who notices.
        if not context.session.has_guard and time.monotonic() >= others_at:
            others_at = time.monotonic() + _OTHERS_EACH
            others = find_others(context.properties, context.recovery.group, Deadline(30.0))
            if others:
                raise refuse_others(context.recovery.group, others)
        # Only a read shows whether messages are unread; it is made when the lag is small, or no
        # longer moves: aborted records at the end stay in the lag for ever.
        left = context.read_temporary_lag()
        if left != before:
            before, moved_at = left, time.monotonic()
        still = time.monotonic() - moved_at >= _STILL_SECONDS
        if left <= context.temporary_partitions * 20 or still:
            if not context.find_unread():
                return
            moved_at = time.monotonic()
        time.sleep(_POLL_SECONDS)
