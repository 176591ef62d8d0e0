"""Batch headers out of bytes, and batches of ranges while logs and leaders move."""

from __future__ import annotations

import os
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import (
    CoordinatorLoadInProgressError,
    GroupAuthorizationFailedError,
    NotCoordinatorError,
)

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure
from backlogctl.kafka import raw_fetch
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.batches import BatchesUnreadable, BatchHeader, add_sequence, scan_batches
from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.group_types import list_groups
from backlogctl.kafka.raw_client import RawClient
from backlogctl.kafka.raw_fetch import FetchedBatches, fetch_batches, find_codec
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import OffsetRange
from tests.conftest import MakeTopic
from tests.kit.kafka import move_log_start, properties_of, publish
from tests.kit.transactions import open_raw, run_transactions
from tests.spark_backfill.injection.doing import open_transaction

_HEADER = struct.Struct(">qiibIhiqqqhii")


def read_raw(properties: dict[str, str], topic: str) -> bytes:
    """The bytes of partition 0's log, if it is short."""
    from kafka.protocol.consumer import FetchRequest

    with open_raw(properties) as client:
        wanted = FetchRequest.FetchTopic
        part = wanted.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=900_000)
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=900_000,
            topics=[wanted(topic=topic, partitions=[part])],
            min_version=4,
            max_version=12,
        )
        (node,) = client.list_brokers()
        answer = client.run(lambda: client.send(request, node), Deadline(30))
        return bytes(answer.responses[0].partitions[0].records)


def make_batch(
    base: int, delta: int = 0, *, size: int = 61, count: int = 1, magic: int = 2
) -> bytes:
    """A batch whose header says this, with nothing in it."""
    head = _HEADER.pack(base, size - 12, 0, magic, 0, 0, delta, 5, 7, 3, 1, 9, count)
    return head + bytes(max(0, size - len(head)))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_each_codec(kafka: EmbeddedKafka, topic: MakeTopic, codec: str) -> None:
    name, properties = topic(1), properties_of(kafka.bootstrap)
    before = int(time.time() * 1000)
    publish({**properties, "compression.type": codec}, name, {0: 300}, value=b"x" * 200)
    scan = scan_batches(read_raw(properties, name))
    assert {one.codec for one in scan.headers} == {codec}
    assert sum(one.record_count for one in scan.headers) == 300
    assert (scan.next_offset, scan.is_cut, scan.old_format) == (300, False, 0)
    assert [b.base_offset for b in scan.headers[1:]] == [
        a.last_offset + 1 for a in scan.headers[:-1]
    ]
    for one in scan.headers:
        assert before <= one.first_timestamp_ms <= one.max_timestamp_ms <= time.time() * 1000
        assert (one.is_control, one.is_transactional, one.is_log_append_time) == (False,) * 3
        assert one.producer_id >= 0
        assert one.producer_epoch == 0
        assert one.leader_epoch == 0
    for a, b in pairwise(scan.headers):
        assert b.base_sequence == add_sequence(a.last_sequence, 1)


def test_without_idempotence(properties: dict[str, str], topic: MakeTopic) -> None:
    name = topic(1, {"message.timestamp.type": "LogAppendTime"})
    publish({**properties, "enable.idempotence": "false", "acks": "1"}, name, {0: 3})
    for one in scan_batches(read_raw(properties, name)).headers:
        assert (one.producer_id, one.producer_epoch, one.base_sequence) == (-1, -1, -1)
        assert one.last_sequence == -1
        assert one.is_log_append_time


def test_transactions(properties: dict[str, str], topic: MakeTopic, unique: str) -> None:
    name = topic(1)
    assert run_transactions(properties, name, unique, (5, True), (5, False)) == 12
    scan = scan_batches(read_raw(properties, name))
    assert scan.next_offset == 12
    assert all(one.is_transactional for one in scan.headers)
    # A committed and an aborted transaction look alike but for the record in the control batch.
    data = [one for one in scan.headers if not one.is_control]
    control = [one for one in scan.headers if one.is_control]
    assert sum(one.record_count for one in data) == 10
    assert [(one.base_offset, one.is_commit) for one in control] == [(5, True), (11, False)]
    assert {one.is_commit for one in data} == {None}
    assert len({one.producer_id for one in scan.headers}) == 1


