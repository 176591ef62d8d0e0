"""What stops a run between two waves: the window, `pause`, `cancel`, Ctrl-C, a lost lease.

What does not: a ledger that is away for minutes.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from rich.console import Console

from backlogctl.clock import format_time, utc_now
from backlogctl.config import mask_secrets
from backlogctl.errors import BacklogError, LedgerError, Paused
from backlogctl.formats import format_duration, format_moment
from backlogctl.replay.engine.interrupts import Interrupts
from backlogctl.replay.engine.kind import RunContext
from backlogctl.values import Recovery

# Why a recovery is paused; only one that an operator paused waits for `resume`.
WINDOW, OPERATOR, INTERRUPTED, HELD = "window", "operator", "interrupted", "held"
CANARY = "canary"  # the first consumer is slower than the plan; `resume` accepts it


class CancelRequested(BacklogError):
    """An operator cancelled the recovery while it ran."""

    code = "cancelled"


class PausedBecause(Paused):
    """A pause that remembers why: `window`, `operator` or `interrupted`."""

    def __init__(self, why: str, message: str, *, subject: str = "", hint: str = "") -> None:
        super().__init__(message, subject=subject, hint=hint)
        self.why = why


def check_brakes(context: RunContext[Any]) -> None:
    """Called between two waves, and only there.

    Raises:
        PausedBecause: the window closed, an operator asked, or Ctrl-C was pressed.
        CancelRequested: an operator cancelled.
        LeaseHeld: another runner took over.
    """
    check_requests(context)
    check_window(context)


def check_requests(context: RunContext[Any], *, requests: bool = True) -> None:
    """`check_brakes` without the window, for work that only reads.

    Args:
        requests: whether `pause` and `cancel` are looked at.
    """
    context.lease.check()
    recovery = context.workspace.ledger.recoveries.get(context.recovery.id)
    if requests and recovery.requested == "cancel":
        raise CancelRequested("it was cancelled while it ran", subject=f"recovery {recovery.id}")
    if requests and recovery.requested == "pause":
        raise make_operator_pause(recovery)
    if context.interrupts.asked:
        raise PausedBecause(
            INTERRUPTED,
            "interrupted; it stopped between two transactions",
            subject=f"recovery {recovery.id}",
            hint=f"the next run goes on where it stopped{_warn_stopped(recovery)}",
        )


def check_window(context: RunContext[Any]) -> None:
    """Raises PausedBecause outside of the plan's off-peak window; says when it opens."""
    window, now = context.window, utc_now()
    if window is not None and not window.contains(now):
        opens = window.next_opening(now)
        there = f"{opens.astimezone(window.zone):%Y-%m-%d %H:%M} {window.zone.key}"
        raise PausedBecause(
            WINDOW,
            f"outside of the off-peak window {window}; it opens at {there} "
            f"({format_time(opens)[:16]}Z)",
            subject=f"recovery {context.recovery.id}",
            hint="run it then: it goes on where it stopped",
        )


def make_operator_pause(recovery: Recovery) -> PausedBecause:
    """The pause that an operator asked for."""
    return PausedBecause(
        OPERATOR,
        "paused by an operator",
        subject=f"recovery {recovery.id}",
        hint=f"it waits for `resume`{_warn_stopped(recovery)}",
    )


def _warn_stopped(recovery: Recovery) -> str:
    """One that rests while it keeps the original consumers stopped: nobody reads the topic."""
    if not recovery.stops_consumers:
        return ""
    return "; until then the original consumers stay stopped, and nobody reads the topic"


LEDGER_SECONDS = 300.0
_LEDGER_PAUSE = 0.5


class LedgerWait:
    """A run waits for its ledger (a restart, a failover, a lock); see `Ledger.outlasting`.

    Nothing is decided meanwhile; relays and consumers are other processes, and go on. If another
    runner takes the recovery over, Kafka's fencing stops this one's, and its lease says so after.
    """

    def __init__(self, console: Console, interrupts: Interrupts) -> None:
        self._console = console
        self._interrupts = interrupts
        self._is_told = self._is_over = False

    def wait(self, error: LedgerError, since: float) -> None:
        """Some time passes; raises the error after `LEDGER_SECONDS`, and at Ctrl-C."""
        away = time.monotonic() - since
        # What ends the run then is not waited for a second time.
        self._is_over = self._is_over or self._interrupts.asked or away >= LEDGER_SECONDS
        if self._is_over:
            raise error
        if not self._is_told:
            self._is_told = True
            began = format_moment(utc_now() - timedelta(seconds=away))
            self._tell(
                f"the ledger has not answered since {began}: {mask_secrets(error.message)}; what "
                f"runs goes on, nothing new is decided, for at most "
                f"{format_duration(LEDGER_SECONDS)}"
            )
        time.sleep(_LEDGER_PAUSE)

    def end(self, since: float) -> None:
        """It answers again."""
        if self._is_told:
            self._is_told = False
            self._tell(
                f"the ledger answers again, after {format_duration(time.monotonic() - since)}"
            )

    def _tell(self, text: str) -> None:
        # Not on record: that is what is away.
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
