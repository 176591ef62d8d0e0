"""How unevenly a backlog's keys are spread: all messages of one key go to one consumer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from backlog.clock import Deadline
from backlog.kafka.peek import Peeked

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


def measure_skew(keys: Mapping[int, Sequence[bytes | None]], lag: Mapping[int, int]) -> Skew:
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
