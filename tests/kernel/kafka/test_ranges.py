"""Ranges of a topic are read whole, or it is said that they were not."""

from __future__ import annotations

import pytest

from backlogctl.errors import KafkaFailure
from backlogctl.kafka.ranges import read_ranges
from tests.conftest import MakeTopic
from tests.kit.kafka import move_log_start, publish
from tests.spark_backfill.injection.doing import open_transaction


def list_offsets_of(properties: dict[str, str], name: str, **settings: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {0: [], 1: []}
    for message in read_ranges(properties, name, {0: 3, 1: 0}, {0: 7, 1: 2}, "read", **settings):
        found[message.partition() or 0].append(message.offset() or 0)
    return found


def test_ranges_are_read_to_their_ends(properties: dict[str, str], topic: MakeTopic) -> None:
    name = topic(partitions=2)
    publish(properties, name, {0: 9})
    with open_transaction(properties, name, 1):
        pass
    # An aborted message and its marker: they end a range as any other.
    assert list_offsets_of(properties, name) == {0: [3, 4, 5, 6], 1: []}
    seen = list_offsets_of(properties, name, isolation="read_uncommitted")
    assert seen == {0: [3, 4, 5, 6], 1: [0]}
    assert list(read_ranges(properties, name, {0: 5}, {0: 5}, "read")) == []


def test_what_retention_has_removed_is_not_left_out_in_silence(
    properties: dict[str, str], topic: MakeTopic
) -> None:
    name = topic(partitions=2)
    publish(properties, name, {0: 9, 1: 2})
    move_log_start(properties, name, {0: 5})
    with pytest.raises(KafkaFailure, match="could not read"):
        list_offsets_of(properties, name)
