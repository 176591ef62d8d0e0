"""Lines of the text format, written once a pass and kept compressed.

prometheus-client writes the small families. For those with a line a partition it took some 20 times
as long as this (`make bench-watch`), and their text would stay in memory between two scrapes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from backlogctl_delivery import metrics as families
from backlogctl_delivery.metrics import Metric
from backlogctl_delivery.visible import escape_name
from monitoring.metrics.catalogue import BY_NAME
from monitoring.metrics.crc import combine_crc

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Small and quick: lines of one family are much alike.
_LEVEL = 1
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})

# A gzip file without name and time, and the last, empty block of its data (RFC 1951, 1952).
_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LAST_BLOCK = b"\x03\x00"


@dataclass(frozen=True, slots=True)
class Packed:
    """A piece of text, compressed so that pieces can follow each other in one gzip member.

    Not each piece as a member of its own: many readers stop after the first.
    """

    data: bytes = b""
    crc: int = 0
    size: int = 0

    def __add__(self, other: Packed) -> Packed:
        crc = combine_crc(self.crc, other.crc, other.size)
        return Packed(self.data + other.data, crc, self.size + other.size)


# family -> its lines without HELP and TYPE
Lines = Mapping[str, Packed]


class Packer:
    """Packs a text that comes in pieces."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._data: list[bytes] = []
        self._crc = 0
        self._size = 0

    def add(self, text: bytes) -> None:
        """More text."""
        self._data.append(self._deflate.compress(text))
        self._crc = zlib.crc32(text, self._crc)
        self._size += len(text)

    def finish(self) -> Packed:
        """All of it. A full flush ends on a byte, and what follows needs nothing of it."""
        self._data.append(self._deflate.flush(zlib.Z_FULL_FLUSH))
        return Packed(b"".join(self._data), self._crc, self._size)


def pack(text: bytes) -> Packed:
    packer = Packer()
    packer.add(text)
    return packer.finish()


def write_gzip(pieces: Iterable[Packed]) -> Iterator[bytes]:
    """The pieces as one gzip member."""
    crc = size = 0
    yield _GZIP_HEAD
    for piece in pieces:
        crc, size = combine_crc(crc, piece.crc, piece.size), size + piece.size
        yield piece.data
    yield _LAST_BLOCK + struct.pack("<II", crc, size & 0xFFFFFFFF)


def escape_value(text: str) -> str:
    """A label's value as it stands between its quotes; what cannot be seen in it is escaped.

    Alerts and dashboards show labels as they are.
    """
    return escape_name(text).translate(_ESCAPES)


class Gauge(families.Gauge):
    """A small family, which prometheus-client writes."""

    def __init__(self, name: str) -> None:
        super().__init__(BY_NAME[name])


class Counter(families.Counter):
    """Likewise, of a counter."""

    def __init__(self, name: str) -> None:
        super().__init__(BY_NAME[name])


def write_labels(names: Iterable[str], values: Iterable[str]) -> str:
    """`a="1",b="2"`, escaped, without braces."""
    pairs = zip(names, values, strict=True)
    return ",".join(f'{name}="{escape_value(value)}"' for name, value in pairs)


def write_head(metric: Metric) -> bytes:
    """HELP and TYPE of a family."""
    name = metric.exported_name
    help_text = metric.help.translate(_HELP_ESCAPES)
    return f"# HELP {name} {help_text}\n# TYPE {name} {metric.type}\n".encode()
