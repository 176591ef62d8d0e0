"""The families that the ledger answers at a scrape: gaps, recoveries, holds, disks, audits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain

from backlogctl.ledger import Hold, Ledger
from backlogctl.ledger.figures import RecoveryFigure
from backlogctl.ledger.measurements import AuditRecord, DiskReading
from backlogctl.ledger.steps import has_stopped_consumers
from backlogctl.monitoring.metrics.catalogue import OF_LEDGER
from backlogctl.monitoring.metrics.groups import GaugeSeries
from backlogctl.monitoring.watch.disks import WINDOW as DISK_WINDOW
from backlogctl.monitoring.watch.disks import forecast_full
from backlogctl.values import FINAL, RecoveryState


class LedgerReader:
    """Reads the ledger; the plans, which do not change, are read once."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._counts: dict[str, Mapping[str, int]] = {}

    def collect(self) -> list[GaugeSeries]:
        """The families, those without a line too. Raises LedgerError: it does not answer."""
        families = {metric.name: GaugeSeries(metric.name) for metric in OF_LEDGER}
        now = self._ledger.now()
        for gap in self._ledger.figures.gaps():
            place = (gap.cluster, gap.stream, gap.group, gap.topic, gap.state, gap.cause)
            families["backlog_gaps"].add_metric(place, gap.count)
            if gap.offsets is not None:
                families["backlog_gap_messages"].add_metric(place, gap.offsets)
        recoveries = self._ledger.figures.recoveries()
        known = {recovery.id for recovery in recoveries}
        self._counts = {key: counts for key, counts in self._counts.items() if key in known}
        for name, labels, value in chain(
            *(self._describe_recovery(recovery, now) for recovery in recoveries),
            _describe_holds(self._ledger.holds.list(), now),
            _describe_disks(self._ledger.disks.history(since=now - DISK_WINDOW), now),
            _describe_audits(self._ledger.audits.list_latest(), now),
        ):
            families[name].add_metric(labels, value)
        return list(families.values())

    def _describe_recovery(
        self, recovery: RecoveryFigure, now: datetime
    ) -> Iterator[tuple[str, tuple[str, ...], float]]:
        stops = "true" if recovery.stops_consumers else "false"
        labels = (recovery.id, recovery.stream, recovery.kind, stops)
        yield "backlog_recovery_state", (*labels, recovery.state), 1
        seconds = max(0.0, (now - recovery.since).total_seconds())
        yield "backlog_recovery_state_seconds", labels, seconds
        if recovery.state is RecoveryState.RUNNING:
            until = recovery.lease_until
            yield "backlog_recovery_runner_alive", labels, int(until is not None and until > now)
        if recovery.stops_consumers and recovery.state not in FINAL:
            steps = self._ledger.steps.list(recovery.id)
            yield "backlog_recovery_consumers_stopped", labels, int(has_stopped_consumers(steps))
        if recovery.has_gaps:
            planned = self._read_counts(recovery.id)
            yield "backlog_recovery_done_messages", labels, recovery.injected
            yield "backlog_injected_messages", labels, recovery.injected
            if (left_out := planned.get("quarantined")) is not None:
                yield "backlog_quarantined_messages", labels, left_out
            if rebuilt := planned.get("rebuilt"):
                share = min(1.0, recovery.injected / rebuilt)
                yield "backlog_recovery_progress_ratio", labels, share
        elif (down := self._ledger.burndown.latest(recovery.id)) is not None:
            yield "backlog_recovery_done_messages", labels, down.handled
            yield "backlog_relayed_messages", labels, down.relayed
            if recovery.state not in FINAL:
                yield "backlog_temporary_topic_messages", labels, down.temporary_lag
            if total := down.handled + down.temporary_lag + down.source_lag:
                yield "backlog_recovery_progress_ratio", labels, down.handled / total

    def _read_counts(self, recovery_id: str) -> Mapping[str, int]:
        if recovery_id not in self._counts:
            self._counts[recovery_id] = self._ledger.figures.planned_counts(recovery_id)
        return self._counts[recovery_id]


def _describe_holds(
    holds: Sequence[Hold], now: datetime
) -> Iterator[tuple[str, tuple[str, ...], float]]:
    # A topic that was recreated may be held twice by one holder: the older one tells.
    found = {(hold.cluster, hold.topic, hold.stream, hold.holder): hold for hold in reversed(holds)}
    for labels, hold in found.items():
        if hold.in_force is False:
            yield "backlog_hold_not_in_force", labels, 1.0
            continue
        held = max(0.0, (now - hold.created_at).total_seconds())
        yield "backlog_retention_held_seconds", labels, held
        late = 0.0 if hold.until is None else (now - hold.until).total_seconds()
        yield "backlog_retention_overdue_seconds", labels, max(0.0, late)


def _describe_disks(
    readings: Sequence[DiskReading], now: datetime
) -> Iterator[tuple[str, tuple[str, ...], float]]:
    by_broker: dict[tuple[str, str], list[DiskReading]] = {}
    for reading in readings:
        by_broker.setdefault((reading.cluster, str(reading.broker)), []).append(reading)
    for labels, own in by_broker.items():
        last, forecast = own[-1], forecast_full(own, now)
        if last.usable_bytes is not None:
            yield "backlog_disk_usable_bytes", labels, last.usable_bytes
        if last.total_bytes is not None:
            yield "backlog_disk_total_bytes", labels, last.total_bytes
        if forecast.seconds is not None:
            yield "backlog_disk_seconds_to_full", labels, forecast.seconds


def _describe_audits(
    records: Sequence[AuditRecord], now: datetime
) -> Iterator[tuple[str, tuple[str, ...], float]]:
    for one in records:
        labels = (one.cluster, one.stream, one.audit)
        yield "backlog_audit_verdict", (*labels, one.verdict), 1
        yield "backlog_audit_missing_messages", labels, one.missing
        yield "backlog_audit_age_seconds", labels, max(0.0, (now - one.at).total_seconds())
