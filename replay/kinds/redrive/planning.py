"""Makes the plan of a redrive: a value, stored and hashed before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from backlogctl.clock import Deadline, utc_now
from backlogctl.config import Stream
from backlogctl.errors import BacklogError, KafkaFailure, Refused, UsageError
from backlogctl.kafka.admin import (
    TopicInfo,
    describe_topic,
    list_offsets,
    list_topic_readers,
    read_metadata,
)
from backlogctl.replay.engine.approval import approve_automatically
from backlogctl.replay.engine.archives import clear_staging
from backlogctl.replay.engine.guards import check_denied, refuse_active, refuse_group_type
from backlogctl.replay.engine.kind import Say, Workspace, ignore_progress
from backlogctl.replay.engine.plan import PlannedWindow, RunOrigin, find_identity
from backlogctl.replay.injection import ledger as injection
from backlogctl.replay.injection.ledger import Lost, find_lost_ranges, locate_chunks
from backlogctl.replay.injection.plan import PlannedTarget, To, list_sending
from backlogctl.replay.injection.storing import stage_and_store
from backlogctl.replay.injection.target import choose_target, clear_rehearsals, name_superseded
from backlogctl.replay.injection.unprocessed import WORD, list_unprocessed_offsets, take_unprocessed
from backlogctl.replay.kinds.redrive.archived_gaps import list_closed, list_held, take_archived
from backlogctl.replay.kinds.redrive.describe import list_cautions
from backlogctl.replay.kinds.redrive.plan import (
    ALLOW_REPLAYS,
    ElsewhereTopic,
    PlannedSource,
    RedriveOptions,
    RedrivePlan,
    read_keys,
)
from backlogctl.replay.kinds.redrive.sources import (
    RedriveSource,
    Seen,
    choose_ranges,
    find_source,
    is_unfiltered,
    open_archive,
    parse_offsets,
    read_span,
    require_bounds,
    skip_before,
    takes_waiting,
)
from backlogctl.replay.observe.rights import require_rights
from backlogctl.replay.observe.stream import note_stream
from backlogctl.replay.present.messages import HIDDEN
from backlogctl.spark_backfill.existing.request import ArchiveSource, Named, RedriveRequest
from backlogctl.values import Gap, OffsetRange, Recovery, hash_value

# What of a stream's section decides where messages go.
FINGERPRINT = ("name", "cluster", "topic", "group", "partitioner")
_DEFAULT_MAX_BYTES = "1048588"
_SECONDS = 60.0
_SHOWN_KEYS = 20
_SHOWN_HASH = 16


def plan_redrive(
    workspace: Workspace,
    stream: Stream,
    options: RedriveOptions,
    *,
    origin: RunOrigin | None = None,
    wants: Callable[[Gap], bool] = lambda gap: True,
    say: Say = ignore_progress,
) -> Recovery:
    """Reads, chooses and stages; Kafka is only read.

    Args:
        wants: of the gaps of `--from unprocessed`, and of those that wait in an archive, those for
            which it says no are left alone.

    Raises:
        UsageError: no bound is said, or what was said is not there.
        Refused: there is nothing to put back, a guard says no, or another recovery is in the way.
    """
    check_denied(workspace, stream)
    require_bounds(options)
    refuse_active(workspace, stream)
    clear_rehearsals(workspace, stream.name)
    recovery_id = workspace.ledger.recoveries.next_id(utc_now())
    say("looking at the topics")
    seen = _look(workspace, stream, options, recovery_id, wants)
    recovery = stage_and_store(
        workspace,
        recovery_id,
        lambda: _compute_plan(workspace, stream, options, seen, recovery_id, origin, say),
        # What is sent elsewhere repairs nothing.
        seen.gaps if seen.target is None else (),
    )
    clear_staging(workspace)
    return approve_automatically(workspace, recovery)


def _look(
    workspace: Workspace,
    stream: Stream,
    options: RedriveOptions,
    recovery_id: str,
    wants: Callable[[Gap], bool],
) -> Seen:
    limit, properties = Deadline(_SECONDS), workspace.properties(stream)
    topic = describe_topic(properties, stream.topic, limit)
    source = find_source(workspace, stream, options.source, topic)
    target = choose_target(workspace, stream, options.to, recovery_id, topic)
    _refuse_target(source, target, topic)
    letters = source.planned.letters
    rights = list_sending(workspace.config, stream, recovery_id, None, target, letters)
    warnings = require_rights(workspace, stream, rights)
    info = topic
    if target is not None and target.to is To.OTHER:
        info = describe_topic(properties, target.topic, limit)
    made = target is not None and target.to is To.REHEARSAL
    numbers = range(info.partitions)
    lows = dict.fromkeys(numbers, 0)
    ends = dict.fromkeys(numbers, 0)
    if not made:
        lows = list_offsets(properties, info.name, numbers, "earliest", deadline=limit)
        ends = list_offsets(properties, info.name, numbers, "latest", deadline=limit)
    if target is not None:
        warnings = [*warnings, *name_superseded(workspace, stream.name)]
    seen = Seen(topic, source, target, info, lows, ends, warnings=warnings)
    if target is None:
        refuse_group_type(workspace, stream)
    if target is None or options.source == WORD:
        # What was put back and expired unread since is lost again, once it is on record.
        note_stream(workspace, stream)
    if options.source == WORD:
        seen.gaps = take_unprocessed(workspace.ledger, stream, topic.topic_id, wants)
    elif source.archive is not None and is_unfiltered(options):
        seen.archived = take_archived(
            workspace.ledger, stream, options, source.archive, topic, wants
        )
        seen.gaps = tuple(each.gap for each in seen.archived)
    if not made:
        readers = list_topic_readers(properties, info.name, limit)
        mine = stream.group if target is None else ""
        seen.others, seen.others_unknown = readers.list_others(mine), readers.say_unknown(mine)
    return seen


def _refuse_target(source: RedriveSource, target: PlannedTarget | None, topic: TopicInfo) -> None:
    if target is None and "compact" in topic.config.get("cleanup.policy", ""):
        raise Refused(
            "it is compacted: an old message that is put back would take the place of a newer one",
            subject=f"topic {topic.name}",
            hint="`--to rehearsal`, or another topic",
        )
    if target is not None and target.topic == source.planned.topic:
        raise UsageError("the messages would go where they are", subject=f"--to {target.topic}")


def _compute_plan(
    workspace: Workspace,
    stream: Stream,
    options: RedriveOptions,
    seen: Seen,
    recovery_id: str,
    origin: RunOrigin | None,
    say: Say,
) -> RedrivePlan:
    config, properties = workspace.config, workspace.properties(stream)
    ledger_topic, prior = injection.freeze_ledger(
        workspace,
        stream,
        options.allow,
        seen.target_name,
        "" if seen.target is None else seen.target_id,
    )
    keys = read_keys(options.key)
    from backlogctl.spark_backfill.existing.redrive import check_where
    from backlogctl.spark_backfill.existing.redrive import stage_redrive as redrive
    from backlogctl.spark_backfill.messages.staging import fit_chunks
    from backlogctl.spark_backfill.spark.cluster import needs_s3
    from backlogctl.spark_backfill.spark.kafka_options import make_java_options
    from backlogctl.spark_backfill.spark.session import open_session

    make_java_options(properties)  # refuses now what Spark could not use
    say("starting Spark")
    spark = open_session(
        config.spark,
        f"backlogctl plan {recovery_id}",
        staging=config.staging.dir,
        s3=seen.source.archive is not None and needs_s3(seen.source.archive.location),
    )
    check_where(spark, options.where or "", is_masked=bool(stream.mask))
    archived: ArchiveSource | None = None
    planned = seen.source.planned
    if seen.source.archive is not None:
        say(f"verifying archive {planned.archive}")
        archived = open_archive(spark, seen.source.archive)
        planned = planned.model_copy(update={"partitions": archived.manifest.partitions})
    ranges, warnings = _find_ranges(workspace, stream, options, seen, archived)
    same = seen.target is None or seen.target.to is To.OTHER
    prior = locate_chunks(workspace, prior, seen.target_id, stream.group) if same else ()
    lost = Lost()
    if seen.target is None:
        lost = find_lost_ranges(workspace, stream, seen.target_id, prior, planned.archive)
    closed = list_closed(seen.archived, prior) if seen.archived else _list_unprocessed(seen)
    outcome = redrive(
        spark,
        RedriveRequest(
            recovery_id=recovery_id,
            stream=stream,
            client_properties=properties,
            origin_kind=planned.origin,
            topic=planned.topic,
            topic_id=planned.topic_id,
            partitions=planned.partitions,
            ranges=ranges,
            stream_topic_id=seen.topic.topic_id,
            stream_partitions=seen.topic.partitions,
            target=seen.target_name,
            target_partitions=seen.target_info.partitions,
            target_max_bytes=int(
                seen.target_info.config.get("max.message.bytes", _DEFAULT_MAX_BYTES)
            ),
            staging_root=config.staging.dir,
            archived=archived,
            since=options.since,
            until=options.until,
            keys=keys,
            where=options.where or "",
            max_replays=None if ALLOW_REPLAYS in options.allow else stream.redrive.max_replays,
            prior=prior,
            lost=lost.ranges,
            told=lost.told,
            gaps=closed,
            waiting=list_held(seen.archived) if takes_waiting(options) else None,
            sources=config.sources,
            starts=seen.lows,
            origin={"ledger_topic": None if ledger_topic is None else ledger_topic.to_json()},
        ),
        progress=say,
        limits=fit_chunks(stream.limits.messages_per_second, seen.target_info.partitions),
    )
    told = [*lost.told, *lost.cautions]
    told += list_cautions(workspace, stream, seen, outcome, planned.partitions)
    return RedrivePlan(
        stream=stream.name,
        cluster=stream.cluster,
        topic=stream.topic,
        topic_id=seen.topic.topic_id,
        partition_count=seen.topic.partitions,
        group=stream.group,
        source=planned,
        ranges=ranges,
        keys=len(keys),
        gaps=tuple(gap_id for gap_id, _ in closed if gap_id not in outcome.left_open),
        lost_only=takes_waiting(options),
        elsewhere=_find_elsewhere(properties, outcome.elsewhere),
        outcome=outcome,
        manifest_sha256=outcome.manifest_sha256,
        ledger_topic=ledger_topic,
        transactional_prefix=config.kafka_ledger.transactional_prefix,
        topic_end_offsets=seen.ends,
        target=seen.target,
        other_groups=seen.others,
        others_unknown=seen.others_unknown,
        deliver=stream.deliver,
        configuration=fingerprint_stream(stream),
        approval=stream.approval,
        off_peak=PlannedWindow.freeze(stream.off_peak),
        limits=stream.limits,
        options=hide_content(options, stream),
        warnings=tuple(dict.fromkeys([*seen.warnings, *warnings, *lost.told, *told])),
        origin=origin,
        planned_by=find_identity(),
        planned_at=utc_now(),
    )


def _list_unprocessed(seen: Seen) -> tuple[tuple[str, OffsetRange], ...]:
    return tuple(
        zip((gap.id for gap in seen.gaps), list_unprocessed_offsets(seen.gaps), strict=True)
    )


def fingerprint_stream(stream: Stream) -> dict[str, Any]:
    """What of a stream's configuration decides where messages go."""
    return stream.model_dump(mode="json", include=set(FINGERPRINT))


