"""Progress for people, always on stderr: a spinner, and a bar with rate and ETA."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from replay.rendering import format_count, format_duration

Tell = Callable[[str], None]


@contextmanager
def spin(console: Console) -> Iterator[Tell]:
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


class _RateColumn(ProgressColumn):
    """`480/s`, over the whole of this run."""

    def render(self, task: Task) -> Text:
        """Draws the cell."""
        if not task.elapsed or not task.completed:
            return Text("")
        done = task.completed - float(task.fields.get("before", 0))
        return Text(f"{format_count(round(done / task.elapsed))}/s", style="cyan")


class _EtaColumn(ProgressColumn):
    """`3 min left`."""

    def render(self, task: Task) -> Text:
        """Draws the cell."""
        done = task.completed - float(task.fields.get("before", 0))
        if not task.elapsed or done <= 0 or task.remaining is None:
            return Text("")
        if not task.remaining:
            return Text("")
        return Text(f"{format_duration(task.remaining * task.elapsed / done)} left", style="dim")


class Bar:
    """A bar of messages; a pipe gets one line every few seconds instead."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._told_at = time.monotonic()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            _RateColumn(),
            _EtaColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total, before=0)

    def start(self) -> None:
        """Shows the bar."""
        self._progress.start()

    def stop(self) -> None:
        """Leaves the bar as it is."""
        self._progress.stop()

    def tell(self, text: str) -> None:
        """Says what is being done."""
        self._progress.update(self._task, description=text)

    def move(self, done: int, skipped: int = 0) -> None:
        """Sets how many messages are done; `skipped` of them do not count for the rate."""
        self._progress.update(self._task, completed=done, before=skipped)
        if not self._console.is_terminal and time.monotonic() - self._told_at > 5:
            self._told_at = time.monotonic()
            self._console.print(f"{done:,} of {self._total:,} messages", highlight=False)
