"""Stamps of the producer, message ids, staged messages and partitioners."""

from __future__ import annotations

import itertools
import pickle
import random
import re
import stat
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backlogctl.errors import BacklogError, PlanStale, StagingError
from backlogctl.manifests import (
    CHUNK_SCHEMA,
    Manifest,
    hash_chunk,
    read_chunk,
    read_manifest,
    write_chunk,
    write_manifest,
)
from backlogctl.partitioners import place_crc32, place_murmur2
from backlogctl_delivery.sequenced.clients import hash_murmur2
from backlogctl_delivery.sequenced.sequence import (
    HIGHEST,
    HIGHEST_PARTITION,
    PATTERN,
    SEQUENCE,
    SEQUENCE_END,
    SKIPPED,
    RangeSet,
    SequenceRanges,
    Stamp,
    UnreadableStamp,
    hash_topic,
    read_stamp,
    write_stamp,
)
from backlogctl_delivery.stamps import SEQUENCE_HEADERS, find_header, make_message_id, stamp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PRODUCERS = st.text("abcXYZ019._-", min_size=1, max_size=64)
TOPIC = "0a1b2c3d"
NUMBERS = st.integers(0, HIGHEST) | st.integers(0, 20)


@st.composite
def stamps(draw: st.DrawFn) -> Stamp:
    number = draw(NUMBERS)
    ranges = RangeSet()
    if number:
        for _ in range(draw(st.integers(0, 5))):
            first = draw(st.integers(0, number - 1))
            ranges.add(first, draw(st.integers(first, min(first + 9, number - 1))))
    partition = draw(st.integers(0, HIGHEST_PARTITION) | st.integers(0, 20))
    told, is_last = tuple(ranges), draw(st.booleans())
    topic = hash_topic(draw(st.text("ab.", min_size=1)))
    return Stamp(draw(PRODUCERS), draw(NUMBERS), topic, partition, number, told, is_last)


@given(stamps())
def test_a_stamp_reads_back(stamp: Stamp) -> None:
    headers = write_stamp(stamp)
    assert read_stamp([("type", b"OrderPaid"), *headers, ("x", None)]) == stamp
    found = re.search(PATTERN, headers[0][1].decode())
    assert found is not None
    parts = (stamp.producer, stamp.epoch, stamp.topic, stamp.partition, stamp.sequence)
    assert found.groups() == tuple(map(str, parts))


def test_the_format_is_stable_over_releases() -> None:
    place = (1700000000000000, hash_topic("orders"), 4, 12)
    assert write_stamp(Stamp("shop-1", *place, ((3, 5), (9, 9)), True)) == [
        ("backlog-sequence", b"shop-1:1700000000000000:1c168adb:4:12"),
        ("backlog-skipped", b"3-5,9"),
        ("backlog-sequence-end", b"1"),
    ]


@pytest.mark.parametrize("headers", [None, [], [("type", b"x"), (SKIPPED, b"1")]])
def test_what_is_not_stamped(headers: list[tuple[str, object]] | None) -> None:
    assert read_stamp(headers) is None


