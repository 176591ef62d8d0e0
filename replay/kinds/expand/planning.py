"""Makes the plan of an emergency expansion: what is behind, how fast it is; Kafka is only read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, cast

from backlogctl.clock import Deadline, utc_now
from backlogctl.config import Stream
from backlogctl.errors import BacklogError, KafkaFailure, Refused, UsageError
from backlogctl.fanout.disk import (
    DiskCheck,
    PartitionBacklog,
    combine_checks,
    count_per_second,
    estimate_copy,
    estimate_hold,
    find_local_part,
    measure_growth,
)
from backlogctl.fanout.keys import Skew, measure_key_skew, sample_keys
from backlogctl.fanout.launchers import Role, make_launcher
from backlogctl.fanout.layout import Layout, Load, plan_layout, warn_about_quota
from backlogctl.fanout.relay.worker import choose_relay_engine
from backlogctl.fanout.retention import (
    FOREVER,
    HOLD_MARGIN_SECONDS,
    HOLD_TIMES,
    TimeToLoss,
    UnreadRange,
    compute_expansion_hold,
    find_time_to_loss,
    needs_hold,
    require_raising,
)
from backlogctl.fanout.temporary_settings import agree_on_config, say_given_up
from backlogctl.fanout.temporary_topic import name_temporary_topic
from backlogctl.formats import format_plural
from backlogctl.kafka.admin import describe_group_state, read_group_state
from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.groups import GroupState
from backlogctl.kafka.log_dirs import LogDirs, read_log_dirs
from backlogctl.kafka.peek import Peeked, peek_at
from backlogctl.ledger import Ledger
from backlogctl.monitoring.doctor.facts import read_brokers
from backlogctl.monitoring.offsets.lag import (
    RATE_WINDOW,
    find_partition_end,
    read_log_sizes,
    read_retention,
    read_size_limit,
)
from backlogctl.monitoring.offsets.timeline import estimate_time
from backlogctl.monitoring.verdict.judge import Pace, measure_pace
from backlogctl.monitoring.watch.disks import WINDOW as DISK_WINDOW
from backlogctl.monitoring.watch.disks import estimate_growth, make_readings
from backlogctl.replay.consumers.fleet import (
    fingerprint_with_consumers,
    fleet_of,
    freeze_consumers,
    require_consumers,
)
from backlogctl.replay.engine.guards import refuse_beyond_end, store_plan
from backlogctl.replay.engine.kind import Say, Workspace, ignore_progress
from backlogctl.replay.engine.plan import PlannedDisk, RunOrigin
from backlogctl.replay.kinds.expand.canary import TRIAL_NAME, try_consumer
from backlogctl.replay.kinds.expand.describe import (
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
    Behind,
    ExpandOptions,
    ExpandPlan,
    Facts,
    PlannedCanary,
    PlannedHold,
    PlannedPartition,
    SettingChange,
    StreamBacklog,
    TemporaryLayout,
    describe_created,
    describe_given_back,
    describe_raised,
    describe_stopped,
    name_size_limit,
)
from backlogctl.replay.observe.snapshot import (
    Draft,
    StreamSnapshot,
    begin_plan,
    finish_plan,
    take_snapshot,
)
from backlogctl.replay.observe.stream import list_other_topics, note_stream, read_history
from backlogctl.values import DiskFloor, PartitionSample, Recovery, Sample

_BROKERS_SECONDS = 10.0
_NO_LIMIT = 2**31 - 1  # the default of brokers, and what older ones do
_PEEKED = 20  # messages a partition: enough to see where keys lie
_SAMPLED = 40  # in each of several places of a partition


def inspect_backlog(draft: Draft, snapshot: StreamSnapshot, start_at: str) -> StreamBacklog:
    """What is behind; a look at keys, disks and the oldest unread messages.

    Raises:
        Refused: nothing is behind, or a commit lies beyond the end.
    """
    stream, properties, sample = draft.stream, draft.properties, snapshot.sample
    refuse_beyond_end(sample)
    limit = Deadline(60.0)
    group = describe_group_state(properties, stream.group, limit)
    others = list_other_topics(properties, stream, limit)
    history = leave_out_relayed(draft.workspace.ledger, stream, snapshot.history)
    pace = measure_pace(history, group.is_active)
    rows = {row["partition"]: row for row in snapshot.status["partitions"]}
    behind = [
        _place(part, rows[part.partition], stream.isolation, start_at, pace)
        for part in sample.partitions
    ]
    if not any(part.lag for part in behind):
        raise Refused(
            "nothing is behind, so there is nothing to drain",
            subject=f"stream {stream.name}",
            hint=f"see `backlogctl status {stream.name}`",
        )
    draft.say("reading the oldest unread messages")
    starts = {part.unread.partition: part.unread.start for part in behind if part.lag}
    peeked = peek_at(properties, stream.topic, starts, _PEEKED, Deadline(20.0))
    dated = tuple(_date(part, peeked, snapshot.history, sample.topic_id) for part in behind)
    log_dirs = read_log_dirs(properties, stream.topic, Deadline(10.0))
    log_dirs = find_local_part(log_dirs, properties, snapshot.topic, Deadline(10.0))
    return StreamBacklog(
        snapshot=snapshot,
        group=group,
        other_topics=others,
        partitions=dated,
        pace=pace,
        loss=_find_loss(properties, dated, snapshot, log_dirs),
        peeked=peeked,
        skew=_measure_skew(properties, stream.topic, behind),
        log_dirs=log_dirs,
        recent=tuple(s for s in history if sample.taken_at - s.taken_at <= RATE_WINDOW),
        most_members=_find_most_members(properties, group),
    )


def _find_most_members(properties: Mapping[str, str], group: GroupState) -> int | None:
    """One member more is refused again and again, and keeps the others from their partitions."""
    setting = name_size_limit(group)
    try:
        brokers = read_brokers(make_admin(properties), Deadline(_BROKERS_SECONDS))
    except KafkaFailure:  # or who may not read it
        return None
    sizes = [int(own[setting]) for own in brokers.settings.values() if setting in own]
    return min(sizes, default=_NO_LIMIT)


def _warn_about_members(backlog: StreamBacklog, layout: Layout) -> list[str]:
    if backlog.most_members is not None:
        return []
    setting, many = name_size_limit(backlog.group), format_plural(layout.consumers, "consumer")
    return [
        f"how many members the brokers let into a group is not known (`{setting}` of the brokers "
        f"cannot be read): where it is less than {many}, the drain stalls"
    ]


def _measure_skew(properties: Mapping[str, str], topic: str, parts: list[Behind]) -> Skew:
    admin = make_admin(properties)  # kept, so that it connects once
    unread = {
        part.unread.partition: (part.unread.start, part.unread.end) for part in parts if part.lag
    }

    def peek(starts: Mapping[int, int], limit: Deadline) -> Mapping[int, tuple[Peeked, ...]]:
        return peek_at(admin, topic, starts, _SAMPLED, limit)

    lag = {part.unread.partition: part.lag for part in parts}
    return measure_key_skew(sample_keys(peek, unread), lag)


def leave_out_relayed(
    ledger: Ledger, stream: Stream, history: Iterable[Sample]
) -> tuple[Sample, ...]:
    """The samples since the last expansion: the commits of its relays are no consumption."""
    ends = [
        step.last_started_at
        for recovery in ledger.recoveries.list(stream.name)
        if recovery.kind == NAME
        for step in ledger.steps.list(recovery.id)
    ]
    return tuple(s for s in history if not ends or s.taken_at > max(ends))


def find_rate(backlog: StreamBacklog, stream: Stream, given: float | None) -> tuple[float, str]:
    """Messages a second of one consumer, and where that comes from.

    Raises:
        UsageError: it was not given, and the samples do not show it.
    """
    if given is not None:
        return given, "given"
    assert stream.consumers is not None
    pace = backlog.pace
    if not pace.consumed:
        raise UsageError(
            f"how fast one consumer is, is not known: {_describe_silence(backlog)}",
            subject=f"stream {stream.name}",
            hint="first repair the consumer, and know its speed; then plan with `--rate N`, the "
            "messages one consumer handles in a second",
        )
    running = len(backlog.group.members) or stream.consumers.replicas
    each = pace.consumed / min(running, backlog.topic.partitions)
    return each, f"measured over {_format_window(pace.seconds)} from samples"


def _describe_silence(backlog: StreamBacklog) -> str:
    members = len(backlog.group.members)
    if not members:
        return "the group has no members, and the samples of the last minutes show no consumption"
    seen = f" in {_format_window(backlog.pace.seconds)}" if backlog.pace.seconds else ""
    return f"it has {format_plural(members, 'member')}, which committed nothing{seen}"


def _find_loss(
    properties: Mapping[str, str],
    partitions: Iterable[Behind],
    snapshot: StreamSnapshot,
    log_dirs: LogDirs,
) -> TimeToLoss:
    """The earliest loss: by the messages' own times, by when the samples saw them, or by size."""
    sample, config = snapshot.sample, snapshot.topic.config
    sizes: Mapping[int, int] = {}
    if (limit := read_size_limit(config)) is not None:
        with suppress(BacklogError):  # unknown, as where the disks do not tell
            sizes = read_log_sizes(properties, sample, config, log_dirs, Deadline(10.0))
    unread = [
        replace(part.unread, bytes=sizes.get(part.unread.partition))
        for part in partitions
        if part.lag
    ]
    return find_time_to_loss(unread, read_retention(config), limit, sample.taken_at)


