"""What a step works with: the stored plan, configuration and ledger, and what stops a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, cast

from rich.console import Console

from backlog.clock import OffPeakWindow
from backlog.config import Stream
from backlog.values import Recovery
from replay.recovery.identity import find_identity
from replay.recovery.interrupts import Interrupts
from replay.recovery.kind import PlanT
from replay.recovery.workspace import Workspace

if TYPE_CHECKING:
    from backlog.ledger import Lease

STEP_STARTED, STEP_COMPLETED = "step started", "step completed"


@dataclass
class RunContext(Generic[PlanT]):
    """One run of one recovery, of any kind; steps leave what later steps need here.

    Attributes:
        details: by step, what it leaves on record when it is completed.
        found: what this run adds to the document of `run`.
        resumed: an operator said `resume`: what held the last run back is accepted.
        step: the one that is at work.
    """

    workspace: Workspace
    recovery: Recovery
    stream: Stream
    lease: Lease
    interrupts: Interrupts
    console: Console
    resumed: bool = False
    found: dict[str, Any] = field(default_factory=dict)
    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    step: str = ""

    @cached_property
    def plan(self) -> PlanT:
        """The approved plan, with the brakes of the configuration."""
        return cast("PlanT", self.workspace.plan_now(self.recovery))

    @property
    def window(self) -> OffPeakWindow | None:
        """The off-peak window that the work keeps to."""
        return None if self.plan.off_peak is None else self.plan.off_peak.open()

    def record(self, action: str, **detail: Any) -> None:
        """Adds a line to the recovery's record."""
        self.workspace.ledger.events.append(self.recovery.id, str(find_identity()), action, detail)

    def decide(self, action: str) -> None:
        """Adds a line that whoever goes on or cancels goes by: only with the lease.

        Raises:
            LeaseHeld: another run has taken over; nothing is on record.
        """
        self.workspace.ledger.events.append(
            self.recovery.id, str(find_identity()), action, owner=self.lease.owner
        )

    def open(self) -> None:
        """Called when the steps begin."""

    def close(self, error: BaseException | None) -> None:
        """Called when the steps are over, or one of them raised `error`."""

    def is_complete(self, step: str) -> bool:
        """Whether an earlier run completed the step for good; it is then left out."""
        return False

    def begin(self, step: str) -> None:
        """A step starts: on record before it changes anything, so that a crash cannot hide it."""
        self.step = step
        self.workspace.ledger.steps.start(self.recovery.id, step)
        self.record(STEP_STARTED, step=step)

    def end(self, step: str) -> None:
        """A step is completed: on record with what it left."""
        detail = self.details.get(step, {})
        self.workspace.ledger.steps.complete(self.recovery.id, step, detail)
        self.record(STEP_COMPLETED, step=step, **detail)
