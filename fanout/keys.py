"""How the keys of a topic lie: how unevenly a backlog's are spread, and whether they lie where its
partitioner puts them. All messages of one key go to one consumer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from backlogctl.clock import Deadline
from backlogctl.kafka.peek import Peeked
from backlogctl.partitioners import PARTITIONERS

# Looked at in so many places of each partition: the oldest messages alone say little of the rest.
PLACES = 5
_SECONDS = 15.0
# Of fewer messages with the same key chance says as much.
_LEAST = 10

Peek = Callable[[Mapping[int, int], Deadline], Mapping[int, Iterable[Peeked]]]


@dataclass(frozen=True, slots=True)
class Skew:
    """The largest share of the unread messages that has one key, `0..1`, and how many were looked
    at; a share of 0.0 where no key stands out, or nothing was read."""

    share: float = 0.0
    looked: int = 0


def sample_keys(peek: Peek, unread: Mapping[int, tuple[int, int]]) -> dict[int, list[bytes | None]]:
    """Keys of messages spread over `[start, end)` of each partition."""
    found: dict[int, list[bytes | None]] = {partition: [] for partition in unread}
    limit = Deadline(_SECONDS)
    for place in range(PLACES):
        starts = {
            partition: start + (end - start) * place // PLACES
            for partition, (start, end) in unread.items()
        }
        for partition, messages in peek(starts, limit).items():
            found[partition] += [message.key for message in messages]
        if limit.expired:
            break
    return found


def measure_key_skew(keys: Mapping[int, Sequence[bytes | None]], lag: Mapping[int, int]) -> Skew:
    """The share of the heaviest key; a partition's sample counts by its part of the lag.

    Messages without a key are spread evenly, so they are nobody's.
    """
    total = sum(lag[partition] for partition, sample in keys.items() if sample)
    weights: dict[bytes, float] = defaultdict(float)
    counts: dict[bytes, int] = defaultdict(int)
    for partition, sample in keys.items():
        for key in sample:
            if key is not None:
                weights[key] += lag[partition] / len(sample) / total
                counts[key] += 1
    looked = sum(map(len, keys.values()))
    heavy = [weight for key, weight in weights.items() if counts[key] >= _LEAST]
    return Skew(max(heavy, default=0.0), looked)


# Whether a topic's keys lie where its partitioner puts them.


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
