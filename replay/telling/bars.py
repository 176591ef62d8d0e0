"""Progress for people, always on stderr: a spinner, and a bar with rate and ETA."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TimeElapsedColumn,
)
from rich.table import Column

from backlog.numbers import format_duration, format_rate
from backlog.progress import TICK_SECONDS, Say, Ticker
from replay.telling.layout import ANY_WIDTH, Folded, Text, tell


class _WholeProgress(Progress):
    """A line of columns; where they are wider than the terminal, what `describe` says of a task."""

    def __init__(self, *columns: ProgressColumn, describe: Callable[[Task], str], **settings: Any):
        self._describe_task = describe
        super().__init__(*columns, **settings)

    def get_renderable(self) -> RenderableType:
        """The columns, or sentences."""
        table = self.make_tasks_table(self.tasks)
        if not self.tasks:  # asked before there is a console
            return table
        wide = self.console.options.update(max_width=ANY_WIDTH)
        if Measurement.get(self.console, wide, table).maximum <= self.console.width:
            return table
        return Folded(Group(*(tell(self._describe_task(task)) for task in self.tasks)))


@contextmanager
def spin(console: Console) -> Iterator[Say]:
    """While something without a known end goes on: says what is being done, and for how long.

    A pipe gets each text as a line.
    """
    if not console.is_terminal:
        yield lambda text: console.print(Text(text), soft_wrap=True)
        return
    with _WholeProgress(
        SpinnerColumn(),
        _WhatColumn(),
        TimeElapsedColumn(),
        describe=lambda task: f"{task.description} {format_duration(task.elapsed)}",
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=None)
        yield lambda text: progress.update(task, description=text)


# Less of the work than that does not tell how long the rest takes.
_TELLING_SHARE = 0.02


class _WhatColumn(ProgressColumn):
    """What is being done."""

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True))

    def render(self, task: Task) -> Text:
        return Text(task.description)


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
        pace, left = _tell_pace(rate, eta, task.completed / max(1, task.total or 0))
        return Text.assemble((pace, "cyan"), (left, "dim"))


def _tell_pace(rate: float, eta: float | None, share: float) -> tuple[str, str]:
    """The time left is not told of the first messages: a canary says nothing of the others."""
    left = f", {format_duration(eta)} left" if eta and share >= _TELLING_SHARE else ""
    return format_rate(rate), left


class Bar:
    """A bar of messages; a pipe gets a line each ten seconds instead."""

    def __init__(
        self, console: Console, total: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._total = total
        self._clock = clock
        self._progress = _WholeProgress(
            SpinnerColumn(),
            _WhatColumn(),
            BarColumn(bar_width=20),
            _CountColumn(),
            _PaceColumn(),
            describe=lambda _: f"{f'{self._what}: ' if self._moved else ''}{self._format_line()}",
            console=console,
            disable=not console.is_terminal,
        )
        self._what, self._since = "", clock()
        self._moved: _Moved | None = None
        self._ticker = Ticker(self.print_line)
        self._task = self._progress.add_task(
            "", total=total, rate=0.0, eta=None, since=time.monotonic()
        )

    def start(self) -> None:
        """Shows the bar, or begins with the lines."""
        self._progress.start()
        if not self._console.is_terminal:
            self._ticker.start()

    def stop(self) -> None:
        """Leaves the bar as it is."""
        self._ticker.stop()
        self._progress.stop()

    def say(self, text: str) -> None:
        """Says what is being done; something new has no rate yet, only a time."""
        if text != self._what:
            self._what, self._since, self._moved = text, self._clock(), None
            self._progress.update(
                self._task, description=text, rate=0.0, eta=None, since=time.monotonic()
            )

    def move(self, done: int, *, rate: float = 0.0, eta: float | None = None) -> None:
        """Sets how many messages are done, how many a second, and the seconds left."""
        self._progress.update(self._task, completed=done, rate=rate, eta=eta)
        self._moved = _Moved(self._clock(), done, rate, eta)

    def print_line(self) -> None:
        """How far it is, as a line of its own."""
        self._console.print(Text(self._format_line()), soft_wrap=True)

    def _format_line(self) -> str:
        now, moved = self._clock(), self._moved
        if moved is None:
            return f"{self._what}, {format_duration(now - self._since)}"
        told = f"{moved.done:,} of {self._total:,} messages"
        # A rate that is some seconds old tells nothing of what is left.
        if (still := now - moved.at) > TICK_SECONDS:
            return f"{told}, none for {format_duration(still)}"
        share = moved.done / max(1, self._total)
        return (
            f"{told}, {''.join(_tell_pace(moved.rate, moved.eta, share))}" if moved.rate else told
        )


@dataclass(frozen=True, slots=True)
class _Moved:
    at: float
    done: int
    rate: float
    eta: float | None
