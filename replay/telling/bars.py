"""Progress for people, always on stderr: a spinner, and a bar with rate and ETA."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from backlog.numbers import format_count, format_duration
from backlog.progress import Say


@contextmanager
def spin(console: Console) -> Iterator[Say]:
    """While something without a known end goes on: says what is being done, and for how long."""
    if not console.is_terminal:
        yield lambda _: None
        return
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=None)
        yield lambda text: progress.update(task, description=text)


class _CountColumn(ProgressColumn):
    """`480 of 1,000`."""

    def render(self, task: Task) -> Text:
        return Text(f"{int(task.completed):,} of {int(task.total or 0):,}", style="green")


class _PaceColumn(ProgressColumn):
    """`480/s, 3 min left`; how long it has been at it where there is no rate."""

    def render(self, task: Task) -> Text:
        rate, eta = task.fields["rate"], task.fields["eta"]
        if not rate:
            return Text(format_duration(time.monotonic() - task.fields["since"]), style="dim")
        told = Text(f"{format_count(round(rate))}/s", style="cyan")
        if eta:
            told.append(f", {format_duration(eta)} left", style="dim")
        return told


class Bar:
    """A bar of messages; a pipe gets one line every few seconds instead."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._told_at = time.monotonic()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            _CountColumn(),
            _PaceColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._what = ""
        self._task = self._progress.add_task(
            "", total=total, rate=0.0, eta=None, since=time.monotonic()
        )

    def start(self) -> None:
        """Shows the bar."""
        self._progress.start()

    def stop(self) -> None:
        """Leaves the bar as it is."""
        self._progress.stop()

    def say(self, text: str) -> None:
        """Says what is being done; something new has no rate yet, only a time."""
        if text != self._what:
            self._what = text
            self._progress.update(
                self._task, description=text, rate=0.0, eta=None, since=time.monotonic()
            )

    def move(self, done: int, *, rate: float = 0.0, eta: float | None = None) -> None:
        """Sets how many messages are done, how many a second, and the seconds left."""
        self._progress.update(self._task, completed=done, rate=rate, eta=eta)
        if not self._console.is_terminal and time.monotonic() - self._told_at > 5:
            self._told_at = time.monotonic()
            self._console.print(f"{done:,} of {self._total:,} messages", highlight=False)
