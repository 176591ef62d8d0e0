"""Makes the plan of a rebuild: a value, stored and hashed before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from backlogctl.clock import Deadline, format_time, utc_now
from backlogctl.config import Stream
from backlogctl.errors import UsageError
from backlogctl.kafka.admin import TopicInfo, describe_topic, list_offsets, list_topic_readers
from backlogctl.kafka.readers import TopicReaders
from backlogctl.ledger import ArchiveRecord
from backlogctl.replay.engine.approval import approve_automatically
from backlogctl.replay.engine.archives import clear_staging
from backlogctl.replay.engine.guards import (
    check_denied,
    refuse_active,
    refuse_group_type,
    refuse_missing_group,
)
from backlogctl.replay.engine.kind import Say, Workspace, ignore_progress
from backlogctl.replay.engine.plan import PlannedWindow, RunOrigin, find_identity
from backlogctl.replay.injection import ledger as injection
from backlogctl.replay.injection.archived import list_archived, list_archives, suggest_redrive
from backlogctl.replay.injection.kind import warn_about_readers
from backlogctl.replay.injection.plan import PlannedTarget, To, list_sending
from backlogctl.replay.injection.storing import stage_and_store
from backlogctl.replay.injection.target import choose_target, clear_rehearsals, name_superseded
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
from backlogctl.replay.observe.rights import require_rights
from backlogctl.replay.observe.stream import read_history, sample_stream
from backlogctl.values import Cause, Gap, Recovery, Sample

if TYPE_CHECKING:
    from backlogctl.spark_backfill.request import ArchiveSource, Growth, PriorChunk

# What of a stream's section decides which messages are made, and where they go.
FINGERPRINT = ("name", "cluster", "topic", "group", "isolation", "partitioner", "source")
_SECONDS = 60.0
_MAX_BYTES = "max.message.bytes"


@dataclass(frozen=True, slots=True)
class Target:
    """A target as it is now: its high watermarks, what it takes, and who reads it."""

    planned: PlannedTarget
    ends: Mapping[int, int]
    config: Mapping[str, str]
    readers: TopicReaders = field(default_factory=lambda: TopicReaders({}))

    def limit(self, topic: TopicInfo) -> dict[str, str]:
        """The topic's settings, with the size of messages that both take."""
        known = [it[_MAX_BYTES] for it in (topic.config, self.config) if _MAX_BYTES in it]
        return {**topic.config, **({_MAX_BYTES: min(known, key=int)} if known else {})}


def find_target(
    workspace: Workspace, stream: Stream, said: str | None, recovery_id: str
) -> Target | None:
    """What `--to` means; None for the stream's own topic.

    Raises:
        UsageError: there is no topic of that name.
        Refused: a guard says no.
    """
    if said in (None, str(To.TOPIC), stream.topic):
        return None
    properties, limit = workspace.properties(stream), Deadline(_SECONDS)
    source = describe_topic(properties, stream.topic, limit)
    planned = choose_target(workspace, stream, said, recovery_id, source)
    if planned is None:
        return None
    numbers = range(planned.partitions)
    if planned.to is To.REHEARSAL:
        return Target(planned, dict.fromkeys(numbers, 0), {})
    found = describe_topic(properties, planned.topic, limit)
    ends = list_offsets(properties, planned.topic, numbers, "latest", deadline=limit)
    readers = list_topic_readers(properties, planned.topic, limit)
    return Target(planned, ends, found.config, readers)


