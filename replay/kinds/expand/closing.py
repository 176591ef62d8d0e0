"""How an expansion ends: cut over, restore, verify, delete the copy (protocol P4.8 to 10)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from backlogctl.clock import Deadline, format_time, utc_now
from backlogctl.errors import (
    BacklogError,
    KafkaFailure,
    PlanStale,
    Refused,
    UnreadLeft,
    VerificationFailed,
)
from backlogctl.fanout.quiet import await_empty
from backlogctl.fanout.relay.guard import find_others, refuse_others
from backlogctl.fanout.retention import raise_retention, restore_retention
from backlogctl.fanout.temporary_topic import (
    delete_temporary_topic,
    find_deleted,
)
from backlogctl.fanout.unread import count_records
from backlogctl.formats import format_duration, format_plural
from backlogctl.kafka.admin import (
    TopicInfo,
    describe_topic,
)
from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.errors import GroupActive, TopicMissing
from backlogctl.kafka.groups import read_standing
from backlogctl.ledger import OPERATOR, Hold
from backlogctl.replay.consumers.copy_group import list_passed
from backlogctl.replay.consumers.fleet import (
    CONSUMERS_MISSING,
    CONSUMERS_STAY,
    await_movement,
    say_by_hand,
)
from backlogctl.replay.consumers.kept_copy import CUT, DRAINED, note_lost_copy
from backlogctl.replay.consumers.outsiders import record_outsiders, refuse_moved
from backlogctl.replay.consumers.stopped_group import pass_overtaken, put_back_commits
from backlogctl.replay.engine.plan import find_identity
from backlogctl.replay.kinds.expand.context import (
    ASK_SECONDS,
    COPY_GONE,
    SOURCE_GONE,
    ExpandContext,
)
from backlogctl.values import Step
from backlogctl_delivery.crashpoints import reach

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
            self._answer_stall(now - self._moved_at)
            self._told_at = time.monotonic()

    def _look_at_consumers(self, now: float) -> None:
        context = self._context
        try:
            running = context.launcher.count_running(context.fleet)
            is_told = now - self._explained_at < STALL_SECONDS
            ended = None if is_told or running == 0 else context.launcher.explain(context.fleet)
        except BacklogError as error:
            if not error.retryable:
                raise
            return  # what is left in the topic tells whether they work
        if running == 0:
            context.say("none of the recovery's consumers runs: they are started again")
            context.launch(count_wanted(context))
            return
        if ended is not None:
            self._explained_at = now
            context.say(f"a consumer of the recovery does not stay, and is started again: {ended}")

    def _answer_stall(self, seconds: float) -> None:
        """Starts the consumers again, once for each place: a last commit that was lost (Java's
        cooperative rebalance refuses one) looks like a message that they cannot handle (fault
        118), and a consumer that starts reads from its commit."""
        context = self._context
        unread = context.find_unread()
        if not unread:
            return
        places = ", ".join(f"{n} from {offset}" for n, offset in sorted(unread.items()))
        told = (
            f"nothing was handled for {seconds:.0f} s. Unread in {context.temporary_topic}: "
            f"{format_plural(len(unread), 'partition')} ({places})"
        )
        by_people = context.consumers.launcher == "manual"
        if not by_people and unread.items() - context.restarted_at.items():
            context.restarted_at |= unread
            context.say(
                f"{told}. The recovery's consumers are started again, once: what they handled "
                "without a commit is handled once more"
            )
            self._restart()
            return
        number, first = context.recovery.id, min(unread)
        again = "start them again" if by_people else "they were started again, and it did not help"
        context.say(
            f"{told}. Either the consumers cannot handle the message there, or they handle it and "
            f"their commit is lost: {again}. Their logs tell which: "
            f"{context.launcher.logs(context.fleet)}. "
            f"Past a message that they cannot handle: `backlogctl pause {number}`, then "
            f"`backlogctl pass {number} --partition {first} --offset {unread[first]}` keeps it, "
            f"then `backlogctl resume {number}`"
        )

    def _restart(self) -> None:
        context = self._context
        with suppress(GroupActive):  # somebody else's, who stays: the launcher's are ended
            end_consumers(context, context.tick)
        context.launch(count_wanted(context))


def count_wanted(context: ExpandContext) -> int:
    """How many consumers are to run on the temporary topic, with the cap."""
    wanted = context.plan.consumers
    cap = context.consumers.max_consumers
    return wanted if cap is None else min(wanted, cap)


# Ends the relays and reads the temporary topic to its end (protocol P4.8 and 9).

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


def end_consumers(context: ExpandContext, look: Callable[[], None] | None = None) -> None:
    """The recovery's consumers are gone, and its group says so too.

    Args:
        look: called while they are waited for; the context's own without one.

    Raises:
        GroupActive: somebody stays in it.
    """
    look = look or context.look
    context.launcher.stop(context.fleet, look)
    await_empty(
        make_admin(context.properties),
        context.recovery_group,
        look,
        within=context.consumers.stop_within.total_seconds(),
    )


def _end_relays(context: ExpandContext) -> dict[str, Any]:
    """Nobody relays any more, and nothing is unread; what was relayed."""
    context.session.stop_relays()  # 1. between two transactions
    context.tell_throttling(is_last=True)
    reach("p4.8.relays.stopped")
    # 2. One that was forgotten can commit no more, and its offsets are decided.
    context.fence_relays(ends=True)
    reach("p4.9.fenced")
    # 3. Waits while an offset commit is undecided.
    relayed = {} if context.is_complete("cut_over") else _read_relayed(context)
    was_drained = context.is_complete("cut_over")
    if not (was_drained or context.cancelling) or context.has_copy():
        context.await_decided()
        if context.cancelling and not was_drained:
            with suppress(PlanStale):  # that is what is put on record
                context.check_kept()
            if lost := context.kept_copy.count_lost():
                _note_lost(context, CUT, lost)
        _drain_rest(context)  # 4. by reading: lag is no test
        if context.has_source():
            context.record(DRAINED, positions=_list_positions(context))
    elif not was_drained:
        _note_lost(context, COPY_GONE)  # somebody deleted it: cancel restores the rest
    reach("p4.9.drained")
    return relayed


def _list_positions(context: ExpandContext) -> dict[str, int]:
    return {str(number): at.offset for number, at in context.read_positions().items()}


def _note_lost(context: ExpandContext, why: str, at_most: int | None = None) -> None:
    """What somebody deleted of the copy, and nobody is known to have handled, is a gap."""
    if not context.has_source():
        context.say(why)
        return
    positions = {number: at.offset for number, at in context.read_positions().items()}
    note_lost_copy(context, positions, why, at_most)


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
    """Waits until nothing is unread, and it was its consumers who read it."""
    _await_read(context)
    while context.settle_copy():
        _await_read(context)


def _await_read(context: ExpandContext) -> None:
    """Waits until nothing is unread; starts the recovery's consumers where they do not run."""
    if not context.find_unread():
        return
    if context.leaves_consumers:
        many = format_plural(context.read_temporary_lag(), "message")
        told = f"at most {many} in it are not handled, and nobody is started to handle them"
        yourself = "start consumers on it yourself, and cancel again when they are through"
        subject = f"topic {context.temporary_topic}"
        if not context.has_all_relayed():
            raise Refused(told, subject=subject, hint=yourself)
        hint = f"set back, the group reads them again; or {yourself}"
        raise UnreadLeft(told, subject=subject, hint=hint)
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


