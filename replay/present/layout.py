"""Texts, tables, facts and frames for a terminal: nothing is cut, and nothing in them is markup.

Words, figures with their unit and what stands in backticks (commands) are never broken. A table
that is too wide becomes a list, and a frame that is too narrow goes. What is longer than a line
goes beyond it, as one line: the terminal breaks it, and it is copied whole.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.containers import Lines
from rich.measure import Measurement
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TimeElapsedColumn,
)
from rich.segment import Segment
from rich.style import Style
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text as RichText

from backlogctl.formats import TICK_SECONDS, Say, Ticker, format_duration, format_rate
from backlogctl_delivery.visible import escape_text

_UNIT = r"(?:d|h|min|s|ms|[kMGT]?B|M|G|%)(?!\w)"
# A word; what backticks hold together; a figure with its unit, as `1 h 10 min`; a day and its time.
_PIECE = re.compile(
    rf"(?:`[^`\n]*`|(?<=\d) (?={_UNIT})|(?<=\d [dh]) (?=\d+ {_UNIT})|(?<=\d min) (?=\d+ s\b)"
    r"|(?<=\d-\d\d) (?=\d\d:\d\d)|\S)+"
)
ANY_WIDTH = 100_000
# Narrower than that, a line of prose is hard to read.
_PROSE = 24
_NAMES = 12
_GAP = "  "


class Text(RichText):
    """A text that is printed as it is, and broken between pieces only.

    Lines after the first are indented by `hang`. In a table's cell what is longer is folded.
    """

    hang = 0

    def __init__(self, text: str = "", *args: Any, hang: int = 0, **settings: Any) -> None:
        super().__init__(escape_text(text), *args, **settings)
        self.overflow = self.overflow or "ignore"
        self.hang = hang

    @classmethod
    def assemble(cls, *parts: Any, hang: int = 0, **settings: Any) -> Self:
        """As rich's."""
        made = super().assemble(*parts, **settings)
        assert isinstance(made, cls)
        made.hang = hang
        return made

    def append(self, text: RichText | str, style: str | Style | None = None) -> Self:
        """As rich's."""
        super().append(escape_text(text) if isinstance(text, str) else text, style)
        return self

    def wrap(self, console: Console, width: int, **settings: Any) -> Lines:
        """As rich's; `overflow="fold"` breaks pieces that are longer than a line."""
        lines = Lines()
        fold = settings.get("overflow") == "fold"
        if settings.get("no_wrap") and not fold:
            return Lines(self.split(allow_blank=True))
        for part in self.split(allow_blank=True):
            for number, line in enumerate(part.divide(self._find_breaks(part.plain, width))):
                line.rstrip()
                indented = RichText(" " * self.hang) + line if lines and number else line
                cuts = range(width, indented.cell_len, width) if fold else ()
                lines.extend(indented.divide(cuts) if cuts else [indented])
        if justify := settings.get("justify"):
            lines.justify(console, width, justify=justify, overflow="ignore")
        return lines

    def _find_breaks(self, plain: str, width: int) -> Iterator[int]:
        begin = end = 0
        for piece in _PIECE.finditer(plain):
            if end > begin and cell_len(plain[begin : piece.end()]) > width:
                yield piece.start()
                begin, width = piece.start(), width - (0 if begin else self.hang)
            end = piece.end()

    def measure_piece(self) -> int:
        """Cells of the longest piece."""
        return max((cell_len(piece) for piece in _PIECE.findall(self.plain)), default=0)

    def __rich_measure__(self, _: Console, __: ConsoleOptions) -> Measurement:
        longest = max(map(cell_len, self.plain.split("\n")))
        least = longest if self.no_wrap else self.hang + self.measure_piece()
        return Measurement(min(longest, least), longest)


def make_line(text: Text) -> Text:
    """A command, or what else is never broken."""
    text.no_wrap, text.overflow = True, "ignore"
    return text


def _to_text(text: str | Text) -> Text:
    return Text(text) if isinstance(text, str) else text


@dataclass(frozen=True)
class Folded:
    """For a view that is drawn again and again: rich cuts its lines, and counts them.

    What is longer than a line goes on in the next one, as a terminal does it.
    """

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        width = options.max_width
        for line in Segment.split_lines(console.render(self.content, options)):
            length = Segment.get_line_length(line)
            cuts = [*range(width, length, width), max(1, length)]
            for part in Segment.divide(line, cuts):
                yield from part
                yield Segment.line()


