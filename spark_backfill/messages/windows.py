"""Between which times the rows of lost messages lie: a window for each gap's partition (P2.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from backlog.clock import format_time
from backlog.errors import UsageError
from backlog.values import Gap

_EARLIEST = datetime(2, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)
# By so much the clocks of the ledger and of the source's database may differ.
CLOCKS = timedelta(seconds=5)


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
                    None if lower is None else _clamp(lower, -before),
                    None if upper is None or (mutable and until is None) else _clamp(upper, after),
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
        lower = min(lower, read_since)
    if upper is not None and until is None:
        last = max(gap.last_time for gap in gaps if gap.last_time is not None)
        upper = max(upper, _clamp(last, margin))
    return Windows(Bounds(lower, upper), _merge(windows))


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