GOOD: tuple[str, object] = (SEQUENCE, b"shop:1:0a1b2c3d:0:100")
BAD_SEQUENCES: list[object] = [
    None,
    "shop:1:0a1b2c3d:0:2",
    b"",
    b"shop",
    b"shop:1",
    b"shop:1:0:2",
    b"shop:1:0a1b2c3d:2",
    b"shop:1:0a1b2c3:0:2",
    b"shop:1:0A1B2C3D:0:2",
    b"shop:1:0a1b2c3d::2",
    b"shop:1:0a1b2c3d:-1:2",
    b"shop:1:0a1b2c3d:00:2",
    b"shop:1:0a1b2c3d:2147483648:2",
    b"shop:1:0a1b2c3d:9999999999:2",
    b"shop:1:0a1b2c3d:10000000000:2",
    b"shop:1:0a1b2c3d:0:two",
    b"shop:1:0a1b2c3d:0:-2",
    b"shop:1:0a1b2c3d:0:+2",
    b"shop:01:0a1b2c3d:0:2",
    b"shop:1:0a1b2c3d:0:02",
    b"shop:1:0a1b2c3d:0: 2",
    b"shop:1:0a1b2c3d:0:2\n",
    b"\nshop:1:0a1b2c3d:0:2",
    b"shop:1:0a1b2c3d:0:2:3",
    b"shop:1:0a1b2c3d:0:1_0",
    b"shop:1:0a1b2c3d:0:1e3",
    b"shop:1:0a1b2c3d:0:9223372036854775808",
    b"shop:9999999999999999999:0a1b2c3d:0:1",
    b"shop:1:0a1b2c3d:0:" + b"9" * 5_000,
    b"x" * 10_000_000,
    b"x" * 65 + b":1:0a1b2c3d:0:2",
    b":1:0a1b2c3d:0:2",
    b"sh op:1:0a1b2c3d:0:2",
    b"sh\xc3\xb6p:1:0a1b2c3d:0:2",
    "shop:1:0a1b2c3d:0:\N{ARABIC-INDIC DIGIT TWO}".encode(),
    b"shop:1:0a1b2c3d:0:\xff",
    b"shop:1:0a1b2c3d:0:2\0",
]
BAD_SKIPPED: list[object] = [
    None,
    b"",
    b",",
    b"3-",
    b"-3",
    b"3-5,",
    b"5-3",
    b"3,3",
    b"3-5,5",
    b"9,3",
    b"03",
    b"3-5\n",
    b"\xff",
    b"100",
    b"3-100",
    b"3-9223372036854775808",
    b"1" * 20_000,
    b"0," * 1_001,
    b"x" * 10_000_000,
]
BAD_ENDS: list[object] = [None, b"", b"0", b"true", b"1" * 1_000_000]
HOSTILE: list[list[tuple[str, object]]] = [
    *([(SEQUENCE, value)] for value in BAD_SEQUENCES),
    *([GOOD, (SKIPPED, value)] for value in BAD_SKIPPED),
    *([GOOD, (SEQUENCE_END, value)] for value in BAD_ENDS),
    [GOOD, (SEQUENCE, b"shop:1:0a1b2c3d:0:101")],
    [(SEQUENCE, b"nonsense"), GOOD],
    [GOOD, (SEQUENCE, None)],
    [GOOD, (SKIPPED, b"1"), (SKIPPED, b"2")],
]


@pytest.mark.parametrize("headers", HOSTILE, ids=lambda headers: repr(headers)[:40])
def test_hostile_headers_are_unreadable(headers: list[tuple[str, object]]) -> None:
    with pytest.raises(UnreadableStamp) as caught:
        read_stamp(headers)
    assert len(str(caught.value)) < 400


@given(
    st.lists(
        st.tuples(
            st.sampled_from(SEQUENCE_HEADERS),
            st.none() | st.binary(max_size=30) | st.from_regex(PATTERN).map(str.encode),
        ),
        max_size=4,
    )
)
@example([(SEQUENCE, b"a:0:0a1b2c3d:0:0"), (SEQUENCE, b"a:0:0a1b2c3d:0:0")])
def test_nothing_but_unreadable_is_raised(headers: list[tuple[str, bytes | None]]) -> None:
    try:
        stamp = read_stamp(headers)
    except UnreadableStamp:
        return
    if stamp is not None:
        assert read_stamp(write_stamp(stamp)) == stamp


