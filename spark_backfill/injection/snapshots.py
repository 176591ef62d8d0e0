"""What a plan remembers of the Kafka ledger."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """The ledger when a plan was made; `ends` are high watermarks by partition.

    It must be taken *before* the evidence `injected` is read: a chunk that commits in between is
    then seen as another recovery's, and not lost between the two.
    """

    topic: str
    topic_id: str
    partitions: int
    ends: Mapping[int, int]

    def place(self, topic: str, slot: int) -> int:
        """The ledger partition that holds the records of a slot of `topic`."""
        return (zlib.crc32(topic.encode()) + slot) % self.partitions

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "partitions": self.partitions,
            "ends": {str(partition): end for partition, end in sorted(self.ends.items())},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(
            topic=str(value["topic"]),
            topic_id=str(value["topic_id"]),
            partitions=int(value["partitions"]),
            ends={int(partition): int(end) for partition, end in value["ends"].items()},
        )
