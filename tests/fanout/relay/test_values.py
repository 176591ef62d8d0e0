"""Counters, routing and what goes over the pipe: no broker."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import asdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.errors import BacklogError, KafkaFailure, ProducerFenced, Refused
from backlogctl.fanout.relay.commits import MAX_TEXT, Counters, read_counters, write_counters
from backlogctl.fanout.relay.interface import (
    ConsumerCameBack,
    GuardLost,
    Order,
    Position,
    PositionExpired,
    RelayTask,
    SourceRange,
    name_relay_transactional_id,
)
from backlogctl.fanout.relay.records import Router
from backlogctl.fanout.relay.worker import read_error, read_position, read_task, write_task
from backlogctl.partitioners import PARTITIONERS, hash_murmur2

RECOVERY = "r-20261121-0001"
big = st.integers(0, 2**63 - 1)


@given(st.lists(big, max_size=60), big, big)
def test_counters_come_back_from_the_metadata(counts: list[int], relayed: int, size: int) -> None:
    before = Counters(RECOVERY, relayed, size, dict(enumerate(counts)))
    assert read_counters(write_counters(before, len(counts)), RECOVERY) == before


@given(st.integers(0, 3000), st.integers(0, 2**40))
def test_counts_that_do_not_fit_the_metadata_are_left_out(partitions: int, count: int) -> None:
    before = Counters(RECOVERY, 7, 9, dict.fromkeys(range(partitions), count))
    text = write_counters(before, partitions)
    assert len(text.encode()) <= MAX_TEXT
    after = read_counters(text, RECOVERY)
    assert (after.relayed, after.bytes) == (7, 9)
    assert after.counts in (before.counts, None)
    if after.counts is None:
        assert partitions > 300
        # Once they are not known they stay so.
        assert read_counters(write_counters(after, 3), RECOVERY).counts is None


def test_partitions_without_a_message_are_counted_as_none() -> None:
    text = write_counters(Counters(RECOVERY, 5, 9, {1: 5}), 3)
    assert read_counters(text, RECOVERY).counts == {0: 0, 1: 5, 2: 0}


GARBAGE = (
    None,
    "",
    "consumer's own words",
    "{",
    "[]",
    "1",
    "null",
    '{"v":1}',
    '{"v":2,"r":"r-20261121-0001","n":1,"b":1}',
    '{"v":1,"r":"r-20261121-0001","n":"x","b":1}',
    '{"v":1,"r":"r-20261121-0001","n":1,"b":null}',
    '{"v":1,"r":"r-20261121-0001","n":1,"b":1,"c":"\\"\\""}',
    '{"v":1,"r":"r-20261121-0001","n":1,"b":1,"c":3}',
    '{"v":1,"r":"r-20261121-0001","n":1,"b":1,"c":"é"}',
)


@pytest.mark.parametrize("text", GARBAGE)
def test_what_somebody_else_wrote_counts_nothing(text: str | None) -> None:
    assert read_counters(text, RECOVERY) == Counters(RECOVERY)


@given(st.text(), st.text(min_size=1))
def test_any_metadata_can_be_read(text: str, other: str) -> None:
    assert read_counters(text, RECOVERY).recovery_id == RECOVERY
    mine = write_counters(Counters(RECOVERY, 1, 1, {0: 1}), 1)
    if other != RECOVERY:
        assert read_counters(mine, other) == Counters(other)


keys = st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=200)


@given(keys, st.integers(1, 300), st.integers(0, 10**9), st.sampled_from(sorted(PARTITIONERS)))
def test_keys_go_where_the_partitioner_says_and_the_others_round(
    batch: list[bytes | None], partitions: int, turn: int, partitioner: str
) -> None:
    placed = Router("key", partitioner, partitions, turn).place(batch)
    wanted = PARTITIONERS[partitioner](pa.array(batch, pa.binary()), partitions).tolist()
    for at, (key, place) in enumerate(zip(batch, placed, strict=True)):
        assert place == ((turn + at) % partitions if key is None else wanted[at])
        if key is not None and partitioner == "murmur2":
            assert place == (hash_murmur2(key) & 0x7FFFFFFF) % partitions


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 60))
def test_round_robin_is_even_over_batches_and_restarts(sizes: list[int], partitions: int) -> None:
    seen: Counter[int] = Counter(dict.fromkeys(range(partitions), 0))
    done = 0
    for size in sizes:
        seen.update(Router("round_robin", "murmur2", partitions, done).place([b"key"] * size))
        done += size
    assert max(seen.values()) - min(seen.values()) <= 1


@given(
    st.binary(),
    st.sampled_from(("key", "round_robin")),
    st.lists(st.builds(SourceRange, big, big, st.none() | big), max_size=4),
)
def test_a_task_comes_over_the_pipe_in_one_line(
    metadata: bytes, order: Order, parts: list[SourceRange]
) -> None:
    task = RelayTask(
        {"bootstrap.servers": "a:1", "sasl.password": "päss\nword"},
        RECOVERY,
        "orders",
        "orders.recovery.x",
        30,
        "group",
        metadata,
        order,
    )
    line = write_task("records", task, parts)
    assert "\n" not in line
    engine, task_again, parts_again = read_task(line)
    assert (engine.name, task_again, parts_again) == ("records", task, parts)
    assert "päss" not in repr(task)  # fault 59


@given(
    st.builds(Position, big, big, big, big, st.dictionaries(big, big), st.dictionaries(big, big))
)
def test_a_position_comes_over_the_pipe(position: Position) -> None:
    told = asdict(position)
    for name in ("counts", "last_offsets"):  # as JSON does
        told[name] = {str(place): count for place, count in told[name].items()}
    assert read_position(told) == position


@pytest.mark.parametrize(
    "error",
    [
        GuardLost("m", subject="s", hint="h"),
        PositionExpired("m", subject="s"),
        ProducerFenced("m"),
        Refused("m", hint="h"),
        KafkaFailure("m", retryable=True),
        KafkaFailure("m"),
    ],
)
def test_an_error_comes_over_the_pipe(error: BacklogError) -> None:
    again = read_error(error.to_json())
    assert type(again) is type(error)
    assert again.to_json() == error.to_json()


def test_an_error_of_an_unknown_kind_is_a_failure() -> None:
    again = read_error(ConsumerCameBack("m", subject="s").to_json())
    assert (type(again), again.message, again.retryable) == (KafkaFailure, "m", False)


def test_ids_are_static_and_never_an_injections() -> None:
    assert name_relay_transactional_id("backlog", "orders", 3) == "backlog:relay:orders.3"


# Where the relay places messages, and what that costs at its start.

KEYS = [b"a", b"order-17", None, b"", "käse".encode(), b"order-17", None, b"x" * 300]


@pytest.mark.parametrize("partitioner", sorted(PARTITIONERS))
def test_keys_go_where_the_partitioner_says_and_the_others_take_turns(partitioner: str) -> None:
    placed = PARTITIONERS[partitioner](pa.array(KEYS, pa.binary()), 30).tolist()
    found = Router("key", partitioner, 30, turn=5).place(KEYS)
    assert [place for place, key in zip(found, KEYS, strict=True) if key is not None] == [
        place for place in placed if place >= 0
    ]
    assert (found[2], found[6]) == (7, 11)


def test_round_robin_goes_on_where_it_was() -> None:
    router = Router("round_robin", "murmur2", 3, turn=4)
    assert router.place([b"a", None]) + router.place([b"a", b"a"]) == [1, 2, 0, 1]
    assert router.place([]) == []


@pytest.mark.parametrize("partitioner", sorted(PARTITIONERS))
def test_placing_does_not_load_pandas(partitioner: str) -> None:
    """It would take a relay's process longer to load than all the rest of it."""
    program = f"""
import sys
from backlogctl.fanout.relay import worker
from backlogctl.fanout.relay.records import Router
Router("key", "{partitioner}", 30, 0).place([b"a", None, b"bc"])
sys.exit("pandas" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
