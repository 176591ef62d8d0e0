"""Batches that are routed, held against kafka-python's own reader of them."""

from __future__ import annotations

import os
import random
import struct
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from backlogctl.kafka.batches import CODECS, BatchesUnreadable, scan_batches
from backlogctl.partitioners import PARTITIONERS
from backlogctl.wire import codecs
from backlogctl.wire.codecs import Arena, Unsent, check_batch, compress, make_batch
from backlogctl.wire.routing import BatchRouter, Routed

Record = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
_THEIRS = {"none": 0, "gzip": 1, "lz4": 3}  # the codecs that kafka-python has here
FUZZED = int(os.environ.get("FUZZ", "3000"))

texts = st.none() | st.binary(max_size=30)
records = st.lists(
    st.tuples(
        st.integers(0, 2**42),
        texts,
        texts,
        st.lists(st.tuples(st.text(max_size=5), texts), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=40,
)


def build(found: Sequence[Record], codec: str = "none", base: int = 0) -> bytes:
    """One batch, as kafka-python writes it."""
    builder = DefaultRecordBatchBuilder(2, _THEIRS[codec], False, -1, -1, -1, 1 << 30)
    for offset, (at, key, value, headers) in enumerate(found):
        builder.append(offset, at, key, value, list(headers))
    batch = bytearray(builder.build())
    struct.pack_into(">q", batch, 0, base)
    return bytes(batch)


def read(batch: bytes | bytearray) -> list[Record]:
    """Its records, as kafka-python reads them."""
    reader = DefaultRecordBatch(bytes(batch))
    assert reader.validate_crc()
    return [
        (one.timestamp, one.key, one.value, tuple((k, v) for k, v in one.headers)) for one in reader
    ]


def route(router: BatchRouter, log: bytes, **changes: Any) -> Routed:
    scan = scan_batches(log)
    view, at, batches = memoryview(log), 0, []
    for header in scan.headers:
        batches.append((header, view[at : at + header.size]))
        at += header.size
    wanted: dict[str, Any] = {
        "start": 0,
        "end": 2**62,
        "remaining": 0,
        "subject": "topic t[0]",
        **changes,
    }
    return router.route(batches, **wanted)


def make_router(
    order: Literal["key", "round_robin"] = "key", partitions: int = 5, **changes: Any
) -> BatchRouter:
    told: dict[str, Any] = {
        "counts": {},
        "turn": 0,
        "codec": "none",
        "limit": 1_000_000,
        **changes,
    }
    return BatchRouter("t", order, told.pop("partitioner", "murmur2"), partitions, **told)


def seal(one: Unsent) -> bytearray:
    codec, packed = one.pack()
    return make_batch(
        packed,
        codec=codec,
        count=one.count,
        first_time=one.first_time,
        last_time=one.last_time,
        producer=(7, 0, 0),
    )


def collect(routed: Routed) -> dict[int, list[Record]]:
    """What each partition gets, in its order."""
    found: defaultdict[int, list[Record]] = defaultdict(list)
    for one in routed.batches:
        batch = seal(one)
        (header,) = scan_batches(batch).headers
        assert (header.record_count, header.is_transactional) == (one.count, True)
        got = read(batch)
        assert header.max_timestamp_ms == max(at for at, *_ in got)
        found[one.partition] += got
    return found


@settings(deadline=None)
@given(
    st.lists(records, min_size=1, max_size=4),
    st.sampled_from(sorted(_THEIRS)),
    st.sampled_from(sorted(PARTITIONERS)),
    st.sampled_from((60, 300, 1_000_000)),
    st.integers(1, 9),
)
def test_each_record_goes_where_its_key_belongs_and_in_order(
    log: list[list[Record]], codec: str, partitioner: str, limit: int, partitions: int
) -> None:
    batches, base = [], 0
    for found in log:
        batches.append(build(found, codec, base))
        base += len(found)
    router = make_router(partitions=partitions, partitioner=partitioner, limit=limit, codec=codec)
    routed = route(router, b"".join(batches))
    every = [one for found in log for one in found]
    keys = pa.array([key for _, key, *_ in every], pa.binary())
    places = PARTITIONERS[partitioner](keys, partitions).tolist()
    wanted: defaultdict[int, list[Record]] = defaultdict(list)
    turn = 0
    for one, place in zip(every, places, strict=True):
        wanted[turn % partitions if place < 0 else place].append(one)
        turn += place < 0
    assert collect(routed) == wanted
    assert routed.counts == {place: len(some) for place, some in wanted.items()}
    assert routed.bytes == sum(len(key or b"") + len(value or b"") for _, key, value, _ in every)


@settings(deadline=None)
@given(st.lists(records, min_size=1, max_size=8), st.integers(1, 9), st.integers(0, 400))
def test_round_robin_keeps_all_and_is_even_at_its_end(
    log: list[list[Record]], partitions: int, before: int
) -> None:
    batches, base = [], 0
    for found in log:
        batches.append(build(found, "none", base))
        base += len(found)
    have = {
        place: before // partitions + (place < before % partitions) for place in range(partitions)
    }
    router = make_router("round_robin", partitions, counts=have)
    routed = route(router, b"".join(batches), remaining=base)
    partitions_of = collect(routed)
    every = sorted((one for found in log for one in found), key=repr)
    assert sorted((one for some in partitions_of.values() for one in some), key=repr) == every
    counts = [have[place] + len(partitions_of.get(place, ())) for place in range(partitions)]
    assert max(counts) - min(counts) <= 1


def test_round_robin_passes_whole_batches_on_as_they_are() -> None:
    log = [[(at, b"k", b"v%d" % at, ()) for at in range(20)] for _ in range(40)]
    raw = b"".join(build(found, "gzip", 20 * number) for number, found in enumerate(log))
    routed = route(make_router("round_robin", 8), raw, remaining=800)
    assert all(one.is_compressed and one.codec == "gzip" for one in routed.batches)
    assert set(routed.counts.values()) == {100}


@pytest.mark.parametrize("order", ["key", "round_robin"])
def test_only_what_is_in_the_range_is_taken(order: Literal["key", "round_robin"]) -> None:
    log = b"".join(
        build([(at, None, b"%d" % at, ()) for at in range(10 * n, 10 * n + 10)], "none", 10 * n)
        for n in range(4)
    )
    routed = route(make_router(order, 1), log, start=7, end=33, remaining=26)
    got = [int(value or b"") for _, _, value, _ in collect(routed)[0]]
    assert got == list(range(7, 33)), "each partition's are in the order of the source"
    assert routed.count == 26


@pytest.mark.parametrize("order", ["key", "round_robin"])
def test_fault_165_times_are_counted_from_the_delete_horizon_where_a_batch_has_one(
    order: Literal["key", "round_robin"],
) -> None:
    """A cleaner has it in place of the first timestamp (KIP-534)."""
    found: list[Record] = [(5000, b"k", None, ()), (1000, b"k", b"v", ())]
    batch = bytearray(build(found))
    batch[22] |= 64  # the base is 5000 already
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    assert collect(route(make_router(order, 1), bytes(batch), remaining=2)) == {0: found}


def test_fault_166_no_more_is_decompressed_at_once_than_is_allowed() -> None:
    log = [build([(1, b"k", bytes(1000), ())] * 5, "gzip", 5 * number) for number in range(10)]
    router = make_router()
    taken: list[int] = []
    values = 0
    while left := log[sum(taken) :]:
        routed = route(router, b"".join(left), at_once=12_000)
        taken.append(routed.taken)
        values += routed.bytes
    assert (taken, values) == ([3, 3, 3, 1], 50 * 1001)


@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_gives_back_what_it_was_given(codec: str) -> None:
    data = b"".join(b"%d," % number for number in range(60_000)) + random.Random(1).randbytes(9_000)
    batch = make_batch(
        compress(codec, data),
        codec=codec,
        count=1,
        first_time=0,
        last_time=0,
        producer=(1, 0, 0),
    )
    check_batch(memoryview(batch), "t")
    (header,) = scan_batches(batch).headers
    arena = Arena(100)  # it grows
    for _ in range(2):
        start, end = arena.add(header, memoryview(batch), "t")
        assert bytes(arena.data[start:end]) == data


def test_fault_166_a_batch_that_is_too_large_for_memory_is_refused_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codecs, "_LARGEST", 5_000_000)
    with pytest.raises(BatchesUnreadable, match=r"gzip: .*, or has more than 5\.0 MB of records"):
        route(make_router(), build([(1, b"k", bytes(20 << 20), ())], "gzip"))


def test_a_wrong_checksum_is_refused() -> None:
    batch = bytearray(build([(1, b"k", b"v", ())]))
    batch[-1] ^= 1
    with pytest.raises(BatchesUnreadable, match="offset 0: its checksum is wrong"):
        route(make_router(), bytes(batch))


def mutate(batch: bytes, chance: random.Random) -> bytes:
    """Some bytes behind the header's sizes are others, and the checksum is right again."""
    found = bytearray(batch)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(57, len(found))  # the count of records, then the records
        found[at] = chance.choice((found[at] ^ (1 << chance.randrange(8)), chance.randrange(256)))
    struct.pack_into(">I", found, 17, crc32c(bytes(found[21:])))
    return bytes(found)


class _Plain:
    """Reads records byte by byte, by the protocol guide; names of headers stay bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            assert shift < 70

    def text(self, least: int = -1) -> bytes | None:
        size = self.number()
        assert least <= size <= len(self.data) - self.at
        if size < 0:
            return None
        self.at += size
        return self.data[self.at - size : self.at]

    def record(self, base: int) -> Any:
        self.at += 1
        time, offset, key, value = self.number(), self.number(), self.text(), self.text()
        count = self.number()
        assert count >= 0
        headers = [(self.text(0), self.text()) for _ in range(count)]
        assert self.at == len(self.data)
        return offset, (base + time, key, value, tuple(headers))

    def records(self, count: int, base: int) -> list[Any]:
        found = [_Plain(self.text(1) or b"").record(base) for _ in range(count)]
        assert self.at == len(self.data)
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets))
        assert all(0 <= offset < 2**31 for offset in offsets)
        return [record for _, record in found]


def read_plainly(batch: bytes | bytearray) -> list[Any] | None:
    """None: they make no sense."""
    arena = Arena()
    try:
        (header,) = scan_batches(batch).headers
        start, end = arena.add(header, memoryview(batch), "t")
        data = _Plain(bytes(arena.data[start:end]))
        return data.records(header.record_count, header.base_timestamp_ms)
    except (AssertionError, IndexError, BatchesUnreadable):
        return None


def test_mutated_batches_are_refused_or_read_as_a_plain_reader_reads_them() -> None:
    """`FUZZ=100000` for more of them."""
    chance = random.Random(int(os.environ.get("SEED", "7")))
    refused = same = 0
    for number in range(FUZZED):
        every: list[Record] = [
            (chance.randrange(10**12), chance.randbytes(3), chance.randbytes(9), (("h", b"x"),))
            for _ in range(chance.randint(1, 6))
        ]
        codec = ("none", "none", "lz4", "gzip")[number % 4]
        batch = mutate(build(every, codec), chance)
        wanted = read_plainly(batch)
        try:
            routed = route(make_router(partitions=1), batch)
        except BatchesUnreadable:
            refused += 1
            continue
        assert wanted is not None, batch.hex()
        assert [one for sent in routed.batches for one in read_plainly(seal(sent)) or ()] == wanted
        same += 1
    assert refused > FUZZED / 20
    assert same > FUZZED / 20
