"""Waits for what a broker does after it has answered a commit."""

from __future__ import annotations

from collections.abc import Mapping

from backlogctl.kafka.admin import list_offsets
from tests.kafka_tools import wait_until


def await_markers(properties: Mapping[str, str], topic: str, ends: Mapping[int, int]) -> None:
    """Until the log has the markers of a committed transaction: these are its stable ends then.

    The coordinator answers a commit before it sends them.
    """
    wait_until(
        lambda: list_offsets(properties, topic, ends, "latest", "read_committed") == dict(ends),
        what="the markers are written",
    )
