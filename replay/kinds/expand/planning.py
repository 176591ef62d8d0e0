"""Makes the plan of an emergency expansion; Kafka is only read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, Literal, cast

from backlogctl.clock import Deadline
from backlogctl.config import Config, Stream
from backlogctl.errors import Refused
from backlogctl.fanout.disk import (
    DiskCheck,
    PartitionBacklog,
    combine_checks,
    estimate_copy,
    estimate_hold,
    measure_growth,
)
from backlogctl.fanout.launchers import Role, make_launcher
from backlogctl.fanout.layout import Layout, Load, plan_layout
from backlogctl.fanout.retention import (
    FOREVER,
    HOLD_MARGIN_SECONDS,
    HOLD_TIMES,
    compute_expansion_hold,
    needs_hold,
)
from backlogctl.fanout.temporary_topic import (
    create_empty_topic,
    delete_empty_topic,
    name_temporary_topic,
)
from backlogctl.kafka.admin import (
    TopicInfo,
    delete_group,
    list_offsets,
    read_group_state,
    set_group_offsets,
)
from backlogctl.kafka.clients import make_admin
from backlogctl.replay.consumers.fleet import (
    fingerprint_with_consumers,
    fleet_of,
    freeze_consumers,
    keep_waits,
    launcher_of,
    require_consumers,
)
from backlogctl.replay.engine.guards import store_plan
from backlogctl.replay.engine.kind import Say, Workspace, ignore_progress
from backlogctl.replay.engine.plan import RunOrigin
from backlogctl.replay.kinds.expand.backlog import (
    Behind,
    StreamBacklog,
    find_rate,
    inspect_backlog,
    watch_pace,
)
from backlogctl.replay.kinds.expand.canary import CanaryFailed, CanaryLook, FirstConsumer
from backlogctl.replay.kinds.expand.describe import (
    Facts,
    describe_created,
    describe_given_back,
    describe_raised,
    describe_stopped,
    warn_about_backlog,
    warn_about_disk,
    warn_about_keys,
    warn_about_skew,
    warn_about_speed,
    warn_about_stream,
)
from backlogctl.replay.kinds.expand.plan import (
    ALLOW_DISK,
    NAME,
    ExpandOptions,
    ExpandPlan,
    PlannedCanary,
    PlannedDisk,
    PlannedHold,
    PlannedPartition,
    SettingChange,
    TemporaryLayout,
)
from backlogctl.replay.observe.snapshot import Draft, begin_plan, finish_plan, take_snapshot
from backlogctl.values import Recovery

# A dry run of one consumer, on an empty topic: whom it joins, and what it reads.
#
# Nobody is stopped, and no message is relayed. Topic and group have the same name each time, so
# what a try that was killed has left is taken over by the next one.

TRIAL_NAME = "try"
SEEN_SECONDS = 60.0  # a service may need that long until it joins
PEOPLE_SECONDS = 600.0
_STAYS_SECONDS = 2.0
_POLL_SECONDS = 0.2
_LEAVE_SECONDS = 15.0


def try_consumer(
    workspace: Workspace, stream: Stream, source: TopicInfo, group: str, say: Say
) -> tuple[str, str]:
    """Starts one consumer as the recovery would, looks at it, and takes everything away again.

    Args:
        source: the stream's topic. group: the one that the consumer is told to join.

    Returns:
        What was seen, and a warning: "" where it does as it should.

    Raises:
        CanaryFailed: it does not stay, or joins or reads something else.
        Refused: another try of this stream is under way, or the topic is not ours.
    """
    admin = make_admin(workspace.properties(stream))
    topic = name_temporary_topic(source.name, TRIAL_NAME)
    launcher = launcher_of(workspace, stream, say)
    fleet = fleet_of(workspace, stream, Role.RECOVERY, TRIAL_NAME, topic=topic, group=group)
    by_people = launcher.name == "manual"
    limit = Deadline(PEOPLE_SECONDS if by_people else SEEN_SECONDS)
    one = FirstConsumer(
        workspace.properties(stream),
        admin,
        launcher,
        fleet,
        stream.group,
        f"`backlogctl plan expand {stream.name} --try` again. Nobody was stopped",
        lambda: _refuse_late(limit, fleet.group) if by_people else None,
    )
    say(f"trying one consumer on the empty topic {topic}")
    # 1. What an earlier try left is ended.
    if not by_people:
        launcher.stop(fleet, one.look)
    _await_nobody(one)
    with ExitStack() as given_back:
        # 2. An empty topic; and the source, for this group, from its end: a consumer that reads
        #    the wrong topic handles next to nothing of it.
        topic_id = create_empty_topic(admin, source, topic, 1)
        given_back.callback(delete_empty_topic, admin, topic, topic_id, 1)
        given_back.callback(delete_group, admin, group)
        ends = list_offsets(admin, source.name, range(source.partitions), "latest")
        set_group_offsets(admin, group, source.name, ends)
        # 3. One consumer, while the group's own go on.
        given_back.callback(_await_nobody, one)
        given_back.callback(launcher.stop, fleet, lambda: None)
        known = frozenset(member.member_id for member in one.find_others())
        began = time.monotonic()
        launcher.scale(fleet, 1, one.look)
        # 4. What it does; then all is taken away, the last first.
        return _watch(one, known, limit, began)


def _watch(
    one: FirstConsumer, known: frozenset[str], limit: Deadline, began: float
) -> tuple[str, str]:
    """Until it reads its topic, and has done so for a while."""
    look = CanaryLook(one)
    stays: Deadline | None = None
    while not limit.expired:
        one.look()
        look.look()
        known = _judge(look, one, known)
        reads = one.find_topics() == {one.fleet.topic}
        stays = (stays or Deadline(_STAYS_SECONDS)) if reads else None
        if stays is not None and stays.expired:
            took = time.monotonic() - began - _STAYS_SECONDS
            return (
                f"one consumer joined group {one.fleet.group} and read {one.fleet.topic}, and "
                f"nothing else, within {took:.1f} s",
                "",
            )
        time.sleep(_POLL_SECONDS)
    told = f"one consumer ran for {limit.seconds:.0f} s, and was seen in no group"
    return told, (
        f"{told}: what it reads is not known. It may assign its partitions itself, or start slowly"
    )


def _judge(look: CanaryLook, one: FirstConsumer, known: frozenset[str]) -> frozenset[str]:
    """Who is in the original group for other reasons than this consumer.

    Raises:
        CanaryFailed: it is this consumer who joined it.
    """
    now = frozenset(member.member_id for member in one.find_others())
    if now <= known or one.launcher.name == "manual" or one.has_joined():
        return known
    failed = look.judge_members(known)
    if failed is not None:
        raise failed
    one.launcher.scale(one.fleet, 1, one.look)  # it was stopped to see who leaves
    return known | now


def _await_nobody(one: FirstConsumer) -> None:
    """Nobody is in the try's group; it is nobody else's.

    Raises:
        Refused: somebody stays in it.
    """
    limit = Deadline(_LEAVE_SECONDS)
    while read_group_state(one.admin, one.fleet.group).is_active:
        if limit.expired:
            raise Refused(
                "somebody is in it: another try is under way, or a consumer of one was not ended",
                subject=f"group {one.fleet.group}",
                hint="end it, then try again; nobody was stopped",
            )
        time.sleep(_POLL_SECONDS)


def _refuse_late(limit: Deadline, group: str) -> None:
    if limit.expired:
        raise CanaryFailed(
            f"nobody started a consumer within {limit.seconds / 60:.0f} min",
            subject=f"group {group}",
            hint="plan without `--try`, or start it when asked; nobody was stopped",
        )


# What of a stream's configuration an expansion goes by.
FINGERPRINT = ("cluster", "topic", "group", "isolation", "partitioner", "expand")
# What an hour adds is looked at where nobody knows how long the drain takes.
_LONG_SECONDS = 3600.0


def plan_expand(
    workspace: Workspace,
    stream: Stream,
    options: ExpandOptions,
    *,
    origin: RunOrigin | None = None,
    say: Say = ignore_progress,
) -> Recovery:
    """Plans an expansion: a value, stored and hashed before anything is changed.

    Args:
        say: hears what is being done, for people.

    Raises:
        UsageError: the stream has no consumers, or their speed is not known.
        Refused: nothing is behind, a guard says no, or another recovery is in the way.
    """
    require_consumers(stream)
    kind, config = workspace.kinds.get(NAME), workspace.config
    draft = begin_plan(
        *(workspace, stream, lambda recovery_id: kind.list_rights(config, stream, recovery_id)),
        origin=origin,
        say=say,
    )
    if options.rate is None:
        watch_pace(draft)
    backlog = inspect_backlog(draft, take_snapshot(draft), options.start)
    plan = compute_expansion(draft, backlog, options)
    if plan.disk.enough is False and ALLOW_DISK not in plan.allowed:
        raise Refused(
            f"the copy does not fit: {plan.disk.told}",
            subject=f"topic {stream.topic}",
            hint="make room on the brokers' disks; `--allow disk` plans in spite of it",
        )
    if options.try_one:
        group = name_recovery_group(stream.group, TRIAL_NAME)
        tried, warning = try_consumer(workspace, stream, backlog.topic, group, say)
        more = (*plan.warnings, warning) if warning else plan.warnings
        plan = plan.model_copy(update={"tried": tried, "warnings": more})
    return finish_plan(workspace, store_plan(workspace, draft.recovery_id, plan))


def name_recovery_group(group: str, recovery_id: str) -> str:
    """The group that reads the temporary topic."""
    return f"{group}.recovery.{recovery_id}"


def fingerprint_expansion(config: Config, stream: Stream) -> dict[str, Any]:
    """What of a stream's configuration an expansion goes by; names of variables, no values."""
    return fingerprint_with_consumers(config, stream, FINGERPRINT)


