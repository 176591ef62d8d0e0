"""Random logs through both engines, on a real broker; `EXAMPLES=200` for more than a few."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Literal

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from backlogctl.fanout.quiet import await_decided
from backlogctl.fanout.relay.interface import RECORD, WIRE, SourceRange
from backlogctl.fanout.relay.worker import make_relay_engine
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.batches import CODECS
from backlogctl.kafka.clients import make_producer
from tests.conftest import MakeTopic
from tests.fanout.relay.conftest import KEPT, MakeWorld
from tests.fanout.relay.doing import OLD_MS, Identity, RelayWorld, check_copied, identify, relay
from tests.kit.kafka import move_log_start, set_offsets_raw

EXAMPLES = int(os.environ.get("EXAMPLES", "4"))
pytestmark = pytest.mark.timeout(600 + 30 * EXAMPLES)

Header = tuple[str, str | bytes | None]  # as the client takes them
Record = tuple[bytes | None, bytes | None, list[Header], int]


@dataclass(frozen=True)
class Written:
    """What one producer writes at once: a batch, or several where they are large."""

    partition: int
    records: list[Record]
    codec: str
    ends: Literal["plain", "committed", "aborted"]


def _written(partitions: int) -> st.SearchStrategy[Written]:
    short = st.binary(max_size=9)
    large = st.binary(min_size=1, max_size=3).map(lambda part: part * 30_000)
    record = st.tuples(
        st.none() | st.sampled_from((b"", b"a", b"b", b"c")) | short,
        st.none() | short | large,
        st.lists(st.tuples(st.text(max_size=5), st.none() | short), max_size=3),
        st.integers(1, OLD_MS),  # backwards as well
    )
    return st.builds(
        Written,
        st.integers(0, partitions - 1),
        st.lists(record, min_size=1, max_size=30),
        st.sampled_from(CODECS),
        st.sampled_from(("plain", "plain", "committed", "aborted")),
    )


def write(world: RelayWorld, log: list[Written]) -> None:
    """Each by a producer of its own, one after the other."""
    for number, one in enumerate(log):
        told: dict[str, object] = {
            "compression.type": one.codec,
            "linger.ms": 50,
            "enable.idempotence": False,
        }
        if one.ends != "plain":
            told["enable.idempotence"] = True
            told["transactional.id"] = f"{world.source}-{number}"
        producer = make_producer(world.properties, told)
        if one.ends != "plain":
            producer.init_transactions(90)
            producer.begin_transaction()
        for key, value, headers, at in one.records:
            producer.produce(
                world.source, value, key, one.partition, timestamp=at, headers=headers or None
            )
        assert producer.flush(90) == 0
        if one.ends == "committed":
            producer.commit_transaction(90)
        elif one.ends == "aborted":
            producer.abort_transaction(90)
    await_decided(world.properties, world.source, world.partitions, lambda: None, within=90)


def read_keyed(world: RelayWorld) -> dict[int, list[Identity]]:
    """What has a key, by partition and in its order: where the rest goes is the engine's choice."""
    found: defaultdict[int, list[Identity]] = defaultdict(list)
    for message in world.read_target():
        if message.key() is not None:
            found[message.partition() or 0].append(identify(message))
    return found


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    # A smaller log that fails too would take a broker many minutes to find.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_both_engines_make_the_same_topic(
    make_world: MakeWorld, topic: MakeTopic, data: st.DataObject
) -> None:
    partitions = data.draw(st.integers(1, 2), "partitions")
    targets = data.draw(st.integers(1, 7), "temporary partitions")
    config = {"message.timestamp.type": data.draw(st.sampled_from(("CreateTime", "LogAppendTime")))}
    order = data.draw(st.sampled_from(("key", "round_robin")), "order")
    partitioner = data.draw(st.sampled_from(("murmur2", "crc32")), "partitioner")
    log = data.draw(st.lists(_written(partitions), min_size=1, max_size=6), "log")
    by_record = make_world(partitions, targets, config)
    by_wire = replace(
        by_record, target=topic(targets, KEPT, "target"), group=f"{by_record.target}-wire"
    )
    write(by_record, log)
    numbers = range(partitions)
    ends = list_offsets(by_record.admin, by_record.source, numbers, "latest")
    starts = {number: data.draw(st.integers(0, ends[number] // 2)) for number in numbers}
    move_log_start(by_record.properties, by_record.source, starts)
    for world, engine in ((by_record, RECORD), (by_wire, WIRE)):
        set_offsets_raw(world.properties, world.group, world.source, starts)
        with world.guarded(order=order, partitioner=partitioner) as task:
            ranges = [SourceRange(number, starts[number], ends[number]) for number in numbers]
            found = relay(make_relay_engine(engine), task, ranges)
        assert {number: one.committed for number, one in found.items()} == ends
        assert check_copied(world, order=order, partitioner=partitioner) == []
    if order == "key" and partitions == 1:
        assert read_keyed(by_record) == read_keyed(by_wire)