def hide_content(options: RedriveOptions, stream: Stream) -> RedriveOptions:
    """As they are kept: no keys where these are personal, nor a long list of them; of a condition
    only its hash where anything of the messages is."""
    changes: dict[str, Any] = {}
    if "key" in stream.mask or len(options.key) > _SHOWN_KEYS:
        changes["key"] = ()
    if options.where and stream.mask:
        changes["where"] = f"{HIDDEN} (hash {hash_value(options.where)[:_SHOWN_HASH]})"
    return options.model_copy(update=changes)


def _find_ranges(
    workspace: Workspace,
    stream: Stream,
    options: RedriveOptions,
    seen: Seen,
    archived: ArchiveSource | None,
) -> tuple[tuple[OffsetRange, ...], list[str]]:
    """What is read.

    Raises:
        UsageError, Refused: nothing of what was said is there.
    """
    planned = seen.source.planned
    if archived is not None:
        there = tuple(
            OffsetRange(item.partition, item.start, item.end) for item in archived.manifest.ranges
        )
        said = parse_offsets(options.offsets, archived.manifest.partitions)
        if takes_waiting(options) and all(each.is_held for each in seen.archived):
            said = list_held(seen.archived)  # what was lost again may be anywhere in it
    else:
        said = parse_offsets(options.offsets, planned.partitions) or list_unprocessed_offsets(
            seen.gaps
        )
        there = _read_topic(workspace, stream, planned)
    ranges, warnings = choose_ranges(said, there)
    if seen.gaps and warnings and archived is None:
        # Their gaps would be closed without them.
        raise KafkaFailure(
            f"retention took messages while this was planned: {warnings[0]}",
            subject=str(planned),
            hint="plan again",
            retryable=True,
        )
    if archived is None and options.since is not None:
        ranges = skip_before(ranges, _find_firsts(workspace, stream, planned, options.since))
    if not ranges:
        raise Refused(
            "there is no message in what was asked for" + "".join(f"; {one}" for one in warnings),
            subject=str(planned),
            hint="see what is there with `backlogctl status`",
        )
    return ranges, warnings


