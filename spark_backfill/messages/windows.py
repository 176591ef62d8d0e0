"""Between which times the rows of lost messages lie: a window for each gap's partition (P2.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from backlogctl.clock import format_time
from backlogctl.errors import ConfigurationError, UsageError
from backlogctl.formats import format_duration
from backlogctl.spark_backfill.sources.databases import ColumnKind, SourceColumn, SourceDatabase
from backlogctl.spark_backfill.sources.reflection import SourceTable, check_columns
from backlogctl.values import Gap

if TYPE_CHECKING:
    from backlogctl.config import StreamSource

_EARLIEST = datetime(2, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)
# By so much the clocks of the ledger and of the source's database may differ.
CLOCKS = timedelta(seconds=5)
# Times `[begin, end)` of which a row that says one of them may be of any (`find_doubled_times`).
Doubled = Sequence[tuple[datetime, datetime]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Times that rows lie between, both included; None is open."""

    lower: datetime | None
    upper: datetime | None

    def to_text(self) -> tuple[str | None, str | None]:
        """Both in the normal form."""
        return (
            None if self.lower is None else format_time(self.lower),
            None if self.upper is None else format_time(self.upper),
        )


@dataclass(frozen=True, slots=True)
class Window:
    """Times between which the lost rows of one partition lie."""

    partition: int
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class Windows:
    """What is read, and which of it can be lost.

    Attributes:
        read: the rows that are read: from the earliest lower bound to the latest upper one, and
            `margin` beyond it, so that survivors are among them.
        lost: of each partition, windows that do not overlap.
    """

    read: Bounds
    lost: tuple[Window, ...]

    @property
    def anywhere(self) -> Bounds:
        """From the first lost row to the last one, whatever its partition."""
        return _span(window.bounds for window in self.lost)


def find_windows(
    gaps: Sequence[Gap],
    *,
    since: datetime | None,
    until: datetime | None,
    margin: timedelta,
    drift: tuple[timedelta, timedelta],
    mutable: bool,
    has_consumed: bool,
    read_since: datetime | None = None,
    undated: datetime | None = None,
    countable: bool = False,
    doubled: Doubled = (),
) -> Windows:
    """The windows of the gaps: the operator's, else the gaps' own.

    A row is older than its message by as long as its transaction took, so the lower bound is
    widened by `margin`; no message is older than its row, so the samples' upper bound needs no
    more than what clocks differ by. Where rows are marked when their message was sent it is the
    other way round. Rows of a `mutable` table may have changed since: the upper bound is open.

    Args:
        margin: what times that the operator gives are widened by.
        drift: by how much a row's time may lie before, and after, its message's.
        read_since: rows are read from here on at least.
        countable: offsets can be counted as rows, so that a loss need not be dated.
        undated: rows of a loss that is not dated are read from here on; None reads all.
        doubled: hours that the clock of the rows' times says twice: a bound in one is widened.

    Raises:
        UsageError: the beginning of a loss is not known, or it ends before it begins.
    """
    unknown = [gap.id for gap in gaps if gap.first_time is None]
    if unknown and since is None and not has_consumed and not countable:
        raise UsageError(
            f"the beginning of the loss is not known: no sample is older than {', '.join(unknown)}",
            subject=f"stream {gaps[0].stream}",
            hint="use --since TIME (before the first lost message; an earlier time reads more "
            "rows), or configure `consumed`",
        )
    windows = []
    for gap in gaps:
        lower, upper = since or gap.first_time or undated, until or gap.last_time
        before, after = (side or CLOCKS for side in drift)
        before, after = before if since is None else margin, after if until is None else margin
        windows.append(
            Window(
                gap.partition,
                Bounds(
                    None if lower is None else widen_backwards(_clamp(lower, -before), doubled),
                    None
                    if upper is None or (mutable and until is None)
                    else widen_forwards(_clamp(upper, after), doubled),
                ),
            )
        )
    if since is not None and until is not None and until < since:
        raise UsageError(
            "--until lies before --since",
            subject=f"stream {gaps[0].stream}",
            hint="use a later --until, or an earlier --since",
        )
    late = [gap.id for gap, window in zip(gaps, windows, strict=True) if _is_empty(window.bounds)]
    if len(late) == len(windows) and (since is not None or until is not None):
        raise UsageError(
            f"no row can lie between --since or --until and the loss of {', '.join(late)}",
            subject=f"stream {gaps[0].stream}",
            hint="`backlogctl gaps` says between which times each gap's messages were written",
        )
    span = _span(window.bounds for window in windows)
    lower, upper = span.lower, span.upper
    if lower is not None and read_since is not None:
        lower = min(lower, widen_backwards(read_since, doubled))
    if upper is not None and until is None:
        last = max(gap.last_time for gap in gaps if gap.last_time is not None)
        upper = max(upper, widen_forwards(_clamp(last, margin), doubled))
    return Windows(Bounds(lower, upper), _merge(windows))


