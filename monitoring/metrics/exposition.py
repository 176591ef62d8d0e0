"""Lines of the text format, written once a pass and kept compressed.

prometheus-client writes the small families. For those with a line a partition it took some 20 times
as long as this (`make bench-watch`), and their text would stay in memory between two scrapes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping

from monitoring.metrics.catalogue import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Small and quick: lines of one family are much alike.
_LEVEL = 1
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})

# family -> its lines without HELP and TYPE, as gzip members: these can simply follow each other
Lines = Mapping[str, bytes]


class Packer:
    """Makes one gzip member of pieces of text."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
        self._data: list[bytes] = []

    def add(self, text: bytes) -> None:
        """More text."""
        self._data.append(self._deflate.compress(text))

    def finish(self) -> bytes:
        """The member."""
        return b"".join([*self._data, self._deflate.flush()])


def pack(text: bytes) -> bytes:
    """A text as one gzip member."""
    packer = Packer()
    packer.add(text)
    return packer.finish()


def escape_value(text: str) -> str:
    """A label's value as it stands between its quotes."""
    return text.translate(_ESCAPES)


def write_labels(names: Iterable[str], values: Iterable[str]) -> str:
    """`a="1",b="2"`, escaped, without braces."""
    pairs = zip(names, values, strict=True)
    return ",".join(f'{name}="{escape_value(value)}"' for name, value in pairs)


def write_head(metric: Metric) -> bytes:
    """HELP and TYPE of a family."""
    name = metric.exported_name
    told = metric.help.translate(_HELP_ESCAPES)
    return f"# HELP {name} {told}\n# TYPE {name} {metric.kind}\n".encode()
