"""Batch headers out of the bytes that real brokers keep, and out of bytes that are none."""

from __future__ import annotations

import struct
import time
from itertools import pairwise

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.clock import Deadline
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import make_producer
from backlogctl.kafka.raw_client import RawClient, translate_properties
from backlogctl.kafka.raw_fetch import BatchesUnreadable, add_sequence, scan_batches
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kafka_tools import properties_of, publish

_HEADER = struct.Struct(">qiibIhiqqqhii")


def read_raw(properties: dict[str, str], topic: str) -> bytes:
    """The bytes of partition 0's log, if it is short."""
    from kafka.protocol.consumer import FetchRequest

    settings, _ = translate_properties(properties)
    assert settings is not None
    limit = Deadline(30)
    with RawClient(settings, limit) as client:
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
        answer = client.run(lambda: client.send(request, node), limit)
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


def test_transactions(kafka: EmbeddedKafka, topic: MakeTopic, unique: str) -> None:
    name, properties = topic(1), properties_of(kafka.bootstrap)
    producer: Producer = make_producer(properties, {"transactional.id": unique})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(5):
            producer.produce(name, str(number).encode(), partition=0)
        producer.flush(30)
        end(30)
    ends = list_offsets(properties, name, [0], "latest")
    scan = scan_batches(read_raw(properties, name))
    assert scan.next_offset == ends[0] == 12
    assert all(one.is_transactional for one in scan.headers)
    # A committed and an aborted transaction look alike but for the record in the control batch.
    data = [one for one in scan.headers if not one.is_control]
    control = [one for one in scan.headers if one.is_control]
    assert sum(one.record_count for one in data) == 10
    assert [(one.base_offset, one.record_count) for one in control] == [(5, 1), (11, 1)]
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