class WholeConsole(Console):
    """A console that does not cut lines at its width."""

    def print(self, *args: Any, **kwargs: Any) -> None:
        # A text by itself would be joined with others, and no longer be ours.
        parts = [Group(*args)] if len(args) == 1 and isinstance(args[0], Text) else args
        super().print(*parts, **{"crop": False, **kwargs})


def print_wrapped(console: Console, text: Text) -> None:
    """A terminal gets lines broken between words, but not within a command; a pipe one line."""
    console.print(text, soft_wrap=not console.is_terminal)


class Facts:
    """Names on the left, sentences on the right; below each other where that is too narrow.

    `is_counted`: the names are figures, aligned right.
    """

    def __init__(
        self, pairs: Iterable[tuple[str | Text, str | Text]] = (), *, is_counted: bool = False
    ) -> None:
        self.is_counted = is_counted
        self.lines: list[tuple[Text, list[Text]]] = []
        for name, text in pairs:
            self.add(name, text)

    def add(self, name: str | Text, text: str | Text) -> None:
        """Adds a line; one without a name goes with the one before."""
        known = _to_text(name)
        if known.plain or not self.lines:
            self.lines.append((known, []))
        self.lines[-1][1].append(_to_text(text))

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        names = max([0 if self.is_counted else _NAMES, *(name.cell_len for name, _ in self.lines)])
        room = options.max_width - names - len(_GAP)
        for name, texts in self.lines:
            if room < max(_PROSE, *(text.measure_piece() for text in texts)):
                yield from [name] if name.plain else []
                yield from (Text.assemble(_GAP, text, hang=len(_GAP)) for text in texts)
                continue
            grid = RichTable.grid(padding=(0, len(_GAP), 0, 0), pad_edge=False)
            grid.add_column(
                width=names,
                justify="right" if self.is_counted else "left",
                style="" if self.is_counted else "dim",
            )
            grid.add_column()
            for number, text in enumerate(texts):
                grid.add_row("" if number else name, text)
            yield grid

    def __rich_measure__(self, _: Console, __: ConsoleOptions) -> Measurement:
        texts = [text for _, line in self.lines for text in line]
        least = max((text.measure_piece() for text in texts), default=0) + len(_GAP)
        names = max((name.cell_len for name, _ in self.lines), default=0)
        longest = max((text.cell_len for text in texts), default=0)
        return Measurement(max(least, names), max(_NAMES, names) + len(_GAP) + longest)


class Table(RichTable):
    """Rows under names; a list of `name: value` where the terminal is too narrow for columns.

    `#name` is a column of figures, `=name` one of ids and states, any other one of prose.
    """

    def __init__(self, *columns: str, rows: Iterable[Sequence[str | Text]] = ()) -> None:
        super().__init__(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        self.texts: list[list[Text]] = []
        for name in columns:
            self.add_column(
                Text(name.lstrip("#="), overflow="fold"),
                justify="right" if name.startswith("#") else "left",
                no_wrap=name.startswith(("#", "=")),
            )
        for row in rows:
            self.add(*row)

    def add(self, *cells: str | Text) -> None:
        """Adds a row; a text in it is printed as it is."""
        row = [_to_text(cell) for cell in cells]
        if len(row) != len(self.columns):
            raise ValueError(f"{len(row)} cells for {len(self.columns)} columns")
        for text in row:
            text.overflow = "fold"
        self.texts.append(row)
        self.add_row(*row)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.__rich_measure__(console, options).minimum <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        yield Text()
        for row in self.texts:
            yield from self._list_row(row, options.max_width)
        yield Text()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        wide = options.update(max_width=ANY_WIDTH)
        least = sum(self._measure_least(number) for number in range(len(self.columns)))
        frame = len(_GAP) * (len(self.columns) - 1) + 2
        return Measurement(least + frame, super().__rich_measure__(console, wide).maximum)

    def _measure_least(self, number: int) -> int:
        """The width at which nothing of a figure, an id or a word is broken."""
        column = self.columns[number]
        assert isinstance(column.header, Text)
        cells = [row[number] for row in self.texts]
        if column.no_wrap:
            return max([column.header.measure_piece(), *(cell.cell_len for cell in cells)])
        longest = max(text.cell_len for text in (column.header, *cells))
        return min(
            longest, max(_PROSE, *(text.measure_piece() for text in (column.header, *cells)))
        )

    def _list_row(self, row: Sequence[Text], width: int) -> Iterator[Text]:
        line = Text()
        for column, cell in zip(self.columns, row, strict=True):
            name = str(column.header).removesuffix(".")
            if not cell.plain.strip():
                continue
            pair = Text.assemble((f"{name}: " if name else "", "dim"), cell)
            if line.plain and line.cell_len + len(_GAP) + pair.cell_len <= width:
                line = Text.assemble(line, _GAP, pair, hang=len(_GAP))
                continue
            if line.plain:
                yield line
                pair = Text.assemble(_GAP, pair)
            pair.hang = len(_GAP)
            line = pair
        if line.plain:
            yield line


@dataclass(frozen=True)
class Framed:
    """Parts in a frame with a title; below the title where the frame would be too narrow."""

    title: Text
    parts: Sequence[RenderableType]
    width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        group = Group(*self.parts)
        width = min(self.width, options.max_width)
        least = Measurement.get(console, options.update(max_width=ANY_WIDTH), group).minimum
        # The frame cuts a title that is longer.
        if max(least + 4, self.title.cell_len + 6) <= width:
            yield Panel(
                group, title=self.title, title_align="left", border_style="cyan", width=width
            )
        else:
            yield self.title
            yield group


# Progress for people, always on stderr: a spinner, and a bar with rate and ETA.


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
        return Folded(Group(*(Text(self._describe_task(task)) for task in self.tasks)))


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
        _Cell(lambda task: Text(task.description)),
        TimeElapsedColumn(),
        describe=lambda task: f"{task.description} {format_duration(task.elapsed)}",
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=None)
        yield lambda text: progress.update(task, description=text)


