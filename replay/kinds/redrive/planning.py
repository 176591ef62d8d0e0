"""Makes the plan of a redrive: a value, stored and hashed before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.config import Stream
from backlogctl.errors import BacklogError, KafkaFailure, PutBackAlready, Refused, UsageError
from backlogctl.kafka.admin import list_offsets, read_metadata
from backlogctl.replay.engine.kind import Say, Workspace, ignore_progress
from backlogctl.replay.engine.plan import RunOrigin
from backlogctl.replay.injection import ledger as injection
from backlogctl.replay.injection.ledger import Lost, find_lost_ranges, locate_chunks
from backlogctl.replay.injection.plan import To
from backlogctl.replay.injection.storing import (
    begin_injection,
    fill_injection,
    stage_and_store,
    start_spark,
)
from backlogctl.replay.injection.target import Target, name_target
from backlogctl.replay.injection.unprocessed import (
    WORD,
    cut_to,
    list_skipped_within,
    list_unprocessed_offsets,
    take_unprocessed,
)
from backlogctl.replay.kinds.redrive.archived_gaps import (
    close_put_back,
    list_closed,
    list_held,
    list_whole,
    take_archived,
)
from backlogctl.replay.kinds.redrive.describe import list_cautions
from backlogctl.replay.kinds.redrive.plan import (
    ALLOW_DAMAGED,
    ALLOW_REPLAYS,
    ALLOW_UNNAMED,
    ElsewhereTopic,
    PlannedSource,
    RedriveOptions,
    RedrivePlan,
    read_keys,
)
from backlogctl.replay.kinds.redrive.sources import (
    Chosen,
    RedriveSource,
    choose_ranges,
    find_source,
    is_unfiltered,
    merge_ranges,
    name_letters,
    open_archive,
    open_passed,
    parse_offsets,
    read_span,
    require_bounds,
    skip_before,
    takes_waiting,
)
from backlogctl.replay.observe.snapshot import Draft, StreamSnapshot
from backlogctl.replay.present.messages import HIDDEN
from backlogctl.spark_backfill.existing.request import ArchiveSource, Named, Origin, RedriveRequest
from backlogctl.spark_backfill.request import ALLOW_IDS
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
    require_bounds(options)
    draft, snapshot, target = begin_injection(
        *(workspace, stream, options.to),
        origin=origin,
        say=say,
        letters=name_letters(options.source),
        needs_offsets=name_target(stream, options.to, "")[0] is To.TOPIC,
    )
    chosen = choose_messages(draft, snapshot, target, options, wants)
    return stage_and_store(
        draft, target, lambda: compute_redrive(draft, chosen, options), chosen.gaps
    )


def choose_messages(
    draft: Draft,
    snapshot: StreamSnapshot,
    target: Target,
    options: RedriveOptions,
    wants: Callable[[Gap], bool],
) -> Chosen:
    """The source, and the gaps that what is put back closes."""
    stream, ledger, topic = draft.stream, draft.workspace.ledger, snapshot.topic
    source = find_source(draft.workspace, stream, options.source, topic)
    _refuse_target(source, target)
    if options.source == WORD:
        gaps = take_unprocessed(ledger, stream, topic.topic_id, wants)
        return Chosen(snapshot, source, target, gaps)
    if not is_unfiltered(options):
        return Chosen(snapshot, source, target)
    if source.planned.origin is Origin.LOG and target.planned is None:
        said = parse_offsets(options.offsets, source.planned.partitions)
        found = list_skipped_within(ledger, stream, topic.topic_id, said)
        if merge_ranges([place for _, place in found]) != said:
            # What else is in the bounds was chosen, and is sent whether it was handled or not.
            return Chosen(snapshot, source, target)
        skipped = tuple(cut_to(ledger, gap, place.start) for gap, place in found)
        return Chosen(snapshot, source, target, skipped)
    if source.archive is None:
        return Chosen(snapshot, source, target)
    archived = take_archived(ledger, stream, options, source.archive, topic, wants)
    return Chosen(snapshot, source, target, tuple(each.gap for each in archived), archived)


def _refuse_target(source: RedriveSource, target: Target) -> None:
    if target.planned is None and "compact" in target.topic.config.get("cleanup.policy", ""):
        raise Refused(
            "it is compacted: an old message that is put back would take the place of a newer one",
            subject=f"topic {target.name}",
            hint="`--to rehearsal`, or another topic",
        )
    if target.planned is not None and target.name == source.planned.topic:
        raise UsageError("the messages would go where they are", subject=f"--to {target.name}")


def compute_redrive(draft: Draft, chosen: Chosen, options: RedriveOptions) -> RedrivePlan:
    """Reads the source, chooses the messages and stages them."""
    workspace, stream, config = draft.workspace, draft.stream, draft.workspace.config
    target, topic = chosen.target, chosen.snapshot.topic
    is_own = target.planned is None
    ledger_topic, prior = injection.freeze_ledger(
        workspace, stream, options.allow, target.name, "" if is_own else target.topic_id
    )
    keys = read_keys(options.key)
    record = chosen.source.archive
    spark = start_spark(draft, () if record is None else (record.location,))
    from backlogctl.spark_backfill.existing.conditions import check_where, list_decoded
    from backlogctl.spark_backfill.existing.redrive import stage_redrive
    from backlogctl.spark_backfill.messages.staging import fit_chunks

    # Which fields there are, its messages tell: then it is checked once these are read.
    if not list_decoded(stream, config.registries, options.where or ""):
        check_where(spark, options.where or "", is_masked=bool(stream.mask))
    archived: ArchiveSource | None = None
    planned = chosen.source.planned
    if record is not None:
        draft.say(f"verifying archive {planned.archive}")
        archived = open_archive(spark, record, allows_damage=ALLOW_DAMAGED in options.allow)
        planned = planned.model_copy(update={"partitions": archived.manifest.partitions})
    elif chosen.source.passed is not None:
        archived = open_passed(spark, chosen.source.passed)
    ranges, warnings = _find_ranges(draft.properties, options, chosen, archived)
    if target.planned is None or target.planned.to is To.OTHER:
        prior = locate_chunks(workspace, prior, target.topic_id, stream.group)
    else:
        prior = ()
    lost = Lost()
    if is_own:
        lost = find_lost_ranges(workspace, stream, target.topic_id, prior, planned.archive)
    damaged = () if archived is None else archived.damaged
    whole = list_whole(chosen.archived, damaged)
    closed = list_closed(whole, prior) if chosen.archived else _list_unprocessed(chosen)
    request = RedriveRequest(
        recovery_id=draft.recovery_id,
        stream=stream,
        client_properties=draft.properties,
        origin_kind=planned.origin,
        topic=planned.topic,
        topic_id=planned.topic_id,
        partitions=planned.partitions,
        ranges=ranges,
        stream_topic_id=topic.topic_id,
        stream_partitions=topic.partitions,
        target=target.name,
        target_partitions=target.topic.partitions,
        target_max_bytes=int(target.topic.config.get("max.message.bytes", _DEFAULT_MAX_BYTES)),
        staging_root=config.staging.dir,
        archived=archived,
        since=options.since,
        until=options.until,
        keys=keys,
        where=options.where or "",
        max_replays=None if ALLOW_REPLAYS in options.allow else stream.redrive.max_replays,
        takes_unnamed=ALLOW_UNNAMED in options.allow,
        prior=prior,
        lost=lost.ranges,
        told=lost.told,
        gaps=closed,
        waiting=list_held(chosen.archived) if takes_waiting(options) else None,
        sources=config.sources,
        registries=config.registries,
        starts=target.lows,
        may_lack_ids=ALLOW_IDS in options.allow,
        origin={"ledger_topic": None if ledger_topic is None else ledger_topic.to_json()},
    )
    rate, slots = stream.limits.messages_per_second, target.topic.partitions
    limits = fit_chunks(rate, slots, draft.bytes_per_second)
    try:
        outcome = stage_redrive(spark, request, progress=draft.say, limits=limits)
    except PutBackAlready as done:
        if is_own and close_put_back(workspace.ledger, whole, prior):
            done.hint = "nothing: their gaps are closed now"
        raise
    cautions = list_cautions(workspace, stream, chosen, outcome, planned.partitions)
    return RedrivePlan(
        **fill_injection(
            *(draft, chosen.snapshot, target, hide_content(options, stream), FINGERPRINT),
            ledger_topic,
            (*warnings, *lost.told, *lost.cautions, *cautions),
        ),
        source=planned,
        ranges=ranges,
        keys=len(keys),
        gaps=tuple(gap_id for gap_id, _ in closed if gap_id not in outcome.left_open),
        lost_only=takes_waiting(options),
        damaged=damaged,
        elsewhere=_find_elsewhere(draft.properties, outcome.elsewhere),
        outcome=outcome,
        manifest_sha256=outcome.manifest_sha256,
    )


def _list_unprocessed(chosen: Chosen) -> tuple[tuple[str, OffsetRange], ...]:
    places = list_unprocessed_offsets(chosen.gaps)
    return tuple(zip((gap.id for gap in chosen.gaps), places, strict=True))


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
    properties: Mapping[str, str],
    options: RedriveOptions,
    chosen: Chosen,
    archived: ArchiveSource | None,
) -> tuple[tuple[OffsetRange, ...], list[str]]:
    """What is read.

    Raises:
        UsageError, Refused: nothing of what was said is there.
    """
    planned = chosen.source.planned
    if archived is not None:
        ranges_of = archived.manifest.ranges
        held = (OffsetRange(item.partition, item.start, item.end) for item in ranges_of)
        there = injection.subtract_ranges(held, archived.damaged)
        said = parse_offsets(options.offsets, archived.manifest.partitions)
        if takes_waiting(options) and all(each.is_held for each in chosen.archived):
            said = list_held(chosen.archived)  # what was lost again may be anywhere in it
    else:
        said = parse_offsets(options.offsets, planned.partitions) or list_unprocessed_offsets(
            chosen.gaps
        )
        there = _read_topic(properties, planned)
    ranges, warnings = choose_ranges(said, there)
    taken = list_unprocessed_offsets(chosen.gaps)
    if archived is None and not all(map(partial(_is_read, ranges), taken)):
        # Their gaps would be closed without them.
        raise KafkaFailure(
            f"retention took messages while this was planned: {warnings[0]}",
            subject=str(planned),
            hint="plan again",
            retryable=True,
        )
    if archived is None and options.since is not None:
        # Before the first message of a time or later none is of it.
        at = round(options.since.timestamp() * 1000)
        numbers, limit = range(planned.partitions), Deadline(_SECONDS)
        firsts = list_offsets(properties, planned.topic, numbers, at, deadline=limit)
        ranges = skip_before(ranges, firsts)
    if not ranges:
        raise Refused(
            "there is no message in what was asked for" + "".join(f"; {one}" for one in warnings),
            subject=str(planned),
            hint="see what is there with `backlogctl status`",
        )
    return ranges, warnings


def _is_read(ranges: Sequence[OffsetRange], place: OffsetRange) -> bool:
    return any(
        part.partition == place.partition and part.start <= place.start and place.end <= part.end
        for part in ranges
    )


def _read_topic(properties: Mapping[str, str], source: PlannedSource) -> tuple[OffsetRange, ...]:
    """Committed messages."""
    name, numbers, limit = source.topic, range(source.partitions), Deadline(_SECONDS)
    lows = list_offsets(properties, name, numbers, "earliest", deadline=limit)
    ends = list_offsets(
        properties, name, numbers, "latest", isolation="read_committed", deadline=limit
    )
    return read_span(lows, ends)


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