# The retention is given back (protocol P4.9).

# Beyond twice the time that the original consumers need for what is left.
_SLACK = timedelta(hours=1)
_UNKNOWN = timedelta(hours=24)
# However slow they are said to be: nobody looks at a hold of months, and the disks fill.
LONGEST_HOLD = timedelta(days=7)


def give_retention_back(context: ExpandContext) -> None:
    """Gives back what this recovery holds, also after a crash; nothing where it holds nothing.

    Where much is unread in the source still (a cancel cuts over at once), giving it back would
    delete just that: then it stays raised for as long as the original consumers need.
    """
    ledger = context.workspace.ledger
    for hold in ledger.holds.list(open_only=True, stream=context.stream.name):
        if hold.holder == context.recovery.id:
            _keep_while_behind(context, hold)
            for warning in restore_retention(ledger, context.admin, hold):
                context.say(warning)


def _keep_while_behind(context: ExpandContext, hold: Hold) -> None:
    left = context.read_source_lag() if context.has_source() else 0
    if left <= context.plan.max_lag_at_cutover:
        return
    wanted = _estimate(context, left)
    until = utc_now() + min(wanted, LONGEST_HOLD)
    raise_retention(
        context.workspace.ledger,
        context.admin,
        stream=hold.stream,
        cluster=hold.cluster,
        topic=hold.topic,
        topic_id=hold.topic_id,
        holder=OPERATOR,
        settings=hold.raised,
        until=until,
        actor=str(find_identity()),
    )
    context.say(
        f"{format_plural(left, 'message')} of {hold.topic} are unread still, so its retention "
        f"stays raised until {format_time(until)}; `backlogctl hold {hold.stream} --release` gives "
        "it back before"
        + (
            f". At the plan's rate that takes {format_duration(wanted.total_seconds())}: "
            f"`backlogctl hold {hold.stream} --for` keeps it for longer"
            if wanted > LONGEST_HOLD
            else ""
        )
    )


