"""Tables, lines of facts and sentences that fit the terminal, or take another form: nothing is cut.

Words, figures and what stands in backticks (commands) are never broken. A table that is too wide
becomes a list, and a frame that is too narrow goes. What is longer than a line goes beyond it, as
one line: the terminal breaks it, and it is copied whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table as RichTable

from replay.telling.texts import AnyText, Text

_UNIT = r"(?:d|h|min|s|ms|[kMGT]?B|M|G|%)(?!\w)"
# A word; what backticks hold together; a figure with its unit, as `1 h 10 min`; a day and its time.
_PIECE = re.compile(
    rf"(?:`[^`\n]*`|(?<=\d) (?={_UNIT})|(?<=\d [dh]) (?=\d+ {_UNIT})|(?<=\d min) (?=\d+ s\b)"
    r"|(?<=\d-\d\d) (?=\d\d:\d\d)|\S)+"
)
ANY_WIDTH = 100_000
# Narrower than that, a column or a line of prose is hard to read.
_PROSE = 24
_NAMES = 12
_GAP = "  "


def wrap_text(text: AnyText, width: int, hang: int = 0) -> list[AnyText]:
    """The text in lines of at most that many cells, broken between pieces only.

    Lines after the first are indented by `hang`.
    """
    lines: list[AnyText] = []
    for part in text.split("\n", allow_blank=True):
        for line in _cut_line(part, width, hang):
            lines.append(Text.assemble(" " * hang, line) if lines else line)
    return lines


def _cut_line(text: AnyText, width: int, hang: int) -> Iterator[AnyText]:
    plain, room = text.plain, width
    begin = end = 0
    for piece in _PIECE.finditer(plain):
        if end > begin and cell_len(plain[begin : piece.end()]) > room:
            yield text[begin:end]
            begin, room = piece.start(), width - hang
        end = piece.end()
    yield text[begin:end] if end else text


def measure_piece(text: AnyText) -> int:
    """Cells of the longest piece."""
    return max((cell_len(piece) for piece in _PIECE.findall(text.plain)), default=0)


def _measure_lines(text: AnyText) -> int:
    return max(cell_len(line) for line in text.plain.split("\n"))


def _to_line(text: AnyText) -> AnyText:
    line = text.copy()
    line.no_wrap, line.overflow = True, "ignore"
    return line


def _to_text(told: str | AnyText) -> AnyText:
    return Text(told) if isinstance(told, str) else told


@dataclass(frozen=True)
class Line:
    """A command, or what else is never broken."""

    text: AnyText

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> Iterator[AnyText]:
        yield _to_line(self.text)

    def __rich_measure__(self, _: Console, __: ConsoleOptions) -> Measurement:
        return Measurement(self.text.cell_len, self.text.cell_len)


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
        super().print(*args, **{"crop": False, **kwargs})


@dataclass(frozen=True)
class Prose:
    """Sentences; lines after the first are indented by `hang`."""

    text: AnyText
    hang: int = 0

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[AnyText]:
        yield from map(_to_line, wrap_text(self.text, options.max_width, self.hang))

    def __rich_measure__(self, _: Console, __: ConsoleOptions) -> Measurement:
        longest = _measure_lines(self.text)
        return Measurement(min(longest, self.hang + measure_piece(self.text)), longest)


def print_line(console: Console, text: AnyText) -> None:
    """A terminal gets lines broken between words, but not within a command; a pipe one line."""
    if console.is_terminal:
        console.print(Prose(text))
    else:
        console.print(text, soft_wrap=True)


def tell(text: str, style: str = "", *, hang: int = 0) -> Prose:
    """Sentences as they are: nothing in them is markup."""
    return Prose(Text(text, style=style), hang)


@dataclass
class Facts:
    """Names on the left, sentences on the right; below each other where that is too narrow.

    `is_counted`: the names are figures, aligned right.
    """

    is_counted: bool = False
    lines: list[tuple[AnyText, AnyText]] = field(default_factory=list)

    def add(self, name: str | AnyText, told: str | AnyText) -> None:
        self.lines.append((_to_text(name), _to_text(told)))

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[AnyText]:
        indent = self._measure_names()
        for lines in self._list_groups():
            name = lines[0][0]
            shown = name if self.is_counted else Text(name.plain, style="dim")
            room = options.max_width - indent
            if any(room < max(_PROSE, measure_piece(told)) for __, told in lines):
                if name.plain:
                    yield _to_line(shown)
                head, hang = Text(_GAP), len(_GAP)
            else:
                blank = " " * (indent - len(_GAP) - name.cell_len)
                parts = (blank, shown) if self.is_counted else (shown, blank)
                head, hang = Text.assemble(*parts, _GAP), indent
            for __, told in lines:
                for line in wrap_text(told, options.max_width - hang):
                    yield _to_line(Text.assemble(head, line))
                    head = Text(" " * hang)

    def _list_groups(self) -> Iterator[list[tuple[AnyText, AnyText]]]:
        """A line and those without a name after it."""
        group: list[tuple[AnyText, AnyText]] = []
        for line in self.lines:
            if group and line[0].plain:
                yield group
                group = []
            group.append(line)
        if group:
            yield group

    def _measure_names(self) -> int:
        least = 0 if self.is_counted else _NAMES
        return max([least, *(name.cell_len for name, _ in self.lines)]) + len(_GAP)

    def __rich_measure__(self, _: Console, __: ConsoleOptions) -> Measurement:
        names = self._measure_names()
        widest = max((name.cell_len for name, _ in self.lines), default=0)
        longest = max((_measure_lines(told) for _, told in self.lines), default=0)
        least = max((measure_piece(told) for _, told in self.lines), default=0)
        return Measurement(max(widest, len(_GAP) + least), names + longest)


@dataclass(frozen=True)
class Column:
    """A column; `is_prose` may be broken between words."""

    name: str
    is_right: bool = False
    is_prose: bool = False

    @classmethod
    def parse(cls, told: str) -> Column:
        """`#name`: figures, aligned right; `=name`: ids and states; else prose."""
        mark = told[:1] if told[:1] in ("#", "=") else ""
        return cls(told.removeprefix(mark), mark == "#", not mark)


@dataclass
class Table:
    """Rows under names; a list of `name: value` where the terminal is too narrow for columns."""

    columns: Sequence[Column]
    rows: list[list[AnyText]] = field(default_factory=list)

    def add(self, *cells: str | AnyText) -> None:
        """Adds a row; a text in it is printed as it is."""
        row = [_to_text(cell) for cell in cells]
        if len(row) != len(self.columns):
            raise ValueError(f"{len(row)} cells for {len(self.columns)} columns")
        self.rows.append(row)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        widths = self._fit(options.max_width - self._measure_frame(console, options))
        if widths is not None:
            yield self._make(widths)
        else:
            yield Text()
            for row in self.rows:
                yield from map(_to_line, self._list_row(row, options.max_width))
            yield Text()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        frame = self._measure_frame(console, options)
        least = frame + sum(self._least(n) for n in range(len(self.columns)))
        return Measurement(least, frame + sum(self._natural(n) for n in range(len(self.columns))))

    def _texts(self, number: int) -> Iterable[AnyText]:
        yield Text(self.columns[number].name)
        yield from (row[number] for row in self.rows)

    def _natural(self, number: int) -> int:
        return max(map(_measure_lines, self._texts(number)))

    def _least(self, number: int) -> int:
        """The width at which nothing of a figure, an id or a word is broken."""
        column = self.columns[number]
        cells = [row[number] for row in self.rows]
        pieces = max([measure_piece(Text(column.name)), *map(measure_piece, cells)])
        if not column.is_prose:
            return max([pieces, *map(_measure_lines, cells)])
        return min(self._natural(number), max(_PROSE, pieces))

    def _fit(self, room: int) -> list[int] | None:
        """The columns' widths; None where they are more than the room."""
        numbers = range(len(self.columns))
        widths = [self._least(number) for number in numbers]
        spare = room - sum(widths)
        if spare < 0:
            return None
        wishes = {n: wish for n in numbers if (wish := self._natural(n) - widths[n]) > 0}
        # Those that wish for little first, so that what they leave is shared by the others.
        for left, number in enumerate(sorted(wishes, key=lambda n: wishes[n])):
            given = min(wishes[number], spare // (len(wishes) - left))
            widths[number] += given
            spare -= given
        return widths

    def _measure_frame(self, console: Console, options: ConsoleOptions) -> int:
        widths = [1] * len(self.columns)
        empty = Table([Column("") for _ in self.columns])._make(widths)
        wide = options.update(max_width=ANY_WIDTH)
        return Measurement.get(console, wide, empty).maximum - len(widths)

    def _make(self, widths: Sequence[int]) -> RichTable:
        # Cells come wrapped and aligned: rich cuts what it wraps, and aligns nothing else.
        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        fitted = list(zip(self.columns, widths, strict=True))
        names = [_fill(Text(one.name), width, is_right=one.is_right) for one, width in fitted]
        most = max(name.plain.count("\n") for name in names)
        for name, width in zip(names, widths, strict=True):
            # Names stand on the line, cells begin below it.
            raised = AnyText("\n" * (most - name.plain.count("\n"))) + name
            table.add_column(raised, width=width, no_wrap=True, overflow="ignore")
        for row in self.rows:
            table.add_row(
                *(
                    _fill(cell, width, is_right=column.is_right)
                    for cell, (column, width) in zip(row, fitted, strict=True)
                )
            )
        return table

    def _list_row(self, row: Sequence[AnyText], width: int) -> Iterator[AnyText]:
        line: AnyText = Text()
        for column, cell in zip(self.columns, row, strict=True):
            if not cell.plain.strip():
                continue
            pair = Text.assemble((_introduce(column.name), "dim"), cell)
            if line.plain and line.cell_len + len(_GAP) + pair.cell_len <= width:
                line = Text.assemble(line, _GAP, pair)
                continue
            if line.plain:
                yield line
                pair = Text.assemble(_GAP, pair)
            *full, line = wrap_text(pair, width, len(_GAP))
            yield from full
        if line.plain:
            yield line


def _introduce(name: str) -> str:
    return f"{name.removesuffix('.')}: " if name else ""


def _fill(text: AnyText, width: int, *, is_right: bool) -> AnyText:
    lines = wrap_text(text, width)
    if is_right:
        lines = [AnyText.assemble(" " * (width - line.cell_len), line) for line in lines]
    return AnyText("\n").join(lines)


@dataclass(frozen=True)
class Framed:
    """Parts in a frame with a title; below the title where the frame would be too narrow."""

    title: AnyText
    parts: Sequence[RenderableType]
    width: int

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        group = Group(*self.parts)
        width = min(self.width, options.max_width)
        frame = Panel(group, title=self.title, title_align="left", border_style="cyan", width=width)
        least = Measurement.get(console, options.update(max_width=ANY_WIDTH), group).minimum
        # The frame cuts a title that is longer.
        if max(least + 4, self.title.cell_len + 6) <= width:
            yield frame
        else:
            yield Prose(self.title)
            yield group