def fingerprint_for(planned: Mapping[str, Any], config: Config, stream: Stream) -> dict[str, Any]:
    """The same now, to hold against a plan's: how long is waited may change while it is open."""
    return keep_waits(planned, fingerprint_expansion(config, stream))


def compute_expansion(draft: Draft, backlog: StreamBacklog, options: ExpandOptions) -> ExpandPlan:
    """The plan, from what was seen: the same backlog makes the same numbers."""
    workspace, stream, config = draft.workspace, draft.stream, draft.workspace.config
    recovery_id = draft.recovery_id
    assert stream.consumers is not None
    factor = options.factor or stream.expand.factor
    order = cast("Literal['key', 'round_robin']", options.order or stream.expand.order)
    rate, rate_source = find_rate(backlog, stream, options.rate)
    produced = backlog.pace.produced_per_second
    loss = backlog.loss
    load = Load(
        lag={part.unread.partition: part.lag for part in backlog.partitions},
        rate_per_consumer=rate,
        produced_per_second=produced or 0.0,
        replicas=stream.consumers.replicas,
        max_consumers=stream.consumers.max_consumers,
        seconds_to_loss=loss.seconds,
        largest_share=backlog.skew.share if order == "key" else 0.0,
    )
    layout = plan_layout(load, factor)
    hold = _plan_hold(workspace, stream, backlog, layout)
    disk = _check_disk(backlog, layout, held=hold.needed)
    facts = Facts(
        stream=stream,
        layout=layout,
        temporary_topic=name_temporary_topic(stream.topic, recovery_id),
        recovery_group=name_recovery_group(stream.group, recovery_id),
        replication=backlog.topic.replication,
        members=tuple(str(member) for member in backlog.group.members),
        launching=_describe_launching(workspace, stream, recovery_id),
        changes=hold.changes,
    )
    warnings = [
        *backlog.snapshot.warnings,
        *warn_about_stream(workspace, stream),
        *warn_about_backlog(stream, backlog, options.start),
        *warn_about_speed(stream, backlog, layout, given=options.rate is not None),
        *warn_about_keys(stream, backlog, order),
        *warn_about_skew(backlog.skew, load, layout, order),
        *warn_about_disk(disk),
    ]
    return ExpandPlan(
        **draft.fill(backlog.snapshot, options, fingerprint_expansion(config, stream), warnings),
        partitions=tuple(_freeze_partition(part) for part in backlog.partitions),
        lag=backlog.lag,
        lost=backlog.lost,
        temporary=TemporaryLayout(
            topic=facts.temporary_topic,
            partitions=layout.partitions,
            replication=facts.replication,
        ),
        recovery_group=facts.recovery_group,
        order=order,
        partitioner=stream.partitioner,
        isolation=stream.isolation,
        factor=factor,
        replicas=stream.consumers.replicas,
        consumers=layout.consumers,
        rate_per_consumer=round(rate, 3),
        rate_source=rate_source,
        consumed_per_second=_round(backlog.pace.consumed, 3),
        produced_per_second=_round(produced, 3),
        seconds_to_drain_now=_round(layout.seconds_now),
        seconds_to_drain_expanded=_round(layout.seconds_expanded),
        seconds_to_loss=_round(loss.seconds),
        loss_by=loss.by,
        wins=layout.wins,
        smallest_factor=layout.smallest_factor,
        canary=PlannedCanary(messages=layout.canary.messages, partitions=layout.canary.partitions),
        hold=hold,
        disk=PlannedDisk(
            needed=disk.needed_bytes,
            usable=disk.usable_bytes,
            enough=disk.enough,
            told=disk.reason,
        ),
        members=tuple(facts.members),
        stopped=tuple(describe_stopped(facts)),
        created=tuple(describe_created(facts)),
        raised=tuple(describe_raised(facts)),
        given_back=tuple(describe_given_back(facts)),
        max_lag_at_cutover=stream.expand.max_lag_at_cutover,
        other_topics=backlog.other_topics,
        launch=freeze_consumers(config, stream),
        transactional_prefix=config.kafka_ledger.transactional_prefix,
    )


