"""Lines of the text format.

prometheus-client writes the small families. For those with a line a partition it took some 20 times
as long as this (`make bench-watch`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from backlogctl_delivery import metrics as families
from backlogctl_delivery.metrics import Metric
from backlogctl_delivery.visible import escape_name
from monitoring.metrics.catalogue import BY_NAME

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
# family -> its lines without HELP and TYPE
Lines = Mapping[str, bytes]


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