def test_cut_anywhere(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    """As brokers cut the last batch of an answer."""
    name, properties = topic(1), properties_of(kafka.bootstrap)
    for _ in range(3):
        publish(properties, name, {0: 4})
    raw = read_raw(properties, name)
    whole = scan_batches(raw).headers
    ends = [sum(one.size for one in whole[: n + 1]) for n in range(len(whole))]
    assert ends[-1] == len(raw)
    for cut in range(len(raw)):
        scan = scan_batches(memoryview(raw)[:cut])
        count = sum(end <= cut for end in ends)
        assert scan.headers == whole[:count]
        assert scan.is_cut == (cut not in (0, *ends))
        assert scan.next_offset == (whole[count - 1].last_offset + 1 if count else None)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
def test_old_formats_are_counted(magic: int, codec: int) -> None:
    """By kafka-python's own writer of them: brokers of today write none."""
    from kafka.record.legacy_records import LegacyRecordBatchBuilder

    builder = LegacyRecordBatchBuilder(magic, codec, 100_000)
    for offset in range(4):
        builder.append(offset, timestamp=5, key=None, value=b"old")
    raw = bytes(builder.build())
    scan = scan_batches(raw + make_batch(4, 1, count=2))
    # Compressed, the four are in one.
    assert scan.old_format == (1 if codec else 4)
    assert [one.base_offset for one in scan.headers] == [4]
    assert scan.next_offset == 6


def test_compacted_batches_have_fewer_records() -> None:
    scan = scan_batches(make_batch(10, 9, count=3) + make_batch(30, 0, count=0))
    assert [(b.base_offset, b.last_offset, b.record_count) for b in scan.headers] == [
        (10, 19, 3),
        (30, 30, 0),
    ]
    assert scan.headers[0].last_sequence == 18


def test_a_delete_horizon_is_no_time() -> None:
    raw = bytearray(make_batch(0))
    raw[22] |= 64
    assert scan_batches(raw).headers[0].first_timestamp_ms == -1


def test_sequences_begin_again_after_the_last_number() -> None:
    assert add_sequence(2**31 - 1, 1) == 0
    assert add_sequence(2**31 - 3, 5) == 2
    assert add_sequence(0, -1) == 2**31 - 1


@pytest.mark.parametrize(
    "raw",
    [
        make_batch(0, magic=3),
        make_batch(0, size=40) + bytes(61),
        make_batch(0, -1),
        make_batch(0, 1, count=3),
        make_batch(5) + make_batch(5),
        bytes(100),
        struct.pack(">qi", 0, 5) + bytes(5),
    ],
)
def test_what_is_no_log_is_refused(raw: bytes) -> None:
    with pytest.raises(
        BatchesUnreadable, match=r"topic orders\[2\]: .* at offset (4|6): .*sense"
    ) as e:
        scan_batches(raw, "topic orders[2]", 4)
    assert "kafka-dump-log" in e.value.hint


@given(st.binary(max_size=300))
def test_any_bytes_end_in_an_answer_or_our_error(raw: bytes) -> None:
    try:
        scan = scan_batches(raw)
    except BatchesUnreadable:
        return
    assert sum(one.size for one in scan.headers) <= len(raw)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.integers(61, 200)), max_size=8),
    st.integers(0, 1_000),
    st.binary(max_size=60),
)
def test_batches_are_found_again(made: list[tuple[int, int, int]], first: int, tail: bytes) -> None:
    raw, offset, expected = b"", first, []
    for hole, delta, size in made:
        offset += hole
        raw += make_batch(offset, delta, size=size)
        expected.append((offset, offset + delta, size))
        offset += delta + 1
    scan = scan_batches(raw)
    assert [(b.base_offset, b.last_offset, b.size) for b in scan.headers] == expected
    assert scan.next_offset == (offset if made else None)
    if len(tail) <= 16:  # too short to say its format
        assert scan_batches(raw + tail).headers == scan.headers


@pytest.fixture
def client(properties: dict[str, str]) -> Iterator[RawClient]:
    with open_raw(properties) as client:
        yield client