@dataclass(slots=True)
class Losses:
    """What a plan starts from: the topic, its offsets and the gaps as they are now."""

    topic: TopicInfo
    gaps: tuple[Gap, ...]
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    readers: TopicReaders
    history: tuple[Sample, ...]
    warnings: list[str] = field(default_factory=list)
    archives: tuple[ArchiveRecord, ...] = ()

    def list_sources(self) -> tuple[ArchiveSource, ...]:
        """The archives that are there still."""
        from backlogctl.spark_backfill.request import ArchiveSource

        return tuple(
            ArchiveSource(record.recovery_id, record.location, record.manifest_sha256)
            for record in self.archives
            if record.purged_at is None
        )


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
    check_denied(workspace, stream)
    refuse_active(workspace, stream)
    refuse_group_type(workspace, stream)
    clear_rehearsals(workspace, stream.name)
    recovery_id = workspace.ledger.recoveries.next_id(utc_now())
    target = find_target(workspace, stream, options.to, recovery_id)
    planned = None if target is None else target.planned
    rights = list_sending(workspace.config, stream, recovery_id, None, planned)
    told = require_rights(workspace, stream, rights)
    say("looking at the topic")
    losses = observe_losses(workspace, stream, options, wants)
    losses.warnings += told
    if target is None:
        others, unknown = (
            losses.readers.list_others(stream.group),
            losses.readers.say_unknown(stream.group),
        )
        losses.warnings += warn_about_readers(others, unknown, stream.deliver)
    else:
        losses.warnings += name_superseded(workspace, stream.name)
    recovery = stage_and_store(
        workspace,
        recovery_id,
        lambda: _compute_plan(workspace, stream, options, losses, recovery_id, target, origin, say),
        # What is sent elsewhere repairs nothing.
        losses.gaps if target is None else (),
    )
    clear_staging(workspace)
    return approve_automatically(workspace, recovery)


def _refuse_source(workspace: Workspace, stream: Stream) -> UsageError:
    archived = list_archived(workspace.ledger, stream)
    hint = f"add `streams.{stream.name}.source`; see docs/configuration.md"
    if archived:
        hint = f"`{suggest_redrive(workspace.ledger, archived[0].gap)}` puts back what is archived"
    return UsageError(
        f"stream {stream.name} has no source table to rebuild from",
        subject=f"stream {stream.name}",
        hint=hint,
    )


def fingerprint_stream(stream: Stream) -> dict[str, Any]:
    """What of a stream's configuration decides which messages are made, and where they go."""
    return stream.model_dump(mode="json", include=set(FINGERPRINT))


def observe_losses(
    workspace: Workspace,
    stream: Stream,
    options: RebuildOptions,
    wants: Callable[[Gap], bool] = take_every,
) -> Losses:
    """Looks at the stream now, and chooses the gaps; their ends are frozen here."""
    limit = Deadline(60.0)
    properties = workspace.properties(stream)
    seen, status = sample_stream(workspace, stream, limit)
    refuse_missing_group(workspace, stream, seen.sample)
    topic = describe_topic(properties, stream.topic, limit)
    gaps, warnings = choose_gaps(workspace, stream, topic, options.gaps, wants)
    gaps, told = leave_out_put_back(workspace, stream, gaps, seen.sample.partitions)
    warnings = [*status["warnings"], *warnings, *told]
    readers = list_topic_readers(properties, stream.topic, limit)
    ends = list_offsets(properties, stream.topic, range(topic.partitions), "latest", deadline=limit)
    history = read_history(workspace, stream)
    gaps = tighten_times(gaps, history)
    archives = list_archives(workspace.ledger, topic.topic_id)
    starts = {part.partition: part.low for part in seen.sample.partitions}
    return Losses(topic, gaps, starts, ends, readers, history, warnings, archives)