def describe_older(
    gaps: Sequence[Gap], read: Bounds, lag: timedelta, since: datetime | None = None
) -> str:
    """What to say where lost rows may be older than those that are read; "" where it is known when
    the first message was lost, and survivors say that its row is not.

    Args:
        since: when the operator says that the loss began, at the earliest.
        lag: how far a survivor's row is dated before its message, at most.
    """
    begun = [at for gap in gaps if (at := gap.first_time or since) is not None]
    if read.lower is None or len(begun) < len(gaps) or _clamp(min(begun), -lag) >= read.lower:
        return ""
    return (
        f"rows of survivors are dated up to {format_duration(lag.total_seconds())} before their "
        "messages, so rows of lost ones may be older than those that are read, from "
        f"{format_time(read.lower)} on; use a longer `margin`, or an earlier --since"
    )


def widen_backwards(at: datetime, doubled: Doubled) -> datetime:
    """The earliest time that a row of this one may say."""
    return next((begin for begin, end in doubled if begin <= at < end), at)


def widen_forwards(at: datetime, doubled: Doubled) -> datetime:
    """The latest time that a row of this one may say."""
    return next((end for begin, end in doubled if begin <= at < end), at)


def _is_empty(bounds: Bounds) -> bool:
    return bounds.lower is not None and bounds.upper is not None and bounds.upper < bounds.lower


def _clamp(at: datetime, by: timedelta) -> datetime:
    """The time moved by so much, within what databases can hold."""
    if by < timedelta(0):
        return _EARLIEST if at - _EARLIEST < -by else at + by
    return _LATEST if _LATEST - at < by else at + by


def _span(bounds: Iterable[Bounds]) -> Bounds:
    found = list(bounds)
    lowers = [item.lower for item in found if item.lower is not None]
    uppers = [item.upper for item in found if item.upper is not None]
    return Bounds(
        min(lowers) if len(lowers) == len(found) and found else None,
        max(uppers) if len(uppers) == len(found) and found else None,
    )


def _merge(windows: Iterable[Window]) -> tuple[Window, ...]:
    """Those of one partition that meet, as one."""
    merged: list[Window] = []
    key = sorted(windows, key=lambda w: (w.partition, w.bounds.lower or _EARLIEST))
    for window in key:
        last = merged[-1] if merged else None
        if last is None or last.partition != window.partition or not _meet(last, window):
            merged.append(window)
            continue
        ends = (last.bounds.upper, window.bounds.upper)
        upper = None if None in ends else max(at for at in ends if at is not None)
        merged[-1] = Window(window.partition, Bounds(last.bounds.lower, upper))
    return tuple(merged)


def _meet(first: Window, second: Window) -> bool:
    end, begin = first.bounds.upper, second.bounds.lower
    return end is None or begin is None or begin <= end


# Which rows of a table are read, as SQL that the database can serve from an index.

Wanted = bool | int | str

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"s": timedelta(seconds=1), "ms": timedelta(milliseconds=1)}
_KINDS: Mapping[ColumnKind, type[Wanted]] = {
    ColumnKind.TEXT: str,
    ColumnKind.OTHER: str,
    ColumnKind.INTEGER: int,
    ColumnKind.BOOLEAN: bool,
}
_WORDS: Mapping[type[Wanted], str] = {str: "text", int: "a whole number", bool: "true or false"}
# No database holds a larger one.
_LARGEST = 2**63