def _format_window(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _place(
    part: PartitionSample, row: Mapping[str, Any], isolation: str, start_at: str, pace: Pace
) -> Behind:
    end = find_partition_end(part, isolation)
    if part.committed is not None:
        start, lag = max(part.committed, part.low), row["lag"]
    else:
        start = max(end, part.low) if start_at == "latest" else part.low
        lag = max(0, end - start)
    unread = UnreadRange(
        partition=part.partition,
        log_start=part.low,
        start=start,
        end=end,
        high=part.high,
        produced_per_second=pace.produced.get(part.partition),
    )
    return Behind(unread, part.committed, row["lost"], lag)


def _date(
    part: Behind,
    peeked: Mapping[int, tuple[Peeked, ...]],
    history: tuple[Sample, ...],
    topic_id: str,
) -> Behind:
    if not part.lag:
        return part
    number = part.unread.partition
    first = next(iter(peeked.get(number, ())), None)
    # Retention goes by the message's own time; without one, by when the samples saw it.
    at = first.at if first is not None else None
    if at is None:
        at = estimate_time(history, number, part.unread.start, topic_id)
    return replace(part, unread=replace(part.unread, oldest_at=at))


# How fast consumers are that nobody has watched yet: a plan looks for itself, for a while.

# Consumers commit every 5 s by themselves: three of those tell a speed.
ENOUGH_SECONDS = 15.0
LONGEST_SECONDS = 25.0
_LOOK_EACH = 2.5


def watch_pace(draft: Draft) -> None:
    """Samples a stream until its samples tell how fast its consumers are, 25 s at most.

    Where the group has no members there is nothing to wait for, and where `watch` has looked long
    enough nothing is done.
    """
    workspace, stream, admin = draft.workspace, draft.stream, make_admin(draft.properties)
    limit, is_said = Deadline(LONGEST_SECONDS), False
    while True:
        note_stream(workspace, stream)
        if not read_group_state(admin, stream.group, Deadline(30.0)).is_active:
            return
        history = read_history(workspace, stream)
        own = leave_out_relayed(workspace.ledger, stream, history)
        if _is_enough(measure_pace(own, running=True)):
            return
        if limit.expired:
            return
        if not is_said:
            draft.say(
                "nobody has watched this stream of late: looking for "
                f"{ENOUGH_SECONDS:.0f} to {LONGEST_SECONDS:.0f} s how fast its consumers are"
            )
            is_said = True
        time.sleep(limit.remaining(_LOOK_EACH))


def _is_enough(pace: Pace) -> bool:
    return bool(pace.consumed) and pace.seconds >= ENOUGH_SECONDS


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
    require_raising(draft.properties, stream.topic, plan.hold.settings)
    if told := _ask_about_topic(draft, backlog, plan):
        plan = plan.model_copy(update={"warnings": (*plan.warnings, told)})
    if options.try_one:
        group = name_recovery_group(stream.group, TRIAL_NAME)
        tried, warning = try_consumer(workspace, stream, backlog.topic, group, say)
        more = (*plan.warnings, warning) if warning else plan.warnings
        plan = plan.model_copy(update={"tried": tried, "warnings": more})
    return finish_plan(workspace, store_plan(workspace, draft.recovery_id, plan))


def _ask_about_topic(draft: Draft, backlog: StreamBacklog, plan: ExpandPlan) -> str:
    """What the cluster does not take of the temporary topic's settings; "" where it takes all.
    Raises Refused: it would not create it, or not so that it keeps what is copied.
    """
    wanted = plan.temporary
    try:
        config = agree_on_config(draft.properties, backlog.topic, wanted.topic, wanted.partitions)
    except KafkaFailure as error:
        return f"whether the cluster creates the temporary topic is not known: {error.message}"
    return say_given_up(backlog.topic, config)


def name_recovery_group(group: str, recovery_id: str) -> str:
    """The group that reads the temporary topic."""
    return f"{group}.recovery.{recovery_id}"


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
        max_consumers=min(
            (n for n in (stream.consumers.max_consumers, backlog.most_members) if n is not None),
            default=None,
        ),
        seconds_to_loss=loss.seconds,
        largest_share=backlog.skew.share if order == "key" else 0.0,
        relayed_per_second=count_per_second(
            backlog.log_dirs, _list_unread(backlog), draft.bytes_per_second
        ),
    )
    layout = plan_layout(load, factor)
    hold = _plan_hold(workspace, stream, backlog, layout)
    disk = _check_disk(stream.limits.floor, backlog, layout, held=hold.needed)
    launching, told = _ask_launcher(workspace, stream, recovery_id, layout.consumers)
    facts = Facts(
        stream=stream,
        layout=layout,
        temporary_topic=name_temporary_topic(stream.topic, recovery_id),
        recovery_group=name_recovery_group(stream.group, recovery_id),
        replication=backlog.topic.replication,
        members=tuple(str(member) for member in backlog.group.members),
        launching=launching,
        changes=hold.changes,
    )
    warnings = [
        *backlog.snapshot.warnings,
        *warn_about_stream(workspace, stream),
        *warn_about_backlog(stream, backlog, options.start),
        *warn_about_speed(stream, backlog, load, layout, given=options.rate is not None),
        *warn_about_quota(load, layout, draft.bytes_per_second),
        *_warn_about_members(backlog, layout),
        *warn_about_keys(stream, backlog, order),
        *warn_about_skew(backlog.skew, load, layout, order),
        *warn_about_disk(disk),
        *told,
    ]
    engine, why = choose_relay_engine(stream.expand.engine, draft.properties)
    configuration = fingerprint_with_consumers(config, stream, FINGERPRINT)
    return ExpandPlan(
        **draft.fill(backlog.snapshot, options, configuration, warnings),
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
        engine=engine,
        engine_why=why,
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
            told="; ".join([disk.reason, *_say_growth(draft.workspace, stream, backlog, layout)]),
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
        writes="" if draft.quota is None else draft.quota.describe(stream.limits.share or 0.0),
    )