def _estimate(context: ExpandContext, left: int) -> timedelta:
    plan = context.plan
    readers = min(plan.replicas, context.partitions)
    # What the group was seen to read, where that is more than what was said of a consumer.
    rate = max(readers * plan.rate_per_consumer, plan.consumed_per_second or 0.0)
    net = rate - (plan.produced_per_second or 0.0)
    return timedelta(seconds=2 * left / net) + _SLACK if net > 0 else _UNKNOWN


# Step 7: the relay ends, and the temporary topic is read to its end (protocol P4.8).


class CutOver(Step[ExpandContext]):
    """What was relayed exists only in the temporary topic, until it is handled."""

    name = "cut_over"

    def start(self, context: ExpandContext) -> None:
        """Stops the relays, waits until nothing is unread, stops the recovery's consumers."""
        context.details[self.name] = close_relays(context)


# Step 8: the layout is as it was, in an order that holds after any crash (protocol P4.9).

STARTING = "the group's own consumers are started"


class Restore(Step[ExpandContext]):
    """The original consumers come back only when nothing is left in the temporary topic."""

    name = "restore"

    def start(self, context: ExpandContext) -> None:
        """P4.9. The order of these lines is what keeps keys from overtaking."""
        context.closing = True
        close_relays(context)  # 1. to 3. fenced, offsets stable, nothing unread; its consumers end
        context.note_sample()
        context.session.leave()  # 4. the guard leaves cleanly
        reach("p4.9.guard.left")
        if context.was_started("stop_consumers"):
            _prepare_group(context)
        with restoring_retention(context):  # 6. also where 5. fails
            if context.was_started("stop_consumers"):
                context.start_originals()  # 5. only then
            reach("p4.9.originals.started")
        reach("p4.9.retention.given_back")


def _prepare_group(context: ExpandContext) -> None:
    """Nobody is in the group now, and what was done to it since the last relay is told; not where
    an earlier run may have started the group's consumers, whose commits are in order. They begin
    where the recovery left them, not where they like."""
    events = context.workspace.ledger.events.list(context.recovery.id)
    if not context.has_source():
        context.record(STARTING)
        return
    with suppress(GroupActive):  # who is there has begun
        put_back_commits(context)
    if not any(event.action == STARTING for event in events):
        record_outsiders(context, lambda stable: context.read_positions(stable=stable), context.say)
    context.record(STARTING)
    with suppress(GroupActive):
        pass_overtaken(context)


@contextmanager
def restoring_retention(context: ExpandContext) -> Iterator[None]:
    """Gives the retention back, also where consumers do not start; then says what is left to do.

    Raises:
        BacklogError: consumers could not be started or ended.
    """
    with context.leftovers.noting(CONSUMERS_MISSING):
        yield
    give_retention_back(context)
    mine = {CONSUMERS_STAY: context.fleet, CONSUMERS_MISSING: context.originals}
    by_hand = "; ".join(
        f"group {fleet.group}: {context.launcher.describe(fleet)}"
        for what, fleet in mine.items()
        if what in context.leftovers
    )
    what = say_by_hand(context, by_hand)
    context.leftovers.refuse(f"the rest of the layout is as it was. {what}")


# Step 9: what was relayed is what was written and handled; the group moves (protocol P4.10).


class Verify(Step[ExpandContext]):
    """Counts the temporary topic by reading it, and watches the original group."""

    name = "verify"

    def start(self, context: ExpandContext) -> None:
        """Reads, compares, watches.

        Raises:
            VerificationFailed: says what differs; the temporary topic is kept.
            PlanStale: somebody deleted it.
        """
        found: dict[str, Any] = {"relayed": 0, "written": 0}
        if not context.cancelling:
            context.check_copy()
        if context.has_copy():
            found = _compare(context)
        has_consumers = context.was_started("stop_consumers") and not context.leaves_consumers
        if has_consumers and context.has_source():
            await_movement(context)
        context.details[self.name] = found
        context.found["verified"] = found
        passed = len(list_passed(context.workspace.ledger.events.list(context.recovery.id)))
        context.found["counts"] = {
            "relayed": found["relayed"],
            "handled": found["written"] - passed,
            **({"passed": passed} if passed else {}),
            "drained_per_second": _measure_drain(context),
        }
        refuse_moved(context, context.copy_group)


