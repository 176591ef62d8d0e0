"""What a step works with: the stored plan, the opened rooms, and what stops a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from backlog.clock import OffPeakWindow
from backlog.config import Stream
from backlog.ledger import Lease
from backlog.values import Recovery
from replay.identity import find_identity
from replay.interrupts import Interrupts
from replay.windows import find_window
from replay.workspace import Workspace


@dataclass
class RunContext:
    """One run of one recovery, of any kind; steps leave what later steps need here."""

    workspace: Workspace
    recovery: Recovery
    stream: Stream
    lease: Lease
    interrupts: Interrupts
    console: Console
    resumed: bool = False  # an operator said `resume`: what held the last run back is accepted
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def window(self) -> OffPeakWindow | None:
        """The plan's off-peak window: what was approved counts, not what the file says now."""
        return find_window(self.recovery)

    def record(self, action: str, **detail: Any) -> None:
        """Adds a line to the recovery's record."""
        self.workspace.ledger.events.append(self.recovery.id, str(find_identity()), action, detail)

    def open(self) -> None:
        """Called when the steps begin."""

    def close(self, error: BaseException | None) -> None:
        """Called when the steps are over, or one of them raised `error`."""

    def is_complete(self, step: str) -> bool:
        """Whether an earlier run completed the step for good; it is then left out."""
        return False

    def begin(self, step: str) -> None:
        """Called before a step starts."""
        self.record(f"{step} started")

    def end(self, step: str) -> None:
        """Called after a step is completed."""
        self.record(f"{step} completed")
