"""Whether an approved expansion still fits, looked at again before anything is stopped (P4.1)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from backlogctl.clock import Deadline, format_time, utc_now
from backlogctl.errors import PlanStale, Refused, VerificationFailed
from backlogctl.fanout.launchers.process import ramp_up
from backlogctl.fanout.retention import raise_retention, restore_retention
from backlogctl.fanout.temporary_topic import (
    create_temporary_topic,
    delete_temporary_topic,
    start_recovery_group,
)
from backlogctl.fanout.unread import count_records
from backlogctl.formats import format_duration, format_plural, format_rate
from backlogctl.kafka.admin import (
    TopicInfo,
    committed_offsets,
    describe_topic,
    read_topic_id,
    set_group_offsets,
)
from backlogctl.kafka.errors import TopicMissing
from backlogctl.kafka.groups import read_standing
from backlogctl.ledger import OPERATOR, Hold
from backlogctl.replay.consumers.fleet import (
    CONSUMERS_MISSING,
    CONSUMERS_STAY,
    await_movement,
    find_begin,
)
from backlogctl.replay.engine.approval import check_runnable
from backlogctl.replay.engine.guards import check_configuration, check_denied
from backlogctl.replay.engine.plan import find_identity
from backlogctl.replay.kinds.expand.canary import CanaryLook, CanaryStep, find_first
from backlogctl.replay.kinds.expand.context import (
    LAGS_SECONDS,
    SOURCE_GONE,
    ExpandContext,
    StallWatch,
    close_relays,
    count_wanted,
    delete_left_groups,
    delete_recovery_group,
)
from backlogctl.replay.kinds.expand.plan import ALLOW_DISK, ExpandPlan
from backlogctl.replay.kinds.expand.planning import (
    compute_expansion,
    fingerprint_for,
    inspect_backlog,
)
from backlogctl.replay.kinds.expand.topics import ASK_SECONDS, SKIPPED, list_moved, record_outsiders
from backlogctl.replay.observe.rights import require_rights
from backlogctl.replay.observe.snapshot import Draft, take_snapshot
from backlogctl.values import Step
from backlogctl_delivery.crashpoints import reach


def require_fitting(context: ExpandContext) -> None:
    """Between plan and run the backlog grows, disks fill, and retention comes nearer.

    Raises:
        Refused: nothing is behind any more, or the copy no longer fits on the disks.
        PlanStale: retention would win now, and the plan does not raise it.
    """
    recovery, plan = context.recovery, context.plan
    again = f"`backlogctl cancel {recovery.id}`, then `backlogctl plan expand {recovery.stream}`"
    planned = {"rate": plan.rate_per_consumer, "factor": plan.factor, "order": plan.order}
    options = plan.options.model_copy(update=planned)
    draft = Draft(context.workspace, context.stream, recovery.id)
    backlog = inspect_backlog(draft, take_snapshot(draft), options.start)
    now = compute_expansion(draft, backlog, options)
    if now.disk.enough is False and ALLOW_DISK not in plan.allowed:
        raise Refused(
            f"the copy does not fit any more: {now.disk.told}",
            subject=f"topic {recovery.topic}",
            hint=f"make room on the brokers' disks; or {again} with `--allow disk`",
        )
    if now.hold.needed and not plan.hold.needed:
        raise PlanStale(
            explain_missing_hold(now),
            subject=f"topic {recovery.topic}",
            hint=again,
        )


def explain_missing_hold(now: ExpandPlan) -> str:
    """Why retention has to be raised by what is seen now; the approved plan does not raise it."""
    consumers = format_plural(now.consumers, "consumer")
    loss, drain = now.seconds_to_loss, now.seconds_to_drain_expanded
    if drain is None:
        handled = format_rate(now.consumers * now.rate_per_consumer)
        why = f"{format_rate(now.produced_per_second or 0.0)} are written by now, faster than "
        why += f"{consumers} of the plan handle ({handled}): when it is drained is not known"
    elif loss is None:
        why = "when retention reaches the backlog is not known any more"
    else:
        why = f"retention reaches the backlog in {format_duration(loss)} by now, and {consumers} "
        why += f"drain it in {format_duration(drain)}: that is too close"
    return f"{why}; the approved plan does not raise the retention, a new one does"


# Step 1: topic, configuration and temporary topic are those of the plan (protocol P4.1).


class CheckSource(Step[ExpandContext]):
    """Looks at everything the plan was made on."""

    name = "check_source"

    def validate(self, context: ExpandContext) -> None:
        """Faults 15, 16, 60; the configuration; the temporary topic's name is free, or ours.

        Raises:
            PlanStale: something is no longer what the plan was made on.
            Refused: a guard says no.
        """
        check_runnable(context.workspace, context.recovery)
        check_denied(context.workspace, context.stream)
        check_configuration(
            context.plan,
            fingerprint_for(context.plan.configuration, context.workspace.config, context.stream),
            f"put it back, or `backlogctl cancel {context.recovery.id}` and plan again",
        )
        context.check_topic()
        workspace, recovery = context.workspace, context.recovery
        rights = workspace.kind_of(recovery).list_rights(
            *(workspace.config, context.stream, recovery.id, context.plan)
        )
        require_rights(workspace, context.stream, rights)
        if context.temporary is None:
            _refuse_existing(context)
        if not context.was_started("stop_consumers"):
            require_fitting(context)
        context.check_copy()

    def start(self, context: ExpandContext) -> None:
        """What earlier expansions could not delete is deleted."""
        delete_left_groups(context)


def _refuse_existing(context: ExpandContext) -> None:
    name = context.temporary_topic
    try:
        read_topic_id(context.admin, name, Deadline(30.0))
    except TopicMissing:
        return
    raise Refused(
        "a topic of this name is there already, and this recovery did not make it",
        subject=f"topic {name}",
        hint="look who did; nothing was changed",
    )


# Step 2: the retention is raised, so that it does not win the race (protocol P4.2).

# Beyond twice the time that the original consumers need for what is left.
_SLACK = timedelta(hours=1)
_UNKNOWN = timedelta(hours=24)


class HoldRetention(Step[ExpandContext]):
    """Raises the topic's retention where the plan says so; the old values are in the ledger."""

    name = "hold_retention"

    def start(self, context: ExpandContext) -> None:
        """Raises it. Called again it changes nothing more."""
        changes = context.plan.hold.changes
        if not context.plan.hold.needed or not changes:
            return
        raise_retention(
            context.workspace.ledger,
            context.admin,
            stream=context.stream.name,
            cluster=context.recovery.cluster,
            topic=context.recovery.topic,
            topic_id=context.plan.topic_id,
            holder=context.recovery.id,
            settings={name: change.to for name, change in changes.items()},
            until=None,
            actor=str(find_identity()),
        )
        reach("p4.2.raised")


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
    until = utc_now() + _estimate(context, left)
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
    )