def _read_topic(
    workspace: Workspace, stream: Stream, source: PlannedSource
) -> tuple[OffsetRange, ...]:
    """Committed messages."""
    properties, limit = workspace.properties(stream), Deadline(_SECONDS)
    name, numbers = source.topic, range(source.partitions)
    lows = list_offsets(properties, name, numbers, "earliest", deadline=limit)
    ends = list_offsets(
        properties, name, numbers, "latest", isolation="read_committed", deadline=limit
    )
    return read_span(lows, ends)


def _find_firsts(
    workspace: Workspace, stream: Stream, source: PlannedSource, since: datetime
) -> Mapping[int, int]:
    """Before the first message of a time or later none is of it."""
    return list_offsets(
        workspace.properties(stream),
        source.topic,
        range(source.partitions),
        round(since.timestamp() * 1000),
        deadline=Deadline(_SECONDS),
    )


def _find_elsewhere(
    properties: Mapping[str, str], found: Sequence[Named]
) -> tuple[ElsewhereTopic, ...]:
    """Whether the topics of other dead letters are still there."""
    if not found:
        return ()
    names: set[str] | None
    try:
        names = set(read_metadata(properties, None, Deadline(_SECONDS)).topics)
    except BacklogError:
        names = None
    return tuple(
        ElsewhereTopic(
            topic=one.name, count=one.count, exists=None if names is None else one.name in names
        )
        for one in found
    )
