"""Settings of a relay's reader and writer; a process's partitions share its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Of one process.
READ_KBYTES, WRITE_KBYTES = 65_536, 262_144
_LEAST_KBYTES = 2_048

_CONSUMER: Mapping[str, Any] = {
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 50,
    "max.partition.fetch.bytes": 8 * 1024 * 1024,
}
_PRODUCER: Mapping[str, Any] = {
    # A transaction's end sends what waits, and fuller batches cost everybody less.
    "linger.ms": 100,
    "queue.buffering.max.messages": 200_000,
    # The broker's limit on the temporary topic decides, not the client's.
    "message.max.bytes": 100_000_000,
}


def make_reader_settings(side_by_side: int) -> dict[str, Any]:
    """For one of `side_by_side` partitions of a process."""
    share = max(_LEAST_KBYTES, READ_KBYTES // side_by_side)
    return {**_CONSUMER, "queued.max.messages.kbytes": share}


def make_writer_settings(side_by_side: int) -> dict[str, Any]:
    """For one of `side_by_side` partitions of a process."""
    share = max(_LEAST_KBYTES, WRITE_KBYTES // side_by_side)
    return {**_PRODUCER, "queue.buffering.max.kbytes": share}
