"""Lines of the text format, written once a pass and kept compressed.

prometheus-client writes the small families. For those with a line a partition it took 19 times as
long as this (`make bench-watch`), and their text would stay in memory between two scrapes.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from monitoring.metrics.catalogue import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Small and quick: lines of one family are much alike.
_LEVEL = 1
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})

# family -> its lines, without HELP and TYPE
Lines = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Packed:
    """Some lines, compressed as a gzip member: members can simply follow each other."""

    data: bytes

    @classmethod
    def pack(cls, lines: bytes) -> Packed:
        """Compresses lines."""
        return cls(gzip.compress(lines, _LEVEL, mtime=0))

    def unpack(self) -> bytes:
        """The lines."""
        return gzip.decompress(self.data)


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
