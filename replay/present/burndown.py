"""The live view of a backlog that is drained; a pipe gets a line each ten seconds."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

from backlogctl.clock import utc_now
from backlogctl.formats import (
    Ticker,
    format_count,
    format_duration,
    format_rate,
)
from backlogctl.ledger import BurndownSample, Ledger
from backlogctl.replay.present.layout import Folded, Text, print_wrapped
from backlogctl.replay.present.progress import describe_progress, name_step
from backlogctl.replay.present.terminal import render_progress
from backlogctl.values import Recovery

_REDRAWS_PER_SECOND = 2
_KEPT = 2_000
_WIDTH = 98


class BurndownView:
    """What is left in both topics, how fast it goes, and the steps."""

    def __init__(
        self,
        console: Console,
        ledger: Ledger,
        recovery: Recovery,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._ledger = ledger
        self._id = recovery.id
        self._lock = threading.Lock()
        self._samples: deque[BurndownSample] = deque(maxlen=_KEPT)
        self._steps = ledger.steps.list(recovery.id)
        self._live: Live | None = None
        self._clock = clock
        self._step, self._since = "", clock()
        self._is_new = False
        self._ticker = Ticker(self.print_line)

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
        else:
            self._ticker.start()

    def stop(self) -> None:
        """Leaves the last view where it is."""
        self._ticker.stop()
        if self._live is not None:
            self._steps = self._ledger.steps.list(self._id)
            self._live.refresh()
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """A sentence above the view."""
        print_wrapped(self._console, Text(text))

    def note_step(self, step: str) -> None:
        """A step begins."""
        with self._lock:
            self._steps = self._ledger.steps.list(self._id)
            self._step, self._since, self._is_new = name_step(step), self._clock(), False
        if self._live is None:
            self._console.print(Text(name_step(step)), soft_wrap=True)

    def note_sample(self, sample: BurndownSample) -> None:
        """A new sample of both lags."""
        with self._lock:
            self._samples.append(sample)
            self._is_new = True

    def print_line(self) -> None:
        """How far it is, as a line of its own: what is left where that was just looked at."""
        with self._lock:
            is_new, self._is_new = self._is_new, False
            told = f"{self._step or 'starting'}, {format_duration(self._clock() - self._since)}"
        self._console.print(Text(self._format_line() if is_new else told), soft_wrap=True)

    def _draw(self) -> RenderableType:
        width = min(_WIDTH, self._console.width)
        return Folded(render_progress(self._describe(), width))

    def _format_line(self) -> str:
        down = self._describe()["burndown"]
        handled, left = down["handled"], down["left"]
        told = f"{format_count(handled)} of {format_count(handled + left)} handled, "
        told += f"{format_count(down['source_lag'])} to relay"
        if rate := down["handled_per_second"]:
            told += f", {format_rate(rate)}"
        if left and (eta := down["eta_seconds"]) is not None:
            told += f", {format_duration(max(1.0, eta))} left"
        return told

    def _describe(self) -> dict[str, Any]:
        with self._lock:
            samples, steps = list(self._samples), self._steps
        return describe_progress(steps, samples, utc_now())