# Less of the work than that does not tell how long the rest takes.
_TELLING_SHARE = 0.02


class _Cell(ProgressColumn):
    """A text of a task, on one line."""

    def __init__(self, draw: Callable[[Task], Text]) -> None:
        super().__init__(Column(no_wrap=True))
        self._draw = draw

    def render(self, task: Task) -> Text:
        return self._draw(task)


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
            _Cell(lambda task: Text(task.description)),
            BarColumn(bar_width=20),
            _Cell(lambda task: Text(f"{int(task.completed):,} of {total:,}", "green")),
            _Cell(lambda _: self._draw_pace()),
            describe=lambda _: f"{f'{self._what}: ' if self._moved else ''}{self._format_line()}",
            console=console,
            disable=not console.is_terminal,
        )
        self._what, self._since = "", clock()
        self._moved: _Moved | None = None
        self._ticker = Ticker(self.print_line)
        self._task = self._progress.add_task("", total=total)

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
            self._progress.update(self._task, description=text)

    def move(self, done: int, *, rate: float = 0.0, eta: float | None = None) -> None:
        """Sets how many messages are done, how many a second, and the seconds left."""
        self._moved = _Moved(self._clock(), done, rate, eta)
        self._progress.update(self._task, completed=done)

    def print_line(self) -> None:
        """How far it is, as a line of its own."""
        self._console.print(Text(self._format_line()), soft_wrap=True)

    def _draw_pace(self) -> Text:
        """`480/s, 3 min left`; how long it has been at it where there is no rate."""
        if self._moved is None or not self._moved.rate:
            return Text(format_duration(self._clock() - self._since), "dim")
        pace, left = self._tell_pace(self._moved)
        return Text.assemble((pace, "cyan"), (left, "dim"))

    def _tell_pace(self, moved: _Moved) -> tuple[str, str]:
        """The time left is not told of the first messages: a canary says nothing of the others."""
        is_told = moved.eta and moved.done / max(1, self._total) >= _TELLING_SHARE
        return format_rate(moved.rate), f", {format_duration(moved.eta)} left" if is_told else ""

    def _format_line(self) -> str:
        now, moved = self._clock(), self._moved
        if moved is None:
            return f"{self._what}, {format_duration(now - self._since)}"
        told = f"{moved.done:,} of {self._total:,} messages"
        # A rate that is some seconds old tells nothing of what is left.
        if (still := now - moved.at) > TICK_SECONDS:
            return f"{told}, none for {format_duration(still)}"
        return f"{told}, {''.join(self._tell_pace(moved))}" if moved.rate else told


@dataclass(frozen=True, slots=True)
class _Moved:
    at: float
    done: int
    rate: float
    eta: float | None
