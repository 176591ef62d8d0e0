"""Whether a topic's keys lie where its partitioner puts them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from backlog.kafka.peek import Peeked
from backlog.partitioners import PARTITIONERS


def count_misplaced(
    found: Mapping[int, Iterable[Peeked]], partitioner: str, partitions: int
) -> tuple[int, int]:
    """(keys that are not where the partitioner puts them, keys looked at)."""
    keyed = [(p, item.key) for p, items in found.items() for item in items if item.key is not None]
    if not keyed:
        return 0, 0
    keys = pa.array([key for _, key in keyed], pa.binary())
    placed = PARTITIONERS[partitioner](keys, partitions)
    wrong = sum(int(at) != p for (p, _), at in zip(keyed, placed, strict=True))
    return wrong, len(keyed)
