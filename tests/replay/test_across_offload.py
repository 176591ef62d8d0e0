"""All kinds of recoveries on one stream, one after the other, and nothing lost or doubled (fault 84)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from backlogctl.errors import Refused
from backlogctl_delivery.stamps import MESSAGE_ID, find_header
from tests.kit.kafka import read_all, wait_until
from tests.kit.shop import DONE, LOST, PARTITIONS, TOTAL
from tests.replay.test_across_kinds import MORE, Stream, stream

__all__ = ["stream"]
pytestmark = pytest.mark.timeout(600)
UNREAD = LOST + MORE


def read_orders(stream: Stream, topic: str) -> Counter[int]:
    """How often each order is in a topic."""
    messages = read_all(stream.shop.properties, topic, range(PARTITIONS))
    return Counter(int(message.key() or b"-1") for message in messages)


def read_ids(stream: Stream) -> Counter[str]:
    """The ids of what was put back, of what is in the topic now."""
    found: Counter[str] = Counter()
    for message in read_all(stream.shop.properties, stream.shop.topic, range(PARTITIONS)):
        headers: Any = message.headers()
        found.update(filter(None, [find_header(headers, MESSAGE_ID)]))
    return found


def test_fault_84_expand_lose_rebuild_offload_and_redrive(stream: Stream) -> None:
    """The offload archives what the rebuild put back; the redrive puts all of it back once more."""
    assert stream.carry_out("expand")["counts"]["relayed"] == TOTAL - DONE - LOST
    stream.lose_more(handled=[*range(DONE), *range(DONE + LOST, TOTAL)])
    assert stream.carry_out("rebuild")["counts"]["injected"] == LOST + MORE // 2
    unread = {*range(DONE, DONE + LOST), *range(TOTAL, TOTAL + MORE)}
    offload = stream.carry_out("offload")
    assert offload["counts"]["archived"] == UNREAD == len(unread)
    assert not read_orders(stream, stream.shop.topic)
    back = stream.carry_out("redrive", "--from", f"archive:{offload['id']}", "--all")
    assert back["counts"]["injected"] == UNREAD
    assert read_orders(stream, stream.shop.topic) == dict.fromkeys(unread, 1)
    rehearsal = stream.carry_out("redrive", "--from", "log", "--all", "--to", "rehearsal")
    side = stream.call("show", rehearsal["id"])["target"]["topic"]
    assert read_orders(stream, side) == dict.fromkeys(unread, 1)
    # The redrive closed the offload's gaps: the night finds nothing that is missing.
    assert not stream.shop.open().ledger.gaps.list_waiting()
    refused = stream.call("plan", "rebuild", "orders", code=Refused.exit_code)["error"]
    assert "nothing is lost" in refused["message"]
    wait_until(lambda: stream.list_handled() == set(range(DONE, TOTAL + MORE)))
    assert set(read_ids(stream).values()) == {1}
    assert read_orders(stream, stream.shop.topic) == dict.fromkeys(unread, 1)
