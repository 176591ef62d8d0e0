"""Holds the retention of a topic, and gives it back.

The old values are in the ledger before Kafka is changed, and a hold is released after Kafka was
given back: whatever crashes in between, calling again ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from backlogctl.clock import Deadline
from backlogctl.errors import ClusterUnreachable, KafkaFailure, PlanStale, Refused
from backlogctl.kafka.admin import (
    alter_topic_config,
    connect,
    read_topic_id,
    read_topic_overrides,
    read_topic_settings,
)
from backlogctl.kafka.clients import Admin, Connection
from backlogctl.kafka.topics import find_topic_id
from backlogctl.ledger import Hold, Ledger
from backlogctl.ledger.holds import keeps_longer

# When retention reaches unread messages; pure calculation, nothing here asks Kafka.

# Retention is raised unless the time left is this many times what the drain takes, and a bit more.
HOLD_TIMES = 2.0
HOLD_MARGIN_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class UnreadRange:
    """What a group has not read of one partition, `[start, end)`.

    `bytes` is the whole partition's size; `oldest_at` the time of the message at `start`; None
    where they are not known. `produced_per_second` is in offsets.
    """

    partition: int
    log_start: int
    start: int
    end: int
    high: int
    produced_per_second: float | None = None
    oldest_at: datetime | None = None
    bytes: int | None = None

    @property
    def lag(self) -> int:
        return max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class TimeToLoss:
    """Until the first unread message may be deleted: at least `seconds`; None where unknown.

    `limited`: whether retention deletes anything at all.
    """

    seconds: float | None
    by: Literal["time", "size"] | None
    limited: bool


def find_time_to_loss(
    unread: Iterable[UnreadRange],
    retention: timedelta | None,
    limit_bytes: int | None,
    now: datetime,
) -> TimeToLoss:
    """The earliest loss over all partitions with something unread, by time or by size.

    Args:
        retention: `retention.ms`; None where time deletes nothing.
        limit_bytes: `retention.bytes` of one partition; None where size deletes nothing.
    """
    found: list[tuple[float, Literal["time", "size"]]] = []
    for part in unread:
        if not part.lag:
            continue
        if retention is not None and part.oldest_at is not None:
            found.append((max(0.0, (part.oldest_at + retention - now).total_seconds()), "time"))
        if limit_bytes is not None:
            seconds = _reach_by_size(part, limit_bytes)
            if seconds is not None:
                found.append((seconds, "size"))
    limited = retention is not None or limit_bytes is not None
    if not found:
        return TimeToLoss(None, None, limited)
    seconds, by = min(found)
    return TimeToLoss(seconds, by, limited)


def needs_hold(loss: TimeToLoss, seconds_to_drain: float | None) -> bool:
    """Whether retention has to be raised while the backlog is drained."""
    if not loss.limited:
        return False
    if loss.seconds is None or seconds_to_drain is None:
        return True
    return loss.seconds < HOLD_TIMES * seconds_to_drain + HOLD_MARGIN_SECONDS


def _reach_by_size(part: UnreadRange, limit: int) -> float | None:
    """None where nothing is known, or nothing is written that would push the oldest out."""
    offsets = part.high - part.log_start
    if part.bytes is None or offsets <= 0:
        return None
    each = part.bytes / offsets
    free = limit - each * (part.high - part.start)
    if free <= 0:
        return 0.0
    growth = each * (part.produced_per_second or 0.0)
    return free / growth if growth > 0 else None


RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"
MARGIN = timedelta(minutes=10)
FOREVER = "-1"
HOLD_SECONDS = 30.0
_LONGEST_MS = 2**63 - 1


def compute_hold(
    config: Mapping[str, str], duration: timedelta, *, margin: timedelta = MARGIN
) -> dict[str, str]:
    """What keeps every message of now for `duration`: empty where nothing deletes them.

    Args:
        config: the topic's settings in force.
        margin: for the time until it is given back. A hold that is only extended has it already.
    """
    found = _find_limits(config)
    if RETENTION_MS in found:
        longer = int(found[RETENTION_MS]) + int((duration + margin).total_seconds() * 1000)
        found[RETENTION_MS] = str(min(longer, _LONGEST_MS))
    if RETENTION_BYTES in found:
        found[RETENTION_BYTES] = FOREVER
    return found


def compute_expansion_hold(config: Mapping[str, str]) -> dict[str, str]:
    """What keeps every message until it is given back: empty where nothing deletes them."""
    return dict.fromkeys(_find_limits(config), FOREVER)


def require_raising(connection: Connection, topic: str, settings: Mapping[str, str]) -> None:
    """Asks the cluster whether it would raise the retention; nothing is changed.

    Raises:
        Refused: it would not, and says why.
        ClusterUnreachable, KafkaFailure: it is to be asked again.
    """
    limit = Deadline(HOLD_SECONDS)
    try:
        alter_topic_config(connection, topic, settings, limit, only_ask=True)
    except KafkaFailure as error:
        if error.retryable or isinstance(error, ClusterUnreachable):
            raise
        raise Refused(
            "its retention reaches the backlog too soon, so it has to be raised, and cannot be: "
            f"{error.message}",
            subject=f"topic {topic}",
            hint="nothing was changed; raise it by the cluster's own means, then plan again",
        ) from error


def raise_retention(
    ledger: Ledger,
    connection: Connection,
    *,
    stream: str,
    cluster: str,
    topic: str,
    topic_id: str,
    holder: str,
    settings: Mapping[str, str],
    until: datetime | None,
    actor: str,
    deadline: Deadline | None = None,
) -> Hold:
    """Remembers the topic's settings, then raises them. The same call again changes nothing more.

    A value that keeps longer already, because somebody set it or another holds the topic too, is
    not lowered.

    Args:
        holder: "operator", or the recovery's id.
        settings: what to raise to, of `compute_hold` or `compute_expansion_hold`.
        until: when it may be given back by anybody; None: by its holder only.

    Raises:
        PlanStale: the topic was made anew; nothing was changed.
    """
    admin, limit = connect(connection), deadline or Deadline(HOLD_SECONDS)
    # 1. The topic is the one that was meant.
    _refuse_other_topic(admin, topic, topic_id, limit)
    while True:
        # 2. What it has now, unless somebody gives another hold back meanwhile.
        seen = [hold.id for hold in ledger.holds.list_of_topic(cluster, topic, topic_id)]
        old = read_topic_overrides(admin, topic, settings, limit)
        # 3. That is written down first.
        try:
            hold = ledger.holds.begin(
                stream=stream,
                cluster=cluster,
                topic=topic,
                topic_id=topic_id,
                holder=holder,
                old=old,
                raised=settings,
                until=until,
                actor=actor,
                seen=seen,
            )
            break
        except Refused as error:
            if not error.retryable or limit.expired:
                raise
    # 4. Kafka.
    try:
        _raise_lower(admin, hold, limit)
    except KafkaFailure as error:
        # Refused for good: nothing is held. What may be in force stays, to be given back.
        if not error.retryable and not isinstance(error, ClusterUnreachable):
            if hold.id not in seen:
                ledger.holds.release(hold.id)
            error.message += "; nothing was raised"
        raise
    ledger.holds.note_in_force(hold.id, in_force=True)
    return ledger.holds.get(hold.id)


def restore_retention(
    ledger: Ledger, connection: Connection, hold: Hold, deadline: Deadline | None = None
) -> tuple[str, ...]:
    """Gives a topic the settings that it had before, and releases the hold.

    While others hold the topic too, only this hold is released; the last one gives back.

    Returns:
        Warnings, one sentence each: what was left as it is, and why.

    Raises:
        ClusterUnreachable, KafkaFailure: the hold stays; call again.
    """
    admin, limit = connect(connection), deadline or Deadline(HOLD_SECONDS)
    # 1. What the ledger says now, not what the caller read some time ago.
    hold = ledger.holds.get(hold.id)
    if hold.released_at is not None:
        return ()
    # 2. A topic that is gone, or another one, has nothing to be given back.
    if lost := find_lost(admin, hold.topic, hold.topic_id, "retention", limit):
        ledger.holds.release(hold.id)
        return (lost,)
    # 3. Others need it still.
    if ledger.holds.release_shared(hold.id):
        return ()
    # 4. Only what is still as we left it.
    settings = read_topic_overrides(admin, hold.topic, hold.raised, limit)
    changes, warnings = _choose_changes(hold, settings)
    alter_topic_config(admin, hold.topic, changes, limit)
    # 5. Kafka is as it was.
    ledger.holds.release(hold.id)
    # 6. A hold that began meanwhile must not be undone by that.
    for other in ledger.holds.list_of_topic(hold.cluster, hold.topic, hold.topic_id):
        _raise_lower(admin, other, limit)
    return warnings


def _find_limits(config: Mapping[str, str]) -> dict[str, str]:
    """The settings by which the broker deletes messages of the topic, as they are in force."""
    if "delete" not in config.get("cleanup.policy", "delete"):
        return {}
    found = {name: config.get(name, FOREVER) for name in (RETENTION_MS, RETENTION_BYTES)}
    return {name: value for name, value in found.items() if int(value) >= 0}


def _refuse_other_topic(admin: Admin, topic: str, topic_id: str, limit: Deadline) -> None:
    found = read_topic_id(admin, topic, limit)[0]
    if found != topic_id:
        raise PlanStale(
            f"it was deleted and made anew: its id is {found}, not {topic_id}",
            subject=f"topic {topic}",
            hint="nothing was changed; plan again",
        )


def _raise_lower(admin: Admin, hold: Hold, limit: Deadline) -> None:
    now = read_topic_settings(admin, hold.topic, hold.raised, limit)
    changes: dict[str, str | None] = {
        name: value
        for name, value in hold.raised.items()
        if keeps_longer(value, now[name].value or FOREVER)
    }
    alter_topic_config(admin, hold.topic, changes, limit)


def find_lost(admin: Admin, topic: str, topic_id: str, what: str, limit: Deadline) -> str:
    """Why a setting of a topic cannot be given back; "" where the topic is there."""
    found = find_topic_id(admin, topic, limit)
    if found is None:
        return f"topic {topic} is gone, so its {what} was not given back"
    if found != topic_id:
        return f"topic {topic} was made anew, so its {what} was left as it is"
    return ""


def explain_change(name: str, topic: str, now: str | None, ours: object, old: str | None) -> str:
    """That somebody changed a setting of ours, so that it is not given back."""
    return (
        f"{name} of topic {topic} is {now or 'unset'} now, not {ours} as we set it: somebody "
        f"changed it, so it was left; it was {old or 'unset'} before"
    )


def _choose_changes(
    hold: Hold, now: Mapping[str, str | None]
) -> tuple[dict[str, str | None], tuple[str, ...]]:
    changes: dict[str, str | None] = {}
    warnings: list[str] = []
    for name, value in now.items():
        old = hold.old[name]
        if value == old:
            continue  # given back already, or never raised
        if value in (hold.raised[name], *hold.earlier.get(name, ())):
            changes[name] = old
        else:
            warnings.append(explain_change(name, hold.topic, value, hold.raised[name], old))
    return changes, tuple(warnings)