def _compare(context: ExpandContext) -> dict[str, Any]:
    topic = context.temporary_topic
    step = context.workspace.ledger.steps.get(context.recovery.id, "cut_over")
    detail: Mapping[str, Any] = {} if step is None else step.detail
    relayed = {int(n): int(count) for n, count in detail.get("relayed", {}).items()}
    placed = detail.get("placed")
    numbers, group = range(context.temporary_partitions), context.recovery_group
    found = context.ask(
        lambda: read_standing(context.admin, group, topic, numbers, Deadline(ASK_SECONDS))
    )
    if find_deleted(context.admin, topic, context.temporary_partitions):
        raise _fail(topic, f"{CUT}: how many messages were written can no longer be counted")
    written = count_records(context.properties, topic, found.ends, context.look)
    total = sum(relayed.values())
    events = context.workspace.ledger.events.list(context.recovery.id)
    if any(event.action == SOURCE_GONE for event in events):
        # The counters went with the source: only the temporary topic can be counted.
        total, placed = sum(written.values()), None
    if total != sum(written.values()):
        raise _fail(topic, f"{total} messages were relayed, and {sum(written.values())} are there")
    if placed is not None:
        wanted = {int(n): int(count) for n, count in placed.items()}
        wrong = {n: (wanted.get(n, 0), at) for n, at in written.items() if wanted.get(n, 0) != at}
        if wrong:
            told = ", ".join(f"{n}: {a} relayed, {b} there" for n, (a, b) in sorted(wrong.items()))
            raise _fail(topic, f"partitions differ ({told})")
    unread = context.find_unread()
    if unread or not context.is_drained():
        raise _fail(topic, f"messages are unread in partitions {sorted(unread)}")
    return {
        "relayed": total,
        "written": sum(written.values()),
        "partitions": {str(number): count for number, count in sorted(relayed.items())},
        "temporary_partitions": {str(n): count for n, count in sorted(written.items())},
    }


def _measure_drain(context: ExpandContext) -> float | None:
    """Messages a second over the drain, from the samples."""
    samples = [
        sample
        for sample in context.workspace.ledger.burndown.list(context.recovery.id)
        if sample.step in ("drain", "cut_over")
    ]
    step = context.workspace.ledger.steps.get(context.recovery.id, "drain")
    if len(samples) < 2 or step is None or step.attempts > 1:
        return None  # with pauses in between it would say nothing
    done = next((s for s in samples if not s.source_lag + s.temporary_lag), samples[-1])
    seconds = (done.at - samples[0].at).total_seconds()
    handled = done.handled - samples[0].handled
    return round(handled / seconds, 1) if seconds > 0 < handled else None


def _fail(topic: str, why: str) -> VerificationFailed:
    return VerificationFailed(
        why,
        subject=f"topic {topic}",
        hint="the temporary topic is kept, also by a cancel; compare it with the source before you "
        "delete it",
    )


# Step 10: the temporary topic is deleted, when nothing in it is unread (protocol P4.9).


class RemoveTopic(Step[ExpandContext]):
    """Deletes it by name and id."""

    name = "remove_topic"

    def start(self, context: ExpandContext) -> None:
        """Deletes the topic; one that is gone is fine."""
        reach("p4.10.verified")
        remove_temporary_topic(context)
        reach("p4.9.deleted")

    def complete(self, context: ExpandContext) -> None:
        """The ledger says that it is gone.

        Raises:
            Refused: it is not.
        """
        known = context.temporary
        if known is not None and known.deleted_at is None:
            raise Refused("it is still there", subject=f"topic {known.name}")


def remove_temporary_topic(context: ExpandContext, *, is_needed: bool = True) -> None:
    """Deletes this recovery's temporary topic, if there is one and nothing in it is unread.

    Args:
        is_needed: False where the original group reads all of it again: then it may be unread.
    """
    if context.temporary is None:
        return
    delete_temporary_topic(
        context.workspace.ledger,
        context.admin,
        recovery_id=context.recovery.id,
        cluster=context.recovery.cluster,
        source=_describe_source(context),
        deny_topics=context.workspace.config.guards.deny_topics,
        is_drained=context.is_drained if is_needed else lambda: True,
    )
    context.copy_group.delete(context.say)


def _describe_source(context: ExpandContext) -> TopicInfo:
    """The source may be gone; then the plan has its id."""
    topic = context.recovery.topic
    try:
        return describe_topic(context.admin, topic, Deadline(30.0))
    except TopicMissing:
        return TopicInfo(topic, context.plan.topic_id, context.partitions, {})
