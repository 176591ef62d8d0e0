"""Makes the plan of an emergency expansion; Kafka is only read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, cast

from backlog.clock import utc_now
from backlog.config import Config, Stream
from backlog.errors import Refused
from backlog.values import Recovery
from fanout.deadlines import HOLD_SECONDS, HOLD_TIMES, needs_hold
from fanout.disk import (
    DiskCheck,
    PartitionBacklog,
    combine_checks,
    estimate_copy,
    estimate_hold,
    measure_growth,
)
from fanout.launchers import Role, make_launcher
from fanout.layout import Layout, Load, plan_layout
from fanout.retention import FOREVER, compute_expansion_hold
from fanout.temporary import name_temporary_topic
from replay.around.fleets import (
    fingerprint_with_consumers,
    fleet_of,
    freeze_consumers,
    keep_waits,
    require_consumers,
)
from replay.around.rights import require_rights
from replay.kinds.expand import trying
from replay.kinds.expand.backlog import Backlog, Behind, find_rate, observe
from replay.kinds.expand.options import ALLOW_DISK, ExpandOptions
from replay.kinds.expand.pacing import watch_pace
from replay.kinds.expand.plan import (
    NAME,
    ExpandPlan,
    PlannedCanary,
    PlannedDisk,
    PlannedHold,
    PlannedPartition,
    SettingChange,
    TemporaryLayout,
)
from replay.kinds.expand.sentences import (
    Facts,
    describe_created,
    describe_given_back,
    describe_raised,
    describe_stopped,
)
from replay.kinds.expand.warnings import (
    warn_about_backlog,
    warn_about_disk,
    warn_about_keys,
    warn_about_skew,
    warn_about_speed,
    warn_about_stream,
)
from replay.recovery.approval import approve_automatically
from replay.recovery.guards import check_denied, refuse_active, refuse_group_type, store_plan
from replay.recovery.housekeeping import clear_staging
from replay.recovery.identity import find_identity
from replay.recovery.kind import Say, say_nothing
from replay.recovery.plan import Origin
from replay.recovery.workspace import Workspace

# What of a stream's configuration an expansion goes by.
FINGERPRINT = ("cluster", "topic", "group", "isolation", "partitioner", "expand")
# What an hour adds is looked at where nobody knows how long the drain takes.
_LONG_SECONDS = 3600.0


def plan_expand(
    workspace: Workspace,
    stream: Stream,
    options: ExpandOptions,
    *,
    origin: Origin | None = None,
    say: Say = say_nothing,
) -> Recovery:
    """Plans an expansion: a value, stored and hashed before anything is changed.

    Args:
        say: hears what is being done, for people.

    Raises:
        UsageError: the stream has no consumers, or their speed is not known.
        Refused: nothing is behind, a guard says no, or another recovery is in the way.
    """
    require_consumers(stream)
    check_denied(workspace, stream)
    refuse_active(workspace, stream)
    refuse_group_type(workspace, stream)
    recovery_id = workspace.ledger.recoveries.next_id(utc_now())
    rights = workspace.kinds.get(NAME).list_rights(workspace.config, stream, recovery_id)
    told = require_rights(workspace, stream, rights)
    if options.rate is None:
        watch_pace(workspace, stream, say)
    backlog = observe(workspace, stream, options.start, say)
    backlog.warnings += told
    plan = compute_plan(workspace, stream, options, backlog, recovery_id, origin)
    if plan.disk.enough is False and ALLOW_DISK not in plan.allowed:
        raise Refused(
            f"the copy does not fit: {plan.disk.told}",
            subject=f"topic {stream.topic}",
            hint="make room on the brokers' disks; `--allow disk` plans in spite of it",
        )
    if options.try_one:
        group = name_recovery_group(stream.group, trying.NAME)
        tried, warning = trying.try_consumer(workspace, stream, backlog.topic, group, say)
        more = (*plan.warnings, warning) if warning else plan.warnings
        plan = plan.model_copy(update={"tried": tried, "warnings": more})
    recovery = store_plan(workspace, recovery_id, plan)
    clear_staging(workspace)
    return approve_automatically(workspace, recovery)


def name_recovery_group(group: str, recovery_id: str) -> str:
    """The group that reads the temporary topic."""
    return f"{group}.recovery.{recovery_id}"


def fingerprint_expansion(config: Config, stream: Stream) -> dict[str, Any]:
    """What of a stream's configuration an expansion goes by; names of variables, no values."""
    return fingerprint_with_consumers(config, stream, FINGERPRINT)


def fingerprint_for(planned: Mapping[str, Any], config: Config, stream: Stream) -> dict[str, Any]:
    """The same now, to hold against a plan's: how long is waited may change while it is open."""
    return keep_waits(planned, fingerprint_expansion(config, stream))


def compute_plan(
    workspace: Workspace,
    stream: Stream,
    options: ExpandOptions,
    backlog: Backlog,
    recovery_id: str,
    origin: Origin | None = None,
) -> ExpandPlan:
    """The plan, from what was seen: the same backlog makes the same numbers."""
    assert stream.consumers is not None
    config = workspace.config
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
        *backlog.warnings,
        *warn_about_stream(workspace, stream),
        *warn_about_backlog(stream, backlog, options.start),
        *warn_about_speed(stream, backlog, layout, given=options.rate is not None),
        *warn_about_keys(stream, backlog, order),
        *warn_about_skew(backlog.skew, load, layout, order),
        *warn_about_disk(disk),
    ]
    return ExpandPlan(
        stream=stream.name,
        cluster=stream.cluster,
        topic=stream.topic,
        topic_id=backlog.topic.topic_id,
        partition_count=backlog.topic.partitions,
        group=stream.group,
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
        other_groups=backlog.readers.list_others(stream.group),
        others_unknown=backlog.readers.say_unknown(stream.group),
        other_topics=backlog.other_topics,
        launch=freeze_consumers(config, stream),
        transactional_prefix=config.kafka_ledger.transactional_prefix,
        approval=stream.approval,
        configuration=fingerprint_expansion(config, stream),
        options=options,
        warnings=tuple(dict.fromkeys(warnings)),
        origin=origin,
        planned_by=find_identity(),
        planned_at=utc_now(),
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
    workspace: Workspace, stream: Stream, backlog: Backlog, layout: Layout
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


def _check_disk(backlog: Backlog, layout: Layout, *, held: bool) -> DiskCheck:
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
    seconds = _LONG_SECONDS if drain is None else HOLD_TIMES * drain + HOLD_SECONDS
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