@pytest.mark.parametrize(
    "stamp",
    [
        Stamp("", 0, TOPIC, 0, 0),
        Stamp("x" * 65, 0, TOPIC, 0, 0),
        Stamp("a:b", 0, TOPIC, 0, 0),
        Stamp("a\n", 0, TOPIC, 0, 0),
        Stamp("a", -1, TOPIC, 0, 0),
        Stamp("a", 0, TOPIC, -1, 0),
        Stamp("a", 0, TOPIC, HIGHEST_PARTITION + 1, 0),
        Stamp("a", 0, TOPIC, 0, HIGHEST + 1),
        Stamp("a", 0, TOPIC, 0, 5, ((3, 5),)),
        Stamp("a", 0, TOPIC, 0, 9, ((5, 3),)),
        Stamp("a", 0, TOPIC, 0, 10_000, tuple((n, n) for n in range(0, 4_000, 2))),
    ],
)
def test_what_could_not_be_read_is_not_written(stamp: Stamp) -> None:
    with pytest.raises(ValueError, match=r"stamp|backlog"):
        write_stamp(stamp)


def _to_set(ranges: object) -> set[int]:
    return {n for a, b in ranges for n in range(a, b + 1)}  # type: ignore[attr-defined]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4)), max_size=30), st.integers(0, 40))
def test_a_range_set_is_a_set(adds: list[tuple[int, int]], removed: int) -> None:
    ranges, expected = RangeSet(), set[int]()
    for first, more in adds:
        ranges.add(first, first + more)
        expected |= set(range(first, first + more + 1))
        listed = list(ranges)
        assert _to_set(listed) == expected
        assert all(b + 1 < c for (_, b), (c, _) in itertools.pairwise(listed))
    assert _to_set(ranges.list_gaps(3, 30)) == set(range(3, 31)) - expected
    ranges.remove(removed)
    assert _to_set(ranges) == expected - {removed}
    assert removed not in ranges


EVENTS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "skip"]), st.integers(0, 30)), max_size=40
)


@given(EVENTS, st.booleans())
def test_holes_are_those_of_sets(events: list[tuple[str, int]], from_zero: bool) -> None:
    ranges = SequenceRanges(starts_at_zero=from_zero)
    seen: list[int] = []
    skipped: set[int] = set()
    for what, number in events:
        if what == "skip":
            ranges.skip(number, number + 2)
            skipped |= {number, number + 1, number + 2}
            continue
        assert ranges.add(number) == (number not in seen)
        seen.append(number)
    floor = 0 if from_zero else (seen or [0])[0]
    holes = set(range(floor, max(seen, default=-1) + 1)) - set(seen) - skipped
    assert _to_set(ranges.list_holes()) == holes
    assert ranges.unknown == 0


@given(st.lists(st.integers(0, 60), min_size=1, max_size=60), st.integers(1, 4))
def test_an_overflow_is_unknown_neither_a_loss_nor_fine(numbers: list[int], limit: int) -> None:
    bounded, exact = SequenceRanges(limit=limit), SequenceRanges()
    for number in numbers:
        # A number that was not seen is never taken for a repeat.
        assert bounded.add(number) or number not in _to_set(exact.list_holes())
        exact.add(number)
        assert len(bounded) <= limit
    missing = _to_set(exact.list_holes())
    assert _to_set(bounded.list_holes()) <= missing
    if sorted(numbers) == numbers:
        assert bounded.unknown == len(missing) - len(_to_set(bounded.list_holes()))


def test_what_was_merged_is_told() -> None:
    ranges = SequenceRanges(limit=2)
    for number in (0, 1, 4, 5, 9):
        assert ranges.add(number)
    assert (ranges.unknown, ranges.list_holes()) == (2, ((6, 8),))
    # It cannot tell whether 1 or 2 were seen; both may be new.
    assert ranges.add(1)
    assert ranges.add(2)
    assert not ranges.add(9)


def test_what_was_skipped_and_comes_all_the_same_is_new() -> None:
    ranges = SequenceRanges()
    ranges.skip(0, 2)
    assert ranges.add(3)
    assert ranges.list_holes() == ()
    assert ranges.add(1)
    assert not ranges.add(1)
    assert ranges.add(0)


