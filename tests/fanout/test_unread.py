"""What of the temporary topic is unread is found by reading it: markers are not messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from backlogctl.errors import ClusterUnreachable
from backlogctl.fanout import unread
from backlogctl.fanout.quiet import await_decided
from backlogctl.fanout.unread import count_records, find_unread
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import Admin
from tests.conftest import MakeTopic
from tests.fanout.relay.doing import fill, open_transaction, read_committed
from tests.kafka_tools import set_offsets_raw


def test_a_partition_that_was_never_written_is_read(
    admin: Admin, properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    name = topic(2)
    assert find_unread(admin, properties, name, group, 2) == {}
    assert count_records(properties, name, {0: 0, 1: 0}) == {0: 0, 1: 0}
    assert count_records(properties, name, {}) == {}


def test_markers_and_aborted_records_are_read_and_one_message_is_not(
    admin: Admin, properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    name = topic(3, {"retention.ms": "-1"})
    fill(properties, name, {0: 7, 1: 3, 2: 2}, transaction=name)
    await_decided(admin, name, 3, lambda: None)  # a commit is answered before its markers
    set_offsets_raw(properties, group, name, {0: 7, 1: 3, 2: 2})
    ends = list_offsets(admin, name, range(3), "latest")
    assert ends == {0: 8, 1: 4, 2: 3}  # a marker each, so the lag is one
    assert find_unread(admin, properties, name, group, 3) == {}
    fill(properties, name, {0: 20, 2: 1}, first=100, transaction=name, commit=False)
    await_decided(admin, name, 3, lambda: None)
    assert find_unread(admin, properties, name, group, 3) == {}
    fill(properties, name, {1: 5}, first=200, transaction=name)
    await_decided(admin, name, 3, lambda: None)
    assert find_unread(admin, properties, name, group, 3) == {1: 4}
    set_offsets_raw(properties, group, name, {0: 6})
    assert find_unread(admin, properties, name, group, 3) == {0: 6, 1: 4}
    # Without a commit nothing is read.
    assert find_unread(admin, properties, name, f"{group}-2", 3) == {0: 0, 1: 0, 2: 0}


def test_what_is_undecided_is_not_counted_and_not_waited_for(
    admin: Admin, properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    name = topic(1, {"retention.ms": "-1"})
    fill(properties, name, {0: 5})
    set_offsets_raw(properties, group, name, {0: 5})
    stranger = open_transaction(properties, f"stranger-{name}", name, 0)
    assert find_unread(admin, properties, name, group, 1) == {}
    stranger.commit_transaction(90)
    await_decided(admin, name, 1, lambda: None)
    assert find_unread(admin, properties, name, group, 1) == {0: 5}


def test_records_are_counted_as_a_reader_sees_them(
    properties: dict[str, str], topic: MakeTopic
) -> None:
    name = topic(3, {"retention.ms": "-1"})
    for first, commit in ((0, True), (5000, False), (10_000, True), (15_000, False)):
        fill(properties, name, {0: 400, 1: 90}, first=first, transaction=name, commit=commit)
    fill(properties, name, {0: 6000}, first=20_000)
    ends = list_offsets(properties, name, range(3), "latest")
    messages = read_committed(properties, name, 3)
    places = [message.partition() for message in messages]
    assert count_records(properties, name, ends) == {p: places.count(p) for p in range(3)}
    # Ends within a transaction, an aborted one, on a marker, behind data that goes on.
    for end in (1, 399, 400, 401, 402, 600, 802, 803, 1000, 1604, 1605, 4000, 7603):
        wanted = sum(m.partition() == 0 and (m.offset() or 0) < end for m in messages)
        assert count_records(properties, name, {0: end, 1: 0}) == {0: wanted, 1: 0}, end


def test_fault_28_a_reading_that_comes_to_no_end_is_an_error(
    properties: dict[str, str], topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(1)
    monkeypatch.setattr(unread, "IDLE_SECONDS", 0.5)
    fill(properties, name, {0: 5})
    with pytest.raises(ClusterUnreachable, match="to the end"):
        count_records(properties, name, {0: 50})
