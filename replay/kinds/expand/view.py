"""The live view of an expansion while it runs; a pipe gets a line every few seconds."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from backlog.clock import utc_now
from backlog.ledger import BurndownSample, Ledger
from backlog.numbers import format_count, format_duration
from backlog.values import Recovery
from replay.telling.burndown import draw_progress
from replay.telling.progress import describe_progress

_LINE_SECONDS = 5.0
_REDRAWS_PER_SECOND = 2
_KEPT = 2_000
_WIDTH = 98


class BurndownView:
    """What is left in both topics, how fast it goes, and the steps."""

    def __init__(self, console: Console, ledger: Ledger, recovery: Recovery) -> None:
        self._console = console
        self._ledger = ledger
        self._id = recovery.id
        self._lock = threading.Lock()
        self._samples: deque[BurndownSample] = deque(maxlen=_KEPT)
        self._steps = ledger.steps.list(recovery.id)
        self._live: Live | None = None
        self._line_at = 0.0

    def start(self) -> None:
        """Shows it; what earlier runs left is part of it."""
        self._samples.extend(self._ledger.burndown.list(self._id)[-_KEPT:])
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._draw,
                console=self._console,
                refresh_per_second=_REDRAWS_PER_SECOND,
                transient=False,
            )
            self._live.start()

    def stop(self) -> None:
        """Leaves the last view where it is."""
        if self._live is not None:
            self._steps = self._ledger.steps.list(self._id)
            self._live.refresh()
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """A sentence above the view."""
        self._console.print(Text(text), soft_wrap=True)

    def note_step(self, step: str) -> None:
        """A step begins."""
        with self._lock:
            self._steps = self._ledger.steps.list(self._id)
        if self._live is None:
            self._console.print(Text(step.replace("_", " ")), soft_wrap=True)

    def note_sample(self, sample: BurndownSample) -> None:
        """A new sample of both lags."""
        with self._lock:
            self._samples.append(sample)
        if self._live is None and time.monotonic() >= self._line_at:
            self._line_at = time.monotonic() + _LINE_SECONDS
            self._console.print(Text(self._format_line()), soft_wrap=True)

    def _draw(self) -> RenderableType:
        width = min(_WIDTH, self._console.width)
        return draw_progress(self._describe(), width)

    def _format_line(self) -> str:
        down = self._describe()["burndown"]
        told = f"{format_count(down['source_lag'])} to relay, "
        told += f"{format_count(down['temporary_lag'])} to handle"
        if rate := down["handled_per_second"]:
            told += f", {format_count(round(rate))}/s handled"
        if eta := down["eta_seconds"]:
            told += f", drained in about {format_duration(max(1.0, eta))}"
        return told

    def _describe(self) -> dict[str, Any]:
        with self._lock:
            samples, steps = list(self._samples), self._steps
        return describe_progress(steps, samples, utc_now())
