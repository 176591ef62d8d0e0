"""Batch headers as producers would make them, and profiles of them."""

from __future__ import annotations

from collections.abc import Iterable

from backlogctl.kafka.raw_fetch import BatchHeader, FetchedBatches, add_sequence
from backlogctl.monitoring.producers.profile import Folding, LogProfile
from backlogctl.values import OffsetRange

START_MS = 1_800_000_000_000


class Log:
    """One partition, to which producers append."""

    def __init__(self, partition: int = 0) -> None:
        self.partition = partition
        self.end = 0
        self.headers: list[BatchHeader] = []
        self._next: dict[tuple[int, int], int] = {}

    def append(
        self,
        producer: int = 1,
        epoch: int = 0,
        count: int = 10,
        *,
        sequence: int | None = None,
        size: int = 5_000,
        codec: str = "lz4",
        at: int | None = None,
        transactional: bool = False,
        control: bool = False,
    ) -> None:
        """A batch; its sequence is the next one of this producer and epoch unless it is given."""
        known = self._next.get((producer, epoch), 0) if sequence is None else sequence
        base = -1 if producer < 0 or control else known
        moment = START_MS + 10 * self.end if at is None else at
        self.headers.append(
            BatchHeader(
                self.end,
                self.end + count - 1,
                size,
                codec,
                transactional or control,
                control,
                0,
                producer,
                epoch if producer >= 0 else -1,
                base,
                moment,
                moment,
                False,
                count,
            )
        )
        self.end += count
        if base >= 0:
            self._next[producer, epoch] = add_sequence(base, count)

    def skip(self, count: int) -> None:
        """Offsets that are gone."""
        self.end += count


def fold(logs: Iterable[Log], *, is_compacted: bool = False) -> LogProfile:
    found = list(logs)
    ranges = tuple(OffsetRange(one.partition, 0, one.end) for one in found)
    folding = Folding("orders", ranges, is_compacted=is_compacted)
    for one in found:
        folding.add(FetchedBatches(one.partition, tuple(one.headers), 0, None, one.end))
    return folding.freeze()
