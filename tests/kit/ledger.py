"""Gaps, plans and recoveries in a ledger, as short as a test wants to say them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from backlogctl.ledger import Ledger
from backlogctl.values import (
    Cause,
    Certainty,
    Chunk,
    Gap,
    GapState,
    PartitionSample,
    Recovery,
    RecoveryState,
    Sample,
    hash_value,
)

NOON = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)  # a day on which nothing else was made
FAR = timedelta(days=1)


def make_gap(
    start: int | None = 0,
    end: int | None = 100,
    *,
    stream: str = "orders",
    partition: int = 0,
    cause: Cause = Cause.EXPIRED,
    certainty: Certainty = Certainty.EXACT,
    topic_id: str = "topic-id",
) -> Gap:
    return Gap(
        id="",
        stream=stream,
        cluster="main",
        topic=stream,
        group=f"{stream}-service",
        topic_id=topic_id,
        partition=partition,
        start=start,
        end=end,
        cause=cause,
        certainty=certainty,
        state=GapState.OPEN,
        first_time=NOON - timedelta(hours=2),
        last_time=NOON - timedelta(hours=1),
        detected_at=NOON,
    )


def make_sample(
    at: datetime = NOON, *committed: int | None, stream: str = "orders", topic_id: str = "topic-id"
) -> Sample:
    partitions = tuple(
        PartitionSample(number, 0, offset, 900, 1000)
        for number, offset in enumerate(committed or (5,))
    )
    return Sample(stream, "main", stream, f"{stream}-service", topic_id, at, partitions)


def make_chunk(slot: int, number: int) -> Chunk:
    name = f"slot={slot:05}/chunk={number:06}.parquet"
    return Chunk(slot, number, 500, 2**33, "ab" * 32, f"messages/{name}", f"ids/{name}", number < 3)


def create_recovery(
    ledger: Ledger,
    kind: str,
    stream: str = "orders",
    *,
    topic: str = "",
    group: str = "service",
    plan: Mapping[str, Any] | None = None,
    plan_hash: str = "",
    gaps: Sequence[str] = (),
    by: str = "ada",
    stops_consumers: bool = True,
    holds_when_failed: bool | None = None,
) -> Recovery:
    """As a planner leaves it; the hash is the plan's, where none is given."""
    document = dict(plan or {})
    holds = stops_consumers if holds_when_failed is None else holds_when_failed
    return ledger.recoveries.create(
        *(kind, stream, "main", topic or stream, group, document),
        *(plan_hash or hash_value(document), gaps, by),
        stops_consumers=stops_consumers,
        holds_when_failed=holds,
    )


def plan(
    ledger: Ledger,
    *gap_ids: str,
    stream: str = "orders",
    topic: str = "",
    group: str = "",
    plan_hash: str = "hash",
    kind: str = "rebuild",
) -> Recovery:
    return create_recovery(
        ledger,
        kind,
        stream,
        topic=topic or stream,
        group=group or f"{stream}-service",
        plan={"counts": {"rebuilt": 1000}, "note": "zwölf \x00 1.0"},
        plan_hash=plan_hash,
        gaps=gap_ids,
        stops_consumers=kind != "rebuild",
    )


def approve(ledger: Ledger, recovery: Recovery, by: str = "ada") -> Recovery:
    expires = ledger.now() + FAR
    return ledger.recoveries.approve(recovery.id, by, "ada@host", recovery.plan_hash, expires)


def bring_to(ledger: Ledger, recovery: Recovery, *states: RecoveryState) -> Recovery:
    for state in states:
        if state is RecoveryState.APPROVED:
            recovery = approve(ledger, recovery)
        else:
            recovery = ledger.recoveries.advance(recovery.id, state, "ada")
    return recovery
