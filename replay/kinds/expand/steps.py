"""The steps of an expansion, in their order, and what `cancel` does (protocol P4)."""

from __future__ import annotations

import time
from dataclasses import asdict

from backlogctl.clock import Deadline
from backlogctl.errors import (
    BacklogError,
    KafkaFailure,
    PlanStale,
    Refused,
    RewindRefused,
    UsageError,
    VerificationFailed,
)
from backlogctl.fanout.kept_record import fetch_record, keep_record
from backlogctl.fanout.launchers.process import ramp_up
from backlogctl.fanout.quiet import await_empty
from backlogctl.fanout.retention import raise_retention, require_raising
from backlogctl.fanout.temporary_topic import (
    create_temporary_topic,
    start_recovery_group,
)
from backlogctl.formats import format_duration, format_plural, format_rate
from backlogctl.kafka.admin import (
    committed_offsets,
    delete_group,
    describe_topic,
    read_topic_id,
    set_group_offsets,
)
from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.errors import TopicMissing
from backlogctl.monitoring.offsets.lag import count_lag
from backlogctl.replay.consumers.copy_group import (
    GONE,
    GROUP_SECONDS,
    KEPT,
    LEFT,
    PASSED_FOLDER,
    REWOUND,
)
from backlogctl.replay.consumers.fleet import find_begin
from backlogctl.replay.consumers.stopped_group import (
    pass_overtaken,
    put_back_commits,
)
from backlogctl.replay.engine.plan import REWIND, find_identity
from backlogctl.replay.kinds.expand.canary import CanaryLook, CanaryStep, find_first
from backlogctl.replay.kinds.expand.closing import (
    CutOver,
    RemoveTopic,
    Restore,
    StallWatch,
    Verify,
    count_wanted,
    end_consumers,
    remove_temporary_topic,
    restoring_retention,
)
from backlogctl.replay.kinds.expand.context import (
    LAGS_SECONDS,
    ExpandContext,
)
from backlogctl.replay.kinds.expand.plan import ALLOW_DISK, NAME, ExpandPlan
from backlogctl.replay.kinds.expand.planning import (
    FINGERPRINT,
    compute_expansion,
    inspect_backlog,
)
from backlogctl.replay.observe.snapshot import Draft, take_snapshot
from backlogctl.values import Step
from backlogctl_delivery.crashpoints import reach


def require_fitting(context: ExpandContext) -> None:
    """Between plan and run the backlog grows, disks fill, and retention comes nearer.

    Raises:
        Refused: the copy no longer fits on the disks, or the cluster would not raise the retention.
        PlanStale: nothing is behind any more, or retention would win, and is not raised by plan.
    """
    recovery, plan = context.recovery, context.plan
    again = "cancel it, then plan again"
    planned = {"rate": plan.rate_per_consumer, "factor": plan.factor, "order": plan.order}
    options = plan.options.model_copy(update=planned)
    draft = Draft(context.workspace, context.stream, recovery.id)
    snapshot = take_snapshot(draft)
    if all(count_lag(one, draft.stream.isolation) == 0 for one in snapshot.sample.partitions):
        subject = f"group {recovery.group} on topic {recovery.topic}"
        raise PlanStale("nothing is behind any more", subject=subject, hint="cancel it")
    now = compute_expansion(draft, inspect_backlog(draft, snapshot, options.start), options)
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
    require_raising(draft.properties, recovery.topic, plan.hold.settings)


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
        context.require_planned(FINGERPRINT)
        if context.temporary is None:
            _refuse_existing(context)
        if not context.was_started("stop_consumers"):
            require_fitting(context)
        context.check_copy()
        if not context.is_complete("cut_over"):
            context.check_kept()

    def start(self, context: ExpandContext) -> None:
        """What earlier expansions could not delete is deleted."""
        delete_left_groups(context)


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
            delete_group(context.admin, group, Deadline(GROUP_SECONDS))
        except BacklogError as error:
            context.say(f"group {group} of {earlier.id} is still there: {error.message}")
            continue
        ledger.events.append(earlier.id, str(find_identity()), GONE, {"group": group})


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


