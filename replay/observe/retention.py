"""Holds the retention of streams, and gives back what is due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.config import Stream
from backlogctl.errors import BacklogError, Refused
from backlogctl.fanout.disk import DiskCheck, estimate_hold, find_local_part, measure_growth
from backlogctl.fanout.retention import (
    MARGIN,
    RETENTION_MS,
    compute_hold,
    raise_retention,
    restore_retention,
)
from backlogctl.formats import format_moment
from backlogctl.kafka.admin import TopicInfo, connect, describe_topic
from backlogctl.kafka.log_dirs import read_log_dirs
from backlogctl.ledger import OPERATOR, Hold
from backlogctl.ledger.holds import keeps_longer
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import find_identity
from backlogctl.replay.observe.rights import require_rights, select_rights
from backlogctl.replay.observe.stream import read_history
from backlogctl.values import Recovery, Sample, to_document

ALLOW_DISK = "disk"
HOLD_SECONDS = 30.0
_DUE_SECONDS = 10.0
_GROWTH_OVER = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Held:
    """What `hold --for` did; `hold` is None where nothing deletes the topic's messages."""

    hold: Hold | None
    disk: DiskCheck
    warnings: tuple[str, ...]


def hold_stream(
    workspace: Workspace, stream: Stream, duration: timedelta, *, allow_full: bool = False
) -> Held:
    """Raises the retention of a stream's topic, so that the messages in it stay for `duration`.

    A stream that the operator holds already is held until then instead.

    Raises:
        Refused: the disks have no room for what the topic grows by, unless `allow_full`.
        TopicMissing, ClusterUnreachable, KafkaFailure.
    """
    limit = Deadline(HOLD_SECONDS)
    properties = workspace.properties(stream)
    told = require_rights(workspace, stream, select_rights("raise", stream))
    admin = connect(properties)
    topic = describe_topic(admin, stream.topic, limit)
    ledger = workspace.ledger
    until = ledger.now() + duration
    others = ledger.holds.list_of_topic(stream.cluster, stream.topic, topic.topic_id)
    settings = _choose_settings(topic.config, others, duration, until)
    disk = _check_disk(workspace, stream, topic, duration)
    if not settings and not others:
        return Held(None, disk, ())
    if disk.enough is False and not allow_full:
        raise Refused(
            f"the brokers' disks would fill up: {disk.reason}; nothing was changed",
            subject=f"topic {stream.topic}",
            hint="hold it for a shorter time, or make room; `--allow disk` holds it in spite of it",
        )
    hold = raise_retention(
        ledger,
        admin,
        stream=stream.name,
        cluster=stream.cluster,
        topic=stream.topic,
        topic_id=topic.topic_id,
        holder=OPERATOR,
        settings=settings,
        until=until,
        actor=str(find_identity()),
        deadline=limit,
    )
    return Held(hold, disk, (*told, *_warn_about_disk(disk)))


def release_stream(workspace: Workspace, stream: Stream) -> tuple[tuple[Hold, ...], list[str]]:
    """Gives back what the operator holds of a stream, whenever that is due.

    Returns:
        The holds as they are now, and warnings.
    """
    released: list[Hold] = []
    warnings: list[str] = []
    for hold in workspace.ledger.holds.list(stream=stream.name, holder=OPERATOR):
        warnings += _give_back(workspace, hold, Deadline(HOLD_SECONDS))
        released.append(workspace.ledger.holds.get(hold.id))
    return tuple(released), warnings


def release_due(workspace: Workspace) -> list[str]:
    """Gives back every hold whose time is over; one that cannot be given back stays.

    Called by several commands, since nobody may be running `watch`.

    Returns:
        What was done, and what could not be: one sentence each.

    Raises:
        LedgerError.
    """
    told: list[str] = []
    for hold in workspace.ledger.holds.due(workspace.ledger.now()):
        name = f"retention of topic {hold.topic}"
        try:
            warnings = _give_back(workspace, hold, Deadline(_DUE_SECONDS))
        except BacklogError as error:
            told.append(f"the {name} is due to be given back, and could not be: {error}")
            continue
        told += warnings or [f"the {name} was given back: its hold {hold.id} is over"]
    return told


def say_held(workspace: Workspace, recovery: Recovery) -> str:
    """What stays raised of a recovery's topic, to follow how it ended; "" where nothing does."""
    known = workspace.ledger.holds.list(stream=recovery.stream)
    holds = [hold for hold in known if hold.topic == recovery.topic]
    if not holds:
        return ""
    names = " and ".join(sorted({name for hold in holds for name in hold.raised}))
    ends = [hold.until for hold in holds if hold.until is not None]
    until = f" until {format_moment(max(ends))}" if len(ends) == len(holds) else ""
    back = f"`backlogctl hold {recovery.stream} --release` gives it back"
    if any(hold.holder != OPERATOR for hold in holds):
        back = "`backlogctl hold` says for whom"
    return f", but {names} of topic {recovery.topic} stays raised{until} ({back})"


def describe_hold(hold: Hold) -> dict[str, Any]:
    """A hold as `hold --json` prints it."""
    return to_document(
        hold,
        *("id", "stream", "cluster", "topic", "holder", "old", "raised"),
        *("until", "created_at", "released_at", "actor", "in_force"),
    )


def _choose_settings(
    config: Mapping[str, str], others: Sequence[Hold], duration: timedelta, until: datetime
) -> dict[str, str]:
    """What to raise to; a hold that exists is extended only by the added time."""
    mine = next((hold for hold in others if hold.holder == OPERATOR), None)
    if mine is None or mine.until is None:
        return compute_hold(config, duration, margin=MARGIN)
    base = dict(config)
    raised = mine.raised.get(RETENTION_MS)
    if raised is not None and keeps_longer(raised, base.get(RETENTION_MS, "-1")):
        base[RETENTION_MS] = raised  # it crashed before Kafka was changed
    return compute_hold(base, max(timedelta(0), until - mine.until), margin=timedelta(0))


def _check_disk(
    workspace: Workspace, stream: Stream, topic: TopicInfo, duration: timedelta
) -> DiskCheck:
    properties = workspace.properties(stream)
    log_dirs = read_log_dirs(properties, stream.topic, Deadline(10.0))
    log_dirs = find_local_part(log_dirs, properties, topic, Deadline(10.0))
    since = workspace.ledger.now() - _GROWTH_OVER
    history: list[Sample] = [
        sample
        for sample in read_history(workspace, stream)
        if sample.topic_id == topic.topic_id and sample.taken_at >= since
    ]
    rate = measure_growth(log_dirs, history)
    return estimate_hold(
        log_dirs, rate, duration, replication=topic.replication, config=topic.config
    )


def _warn_about_disk(disk: DiskCheck) -> tuple[str, ...]:
    if disk.enough is None:
        return (f"whether the disks have room is not known: {disk.reason}",)
    if not disk.enough:
        return (f"the disks may fill up: {disk.reason}",)
    return ()


def _give_back(workspace: Workspace, hold: Hold, limit: Deadline) -> tuple[str, ...]:
    cluster = workspace.config.clusters.get(hold.cluster)
    if cluster is None:
        raise Refused(
            "the configuration has no such cluster any more",
            subject=f"cluster {hold.cluster} of hold {hold.id}",
            hint="add it again, so that the retention can be given back",
        )
    return restore_retention(workspace.ledger, connect(cluster.client_properties()), hold, limit)
