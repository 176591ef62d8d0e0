"""Which temporary partition a message goes to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from backlog.partitioners import PARTITIONERS
from fanout.relay.interface import Order


class Router:
    """Places the messages of one source partition.

    `key`: the hash of the source's producers modulo the temporary partitions; messages without a
    key go round robin. `round_robin`: one after another over all partitions. The turn starts at
    `turn`, which is how many messages went before, so a restart keeps it even.
    """

    def __init__(self, order: Order, partitioner: str, partitions: int, turn: int) -> None:
        self._place = PARTITIONERS[partitioner] if order == "key" else None
        self._partitions = partitions
        self._turn = turn

    def place(self, keys: Sequence[bytes | None]) -> list[int]:
        """The temporary partitions of messages with these keys, in order."""
        count = len(keys)
        turns = (np.arange(self._turn, self._turn + count) % self._partitions).astype(np.int32)
        self._turn += count
        if self._place is None:
            found: list[int] = turns.tolist()
            return found
        placed = self._place(_make_array(keys), self._partitions)
        if None in keys:
            without = np.fromiter((key is None for key in keys), np.bool_, count)
            placed = np.where(without, turns, placed)
        mixed: list[int] = placed.tolist()
        return mixed


def _make_array(keys: Sequence[bytes | None]) -> pa.Array:
    """The keys as a column, an empty one for none.

    `pa.array(keys)` would load pandas to see whether they are its own: half a second of a relay's
    start.
    """
    filled = [key or b"" for key in keys]
    offsets = np.zeros(len(filled) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, filled), np.int64, len(filled)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(filled))]
    return pa.Array.from_buffers(pa.large_binary(), len(filled), buffers)
