"""What producers note is what the broker has; their transactions end as they are told to."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Message

from backlogctl.kafka.admin import list_offsets
from tests.clients.zoo import Client
from tests.conftest import MakeTopic
from tests.kit.kafka import read_all, wait_until

PARTITIONS, EACH = range(3), 100
COUNT = 300


def produce(properties: dict[str, str], name: str, topic: str, tmp_path: Path) -> Client:
    """One of 300 messages, which is to be started."""
    record = tmp_path / "record"
    return Client(name, properties["bootstrap.servers"], topic, record=record, count=COUNT)


def list_places(messages: list[Message]) -> list[tuple[int | None, int | None]]:
    """Sorted."""
    return sorted((message.partition(), message.offset()) for message in messages)


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("producer-plain", "sent"),
        ("producer-idempotent", "sent"),
        ("producer-micros", "sent"),
        ("producer-commit", "committed"),
    ],
)
def test_a_producer_notes_what_is_there(
    properties: dict[str, str], topic: MakeTopic, tmp_path: Path, name: str, outcome: str
) -> None:
    # Else the broker refuses a time so far ahead.
    orders = topic(config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    with produce(properties, name, orders, tmp_path) as client:
        client.wait()
    found = read_all(properties, orders, PARTITIONS)
    assert len(found) == COUNT
    assert sorted(client.handled(of=outcome)) == list_places(found)
    in_microseconds = [message.timestamp()[1] > 10**15 for message in found]
    assert all(in_microseconds) if name == "producer-micros" else not any(in_microseconds)


def test_a_producer_without_acknowledgements_knows_no_offsets(
    properties: dict[str, str], topic: MakeTopic, tmp_path: Path
) -> None:
    orders = topic()
    with produce(properties, "producer-acks0", orders, tmp_path) as client:
        client.wait()
    assert client.handled(of="sent") == [(number % 3, -1) for number in range(COUNT)]
    assert len(read_all(properties, orders, PARTITIONS)) == COUNT


def test_aborted_transactions_are_there_and_unseen(
    properties: dict[str, str], topic: MakeTopic, tmp_path: Path
) -> None:
    orders = topic()
    with produce(properties, "producer-abort", orders, tmp_path) as client:
        client.wait()
    aborted = client.handled(of="aborted")
    assert len(aborted) == COUNT
    assert not read_all(properties, orders, PARTITIONS)
    ends = list_offsets(properties, orders, PARTITIONS, "latest")
    assert all(offset < ends[partition] for partition, offset in aborted)


@pytest.mark.parametrize("ended", ["stopped", "killed"])
def test_an_open_transaction_hangs_where_its_producer_is_killed(
    properties: dict[str, str], topic: MakeTopic, tmp_path: Path, ended: str
) -> None:
    orders = topic()
    starts = dict.fromkeys(PARTITIONS, 0)

    def read_stable() -> dict[int, int]:
        return list_offsets(properties, orders, PARTITIONS, "latest", "read_committed")

    with produce(properties, "producer-open", orders, tmp_path) as client:
        client.await_handled(COUNT, of="open")
        assert read_stable() == starts
        client.kill() if ended == "killed" else client.stop()
    if ended == "killed":
        assert read_stable() == starts
    else:
        wait_until(
            lambda: read_stable() == dict.fromkeys(PARTITIONS, EACH + 1), what="it is aborted"
        )
