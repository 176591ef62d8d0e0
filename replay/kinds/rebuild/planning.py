"""Makes the plan of a rebuild: a value, stored and hashed before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backlogctl.clock import Deadline, format_time
from backlogctl.config import Stream
from backlogctl.errors import UsageError
from backlogctl.kafka.admin import TopicInfo, list_offsets
from backlogctl.replay.engine.guards import refuse_missing_group
from backlogctl.replay.engine.kind import Say, Workspace, ignore_progress
from backlogctl.replay.engine.plan import RunOrigin
from backlogctl.replay.injection import ledger as injection
from backlogctl.replay.injection.archived import list_archived, list_archives, suggest_redrive
from backlogctl.replay.injection.plan import To
from backlogctl.replay.injection.storing import (
    begin_injection,
    fill_injection,
    stage_and_store,
    start_spark,
)
from backlogctl.replay.injection.target import Target
from backlogctl.replay.kinds.rebuild.losses import (
    choose_gaps,
    date_edges,
    find_growth,
    leave_out_put_back,
    locate_prior,
    take_every,
    tighten_times,
)
from backlogctl.replay.kinds.rebuild.plan import PlannedGap, RebuildOptions, RebuildPlan
from backlogctl.replay.observe.snapshot import Draft, StreamSnapshot
from backlogctl.values import Cause, Gap, Recovery

if TYPE_CHECKING:
    from backlogctl.spark_backfill.injection.snapshots import LedgerSnapshot
    from backlogctl.spark_backfill.request import Growth, PriorChunk, RebuildRequest

# What of a stream's section decides which messages are made, and where they go.
FINGERPRINT = ("name", "cluster", "topic", "group", "isolation", "partitioner", "source")
_MAX_BYTES = "max.message.bytes"


@dataclass(frozen=True, slots=True)
class Losses:
    """What a plan starts from: the stream, the gaps that it takes, and where they are put back."""

    snapshot: StreamSnapshot
    target: Target
    gaps: tuple[Gap, ...]
    warnings: tuple[str, ...] = ()


def plan_rebuild(
    workspace: Workspace,
    stream: Stream,
    options: RebuildOptions,
    *,
    origin: RunOrigin | None = None,
    wants: Callable[[Gap], bool] = take_every,
    say: Say = ignore_progress,
) -> Recovery:
    """Plans and stages; Kafka and the source are only read.

    Args:
        wants: gaps for which it says no are left alone.
        say: hears what is being done, for people.

    Raises:
        UsageError: the stream has no source, or a gap cannot be chosen.
        Refused: nothing is lost, a guard says no, or another recovery is in the way.
    """
    if stream.source is None:
        raise _refuse_source(workspace, stream)
    draft, snapshot, target = begin_injection(workspace, stream, options.to, origin=origin, say=say)
    losses = choose_losses(draft, snapshot, target, options, wants)
    return stage_and_store(
        draft, target, lambda: compute_rebuild(draft, losses, options), losses.gaps
    )


def _refuse_source(workspace: Workspace, stream: Stream) -> UsageError:
    archived = list_archived(workspace.ledger, stream)
    hint = f"add `streams.{stream.name}.source`; see docs/configuration.md"
    if archived:
        hint = f"`{suggest_redrive(workspace.ledger, archived[0].gap)}` puts back what is archived"
    return UsageError(
        "has no source table to rebuild from", subject=f"stream {stream.name}", hint=hint
    )


def choose_losses(
    draft: Draft,
    snapshot: StreamSnapshot,
    target: Target,
    options: RebuildOptions,
    wants: Callable[[Gap], bool] = take_every,
) -> Losses:
    """Chooses the gaps; their ends are frozen here.

    Raises:
        UsageError: a gap that was named cannot be repaired.
        Refused: there is nothing to repair.
    """
    refuse_missing_group(draft.stream, snapshot.sample, snapshot.gaps)
    known = [gap for gap in snapshot.gaps if wants(gap)]
    ledger, topic_id = draft.workspace.ledger, snapshot.topic.topic_id
    gaps, left = choose_gaps(ledger, draft.stream, topic_id, known, options.gaps)
    gaps, told = leave_out_put_back(draft.workspace, draft.stream, gaps, snapshot.sample.partitions)
    gaps = tighten_times(gaps, snapshot.history)
    return Losses(snapshot, target, gaps, (*snapshot.warnings, *left, *told))


def compute_rebuild(draft: Draft, losses: Losses, options: RebuildOptions) -> RebuildPlan:
    """Reads the source, makes the messages and stages them."""
    stream, config, snapshot = draft.stream, draft.workspace.config, losses.snapshot
    ledger_topic, prior = injection.freeze_ledger(draft.workspace, stream, options.allow)
    request = _make_request(draft, losses, options, ledger_topic, prior)
    from backlogctl.spark_backfill.sources.reflection import require_tables

    draft.say("looking at the source")
    require_tables(config.sources, stream)
    spark = start_spark(draft, (source.location for source in request.archives))
    from backlogctl.spark_backfill.messages.staging import fit_chunks
    from backlogctl.spark_backfill.rebuild import stage_rebuild

    slots = len({gap.partition for gap in losses.gaps})
    outcome = stage_rebuild(
        spark,
        request,
        progress=draft.say,
        limits=fit_chunks(stream.limits.messages_per_second, slots, draft.bytes_per_second),
    )
    lows = list_offsets(
        *(draft.properties, stream.topic, snapshot.lows, "earliest"), deadline=Deadline(30)
    )
    warnings = [
        *losses.warnings,
        *outcome.warnings,
        *map(_describe_growth, request.growth),
        *compare_log_starts(losses.gaps, snapshot.lows, lows),
    ]
    return RebuildPlan(
        **fill_injection(
            *(draft, snapshot, losses.target, options, FINGERPRINT, ledger_topic),
            warnings,
        ),
        gaps=tuple(map(PlannedGap.freeze, losses.gaps)),
        # How long it took is not a part of what is approved.
        outcome=replace(outcome, seconds={}),
        manifest_sha256=outcome.manifest_sha256,
    )


def _make_request(
    draft: Draft,
    losses: Losses,
    options: RebuildOptions,
    ledger_topic: LedgerSnapshot | None,
    prior: Sequence[PriorChunk],
) -> RebuildRequest:
    from backlogctl.spark_backfill.request import ArchiveSource, RebuildRequest

    workspace, stream, config = draft.workspace, draft.stream, draft.workspace.config
    snapshot, target, topic = losses.snapshot, losses.target, losses.snapshot.topic
    elsewhere: tuple[PriorChunk, ...] = ()
    if target.planned is not None and target.planned.to is To.OTHER:
        _, elsewhere = injection.freeze_ledger(
            workspace, stream, options.allow, target.name, target.topic_id
        )
    located, read_since = locate_prior(workspace, prior, losses.gaps)
    planned = target.planned
    return RebuildRequest(
        recovery_id=draft.recovery_id,
        stream=stream,
        sources=config.sources,
        registries=config.registries,
        client_properties=draft.properties,
        partitions=topic.partitions,
        topic_config=limit_size(topic, target.topic),
        gaps=losses.gaps,
        archives=tuple(
            ArchiveSource(record.recovery_id, record.location, record.manifest_sha256)
            for record in list_archives(workspace.ledger, topic.topic_id)
            if record.purged_at is None
        ),
        target=None if planned is None else (planned.topic, planned.partitions),
        staging_root=config.staging.dir,
        since=options.since,
        until=options.until,
        allow=frozenset(options.allow),
        prior=located,
        elsewhere=elsewhere,
        edge_times=date_edges(losses.gaps, snapshot.history),
        bookmarks=workspace.ledger.bookmarks.list(stream.name, stream.group, topic.topic_id),
        growth=find_growth(snapshot.history, topic.topic_id),
        read_since=read_since,
        origin={
            "ledger_topic": None if ledger_topic is None else ledger_topic.to_json(),
            "topic_id": topic.topic_id,
        },
    )


def limit_size(topic: TopicInfo, target: TopicInfo) -> dict[str, str]:
    """The topic's settings, with the size of messages that both take."""
    known = [one.config[_MAX_BYTES] for one in (topic, target) if _MAX_BYTES in one.config]
    return {**topic.config, **({_MAX_BYTES: min(known, key=int)} if known else {})}


def _describe_growth(growth: Growth) -> str:
    return (
        f"the topic got partitions between {format_time(growth.earliest)} and "
        f"{format_time(growth.latest)}, it had {growth.before} before: older messages are proved "
        "and counted by that number, and put back by today's"
    )


def compare_log_starts(
    gaps: Iterable[Gap], before: Mapping[int, int], now: Mapping[int, int]
) -> list[str]:
    """What expired while the plan was made is a new gap; both bounds are reported (fault 23)."""
    moved = [
        f"partition {number} from {before[number]:,} to {now[number]:,}"
        for number in sorted({gap.partition for gap in gaps if gap.cause is Cause.EXPIRED})
        if now[number] > before.get(number, now[number])
    ]
    told = f"retention moved on while planning, {', '.join(moved)}; what expired unread since"
    return [f"{told} is a new gap and needs a plan of its own"] if moved else []