def test_what_is_refused_for_now_is_asked_again(client: RawClient) -> None:
    """As by a broker that has just started: its coordinator is loading."""
    refusals: list[Exception] = [CoordinatorLoadInProgressError(), NotCoordinatorError()]

    async def ask() -> int:
        if refusals:
            raise refusals.pop()
        return len(await list_groups(client))

    assert client.run(ask, Deadline(15.0)) >= 0
    assert not refusals


@pytest.mark.parametrize(
    ("refusal", "seconds", "asked"),
    [
        (CoordinatorLoadInProgressError, 1.0, range(2, 7)),
        (GroupAuthorizationFailedError, 5.0, range(1, 2)),
    ],
    ids=["to the end of the limit", "for good"],
)
def test_what_is_refused(
    client: RawClient, refusal: type[Exception], seconds: float, asked: range
) -> None:
    times = 0

    async def ask() -> None:
        nonlocal times
        times += 1
        raise refusal

    with pytest.raises(refusal):
        client.run(ask, Deadline(seconds))
    assert times in asked


_LARGE = 100_000
_HUGE = {"message.max.bytes": "12000000"}


def collect(found: Iterable[FetchedBatches]) -> dict[int, list[BatchHeader]]:
    headers: defaultdict[int, list[BatchHeader]] = defaultdict(list)
    for one in found:
        headers[one.partition] += one.headers
    return headers