def test_many_in_order_are_one_range() -> None:
    ranges = SequenceRanges(starts_at_zero=False)
    for number in range(7, 200_000):
        ranges.add(number)
    assert (len(ranges), ranges.list_holes(), ranges.highest) == (1, (), 199_999)


def test_it_imports_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import backlogctl_delivery.sequenced.sequence\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - sys.stdlib_module_names - {'backlogctl_delivery'}))"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "[]"


def test_spark_reads_the_same_pattern(spark: SparkSession) -> None:
    texts = [
        "shop.a-1_b:1700000000000000:0a1b2c3d:3:12",
        "shop:01:0a1b2c3d:0:2",
        "shop:1:0a1b2c3d:2",
    ]
    texts += ["shop:1:0a1b2c3d:0:2\n", "shop:1:0a1b2c3d:0:2\u2028", "x"]
    frame = spark.createDataFrame([(text,) for text in texts], "text string")
    frame.createOrReplaceTempView("stamps")
    extracts = ", ".join(f"regexp_extract(text, '{PATTERN}', {group})" for group in range(1, 6))
    rows = spark.sql(f"SELECT text rlike '{PATTERN}', {extracts} FROM stamps").collect()
    assert tuple(rows[0]) == (True, "shop.a-1_b", "1700000000000000", TOPIC, "3", "12")
    assert [row[0] for row in rows[1:]] == [False] * 5


HEADERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.text(max_size=4), "value": st.none() | st.binary(max_size=4)}
    ),
    max_size=3,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "message_id": st.text("0123456789abcdef", min_size=4, max_size=4),
            "key": st.none() | st.binary(max_size=5),
            "value": st.none() | st.binary(max_size=5),
            "partition": st.integers(0, 2),
            "headers": HEADERS,
            "original_time": st.none() | st.just("2026-11-21T01:02:03.000004Z"),
        }
    ),
    max_size=6,
)


def make_table(messages: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(messages, schema=CHUNK_SCHEMA)


ONE = {
    "message_id": "00ff",
    "key": b"7",
    "value": b"{}",
    "partition": 1,
    "headers": [{"name": "type", "value": b"OrderPaid"}],
    "original_time": None,
}


@given(MESSAGES, MESSAGES)
def test_equal_hashes_mean_equal_messages(
    left: list[dict[str, object]], right: list[dict[str, object]]
) -> None:
    same = hash_chunk(make_table(left)) == hash_chunk(make_table(right))
    assert same == (left == right)


@given(MESSAGES, st.integers(0, 6))
def test_hash_does_not_depend_on_how_the_rows_are_held(
    messages: list[dict[str, object]], cut: int
) -> None:
    whole = make_table(messages)
    pieces = pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])
    assert hash_chunk(pieces) == hash_chunk(whole)


def test_a_chunk_is_read_back_as_written(tmp_path: Path) -> None:
    table = make_table([ONE, {**ONE, "message_id": "0100", "key": None, "value": None}])
    chunk = write_chunk(tmp_path, 1, 0, table, canary=True)
    assert read_chunk(tmp_path, chunk).equals(table)
    assert (chunk.count, chunk.bytes, chunk.canary) == (2, 3, True)


def test_staged_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    chunk = write_chunk(tmp_path / "r-1", 1, 0, make_table([ONE]))
    write_manifest(tmp_path / "r-1", Manifest("r-1", "orders", (chunk,), {}))
    for path in (tmp_path / "r-1").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_damaged_or_missing_chunks_are_noticed(tmp_path: Path) -> None:
    chunk = write_chunk(tmp_path, 1, 0, make_table([ONE]))
    other = write_chunk(tmp_path, 1, 1, make_table([{**ONE, "value": b"{ }"}]))
    (tmp_path / chunk.path).write_bytes((tmp_path / other.path).read_bytes())
    with pytest.raises(StagingError, match="not those of the plan"):
        read_chunk(tmp_path, chunk)
    (tmp_path / chunk.path).write_bytes(b"PAR1")
    with pytest.raises(StagingError, match="could not be read"):
        read_chunk(tmp_path, chunk)