def _estimate(context: ExpandContext, left: int) -> timedelta:
    plan = context.plan
    readers = min(plan.replicas, context.partitions)
    net = readers * plan.rate_per_consumer - (plan.produced_per_second or 0.0)
    return timedelta(seconds=2 * left / net) + _SLACK if net > 0 else _UNKNOWN


# Step 3: the temporary topic, and its group at the beginning (protocol P4.4).


class CreateTopic(Step[ExpandContext]):
    """Creates it; only what the ledger knows by name and id is ever deleted."""

    name = "create_topic"

    def start(self, context: ExpandContext) -> None:
        """Announces, creates, records its id."""
        source = describe_topic(context.admin, context.recovery.topic, Deadline(30.0))
        create_temporary_topic(
            context.workspace.ledger,
            context.admin,
            recovery_id=context.recovery.id,
            cluster=context.recovery.cluster,
            source=source,
            partitions=context.temporary_partitions,
        )
        reach("p4.4.created")

    def complete(self, context: ExpandContext) -> None:
        """Every partition of the recovery's group is at 0, before any consumer starts."""
        start_recovery_group(
            context.admin,
            group=context.recovery_group,
            topic=context.temporary_topic,
            partitions=context.temporary_partitions,
        )
        known = context.temporary
        context.details[self.name] = {"topic_id": known.topic_id if known else None}