class HoldRetention(Step[ExpandContext]):
    """Raises the topic's retention where the plan says so; the old values are in the ledger."""

    name = "hold_retention"

    def start(self, context: ExpandContext) -> None:
        """Raises it. Called again it changes nothing more."""
        settings = context.plan.hold.settings
        if not context.plan.hold.needed or not settings:
            return
        raise_retention(
            context.workspace.ledger,
            context.admin,
            stream=context.stream.name,
            cluster=context.recovery.cluster,
            topic=context.recovery.topic,
            topic_id=context.plan.topic_id,
            holder=context.recovery.id,
            settings=settings,
            until=None,
            actor=str(find_identity()),
        )
        reach("p4.2.raised")


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
        put_back_commits(context)
        noted = context.find_stopped_at()
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
        context.brake_on()
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
        context.room = None  # little is left, and who ends them starts none again
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


# Ends an expansion before its time: cuts over now and restores the layout, or sets the group back,
# where no consumer works. While the source still has the messages, nothing that is only in the
# temporary topic is needed.


def can_rewind(context: ExpandContext) -> bool:
    """Whether something was relayed, and the group can read all of it again."""
    if not context.was_started("canary") or context.is_complete("restore"):
        return False
    return context.has_copy() and context.has_all_relayed()


def rewind(context: ExpandContext, *, unless_handled: bool = False) -> bool:
    """P4. The order of these lines is what loses nothing, also when it is killed and called again.

    Args:
        unless_handled: nothing is changed where the recovery's consumers have handled something.

    Returns:
        Whether the group was set back.

    Raises:
        RewindRefused: nothing was relayed, the layout is restored, or the source has not all of
            it.
        GroupActive: somebody is in the original group.
    """
    if not is_rewound(context):
        _require_possible(context)
        context.session.close()  # the guard leaves cleanly
        # 1. No relay can commit any more; the copy is thrown away.
        context.fence_relays(ends=False)
        reach("p4.rewind.fenced")
        end_consumers(context)  # 2. what they handle from now on would be handled twice
        again = context.read_handled() if context.has_copy() else None
        if again and unless_handled:
            return False
        told = _describe(context, again)
        _set_back(context)  # 3. read back: from here on the temporary topic is not needed
        reach("p4.rewind.set")
        context.record(REWOUND, handled_again=again)
        context.say(told)
    context.begin("restore")
    with restoring_retention(context):  # 5. while much is unread it stays raised
        context.start_originals()  # 4.
        reach("p4.rewind.started")
    context.end("restore")
    remove_temporary_topic(context, is_needed=False)  # 6. last
    return True


def is_rewound(context: ExpandContext) -> bool:
    """By an earlier run: from then on the group is its own consumers'."""
    events = context.workspace.ledger.events.list(context.recovery.id)
    return any(event.action == REWOUND for event in events)


def _require_possible(context: ExpandContext) -> None:
    subject = f"recovery {context.recovery.id}"
    if not context.was_started("canary"):
        raise RewindRefused(
            "nothing was relayed yet, so there is nothing to set back",
            subject=subject,
            hint="cancelled without it, the layout is restored",
        )
    if context.is_complete("restore"):
        raise RewindRefused(
            "the layout is restored already, and the group's own consumers read on",
            subject=subject,
            hint="cancelled without it, it is closed",
        )
    context.check_topic()
    if expired := context.find_expired():
        places = ", ".join(f"{n}: {count:,}" for n, count in sorted(expired.items()))
        kept = "the temporary topic, which had them, is gone"
        if context.has_copy():
            left = format_plural(context.read_temporary_lag(), "message")
            kept = f"at most {left} are only in {context.temporary_topic}, which is kept"
        raise RewindRefused(
            f"retention has removed messages that were relayed from the source (partition: "
            f"offsets {places}): {kept}",
            subject=f"topic {context.recovery.topic}",
            hint="mend the consumers: cancelled without it, the temporary topic is read to its end",
        )


def _set_back(context: ExpandContext) -> None:
    group, topic, begun = context.recovery.group, context.recovery.topic, context.begun
    within = context.consumers.stop_within.total_seconds()
    await_empty(make_admin(context.properties), group, context.look, within=within)
    set_group_offsets(context.admin, group, topic, begun, Deadline(30.0))
    found = committed_offsets(
        context.admin, group, topic, begun, Deadline(30.0), require_stable=True
    )
    if found != begun:
        raise KafkaFailure(
            f"the group's offsets are {found} after they were set to {begun}",
            subject=f"group {group} on topic {topic}",
            hint="somebody else commits: stop it, then do it again",
            retryable=True,
        )
    pass_overtaken(context)


