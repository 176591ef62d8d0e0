"""The relay's counters, carried in the committed offset's metadata, so they commit with it.

Kafka limits the metadata (`offset.metadata.max.bytes`, 4096 by default).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_TEXT = 3500
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Counters:
    """What one source partition's relay has done in a recovery: messages, bytes, where they went.

    `counts` is None where it is not known by partition.
    """

    recovery_id: str
    relayed: int = 0
    bytes: int = 0
    counts: Mapping[int, int] | None = field(default_factory=dict)


def write_counters(counters: Counters, partitions: int) -> str:
    """The metadata; the counts by partition are left out where they would not fit."""
    document: dict[str, object] = {
        "v": _VERSION,
        "r": counters.recovery_id,
        "n": counters.relayed,
        "b": counters.bytes,
    }
    if counters.counts is not None:
        counts = [counters.counts.get(number, 0) for number in range(partitions)]
        full = {**document, "c": _pack(counts)}
        text = json.dumps(full, separators=(",", ":"))
        if len(text) <= MAX_TEXT:
            return text
    return json.dumps(document, separators=(",", ":"))


def read_counters(text: str | None, recovery_id: str) -> Counters:
    """What the metadata says of this recovery; zero where another one, or nobody, wrote it."""
    fresh = Counters(recovery_id)
    try:
        found = json.loads(text or "")
        if found["v"] != _VERSION or found["r"] != recovery_id:
            return fresh
        packed = found.get("c")
        counts = None if packed is None else dict(enumerate(_unpack(packed)))
        return Counters(recovery_id, int(found["n"]), int(found["b"]), counts)
    except (ValueError, TypeError, KeyError, binascii.Error):
        return fresh


def is_counted(text: str | None, recovery_id: str) -> bool:
    """Whether the metadata has this recovery's counters."""
    try:
        return bool(json.loads(text or "")["r"] == recovery_id)
    except (ValueError, TypeError, KeyError):
        return False


def _pack(numbers: list[int]) -> str:
    """Unsigned LEB128, as in Kafka's own varints, in base64."""
    data = bytearray()
    for number in numbers:
        while number > 0x7F:
            data.append(number & 0x7F | 0x80)
            number >>= 7
        data.append(number)
    return base64.b85encode(bytes(data)).decode()


def _unpack(text: str) -> list[int]:
    numbers: list[int] = []
    number = shift = 0
    for byte in base64.b85decode(text):
        number |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            continue
        numbers.append(number)
        number = shift = 0
    return numbers