def _freeze_partition(part: Behind) -> PlannedPartition:
    return PlannedPartition(
        partition=part.unread.partition,
        log_start=part.unread.log_start,
        committed=part.committed,
        end=part.unread.end,
        lag=part.lag,
        lost=part.lost,
        start=part.unread.start,
        oldest_unread_at=part.unread.oldest_at,
    )


def _plan_hold(
    workspace: Workspace, stream: Stream, backlog: StreamBacklog, layout: Layout
) -> PlannedHold:
    """Whether retention is raised, and which settings from what to what."""
    topic = backlog.topic
    held = workspace.ledger.holds.list_of_topic(stream.cluster, stream.topic, topic.topic_id)
    settings = compute_expansion_hold(topic.config)
    # Somebody's hold may end meanwhile: then retention would be as short as before it.
    settings |= {name: FOREVER for hold in held for name in hold.raised}
    needed = bool(settings) and (bool(held) or needs_hold(backlog.loss, layout.seconds_expanded))
    changes = {
        name: SettingChange.model_validate({"from": topic.config.get(name, FOREVER), "to": value})
        for name, value in sorted(settings.items())
    }
    return PlannedHold(needed=needed, changes=changes if needed else {})


def _check_disk(backlog: StreamBacklog, layout: Layout, *, held: bool) -> DiskCheck:
    """Room for the copy, and for what the topic keeps while its retention is raised."""
    replication = backlog.topic.replication
    unread = [
        PartitionBacklog(part.unread.partition, part.lag, part.unread.log_start, part.unread.high)
        for part in backlog.partitions
    ]
    copy = estimate_copy(backlog.log_dirs, unread, replication=replication)
    if not held:
        return copy
    growth = measure_growth(backlog.log_dirs, backlog.recent)
    drain = layout.seconds_expanded
    seconds = _LONG_SECONDS if drain is None else HOLD_TIMES * drain + HOLD_MARGIN_SECONDS
    kept = estimate_hold(
        backlog.log_dirs, growth, timedelta(seconds=seconds), replication=replication
    )
    return combine_checks(copy, kept)


def _describe_launching(workspace: Workspace, stream: Stream, recovery_id: str) -> tuple[str, str]:
    """How the original consumers and those on the temporary topic are started and stopped."""
    assert stream.consumers is not None
    launcher = make_launcher(stream.consumers, workspace.properties(stream), lambda _: None)
    original = fleet_of(workspace, stream, Role.ORIGINAL)
    recovery = fleet_of(
        workspace,
        stream,
        Role.RECOVERY,
        recovery_id,
        topic=name_temporary_topic(stream.topic, recovery_id),
        group=name_recovery_group(stream.group, recovery_id),
    )
    mask = workspace.config.mask_secrets
    return mask(launcher.describe(original)), mask(launcher.describe(recovery))


def _round(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)
