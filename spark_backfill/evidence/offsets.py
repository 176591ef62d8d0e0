"""Where survivors are read from and to: frozen once, and sampled again when retention moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backlog.clock import Deadline
from backlog.errors import KafkaFailure
from backlog.kafka.admin import list_offsets
from backlog.kafka.clients import make_admin

_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """Log start, last stable offset and high watermark of each partition."""

    starts: Mapping[int, int]
    ends: Mapping[int, int]
    highs: Mapping[int, int]

    @property
    def undecided(self) -> int:
        """Offsets above the last stable one: of transactions that are still open."""
        return sum(max(0, self.highs[p] - self.ends[p]) for p in self.ends)


def read_offsets(client_properties: Mapping[str, str], topic: str, partitions: int) -> LogOffsets:
    """The offsets now, log starts first.

    Raises:
        KafkaFailure, ClusterUnreachable.
    """
    admin, limit, numbers = make_admin(client_properties), Deadline(_SECONDS), range(partitions)
    starts = list_offsets(admin, topic, numbers, "earliest", deadline=limit)
    ends = list_offsets(admin, topic, numbers, "latest", isolation="read_committed", deadline=limit)
    highs = list_offsets(
        admin, topic, numbers, "latest", isolation="read_uncommitted", deadline=limit
    )
    missing = [p for p in numbers if p not in starts or p not in ends]
    if missing:
        raise KafkaFailure(
            f"the broker gave no offsets of partitions {missing}",
            subject=f"topic {topic}",
            retryable=True,
        )
    return LogOffsets(starts, ends, highs)


def describe_moves(before: Mapping[int, int], after: Mapping[int, int]) -> str:
    """Log starts that moved, with both bounds (fault 23); empty where none did."""
    moved = [
        f"partition {p} from {before[p]} to {after[p]}"
        for p in sorted(before)
        if after.get(p, before[p]) > before[p]
    ]
    return ", ".join(moved)
