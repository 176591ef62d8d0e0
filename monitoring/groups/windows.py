"""The last samples of every topic and group, in arrays.

Each has a row a sample and a column a partition, and all share the moments of the rows. A hundred
thousand partitions of a thousand groups are some tens of megabytes so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from backlog.kafka.layouts import NONE, Offsets

UNREAD = -2  # nobody asked, or nobody answered; NONE is "there is no offset"


class SampleTimes:
    """When rows were taken; a row is used again when it is the oldest.

    Of samples that follow each other faster than `step`, only the newest is kept beside those that
    are `step` apart: a short interval must not cost more memory.

    Args:
        count: rows. step: seconds.
    """

    def __init__(self, count: int, step: float) -> None:
        self._times = np.full(count, -np.inf)
        self._step = step
        self._order: list[int] = []

    @property
    def count(self) -> int:
        """How many rows there are room for."""
        return len(self._times)

    def advance(self, at: float) -> int:
        """The row of a new sample, whose content is void."""
        order = self._order
        # The newest one makes room if the one before it is near enough already.
        if len(order) >= 2 and self._times[order[-1]] - self._times[order[-2]] < self._step:
            row = order.pop()
        elif len(order) == self.count:
            row = order.pop(0)
        else:
            row = next(row for row in range(self.count) if row not in order)
        order.append(row)
        self._times[row] = at
        return row

    @property
    def rows(self) -> Sequence[int]:
        """The rows in use, oldest first."""
        return tuple(self._order)

    def list_ages(self, now: float) -> list[float]:
        """Seconds relative to now, of `rows`: at most 0."""
        return [float(self._times[row]) - now for row in self._order]


class OffsetHistory:
    """One kind of offset of a topic's partitions over the moments."""

    def __init__(self, rows: int, partitions: int) -> None:
        self._values: Offsets = np.full((rows, partitions), UNREAD, np.int64)

    @property
    def partitions(self) -> int:
        """How many partitions there are columns for."""
        return int(self._values.shape[1])

    def clear(self, row: int) -> None:
        """Makes a row void."""
        self._values[row] = UNREAD

    def write(self, row: int, offsets: Offsets, partitions: int) -> None:
        """Fills a row; partitions that `offsets` does not reach have none."""
        if partitions > self.partitions:
            grown = np.full((len(self._values), partitions), UNREAD, np.int64)
            grown[:, : self.partitions] = self._values
            self._values = grown
        self._values[row] = fit(offsets, self.partitions)

    def read(self, row: int) -> Offsets:
        found: Offsets = self._values[row]
        return found

    def pick(self, rows: Sequence[int], columns: NDArray[np.intp]) -> Offsets:
        """A row for each of the rows, of these columns."""
        found: Offsets = self._values[np.ix_(np.array(rows, np.intp), columns)]
        return found

    def take(self, rows: Sequence[int], columns: NDArray[np.intp]) -> list[list[int]]:
        """By column, the values of the rows."""
        found: list[list[int]] = self.pick(rows, columns).T.tolist()
        return found


class TopicHistory:
    """A topic in one life of it: log starts, stable ends, high watermarks, and older ends."""

    def __init__(self, topic_id: str, rows: int, old_rows: int, partitions: int) -> None:
        self.topic_id = topic_id
        self.low = OffsetHistory(rows, partitions)
        self.stable = OffsetHistory(rows, partitions)
        self.high = OffsetHistory(rows, partitions)
        self.old_high = OffsetHistory(old_rows, partitions)

    def list_recent(self) -> Iterator[OffsetHistory]:
        """Those of the window."""
        yield from (self.low, self.stable, self.high)

    def clear(self, row: int, old_row: int) -> None:
        """Makes a sample void."""
        for columns in self.list_recent():
            columns.clear(row)
        self.old_high.clear(old_row)


def fit(offsets: Offsets, partitions: int) -> Offsets:
    """The offsets of so many partitions."""
    if len(offsets) >= partitions:
        return offsets[:partitions]
    fitted = np.full(partitions, NONE, np.int64)
    fitted[: len(offsets)] = offsets
    return fitted
