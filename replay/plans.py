"""Makes the plan of a rebuild: a value, stored and hashed before anything is changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from backlog.clock import Deadline, format_clock, format_time, utc_now
from backlog.config import OffPeak, Stream
from backlog.errors import BacklogError, InvalidTransition, Refused, UsageError
from backlog.kafka.admin import TopicInfo, describe_topic, list_offsets, list_topic_groups
from backlog.manifest import hash_value, read_manifest
from backlog.values import Cause, Gap, GapState, Recovery, RecoveryState
from replay import injection
from replay.approval import approve_automatically
from replay.housekeeping import clear_staging
from replay.identity import find_identity
from replay.kinds import REBUILD
from replay.losses import mark_lost_again, measure_start_spread, read_history, tighten_times
from replay.observation import look_at_stream
from replay.workspace import Workspace

KIND = REBUILD
ALLOWED = ("surplus", "proof", injection.ALLOW_LEDGER)
_ACTIVE = (RecoveryState.APPROVED, RecoveryState.RUNNING, RecoveryState.PAUSED)
_REPAIRABLE = (Cause.EXPIRED, Cause.SKIPPED)
# What only brakes or admits a run: the plan holds its own copy and the run obeys that.
_NOT_MESSAGES = ("limits", "off_peak", "approval", "auto_plan", "deliver", "consumers", "expand")


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the operator said: time bounds, chosen gaps, and what is allowed by name.

    `found_before` leaves later gaps alone. `origin` is the scheduler's run that asked for the
    plan; None from the shell.
    """

    since: datetime | None = None
    until: datetime | None = None
    gap_ids: tuple[str, ...] = ()
    found_before: datetime | None = None
    allow: frozenset[str] = frozenset()
    origin: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Ground:
    """What a plan stands on: the topic and the gaps as they are now."""

    topic: TopicInfo
    gaps: tuple[Gap, ...]
    ends: Mapping[int, int]
    other_groups: tuple[str, ...]
    start_spread: timedelta | None
    warnings: list[str] = field(default_factory=list)


