"""Makes the plan of a rebuild: a value, stored and hashed before anything is changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from backlog.clock import Deadline, format_time, utc_now
from backlog.config import Stream
from backlog.errors import BacklogError, Refused, UsageError
from backlog.kafka.admin import TopicInfo, describe_topic, list_offsets, list_topic_readers
from backlog.kafka.readers import TopicReaders
from backlog.manifest import read_manifest
from backlog.values import Cause, Gap, GapState, Recovery, RecoveryState, Sample
from replay.around.observation import look_at_stream, read_history
from replay.around.rights import require_rights
from replay.kinds.rebuild import injection
from replay.kinds.rebuild.losses import date_edges, find_growth, locate_prior, tighten_times
from replay.kinds.rebuild.options import RebuildOptions
from replay.kinds.rebuild.plan import PlannedGap, RebuildPlan
from replay.kinds.rebuild.put_back import leave_out_put_back
from replay.kinds.rebuild.rights import list_rebuilding
from replay.recovery.approval import approve_automatically
from replay.recovery.guards import (
    check_denied,
    refuse_active,
    refuse_group_type,
    refuse_missing_group,
    store_plan,
)
from replay.recovery.housekeeping import clear_staging
from replay.recovery.identity import find_identity
from replay.recovery.kind import Say, say_nothing
from replay.recovery.plan import Origin, PlannedWindow
from replay.recovery.workspace import Workspace

if TYPE_CHECKING:
    from spark_backfill.request import Growth

# What of a stream's section decides which messages are made, and where they go.
FINGERPRINT = ("name", "cluster", "topic", "group", "isolation", "partitioner", "source")
NOT_WITHOUT_DELIVER = "; it will not run unless the stream says `deliver: topic`"
_REPAIRABLE = (Cause.EXPIRED, Cause.SKIPPED)


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


def take_every(_: Gap) -> bool:
    """No gap is left alone."""
    return True


def plan_rebuild(
    workspace: Workspace,
    stream: Stream,
    options: RebuildOptions,
    *,
    origin: Origin | None = None,
    wants: Callable[[Gap], bool] = take_every,
    say: Say = say_nothing,
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
        raise UsageError(
            "it has no source table to rebuild from",
            subject=f"stream {stream.name}",
            hint=f"add `streams.{stream.name}.source`; see docs/configuration.md",
        )
    check_denied(workspace, stream)
    refuse_active(workspace, stream)
    refuse_group_type(workspace, stream)
    told = require_rights(workspace, stream, list_rebuilding(workspace.config, stream, None))
    say("looking at the topic")
    losses = observe_losses(workspace, stream, options, wants)
    losses.warnings += told
    recovery_id = workspace.ledger.recoveries.next_id(utc_now())
    directory = workspace.staging_of(recovery_id)
    try:
        plan = _compute_plan(workspace, stream, options, losses, recovery_id, origin, say)
        chunks = read_manifest(directory, plan.manifest_sha256).chunks
        gap_ids = [gap.id for gap in losses.gaps]
        recovery = store_plan(workspace, recovery_id, plan, gap_ids)
        workspace.ledger.chunks.add_all(recovery_id, chunks)
    except BaseException:
        # It may be on record by now, and could be approved: then its messages must stay.
        with suppress(BacklogError):
            _withdraw(workspace, recovery_id)
            shutil.rmtree(directory, ignore_errors=True)
        raise
    clear_staging(workspace)
    return approve_automatically(workspace, recovery)


def _withdraw(workspace: Workspace, recovery_id: str) -> None:
    """Rejects a plan that did not come to its end, if it is on record.

    Raises:
        BacklogError: it may be on record still.
    """
    with suppress(UsageError):
        workspace.ledger.recoveries.get(recovery_id)
        workspace.ledger.recoveries.advance(
            recovery_id,
            RecoveryState.REJECTED,
            actor=str(find_identity()),
            detail={"reason": "planning did not come to its end"},
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
    seen, status = look_at_stream(workspace, stream, limit)
    refuse_missing_group(workspace, stream, seen.sample)
    topic = describe_topic(properties, stream.topic, limit)
    gaps, warnings = choose_gaps(workspace, stream, topic, options.gaps, wants)
    gaps, told = leave_out_put_back(workspace, stream, gaps, seen.sample.partitions)
    warnings = [*status["warnings"], *warnings, *told]
    readers = list_topic_readers(properties, stream.topic, limit)
    others, unknown = readers.list_others(stream.group), readers.say_unknown(stream.group)
    if unknown:
        warnings.append(
            f"whether other groups read this topic is unknown: the tool {unknown}"
            + ("" if stream.deliver == "topic" else NOT_WITHOUT_DELIVER)
        )
    if others and stream.deliver != "topic":
        warnings.append(
            f"other groups read this topic and would get the messages again: "
            f"{', '.join(others)}" + NOT_WITHOUT_DELIVER
        )
    elif others:
        warnings.append(f"other groups will get the messages again: {', '.join(others)}")
    ends = list_offsets(properties, stream.topic, range(topic.partitions), "latest", deadline=limit)
    history = read_history(workspace, stream)
    gaps = tighten_times(gaps, history)
    starts = {part.partition: part.low for part in seen.sample.partitions}
    return Losses(topic, gaps, starts, ends, readers, history, warnings)


def choose_gaps(
    workspace: Workspace,
    stream: Stream,
    topic: TopicInfo,
    wanted: Sequence[str],
    wants: Callable[[Gap], bool] = take_every,
) -> tuple[tuple[Gap, ...], list[str]]:
    """The gaps to repair, and what is to be said about the others.

    Open ones, and those of an older plan that nobody approved: the new plan takes its place.

    Raises:
        UsageError: a gap that was named cannot be repaired.
        Refused: there is nothing to repair.
    """
    ledger = workspace.ledger
    superseded = {
        gap_id
        for recovery in ledger.recoveries.list(stream.name, [RecoveryState.PLANNED])
        for gap_id in ledger.recoveries.gap_ids(recovery.id)
    }
    known = {gap.id: gap for gap in ledger.gaps.list(stream=stream.name) if wants(gap)}
    for gap_id in wanted:
        if gap_id not in known:
            raise UsageError(
                f"stream {stream.name} has no such gap",
                subject=f"gap {gap_id}",
                hint="`backlogctl gaps` lists them",
            )
    chosen: list[Gap] = []
    warnings: list[str] = []
    for gap in known.values():
        free = gap.state is GapState.OPEN or (
            gap.state in (GapState.PLANNED, GapState.STAGED) and gap.id in superseded
        )
        why = say_why_not(gap, stream, topic.topic_id) if free else f"it is {gap.state}"
        if not why and (not wanted or gap.id in wanted):
            chosen.append(gap)
        elif gap.id in wanted:
            raise UsageError(
                f"cannot be planned: {why}",
                subject=f"gap {gap.id}",
                hint="`backlogctl gaps` lists them",
            )
        elif free and not wanted:
            warnings.append(f"gap {gap.id} (partition {gap.partition}) is left out: {why}")
    if not chosen:
        raise _refuse_nothing(stream, list(known.values()), warnings)
    return tuple(chosen), warnings


def say_why_not(gap: Gap, stream: Stream, topic_id: str) -> str:
    """Why a gap of a topic that has this id now cannot be rebuilt; "" where it can."""
    if gap.cause not in _REPAIRABLE:
        return f"{gap.cause} is reported only, what was lost is unknown"
    if gap.start is None or gap.end is None:
        return "its range is unknown"
    if gap.topic_id != topic_id:
        return "it is of a topic of this name that was deleted since"
    if gap.group != stream.group:
        return f"it is of group {gap.group}, and the stream's group is {stream.group}"
    return ""


def _refuse_nothing(stream: Stream, known: Sequence[Gap], warnings: Sequence[str]) -> Refused:
    subject = f"stream {stream.name}"
    busy = [gap for gap in known if gap.state in (GapState.PLANNED, GapState.STAGED)]
    busy += [gap for gap in known if gap.state is GapState.INJECTED]
    if busy:
        return Refused(
            "every gap belongs to a recovery already",
            subject=subject,
            hint="see `backlogctl recoveries`; run it, or cancel it",
        )
    if warnings:
        return Refused(
            f"no gap can be rebuilt: {'; '.join(warnings)}",
            subject=subject,
            hint="`backlogctl waive` closes a gap that needs no recovery",
        )
    return Refused("nothing is lost, so there is nothing to rebuild", subject=subject)


def _compute_plan(
    workspace: Workspace,
    stream: Stream,
    options: RebuildOptions,
    losses: Losses,
    recovery_id: str,
    origin: Origin | None,
    say: Say,
) -> RebuildPlan:
    config, properties = workspace.config, workspace.properties(stream)
    ledger_topic, prior = injection.freeze_ledger(workspace, stream, options.allow)
    prior, read_since = locate_prior(workspace, prior, losses.gaps)
    growth = find_growth(losses.history, losses.topic.topic_id)
    from spark_backfill.sources.reflection import require_tables

    say("looking at the source")
    require_tables(config.sources, stream)
    from spark_backfill.spark.kafka_options import make_java_options

    make_java_options(properties)  # refuses now what Spark could not use
    say("starting Spark")
    from spark_backfill.messages.staging import fit_chunks
    from spark_backfill.rebuild import plan_rebuild as rebuild
    from spark_backfill.request import RebuildRequest
    from spark_backfill.spark.session import open_session

    slots = len({gap.partition for gap in losses.gaps})
    name = f"backlogctl plan {recovery_id}"
    spark = open_session(config.spark, name, staging=config.staging.dir)
    outcome = rebuild(
        spark,
        RebuildRequest(
            recovery_id=recovery_id,
            stream=stream,
            sources=config.sources,
            client_properties=properties,
            partitions=losses.topic.partitions,
            topic_config=losses.topic.config,
            gaps=losses.gaps,
            staging_root=config.staging.dir,
            since=options.since,
            until=options.until,
            allow=frozenset(options.allow),
            prior=prior,
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
    warnings = [*losses.warnings, *map(_describe_growth, growth), *outcome.warnings]
    warnings += _compare_log_starts(workspace, stream, losses)
    return RebuildPlan(
        stream=stream.name,
        cluster=stream.cluster,
        topic=stream.topic,
        topic_id=losses.topic.topic_id,
        partition_count=losses.topic.partitions,
        group=stream.group,
        gaps=tuple(PlannedGap.freeze(gap) for gap in losses.gaps),
        # How long it took is not a part of what is approved.
        outcome=replace(outcome, seconds={}),
        manifest_sha256=outcome.manifest_sha256,
        ledger_topic=ledger_topic,
        transactional_prefix=config.kafka_ledger.transactional_prefix,
        topic_end_offsets=losses.ends,
        other_groups=losses.readers.list_others(stream.group),
        others_unknown=losses.readers.say_unknown(stream.group),
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