def _list_unread(backlog: StreamBacklog) -> list[PartitionBacklog]:
    return [
        PartitionBacklog(part.unread.partition, part.lag, part.unread.log_start, part.unread.high)
        for part in backlog.partitions
    ]


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


def _check_disk(
    floor: DiskFloor, backlog: StreamBacklog, layout: Layout, *, held: bool
) -> DiskCheck:
    """Room above the floor for the copy, and for what the topic keeps while its retention is
    raised."""
    replication = backlog.topic.replication
    unread = _list_unread(backlog)
    copy = estimate_copy(backlog.log_dirs, unread, replication=replication, floor=floor)
    if not held:
        return copy
    growth = measure_growth(backlog.log_dirs, backlog.recent)
    drain = layout.seconds_expanded
    seconds = _LONG_SECONDS if drain is None else HOLD_TIMES * drain + HOLD_MARGIN_SECONDS
    kept = estimate_hold(
        *(backlog.log_dirs, growth, timedelta(seconds=seconds)),
        replication=replication,
        floor=floor,
        config=backlog.topic.config,
    )
    return combine_checks(copy, kept)


def _say_growth(
    workspace: Workspace, stream: Stream, backlog: StreamBacklog, layout: Layout
) -> list[str]:
    """What stays free, and how the fullest broker's disks fill meanwhile."""
    known = [one for one in backlog.log_dirs.brokers or () if one.usable_bytes is not None]
    if not known:
        return []
    readings = workspace.ledger.disks
    readings.add(make_readings(stream.cluster, backlog.log_dirs, stream.topic))
    recent = readings.history(stream.cluster, utc_now() - DISK_WINDOW)
    fullest = min(known, key=lambda one: one.usable_bytes or 0)
    _, growth = estimate_growth(recent, fullest.broker, layout.seconds_expanded)
    return [f"{stream.limits.disk_free} of each disk stays free (`limits.disk_free`)", growth]


def _ask_launcher(
    workspace: Workspace, stream: Stream, recovery_id: str, count: int
) -> tuple[tuple[str, str], tuple[str, ...]]:
    """How the original consumers and those on the temporary topic are started and stopped; and
    what of that is to be warned of. Raises BacklogError: it would not work.
    """
    assert stream.consumers is not None
    launcher = make_launcher(stream.consumers, workspace.properties(stream), lambda _: None)
    original = fleet_of(workspace, stream, Role.ORIGINAL)
    group = name_recovery_group(stream.group, recovery_id)
    topic = name_temporary_topic(stream.topic, recovery_id)
    recovery = fleet_of(workspace, stream, Role.RECOVERY, recovery_id, topic=topic, group=group)
    mask = workspace.config.mask_secrets
    told = tuple(map(mask, launcher.check(original, recovery, count)))
    return (mask(launcher.describe(original)), mask(launcher.describe(recovery))), told


def _round(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)
