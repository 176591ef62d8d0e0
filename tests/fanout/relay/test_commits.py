"""Counters in the metadata of commits, as confluent-kafka gives that."""

from __future__ import annotations

from typing import cast

import pytest
from confluent_kafka import TopicPartition

from backlogctl.fanout.relay.commits import (
    Counters,
    _read_metadata,
    is_counted,
    read_counters,
    write_counters,
)

MINE = Counters("r-20261121-0001", 7, 900, {0: 3, 1: 300})
TEXT = write_counters(MINE, 2)


class Item:
    """A partition whose commit has other bytes behind its metadata in memory."""

    def __init__(self, behind: bytes) -> None:
        self._bytes = TEXT.encode() + behind

    @property
    def metadata(self) -> str:
        return self._bytes.decode()


@pytest.mark.parametrize("behind", [b"", b"\xf1", b"}", b"\x91\x00", b'"r"', b"7"])
def test_what_follows_the_counters_in_memory_is_nobodys(behind: bytes) -> None:
    text = _read_metadata(cast(TopicPartition, Item(behind)))
    assert read_counters(text, MINE.recovery_id) == MINE
    assert is_counted(text, MINE.recovery_id)