def test_ranges_of_several_partitions(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name, properties = topic(4), properties_of(kafka.bootstrap)
    for _ in range(3):
        publish(properties, name, {0: 100, 1: 50, 3: 10})
    ranges = [
        OffsetRange(0, 0, 300),
        OffsetRange(1, 60, 120),
        OffsetRange(2, 0, 0),
        OffsetRange(3, 0, 10),
    ]
    headers = collect(fetch_batches(properties, name, ranges))
    assert sum(one.record_count for one in headers[0]) == 300
    # A batch counts that the range overlaps, and no other.
    assert headers[1][0].base_offset <= 60 <= headers[1][0].last_offset
    assert headers[1][-1].base_offset < 120 <= headers[1][-1].last_offset + 1
    assert 2 not in headers
    assert sum(one.record_count for one in headers[3]) == 10


def test_more_than_one_answer_holds(properties: dict[str, str], topic: MakeTopic) -> None:
    """Batches larger than what a request asks for, too."""
    name = topic(3, {"max.message.bytes": "12000000"})
    value = os.urandom(_LARGE)
    publish(properties, name, {0: 120, 1: 90}, value=value)
    publish({**properties, **_HUGE}, name, {0: 2}, value=os.urandom(6_000_000))
    found = list(fetch_batches(properties, name, [OffsetRange(0, 0, 122), OffsetRange(1, 0, 90)]))
    assert len(found) > 4
    headers = collect(found)
    for partition, count in ((0, 122), (1, 90)):
        assert headers[partition][0].base_offset == 0
        for before, after in zip(headers[partition], headers[partition][1:], strict=False):
            assert after.base_offset == before.last_offset + 1
        assert headers[partition][-1].last_offset == count - 1


def test_an_open_transaction_is_seen(properties: dict[str, str], topic: MakeTopic) -> None:
    name = topic(1)
    with open_transaction(properties, name, 0):
        (one,) = collect(fetch_batches(properties, name, [OffsetRange(0, 0, 1)]))[0]
    assert one.is_transactional


def test_the_log_start_moves_on(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name, properties = topic(1), properties_of(kafka.bootstrap)
    publish(properties, name, {0: 120}, value=os.urandom(_LARGE))
    found = fetch_batches(properties, name, [OffsetRange(0, 0, 120)])
    assert next(found).next_offset < 100
    move_log_start(properties, name, {0: 100})
    # The next answer was on its way already.
    ahead = next(found)
    assert (ahead.passed_over, ahead.next_offset < 100) == (None, True)
    passed = next(found)
    assert passed.passed_over == OffsetRange(0, ahead.next_offset, 100)
    assert (passed.headers, passed.next_offset) == ((), 100)
    rest = list(found)
    assert rest[-1].next_offset == 120
    assert all(one.passed_over is None for one in rest)


def test_all_of_a_range_has_expired(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name, properties = topic(1), properties_of(kafka.bootstrap)
    publish(properties, name, {0: 20})
    move_log_start(properties, name, {0: 15})
    (found,) = fetch_batches(properties, name, [OffsetRange(0, 0, 10)])
    assert found.passed_over == OffsetRange(0, 0, 10)


def test_a_range_beyond_the_end(
    kafka: EmbeddedKafka, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_fetch, "_PATIENCE", 1.0)
    name, properties = topic(1), properties_of(kafka.bootstrap)
    publish(properties, name, {0: 20})
    with pytest.raises(KafkaFailure, match="ends at offset 20"):
        list(fetch_batches(properties, name, [OffsetRange(0, 0, 30)]))
    with pytest.raises(KafkaFailure, match="its log ends before"):
        list(fetch_batches(properties, name, [OffsetRange(0, 25, 30)]))
    with pytest.raises(KafkaFailure, match="is not on the cluster"):
        list(fetch_batches(properties, f"no-{name}", [OffsetRange(0, 0, 30)]))
    with pytest.raises(KafkaFailure, match="partition 7 has no leader, or is not there"):
        list(fetch_batches(properties, name, [OffsetRange(7, 0, 30)]))


def test_properties_that_kafka_python_cannot_take() -> None:
    properties = {"bootstrap.servers": "localhost:1", "security.protocol": "SASL_SSL"}
    with pytest.raises(KafkaFailure, match=r"cannot be read with sasl\.mechanism GSSAPI"):
        list(fetch_batches(properties, "orders", [OffsetRange(0, 0, 1)]))


def test_who_looks_may_end_it(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name, properties = topic(1), properties_of(kafka.bootstrap)
    publish(properties, name, {0: 120}, value=os.urandom(_LARGE))
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks > 1:
            raise KeyboardInterrupt

    found = fetch_batches(properties, name, [OffsetRange(0, 0, 120)], look=look)
    with pytest.raises(KeyboardInterrupt):
        list(found)


def test_a_limit(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name, properties = topic(1), properties_of(kafka.bootstrap)
    publish(properties, name, {0: 1})
    with pytest.raises(KafkaFailure, match=r"within 0 s: \[0\] at 0"):
        list(fetch_batches(properties, name, [OffsetRange(0, 0, 1)], limit=Deadline(0)))


def test_a_leader_dies(tmp_path: Path) -> None:
    with EmbeddedKafka.start(tmp_path, brokers=2, heap="384m") as kafka:
        properties = properties_of(kafka.bootstrap)
        create_topic(make_admin(properties), "orders", partitions=4, replication=2)
        counts = dict.fromkeys(range(4), 60)
        publish(properties, "orders", counts, value=os.urandom(_LARGE))
        found = fetch_batches(properties, "orders", [OffsetRange(p, 0, 60) for p in range(4)])
        parts = [next(found)]
        kafka.kill(2)
        parts += found
    headers = collect(parts)
    for partition in range(4):
        assert sum(one.record_count for one in headers[partition]) == 60
        assert headers[partition][0].base_offset == 0


def test_the_codec_is_one_that_the_group_has_read(
    properties: dict[str, str], topic: MakeTopic
) -> None:
    name, value = topic(2), b"value" * 100
    assert find_codec(properties, name, {0: None, 1: 0}) == "none", "nothing tells"
    for codec in ("gzip", "zstd"):
        publish({**properties, "compression.type": codec}, name, {0: 20}, value=value)
    # One that began to write in zstd may be what has stopped the group.
    assert find_codec(properties, name, {0: 20}) == "gzip"
    assert find_codec(properties, name, {0: 40}) == "zstd"
    assert find_codec(properties, name, {0: None}) == "none", "of no group nothing is known"
    move_log_start(properties, name, {0: 10})
    for committed in (3, 10, 12):
        assert find_codec(properties, name, {0: committed}) == "gzip", "it meets that next"
    assert find_codec({**properties, "compression.type": "lz4"}, name, {0: 20}) == "lz4"
    publish(properties, name, {1: 20})
    assert find_codec(properties, name, {0: 0, 1: 20}) == "none", "all that it read was plain"
    assert (
        find_codec(
            {**properties, "sasl.mechanism": "GSSAPI", "security.protocol": "SASL_SSL"},
            name,
            {0: 20},
        )
        is None
    )
    assert find_codec(properties, f"{name}-gone", {0: 20}) is None
