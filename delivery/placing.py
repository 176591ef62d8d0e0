"""Which partition a message goes to, as the wrapped client itself would choose.

Keyed messages go exactly where the client would send them, so that taking in the wrapper moves no
key. The scalar twin of `backlog.partitioners`, without numpy and pyarrow.

Messages without a key stay in one partition for 10 ms, then go on to the next, from a partition
chosen by chance: whole batches, and evenly spread over time. A partition without a leader is not
left out.
"""

from __future__ import annotations

import random
import struct
import threading
import zlib
from collections.abc import Callable
from functools import lru_cache
from time import monotonic

from backlog.errors import BacklogError, UsageError

# The partition of a key among so many partitions; None where the key is as good as none.
Partitioner = Callable[[bytes | None, int], int | None]

STICKY_SECONDS = 0.01
_M = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF
# A refresh of the number of partitions that failed is tried again after so many seconds.
_AGAIN_SECONDS = 10.0


# Keys come again, and in pure Python the hash costs as much as all else.
@lru_cache(maxsize=16_384)
def hash_murmur2(key: bytes) -> int:
    """Kafka's `Utils.murmur2` as an unsigned 32-bit number."""
    length = len(key)
    whole = length >> 2
    h = _SEED ^ length
    for k in struct.unpack_from(f"<{whole}I", key):
        k = (k * _M) & _MASK
        h = ((h * _M) & _MASK) ^ (((k ^ (k >> 24)) * _M) & _MASK)
    if length & 3:
        h = ((h ^ int.from_bytes(key[whole << 2 :], "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def place_murmur2(key: bytes | None, partitions: int) -> int | None:
    """Java's and kafka-python's default, and librdkafka's `murmur2_random`."""
    return None if key is None else (hash_murmur2(key) & 0x7FFFFFFF) % partitions


def place_crc32(key: bytes | None, partitions: int) -> int | None:
    """librdkafka's default, `consistent_random`, for which an empty key is none."""
    return zlib.crc32(key) % partitions if key else None


PARTITIONERS: dict[str, Partitioner] = {"murmur2": place_murmur2, "crc32": place_crc32}


def find_partitioner(wanted: str | Partitioner) -> Partitioner:
    """The partitioner of that name, or the application's own.

    Raises:
        UsageError: there is none of that name.
    """
    if not isinstance(wanted, str):
        return wanted
    if wanted not in PARTITIONERS:
        raise UsageError(
            f"{wanted!r} is no partitioner",
            subject="SequencedProducer",
            hint=f"take {' or '.join(PARTITIONERS)}, or a function (key, partitions) -> partition",
        )
    return PARTITIONERS[wanted]


class Placement:
    """Chooses partitions of one topic.

    Args:
        count_partitions: how many the topic has now. The first call is made here; later ones,
            every `refresh_seconds`, in a thread beside, so that no message waits for them.
        partitioner: places keys.
        refresh_seconds: how long a count holds. Meanwhile a topic that has grown is used as it was.

    Raises:
        BacklogError, or the client's own error: the topic could not be looked at.
    """

    def __init__(
        self, count_partitions: Callable[[], int], partitioner: Partitioner, refresh_seconds: float
    ) -> None:
        self._count_partitions = count_partitions
        self._partitioner = partitioner
        self._refresh_seconds = refresh_seconds
        self.partitions = count_partitions()
        self._refresh_at = monotonic() + refresh_seconds
        self._sticky = random.randrange(self.partitions)
        self._sticky_until = 0.0
        self._is_looking = False

    def choose(self, key: bytes | None) -> int:
        """The partition for a message with that key."""
        now = monotonic()
        if now > self._refresh_at:
            self.refresh()
        partition = self._partitioner(key, self.partitions)
        if partition is not None:
            return partition
        if now > self._sticky_until:
            self._sticky += 1
            self._sticky_until = now + STICKY_SECONDS
        return self._sticky % self.partitions

    def refresh(self) -> None:
        """Has the number of partitions looked up again, beside."""
        if self._is_looking:
            return
        self._is_looking = True
        self._refresh_at = monotonic() + self._refresh_seconds
        threading.Thread(target=self._refresh, name="backlog-partitions", daemon=True).start()

    def _refresh(self) -> None:
        try:
            self.partitions = self._count_partitions()
        # RuntimeError: the application has closed its producer.
        except (BacklogError, RuntimeError):
            self._refresh_at = monotonic() + min(_AGAIN_SECONDS, self._refresh_seconds)
        finally:
            self._is_looking = False