def _compute_plan(
    workspace: Workspace,
    stream: Stream,
    options: RebuildOptions,
    losses: Losses,
    recovery_id: str,
    target: Target | None,
    origin: RunOrigin | None,
    say: Say,
) -> RebuildPlan:
    config, properties = workspace.config, workspace.properties(stream)
    ledger_topic, prior = injection.freeze_ledger(workspace, stream, options.allow)
    elsewhere: tuple[PriorChunk, ...] = ()
    if target is not None and target.planned.to is To.OTHER:
        _, elsewhere = injection.freeze_ledger(
            workspace, stream, options.allow, target.planned.topic, target.planned.topic_id or ""
        )
    sources = losses.list_sources()
    prior, read_since = locate_prior(workspace, prior, losses.gaps)
    growth = find_growth(losses.history, losses.topic.topic_id)
    from backlogctl.spark_backfill.sources.reflection import require_tables

    say("looking at the source")
    require_tables(config.sources, stream)
    from backlogctl.spark_backfill.spark.kafka_options import make_java_options

    make_java_options(properties)  # refuses now what Spark could not use
    say("starting Spark")
    from backlogctl.spark_backfill.messages.staging import fit_chunks
    from backlogctl.spark_backfill.rebuild import stage_rebuild as rebuild
    from backlogctl.spark_backfill.request import RebuildRequest
    from backlogctl.spark_backfill.spark.cluster import needs_s3
    from backlogctl.spark_backfill.spark.session import open_session

    slots = len({gap.partition for gap in losses.gaps})
    name = f"backlogctl plan {recovery_id}"
    s3 = any(needs_s3(source.location) for source in sources)
    spark = open_session(config.spark, name, staging=config.staging.dir, s3=s3)
    outcome = rebuild(
        spark,
        RebuildRequest(
            recovery_id=recovery_id,
            stream=stream,
            sources=config.sources,
            client_properties=properties,
            partitions=losses.topic.partitions,
            topic_config=losses.topic.config if target is None else target.limit(losses.topic),
            gaps=losses.gaps,
            archives=sources,
            target=None if target is None else (target.planned.topic, target.planned.partitions),
            staging_root=config.staging.dir,
            since=options.since,
            until=options.until,
            allow=frozenset(options.allow),
            prior=prior,
            elsewhere=elsewhere,
            edge_times=date_edges(losses.gaps, losses.history),
            bookmarks=workspace.ledger.bookmarks.list(
                stream.name, stream.group, losses.topic.topic_id
            ),
            growth=growth,
            read_since=read_since,
            origin={
                "ledger_topic": None if ledger_topic is None else ledger_topic.to_json(),
                "topic_id": losses.topic.topic_id,
            },
        ),
        progress=say,
        limits=fit_chunks(stream.limits.messages_per_second, slots),
    )
    warnings = [*losses.warnings, *outcome.warnings]
    # Who gets the messages besides: of another topic its readers, all of them.
    readers, mine = (losses.readers, stream.group) if target is None else (target.readers, "")
    warnings += map(_describe_growth, growth)
    warnings += _compare_log_starts(workspace, stream, losses)
    return RebuildPlan(
        stream=stream.name,
        cluster=stream.cluster,
        topic=stream.topic,
        topic_id=losses.topic.topic_id,
        partition_count=losses.topic.partitions,
        group=stream.group,
        gaps=tuple(map(PlannedGap.freeze, losses.gaps)),
        target=None if target is None else target.planned,
        # How long it took is not a part of what is approved.
        outcome=replace(outcome, seconds={}),
        manifest_sha256=outcome.manifest_sha256,
        ledger_topic=ledger_topic,
        transactional_prefix=config.kafka_ledger.transactional_prefix,
        topic_end_offsets=losses.ends if target is None else target.ends,
        other_groups=readers.list_others(mine),
        others_unknown=readers.say_unknown(mine),
        deliver=stream.deliver,
        configuration=fingerprint_stream(stream),
        approval=stream.approval,
        off_peak=PlannedWindow.freeze(stream.off_peak),
        limits=stream.limits,
        options=options,
        warnings=tuple(dict.fromkeys(warnings)),
        origin=origin,
        planned_by=find_identity(),
        planned_at=utc_now(),
    )


def _describe_growth(growth: Growth) -> str:
    return (
        f"the topic got partitions between {format_time(growth.earliest)} and "
        f"{format_time(growth.latest)}, it had {growth.before} before: older messages are proved "
        "and counted by that number, and put back by today's"
    )


def _compare_log_starts(workspace: Workspace, stream: Stream, losses: Losses) -> list[str]:
    """What expired while the plan was made is a new gap; both bounds are reported (fault 23)."""
    properties = workspace.properties(stream)
    lows = list_offsets(
        properties, stream.topic, range(losses.topic.partitions), "earliest", deadline=Deadline(30)
    )
    return [
        f"partition {number}: retention moved on while planning, from {losses.starts[number]} to "
        f"{lows[number]}; what expired unread since is a new gap and needs a plan of its own"
        for number in sorted({gap.partition for gap in losses.gaps if gap.cause is Cause.EXPIRED})
        if lows[number] > losses.starts.get(number, lows[number])
    ]
