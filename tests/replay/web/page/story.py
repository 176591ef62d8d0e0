"""A night on call, written into a ledger by hand: six streams, each in another state.

`payments` lost messages, `orders` is about to, `shipments` is being drained, `emails` has no
readers, `invoices` got its messages back, `clicks` is well and has many partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from backlogctl.ledger import BurndownSample, Owner
from backlogctl.monitoring.doctor import group  # noqa: F401 -- names its checks
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel
from backlogctl.monitoring.watch.board import Checkup, ClusterPass, MemberLook
from backlogctl.replay.doctor import reference  # noqa: F401 -- names every check
from backlogctl.replay.engine.kind import STEP_COMPLETED, STEP_STARTED
from backlogctl.replay.kinds.rebuild.plan import PlannedGap
from backlogctl.spark_backfill.request import PartitionOutcome
from backlogctl.values import Chunk, GapState, Recovery, RecoveryState
from tests.kit.recoveries import make_expand_plan, make_rebuild_plan
from tests.replay.web.page.night import (
    ACTOR,
    DAY,
    NOW,
    STREAMS,
    Night,
    Offsets,
    make_groups,
    make_stream,
)
from tests.replay.web.page.visits import describe_deliveries, tell_audits, tell_deliveries

_START = NOW - timedelta(hours=60)


def _written(at: datetime, per_second: float, base: int = 2_000_000) -> int:
    return base + int(max(0.0, (at - _START).total_seconds()) * per_second)


def _behind(per_second: float, share: float, since_hours: float, base: int = 2_000_000) -> Offsets:
    """Read at a share of the speed it is written, since then."""

    def tell(at: datetime, number: int) -> tuple[int, int | None, int]:
        speed = per_second * (1 + 0.13 * (number % 4))
        high = _written(at, speed, base)
        late = max(0.0, (at - (NOW - timedelta(hours=since_hours))).total_seconds())
        kept = share + 0.04 * (number % 3)
        committed = high - int(late * speed * max(0.0, 1 - kept))
        return _written(at - DAY, speed, base), committed, high

    return tell


def _busy(at: datetime, number: int) -> tuple[int, int | None, int]:
    """Clicks: always a little behind, never for long; one partition was never written."""
    if number == 47:
        return 0, None, 0
    high = _written(at, 140.0, 90_000_000)
    behind = int((at.timestamp() // 30 * 7919 + number * 977) % 61) * 40
    return _written(at - DAY, 140.0, 90_000_000) - 12_000 * number, high - behind, high


def _outage(at: datetime, number: int) -> tuple[int, int | None, int]:
    """Payments: nobody read from 31 to 3 hours ago; since then what is there is caught up."""
    speed = 20.0 + 2 * number
    high, low = _written(at, speed, 700_000), _written(at - DAY, speed, 700_000)
    stopped = NOW - timedelta(hours=31 - 0.02 * number)
    if at < stopped:
        return low, high - 5, high
    left_at = _written(stopped, speed, 700_000) - 5
    back = NOW - timedelta(hours=3)
    if at < back:
        return low, left_at, high
    caught = _written(back - DAY, speed, 700_000)
    caught += int((at - back).total_seconds() * speed * 6.2)
    return low, min(caught, high), high


def _relayed(at: datetime, number: int) -> tuple[int, int | None, int]:
    """Shipments: far behind, and moved quickly by the relay for six minutes."""
    high = _written(at, 35.0, 5_000_000)
    low = _written(at - 2 * DAY, 35.0, 5_000_000)
    late = max(0.0, (at - (NOW - timedelta(hours=20))).total_seconds())
    committed = high - int(late * 35.0 * 0.45)
    relayed = max(0.0, (at - (NOW - timedelta(minutes=6))).total_seconds()) * 700
    return low, min(high, committed + int(relayed)), high


def tell_night(directory: Path, *, lean: bool = False, more: Sequence[str] = ()) -> Night:
    """The whole story; `more` streams are never seen."""
    night = Night.begin(
        directory,
        streams={name: make_stream(name) for name in (*STREAMS, *more)},
        **describe_deliveries(more),
    )
    night.lean = lean
    _tell_payments(night)
    night.sample("orders", _behind(42.0, 0.62, 56))
    night.look("orders")
    _tell_shipments(night)
    _tell_emails(night)
    _tell_invoices(night)
    night.sample("clicks", _busy, 48)
    night.look("clicks")
    _tell_checkups(night)
    tell_audits(night)
    tell_deliveries(night, more)
    night.board.put_cluster(
        ClusterPass("main", NOW - timedelta(seconds=9), 0.8, make_groups(), brokers=3)
    )
    night.at()
    return night


def _tell_checkups(night: Night) -> None:
    """The doctor found something about `orders`; who is in it is asked, and nobody in `emails`."""
    taken_at = NOW - timedelta(minutes=12)
    alter = (
        "kafka-configs.sh --bootstrap-server kafka:9092 --alter --entity-type topics "
        "--entity-name orders --add-config "
    )
    found = (
        CheckFinding(
            *("min-insync-replicas", CheckLevel.LOSES, "topic orders"),
            *("min.insync.replicas 1 with 3 replicas", ""),
            (f"{alter}min.insync.replicas=2",),
        ),
        CheckFinding(
            *("rights", CheckLevel.STOPS, "stream orders"),
            "hold: the tool may not ALTER_CONFIGS on topic orders (to raise its retention)",
            "who administers the cluster grants it with",
            (
                "kafka-acls.sh --bootstrap-server kafka:9092 --command-config admin.properties "
                "--add --allow-principal User:backlog --operation AlterConfigs --topic orders",
            ),
        ),
        CheckFinding(
            *("unread", CheckLevel.UNKNOWN, "the cluster"),
            "the brokers' settings could not be read: access denied",
            "`DescribeConfigs` on the cluster must be granted",
        ),
        CheckFinding(
            *("idle-members", CheckLevel.WARNS, "group orders-service"),
            "2 of 14 members have no partition: orders has 12",
            "12 consumers are enough; more for a time is what `plan expand` is for",
        ),
    )
    night.board.put_checkup("orders", Checkup(taken_at, found))
    night.board.put_checkup("clicks", Checkup(taken_at, ()))
    skew = CheckFinding(
        *("clock", CheckLevel.WARNS, "cluster kafka:9092"),
        "its clock is 12 s ahead of this host's (ops-2)",
        "let both follow the same time servers: `timedatectl`, `chronyc tracking`",
    )
    night.board.put_checkup("", Checkup(taken_at, (skew,)))
    members = (
        MemberLook("orders-1", "/10.0.4.17", (0, 1, 2, 3), NOW - timedelta(seconds=4)),
        MemberLook("orders-2", "/10.0.4.18", (4, 5, 6), None),
        MemberLook("orders-3", "/10.0.4.19", (), None),
    )
    night.board.put_members("orders", members)
    night.board.put_members("emails", ())


def _tell_payments(night: Night) -> None:
    night.sample("payments", _outage, 6)
    for number in (0, 1, 2, 3, 4, 5):
        start = _outage(NOW - timedelta(hours=4), number)[1] or 0
        end = _outage(NOW - timedelta(hours=3), number)[0]
        night.lose("payments", number, start, end)
    night.look("payments")


def _tell_shipments(night: Night) -> None:
    night.sample("shipments", _relayed, 6)
    night.look("shipments", 2 * DAY)
    lag = 6_804_000
    changes: dict[str, Any] = {
        "stream": "shipments",
        "topic": "shipments",
        "group": "shipments-service",
        "lag": lag,
        "partitions": [
            {
                "partition": number,
                "log_start": 6_000_000,
                "committed": 11_800_000,
                "end": 11_800_000 + lag // 6,
                "lag": lag // 6,
                "lost": 0,
                "start": 11_800_000,
                "oldest_unread_at": "2026-11-20T21:14:00.000000Z",
            }
            for number in range(6)
        ],
        "temporary": {
            "topic": "shipments.recovery.r-20261121-0001",
            "partitions": 60,
            "replication": 3,
        },
        "factor": 10,
        "replicas": 6,
        "consumers": 60,
        "rate_per_consumer": 52.0,
        "consumed_per_second": 310.0,
        "produced_per_second": 210.0,
        "seconds_to_drain_now": 68_000.0,
        "seconds_to_drain_expanded": 2_340.0,
        "seconds_to_loss": 98_000.0,
        "stopped": ["the 6 consumers of group shipments-service: local processes"],
        "created": ["topic shipments.recovery.r-20261121-0001: 60 partitions, 3 copies of each"],
        "raised": ["retention.ms of shipments from 2 d to unlimited"],
        "given_back": [
            "topic shipments.recovery.r-20261121-0001 is deleted",
            "retention.ms of shipments is 2 d again",
            "the 6 consumers of group shipments-service are started",
        ],
        "warnings": ["partition 3: 14 % of the messages have one key, which one consumer reads"],
        "planned_by": {"kind": "os", "user": "ada", "host": "ops-1"},
    }
    night.at(0.25)
    recovery = night.approve(night.plan(make_expand_plan(**changes)))
    owner = Owner("ops-1", 4242, "unknown")
    night.at(0, -400)
    night.ledger.leases.acquire(recovery.id, owner, timedelta(days=3650))
    night.ledger.recoveries.advance(
        recovery.id, RecoveryState.RUNNING, actor=ACTOR, detail={}, owner=owner
    )
    for name, began, took in (
        ("check_source", -400, 2),
        ("hold_retention", -398, 1),
        ("stop_consumers", -397, 14),
        ("create_topic", -383, 3),
        ("canary", -380, 18),
        ("drain", -360, None),
    ):
        night.at(0, began)
        start_step(night, recovery, name)
        if took is not None:
            night.at(0, began + took)
            complete_step(night, recovery, name, {"seconds": took})
    for second in range(-360, 1, 2):
        done = second + 360
        relayed = int(min(lag, done * 21_400 * (1 - done / 2600)))
        handled = int(min(relayed, max(0, done - 4) * 3_120))
        step = "canary" if second < -340 else "drain"
        night.ledger.burndown.add(
            BurndownSample(
                recovery.id,
                NOW + timedelta(seconds=second),
                step,
                max(0, lag - relayed + 210 * done // 8),
                relayed - handled,
                relayed,
                handled,
                60,
            )
        )
    night.ledger.holds.begin(
        stream="shipments",
        cluster="main",
        topic="shipments",
        topic_id="id-shipments",
        holder=recovery.id,
        old={"retention.ms": "172800000"},
        raised={"retention.ms": "-1"},
        until=None,
        actor=ACTOR,
    )


def _tell_emails(night: Night) -> None:
    def stopped(at: datetime, number: int) -> tuple[int, int | None, int]:
        stop = NOW - timedelta(minutes=47)
        high = _written(at, 3.0, 40_000)
        return 0, _written(min(at, stop), 3.0, 40_000), high

    night.sample("emails", stopped, 3, "empty")
    night.look("emails", 7 * DAY)


def _tell_invoices(night: Night) -> None:
    offsets = _behind(6.0, 1.0, 1, 300_000)
    night.sample("invoices", offsets, 4)
    gaps = [night.lose("invoices", n, 560_000 + 900 * n, 561_800 + 911 * n, 11.0) for n in range(4)]
    rebuilt = sum(gap.count or 0 for gap in gaps)
    plan = make_rebuild_plan(
        stream="invoices",
        topic="invoices",
        group="invoices-service",
        gaps=[PlannedGap.freeze(gap).model_dump() for gap in gaps],
        outcome={
            "counts": {
                "expected": rebuilt,
                "candidates": rebuilt + 2_340,
                "surviving": 2_330,
                "consumed": 10,
                "rebuilt": rebuilt,
            },
            "partitions": [
                asdict(PartitionOutcome(n, gap.count or 0, gap.count or 0, 0, 0, 0, 0, 0))
                for n, gap in enumerate(gaps)
            ],
            "proof": {"sampled": 2330, "compared": 2330, "matched": 2330, "equal_values": 2330},
            "fidelity": "original",
            "chunks": 16,
            "bytes": 4_180_000,
        },
        off_peak={"from": "00:30", "to": "06:00", "timezone": "UTC"},
        limits={"messages_per_second": 100},
        planned_by={"kind": "os", "user": "ada", "host": "ops-1"},
    )
    night.at(10.5)
    recovery = night.plan(plan, *gaps)
    chunks = [
        Chunk(
            n % 4,
            n // 4,
            rebuilt // 16 + (n < rebuilt % 16),
            260_000,
            "ab" * 32,
            f"m/{n}",
            f"i/{n}",
            n < 3,
        )
        for n in range(16)
    ]
    night.ledger.chunks.add_all(recovery.id, chunks)
    night.at(10.2)
    night.approve(recovery)
    night.at(6.1)
    night.advance(recovery, RecoveryState.RUNNING)
    begin = 6.1
    for name, seconds in (("check_target", 2), ("stage_check", 5), ("inject", 80), ("verify", 21)):
        night.at(begin)
        start_step(night, recovery, name)
        if name == "inject":
            for number, chunk in enumerate(chunks):
                night.at(begin, 4 + number * 4.8)
                night.ledger.chunks.mark_injected(recovery.id, chunk.slot, chunk.number)
        night.at(begin, seconds)
        if name == "verify":
            found = {"exact": True, "staged": rebuilt, "found": rebuilt, "matched": rebuilt}
            found |= {"missing": 0, "doubled": 0, "different": 0, "unexpected": 0}
            night.ledger.events.append(recovery.id, ACTOR, "read back", found)
        complete_step(night, recovery, name, {"seconds": seconds})
        begin -= seconds / 3600
    ids = [gap.id for gap in gaps]
    for state in (GapState.STAGED, GapState.INJECTED, GapState.VERIFIED):
        night.ledger.gaps.advance(ids, state, recovery.id, actor=ACTOR)
    night.advance(recovery, RecoveryState.VERIFIED)
    night.look("invoices")


def start_step(night: Night, recovery: Recovery, name: str) -> None:
    """A step begins now, as a run writes it."""
    night.ledger.steps.start(recovery.id, name)
    night.ledger.events.append(recovery.id, ACTOR, STEP_STARTED, {"step": name})


def complete_step(night: Night, recovery: Recovery, name: str, found: dict[str, Any]) -> None:
    """A step ends now."""
    night.ledger.steps.complete(recovery.id, name)
    night.ledger.events.append(recovery.id, ACTOR, STEP_COMPLETED, {"step": name, **found})
