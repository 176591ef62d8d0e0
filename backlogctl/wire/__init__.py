"""Record batches as they lie on the wire: fetched, routed by compiled kernels, and produced.

Its modules need the extra `wire`; this one needs nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

_LIBRARIES = ("cramjam", "crc32c", "lz4", "numba")


def explain_absence(properties: Mapping[str, str]) -> str:
    """Why batches cannot be moved here; "" where they can."""
    from backlogctl.kafka.raw_client import translate_properties

    settings, why = translate_properties(properties)
    if settings is None:
        return f"kafka-python cannot connect {why}"
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    return "the extra `wire` is not installed" if missing else ""