# Step 4: the stream's own consumers are stopped, really (protocol P4.3).


class StopConsumers(Step[ExpandContext]):
    """Stops them through the launcher, and waits until the group says so too."""

    name = "stop_consumers"

    def validate(self, context: ExpandContext) -> None:
        """The configuration says how they are stopped.

        Raises:
            UsageError: it no longer does.
        """
        _ = context.launcher

    def start(self, context: ExpandContext) -> None:
        """Stops them; the group is empty and its commits have not moved for a while.

        Raises:
            GroupActive: it did not get empty; names its members.
            GroupStillCommits: somebody commits without being a member.
            CanaryFailed: the recovery's first consumer does not do as it should.
        """
        context.stop_originals(context.starts)
        reach("p4.3.stopped")
        # While there is nothing to do but wait: the canary's relays and its consumer get ready. It
        # finds an empty topic.
        context.session.make_ready(context.partitions)
        look = CanaryLook(find_first(context))
        with look.judging():
            context.launch(1)
            context.await_quiet(look.look)

    def complete(self, context: ExpandContext) -> None:
        """Every partition has a committed offset: the plan's start where there was none."""
        group, topic = context.recovery.group, context.recovery.topic
        numbers = range(context.partitions)
        commits = committed_offsets(context.admin, group, topic, numbers, Deadline(30.0))
        noted = context.find_stopped_at()
        missing = {number: noted[number] for number, at in commits.items() if at is None}
        if missing:
            set_group_offsets(context.admin, group, topic, missing, Deadline(30.0))
        begun = {n: find_begin(noted[n], commit) for n, commit in context.read_commits().items()}
        context.details[self.name] = {"committed": {str(n): at for n, at in begun.items()}}


# Step 6: everything is relayed, and all consumers work (protocol P4.5 to 7).

CUT_OVER_SECONDS = 2.0
READ_EACH_SECONDS = 2.0
_POLL_SECONDS = 0.1


class Drain(Step[ExpandContext]):
    """Relays until little is left in both topics, with all consumers at work."""

    name = "drain"

    def start(self, context: ExpandContext) -> None:
        """Goes on where the group's commits say.

        Raises:
            ConsumerCameBack: somebody is in the group; the relay has stopped.
        """
        context.join()  # 5. the guard
        reach("p4.5.guard.joined")
        context.note_counters()
        context.session.start(context.make_ranges)  # 6. the relays
        reach("p4.6.relays.started")
        context.launch(max(1, context.launcher.count_running(context.fleet) or 0))
        ramp_up(  # 7. the consumers
            context.launcher,
            context.fleet,
            count_wanted(context),
            context.consumers.ramp,
            context.tick,
            lambda _: None,
            max_consumers=context.consumers.max_consumers,
        )
        reach("p4.7.consumers.started")
        stall, rest = StallWatch(context), _Rest(context)
        while not rest.is_little():
            context.tick()
            stall.look()
            time.sleep(_POLL_SECONDS)

    def complete(self, context: ExpandContext) -> None:
        """The source is still the planned one; the relays go on until the cut over."""
        context.check_topic()