def test_a_changed_manifest_is_refused(tmp_path: Path) -> None:
    chunk = write_chunk(tmp_path, 1, 0, make_table([ONE]))
    manifest = Manifest("r-1", "orders", (chunk,), {"stream": "orders"})
    sha256 = write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path, sha256) == manifest
    write_manifest(tmp_path, Manifest("r-1", "orders", (), {"stream": "orders"}))
    with pytest.raises(StagingError, match="not the one that was approved"):
        read_manifest(tmp_path, sha256)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # org.apache.kafka.common.utils.UtilsTest
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_has_kafkas_known_values(key: bytes, expected: int) -> None:
    assert np.array([hash_murmur2(key)], dtype=np.uint32).view(np.int32)[0] == expected


def _make_keys() -> list[bytes | None]:
    source = random.Random(7)
    keys: list[bytes | None] = [b"", None, b"\xff" * 9, "\N{SNOWMAN}".encode()]
    keys += [str(number).encode() for number in range(500)]
    keys += [source.randbytes(source.randrange(0, 70)) for _ in range(1500)]
    return keys


def test_whole_columns_agree_with_the_reference() -> None:
    keys = _make_keys()
    array = pa.array(keys, type=pa.binary())
    expected = [-1 if k is None else (hash_murmur2(k) & 0x7FFFFFFF) % 7 for k in keys]
    assert place_murmur2(array, 7).tolist() == expected
    # A slice has an offset into its buffers.
    assert place_murmur2(array.slice(11, 600), 7).tolist() == expected[11:611]
    assert place_murmur2(array.slice(0, 0), 7).tolist() == []


def test_murmur2_is_that_of_kafkas_clients(spark: SparkSession) -> None:
    assert spark._jvm is not None
    utils = spark._jvm.org.apache.kafka.common.utils.Utils
    for key in _make_keys()[4::9]:
        assert key is not None
        assert utils.toPositive(utils.murmur2(bytearray(key))) == hash_murmur2(key) & 0x7FFFFFFF


def test_crc32_is_that_of_librdkafka() -> None:
    keys = _make_keys()
    placed = place_crc32(pa.array(keys, type=pa.binary()), 12)
    assert placed.tolist() == [-1 if k is None else zlib.crc32(k) % 12 for k in keys]


PARTS = st.lists(st.none() | st.text(max_size=4), min_size=1, max_size=3)


@given(PARTS, st.text(max_size=4), PARTS, st.text(max_size=4))
def test_ids_are_equal_only_for_equal_parts(
    key: list[str | None], version: str, other_key: list[str | None], other_version: str
) -> None:
    same = make_message_id("t", key, version) == make_message_id("t", other_key, other_version)
    assert same == ((key, version) == (other_key, other_version))


def test_an_id_is_stable_over_releases() -> None:
    assert make_message_id("orders", ["7"], "v") == "dff0b13459d66bfebe23ffbb7ba89f00"


def test_our_headers_follow_the_streams_own() -> None:
    headers = stamp(
        [("type", b"OrderPaid")],
        message_id="m",
        recovery_id="r-1",
        original_time="t",
        fidelity="restated",
    )
    assert [name for name, _ in headers] == [
        "type",
        "backlog-message-id",
        "backlog-recovery-id",
        "backlog-original-time",
        "backlog-fidelity",
        "backlog-replays",
    ]
    assert find_header(headers, "backlog-replays") == "1"
    assert find_header(headers, "absent") is None


def test_errors_cross_process_borders() -> None:
    error = PlanStale("changed", subject="topic orders", hint="plan again", retryable=True)
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, BacklogError)
    assert (type(copy), copy.to_json()) == (type(error), error.to_json())
