"""A ledger with one of each: gaps, a rebuild with a runner, an expansion, and holds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from backlogctl.clock import utc_now
from backlogctl.ledger import Ledger, Owner
from backlogctl.ledger.measurements import AuditRecord, BurndownSample, DiskReading
from backlogctl.values import RecoveryState
from tests.kit.ledger import create_recovery, make_gap


def record_all(ledger: Ledger, owner: Owner | None = None) -> dict[str, str]:
    """Gaps, a rebuild with a runner, an expansion, and holds; returns ids."""
    gap = replace(make_gap(10, 40), group="service")
    kept = ledger.gaps.record(gap)
    now = ledger.now()
    ledger.audits.record(AuditRecord("orders", "main", "sequence", now, "lost", 7, {}))
    ledger.disks.add(
        DiskReading("main", now - timedelta(seconds=age), 1, left, 100_000)
        for age, left in ((60, 16_000), (0, 10_000))
    )
    ledger.gaps.record(replace(gap, partition=1, start=0, end=5))
    plan = {"outcome": {"counts": {"rebuilt": 40, "quarantined": 3}}}
    rebuild = create_recovery(
        ledger, "rebuild", plan=plan, plan_hash="h", gaps=[kept.id], by="me", stops_consumers=False
    )
    expand = create_recovery(ledger, "expand", "bills", group="biller", plan_hash="h", by="me")
    ledger.burndown.add(BurndownSample(expand.id, utc_now(), "relay", 50, 10, 60, 40, 3))
    later = utc_now() + timedelta(hours=1)
    ledger.recoveries.approve(rebuild.id, "me", "me", "h", later)
    ledger.leases.acquire(rebuild.id, owner or Owner.current(), timedelta(hours=1))
    ledger.recoveries.advance(rebuild.id, RecoveryState.RUNNING, "me")
    topics = (("orders", utc_now() - timedelta(hours=2)), ("bills", None), ("undone", None))
    for topic, until in topics:
        hold = ledger.holds.begin(
            stream=topic,
            cluster="main",
            topic=topic,
            topic_id="id",
            holder="operator",
            old={"retention.ms": None},
            raised={"retention.ms": "-1"},
            until=until,
            actor="me",
        )
        ledger.holds.note_in_force(hold.id, in_force=topic != "undone")
    return {"rebuild": rebuild.id, "expand": expand.id}