class _Rest:
    """What is left in both topics.

    From the cut over on nobody reads the source until the temporary topic is read to its end, so
    that must not take long: what is left there is at most what the consumers read in 2 s.
    """

    def __init__(self, context: ExpandContext) -> None:
        plan = context.plan
        self._context = context
        self._threshold = plan.max_lag_at_cutover
        at_once = plan.consumers * plan.rate_per_consumer * CUT_OVER_SECONDS
        self._temporary = float(max(self._threshold, at_once))
        self._read_at = time.monotonic() + READ_EACH_SECONDS

    def is_little(self) -> bool:
        """Whether it is time to cut over."""
        try:
            lags = self._context.ask(lambda: self._context.read_lags(LAGS_SECONDS))
        except TopicMissing:
            return False  # the next look at the topics says which
        if lags.source_total > self._threshold:
            return False
        if lags.temporary_total <= self._temporary:
            return True
        # Aborted records of an earlier relay stay in the lag: only a read shows what is unread.
        if time.monotonic() < self._read_at:
            return False
        unread = self._context.find_unread() | self._context.find_undecided()
        self._read_at = time.monotonic() + READ_EACH_SECONDS
        return sum(lags.temporary[number] for number in unread) <= self._temporary


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
            _note_outsiders_once(context)
        with restoring_retention(context):  # 6. also where 5. fails
            if context.was_started("stop_consumers"):
                context.start_originals()  # 5. only then
            reach("p4.9.originals.started")
        reach("p4.9.retention.given_back")


def _note_outsiders_once(context: ExpandContext) -> None:
    """Nobody is in the group now, and what was done to it since the last relay is told; not where
    an earlier run may have started the group's consumers, whose commits are in order."""
    events = context.workspace.ledger.events.list(context.recovery.id)
    if context.has_source() and not any(event.action == STARTING for event in events):
        record_outsiders(context, context.say)
    context.record(STARTING)


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
    context.leftovers.refuse(
        f"the rest of the layout is as it was. Do it by hand ({by_hand}), then `backlogctl cancel "
        f"{context.recovery.id} --leave-consumers` closes the recovery"
    )


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
        context.found["counts"] = {
            "relayed": found["relayed"],
            "handled": found["written"],
            "drained_per_second": _measure_drain(context),
        }
        _refuse_skipped(context)


def _refuse_skipped(context: ExpandContext) -> None:
    """What was never relayed nor handled is no success, though the layout is as it was."""
    skipped = [item for item in list_moved(context) if item.what == SKIPPED]
    if not skipped or context.cancelling:
        return
    many = format_plural(sum(item.end - item.start for item in skipped), "message")
    raise VerificationFailed(
        f"at most {many} were never handled: somebody set the group's offsets past them while the "
        "recovery was at work; they are a gap on record",
        subject=f"group {context.recovery.group} on topic {context.recovery.topic}",
        hint=f"all else is handled, and the layout is as it was: `backlogctl cancel "
        f"{context.recovery.id}` closes this recovery, then `backlogctl plan rebuild "
        f"{context.stream.name}`",
    )


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
    return round((done.handled - samples[0].handled) / seconds, 1) if seconds > 0 else None


def _fail(topic: str, why: str) -> VerificationFailed:
    return VerificationFailed(
        why,
        subject=f"topic {topic}",
        hint="the temporary topic is kept; compare it with the source before it is deleted",
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
    delete_recovery_group(context)


def _describe_source(context: ExpandContext) -> TopicInfo:
    """The source may be gone; then the plan has its id."""
    topic = context.recovery.topic
    try:
        return describe_topic(context.admin, topic, Deadline(30.0))
    except TopicMissing:
        return TopicInfo(topic, context.plan.topic_id, context.partitions, {})


# The steps of an expansion, in their order (protocol P4).

STEPS: tuple[Step[ExpandContext], ...] = (
    CheckSource(),
    HoldRetention(),
    CreateTopic(),  # what may not be created is noticed before anybody is stopped
    StopConsumers(),
    CanaryStep(),
    Drain(),
    CutOver(),
    Restore(),
    Verify(),
    RemoveTopic(),
)
# What `cancel` does from wherever a run is: cut over now, and restore.
CLOSING: tuple[Step[ExpandContext], ...] = (CutOver(), Restore(), Verify(), RemoveTopic())