def plan_rebuild(
    workspace: Workspace,
    stream: Stream,
    options: PlanOptions,
    tell: Callable[[str], None] = lambda _: None,
) -> Recovery:
    """Plans and stages; Kafka and the source are only read.

    Args:
        tell: is told what is being done, for people.

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
    tell("looking at the topic")
    ground = observe_ground(workspace, stream, options)
    recovery_id = workspace.ledger.recoveries.next_id(utc_now())
    directory = workspace.staging_of(recovery_id)
    try:
        plan = _compute_plan(workspace, stream, options, ground, recovery_id, tell)
        chunks = read_manifest(directory, plan["manifest_sha256"]).chunks
        recovery = workspace.ledger.recoveries.create(
            KIND,
            stream.name,
            stream.cluster,
            stream.topic,
            stream.group,
            plan,
            hash_value(plan),
            [gap.id for gap in ground.gaps],
            actor=str(find_identity()),
            id=recovery_id,
        )
        workspace.ledger.chunks.add_all(recovery_id, chunks)
    except BaseException:
        # It may be on record by now, and could be approved: then its messages must stay.
        with suppress(BacklogError):
            _withdraw(workspace, recovery_id)
            shutil.rmtree(directory, ignore_errors=True)
        raise
    clear_staging(workspace)
    return approve_automatically(workspace.ledger, workspace.config, recovery)


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
    full = stream.fingerprint()
    return {name: value for name, value in full.items() if name not in _NOT_MESSAGES}


def check_denied(workspace: Workspace, stream: Stream) -> None:
    """Refuses topics of `guards.deny_topics`, and our own ledger topic."""
    config = workspace.config
    for pattern in (*config.guards.deny_topics, config.kafka_ledger.topic):
        if fnmatchcase(stream.topic, pattern):
            raise Refused(
                f"it is denied by the pattern `{pattern}`",
                subject=f"topic {stream.topic}",
                hint="see `guards.deny_topics`",
            )


def observe_ground(workspace: Workspace, stream: Stream, options: PlanOptions) -> Ground:
    """Looks at the stream now, and chooses the gaps; their ends are frozen here."""
    limit = Deadline(60.0)
    properties = workspace.properties(stream)
    _, status = look_at_stream(workspace, stream, limit)
    topic = describe_topic(properties, stream.topic, limit)
    gaps, warnings = choose_gaps(workspace, stream, topic, options.gap_ids, options.found_before)
    warnings = [*status["warnings"], *warnings]
    groups = list_topic_groups(properties, stream.topic, limit)
    others = tuple(name for name in groups if name != stream.group)
    if others and stream.deliver != "topic":
        warnings.append(
            f"other groups read this topic and would get the messages again: "
            f"{', '.join(others)}; it will not run unless the stream says `deliver: topic`"
        )
    elif others:
        warnings.append(f"other groups will get the messages again: {', '.join(others)}")
    ends = list_offsets(properties, stream.topic, range(topic.partitions), "latest", deadline=limit)
    history = read_history(workspace, stream)
    gaps = tighten_times(gaps, history)
    spread = measure_start_spread(gaps, history)
    return Ground(topic, gaps, ends, others, spread, warnings)


def choose_gaps(
    workspace: Workspace,
    stream: Stream,
    topic: TopicInfo,
    wanted: Sequence[str],
    found_before: datetime | None = None,
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
    known = {
        gap.id: gap
        for gap in ledger.gaps.list(stream=stream.name)
        if found_before is None or gap.detected_at < found_before
    }
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
        why = tell_why_not(gap, stream, topic.topic_id) if free else f"it is {gap.state}"
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


def tell_why_not(gap: Gap, stream: Stream, topic_id: str) -> str:
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


def refuse_active(workspace: Workspace, stream: Stream) -> None:
    """Refuses early, before minutes of work; the database decides in the end."""
    for other in workspace.ledger.recoveries.list(states=(*_ACTIVE, RecoveryState.FAILED)):
        if other.state is RecoveryState.FAILED and other.kind == KIND:
            continue  # it left nothing behind; anything else stopped half way
        same = other.topic == stream.topic or other.group == stream.group
        if other.cluster == stream.cluster and same:
            raise InvalidTransition(
                f"recovery {other.id} of the same topic or group is {other.state}",
                subject=f"stream {stream.name}",
                hint=f"finish it with `backlogctl run {other.id}`, or cancel it",
            )


def _compute_plan(
    workspace: Workspace,
    stream: Stream,
    options: PlanOptions,
    ground: Ground,
    recovery_id: str,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    config, properties = workspace.config, workspace.properties(stream)
    ledger_topic, prior = injection.freeze_ledger(workspace, stream, options.allow)
    prior = mark_lost_again(workspace, prior, ground.gaps)
    from spark_backfill.reflection import require_tables

    tell("looking at the source")
    require_tables(config.sources, stream)
    tell("starting Spark")
    from spark_backfill.rebuild import plan_rebuild as rebuild
    from spark_backfill.request import RebuildRequest
    from spark_backfill.session import open_session
    from spark_backfill.staging import fit_chunks

    slots = len({gap.partition for gap in ground.gaps})
    name = f"backlogctl plan {recovery_id}"
    spark = open_session(config.spark, name, staging=config.staging.dir)
    outcome = rebuild(
        spark,
        RebuildRequest(
            recovery_id=recovery_id,
            stream=stream,
            sources=config.sources,
            client_properties=properties,
            partitions=ground.topic.partitions,
            topic_config=ground.topic.config,
            gaps=ground.gaps,
            staging_root=config.staging.dir,
            since=options.since,
            until=options.until,
            allow=options.allow,
            prior=prior,
            start_spread=ground.start_spread,
            origin={"ledger_topic": ledger_topic, "topic_id": ground.topic.topic_id},
        ),
        progress=tell,
        limits=fit_chunks(stream.limits.messages_per_second, slots),
    )
    found = outcome.to_json()
    warnings = [*ground.warnings, *outcome.warnings]
    warnings += _compare_log_starts(workspace, stream, ground)
    identity = find_identity()
    return {
        "version": 1,
        "kind": KIND,
        "stream": stream.name,
        "cluster": stream.cluster,
        "topic": stream.topic,
        "topic_id": ground.topic.topic_id,
        "partition_count": ground.topic.partitions,
        "group": stream.group,
        "gaps": [_freeze_gap(gap) for gap in ground.gaps],
        "outcome": found,
        "manifest_sha256": outcome.manifest_sha256,
        "ledger_topic": ledger_topic,
        "transactional_prefix": config.kafka_ledger.transactional_prefix,
        "topic_end_offsets": {str(number): end for number, end in ground.ends.items()},
        "other_groups": list(ground.other_groups),
        "deliver": stream.deliver,
        "configuration": fingerprint_stream(stream),
        "approval": stream.approval,
        "off_peak": _freeze_window(stream.off_peak) if stream.off_peak else None,
        "limits": stream.limits.model_dump(mode="json"),
        "options": {
            "since": format_time(options.since) if options.since else None,
            "until": format_time(options.until) if options.until else None,
            "gaps": list(options.gap_ids),
            "allow": sorted(options.allow),
        },
        "warnings": list(dict.fromkeys(warnings)),
        "origin": None if options.origin is None else dict(options.origin),
        "planned_by": identity.to_json(),
        "planned_at": format_time(utc_now()),
    }


def _compare_log_starts(workspace: Workspace, stream: Stream, ground: Ground) -> list[str]:
    """What expired while the plan was made is a new gap; both bounds are reported (fault 23)."""
    properties = workspace.properties(stream)
    lows = list_offsets(
        properties, stream.topic, range(ground.topic.partitions), "earliest", deadline=Deadline(30)
    )
    ends: dict[int, int] = {}
    for gap in ground.gaps:
        if gap.cause is Cause.EXPIRED and gap.end is not None:
            ends[gap.partition] = max(ends.get(gap.partition, 0), gap.end)
    return [
        f"partition {number}: retention moved on while planning, from {end} to {lows[number]}; "
        "what expired unread since is a new gap and needs a plan of its own"
        for number, end in sorted(ends.items())
        if lows[number] > end
    ]


def _freeze_window(off_peak: OffPeak) -> dict[str, str]:
    """As it stands in the file: `{"from": "00:30", "to": "06:00", "timezone": ...}`."""
    window = off_peak.window()
    return {
        "from": format_clock(window.start),
        "to": format_clock(window.end),
        "timezone": window.zone.key,
    }


def _freeze_gap(gap: Gap) -> dict[str, Any]:
    return {
        "id": gap.id,
        "partition": gap.partition,
        "start": gap.start,
        "end": gap.end,
        "cause": str(gap.cause),
        "certainty": str(gap.certainty),
    }