def join_conditions(*conditions: str) -> str:
    """All of them; empty ones ask for nothing."""
    return " AND ".join(f"({condition})" for condition in conditions if condition)


def filter_wanted(table: SourceTable, where: Mapping[str, Wanted]) -> str:
    """The rows whose columns have these values; see `check_wanted`."""
    return " AND ".join(
        _render_wanted(table.engine, table.column(name), value) for name, value in where.items()
    )


def check_wanted(table: SourceTable, where: Mapping[str, Wanted], subject: str) -> None:
    """Refuses values that a column cannot have.

    Raises:
        ConfigurationError: names the column.
    """
    check_columns(table, where, subject)
    for name, value in where.items():
        kind = table.column(name).kind
        wanted = _KINDS.get(kind)
        if wanted is None:
            raise ConfigurationError(
                f"the column {name!r} is {kind}, and cannot be compared exactly",
                subject=subject,
                hint="name columns of text, whole numbers or booleans",
            )
        if type(value) is not wanted:
            raise ConfigurationError(
                f"the column {name!r} is {kind}",
                subject=f"{subject}.{name}",
                hint=f"write {_WORDS[wanted]}" + (", quoted" if wanted is str else ""),
            )
        if isinstance(value, str) and "\0" in value:
            raise ConfigurationError("no text holds a NUL", subject=f"{subject}.{name}")
        if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise ConfigurationError("no column holds such a number", subject=f"{subject}.{name}")


def is_indexable(table: SourceTable, time_column: str) -> bool:
    """Whether the database can compare the column's times: else Spark reads the whole table."""
    kind = table.column(time_column).kind
    return kind is ColumnKind.INTEGER or (table.engine.compares_times and kind is ColumnKind.TIME)


def filter_times(table: SourceTable, source: StreamSource, bounds: Bounds, timezone: str) -> str:
    """The bounds as SQL that an index can serve; empty where Spark has to filter.

    Rows without a time are kept, where that says nothing of their message: they are candidates
    until evidence explains them.
    """
    if not is_indexable(table, source.time_column):
        return ""
    column = table.column(source.time_column)
    q = table.engine.quote_name(column.name)
    if column.kind is ColumnKind.INTEGER:
        assert source.time_unit is not None
        parts = list(_compare_numbers(q, bounds, _UNITS[source.time_unit]))
    else:
        sides = ((">=", bounds.lower), ("<=", bounds.upper))
        compare = table.engine.compare_time
        parts = [
            part
            for sign, at in sides
            if at is not None
            for part in compare(column, q, sign, at, timezone)
        ]
    if source.sent_time:
        # Not sent yet: its sender will send it. A partial index of what was sent serves this.
        parts = parts or [f"{q} IS NOT NULL"]
    if not parts:
        return ""
    found = [" AND ".join(parts)]
    if not source.sent_time:
        found.append(table.engine.is_undated(column, q))
    if not table.engine.compares_times:
        # A number column holds text as well, which sorts behind all numbers: to be told as wrong.
        found.append(f"{q} >= ''")
    return " OR ".join(f"({part})" for part in found)


def find_number_time(number: object, source: StreamSource) -> datetime | None:
    """The time that a column of whole numbers says; None where it is none."""
    assert source.time_unit is not None
    try:
        return _EPOCH + int(number) * _UNITS[source.time_unit] if isinstance(number, int) else None
    except OverflowError:
        return None


def _render_wanted(database: SourceDatabase, column: SourceColumn, value: Wanted) -> str:
    q = database.quote_name(column.name)
    match column.kind:
        case ColumnKind.TEXT:
            return f"{q} = {database.quote_text(str(value))}"
        case ColumnKind.OTHER:
            return database.compare_text(q, str(value))
        case ColumnKind.BOOLEAN:
            return database.compare_boolean(q, bool(value))
    return f"{q} = {int(value):d}"


def _compare_numbers(q: str, bounds: Bounds, unit: timedelta) -> Iterator[str]:
    if bounds.lower is not None:
        yield f"{q} >= {(bounds.lower - _EPOCH) // unit:d}"
    if bounds.upper is not None:
        yield f"{q} <= {-((_EPOCH - bounds.upper) // unit):d}"
