"""What a step works with: the stored plan, the opened rooms, and the brakes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from backlog.clock import OffPeakWindow
from backlog.config import Stream, StreamLimits
from backlog.kafka.ledger_topic import LedgerSnapshot
from backlog.ledger import Lease
from backlog.manifest import Manifest, read_manifest
from backlog.values import GapState, Recovery
from replay.identity import find_identity
from replay.interrupts import Interrupts
from replay.progress import Bar
from replay.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class RunContext:
    """One run of one recovery; steps leave what later steps need here."""

    workspace: Workspace
    recovery: Recovery
    stream: Stream
    lease: Lease
    interrupts: Interrupts
    bar: Bar
    ledger_topic: LedgerSnapshot | None = None
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        """Where the staged messages lie."""
        return self.workspace.staging_of(self.recovery.id)

    @cached_property
    def manifest(self) -> Manifest:
        """The staged messages, exactly those of the plan.

        Raises:
            StagingError: they are missing or changed.
        """
        return read_manifest(self.directory, self.recovery.plan["manifest_sha256"])

    @cached_property
    def spark(self) -> SparkSession:
        """Spark, started at the first use."""
        from spark_backfill.session import open_session

        self.bar.tell("starting Spark")
        return open_session(self.workspace.config.spark, f"backlogctl run {self.recovery.id}")

    @property
    def window(self) -> OffPeakWindow | None:
        """The plan's off-peak window: what was approved counts, not what the file says now."""
        planned = self.recovery.plan["off_peak"]
        if planned is None:
            return None
        start, end = time.fromisoformat(planned["from"]), time.fromisoformat(planned["to"])
        return OffPeakWindow(start, end, ZoneInfo(planned["timezone"]))

    @property
    def limits(self) -> StreamLimits:
        """The plan's limits."""
        return StreamLimits.model_validate(self.recovery.plan["limits"])

    def record(self, action: str, **detail: Any) -> None:
        """Adds a line to the recovery's record."""
        self.workspace.ledger.events.append(self.recovery.id, str(find_identity()), action, detail)

    def advance_gaps(self, to: GapState, before: Iterable[GapState]) -> None:
        """Moves the recovery's gaps that are in a state of `before`; later ones stay."""
        ledger = self.workspace.ledger
        allowed = set(before)
        ids = [
            gap_id
            for gap_id in ledger.recoveries.gap_ids(self.recovery.id)
            if ledger.gaps.get(gap_id).state in allowed
        ]
        if ids:
            ledger.gaps.advance(ids, to, recovery_id=self.recovery.id, actor=str(find_identity()))