def _describe(context: ExpandContext, again: int | None) -> str:
    relayed = sum(
        position.counters(context.recovery.id).relayed
        for position in context.read_positions().values()
    )
    told = (
        f"group {context.recovery.group} is where its consumers were stopped, and reads "
        f"{format_plural(relayed, 'message')} that were relayed itself"
    )
    if again is None:
        return f"{told}; how many of them the recovery's consumers had handled is not known"
    if not again:
        return f"{told}; none of them was handled"
    return f"{told}; at most {again:,} of them were handled, and are handled once more"


# Cancels an expansion: cuts over now, and restores the layout (protocol P4.8 to 10); or sets the
# group back, where that is asked for, or nothing was handled yet.


def close_expansion(context: ExpandContext) -> None:
    """By the way that was asked for last; by itself the one that leaves nobody waiting.

    Requests are no longer looked at; Ctrl-C is: cancelling again goes on.
    """
    context.closing = context.cancelling = True
    if REWIND in context.cancel_ways or is_rewound(context):
        rewind(context)
    elif not (can_rewind(context) and not context.read_handled()) or not rewind(
        context, unless_handled=True
    ):
        close_layout(context)


def close_layout(context: ExpandContext) -> None:
    """The closing steps; what is done already is not done again.

    Never a deletion of unread messages.
    """
    context.closing = context.cancelling = True
    for step in CLOSING:
        if context.is_complete(step.name):
            continue
        context.begin(step.name)
        try:
            step.start(context)
        except VerificationFailed as failed:
            # The layout is restored: a cancel ends here, and keeps the topic that differs.
            context.say(f"{failed.message}; {failed.hint}")
            context.record("cancelled without verification", **failed.to_json())
            return
        context.lease.confirm()
        step.complete(context)
        context.end(step.name)


# Goes past a message that the consumers cannot handle: it is kept, byte for byte.

_READ_SECONDS = 30.0


def pass_over(context: ExpandContext, partition: int, offset: int) -> bool:
    """Keeps the next unread message of a temporary partition, and moves the group past it.

    Killed anywhere, the same again goes on: what is on record as kept counts only once it is
    passed.

    Returns:
        False where it was passed before.

    Raises:
        UsageError: there is no such partition.
        Refused: it is not the next unread message.
        GroupActive: the recovery's consumers do not end.
    """
    topic, group = context.temporary_topic, context.recovery_group
    if not context.has_temporary or context.is_complete("cut_over"):
        raise Refused(
            "nothing is unread in its temporary topic", subject=f"recovery {context.recovery.id}"
        )
    if not 0 <= partition < context.temporary_partitions:
        last = context.temporary_partitions - 1
        raise UsageError(f"partitions are 0 to {last}", subject=f"topic {topic}")
    context.check_copy()
    context.launcher.stop(context.fleet, context.look)  # 1. whoever reads would be overtaken
    within = context.consumers.stop_within.total_seconds()
    await_empty(context.admin, group, context.look, within=within)
    context.settle_copy()  # 2. what somebody else set, or a `pass` that was killed
    if (partition, offset) in context.copy_group.list_passed():
        return False
    first = context.find_unread().get(partition)
    if first != offset:
        there = "nothing is unread" if first is None else f"the next unread message is at {first}"
        raise Refused(
            f"{there} in partition {partition}, and only the next one can be passed",
            subject=f"topic {topic}, partition {partition}, offset {offset}",
            hint="nothing was moved; what lies between would be skipped, or was handled",
        )
    record = fetch_record(context.properties, topic, partition, offset, Deadline(_READ_SECONDS))
    directory = context.workspace.staging_of(context.recovery.id) / PASSED_FOLDER
    file = keep_record(record, directory)  # 3. on the disk
    place = {"partition": partition, "offset": offset, "timestamp": record.timestamp}
    context.record(KEPT, **place, file=asdict(file))
    reach("p4.pass.kept")
    context.lease.confirm()
    set_group_offsets(context.admin, group, topic, {partition: offset + 1}, Deadline(30.0))  # 4.
    reach("p4.pass.moved")
    context.copy_group.settle(context.say)  # 5. on record
    return True
