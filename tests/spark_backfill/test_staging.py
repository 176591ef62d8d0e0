"""Cutting chunks: sizes, canaries, headers and determinism."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.manifests import CHUNK_SCHEMA, read_chunk
from backlogctl.spark_backfill.messages.staging import (
    ChunkLimits,
    StampValues,
    stamp_messages,
    write_chunks,
)
from backlogctl_delivery import stamps

SCHEMA = pa.schema(
    [
        ("slot", pa.int32()),
        ("message_id", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("header_values", pa.list_(pa.binary())),
        ("original_time", pa.string()),
    ]
)
VALUES = StampValues("r-20261121-0001", "restated", ("type", "trace"))


def make_rows(slots: dict[int, int], size: int = 10) -> pa.Table:
    rows = [
        {
            "slot": slot,
            "message_id": f"{slot:016x}{number:016x}",
            "key": None if number % 5 == 0 else str(number).encode(),
            "value": b"v" * size,
            "header_values": [b"OrderPaid", None if number % 2 else b"\xff"],
            "original_time": f"2026-11-20T12:00:00.{number:06d}Z",
        }
        for slot, count in slots.items()
        for number in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def cut(table: pa.Table, directory: Path, limits: ChunkLimits, batch: int) -> list[tuple[int, ...]]:
    chunks = list(write_chunks(table.to_batches(max_chunksize=batch), directory, limits, VALUES))
    back = pa.concat_tables([read_chunk(directory, c) for c in chunks])
    assert back["message_id"].to_pylist() == table["message_id"].to_pylist()
    assert back["partition"].to_pylist() == table["slot"].to_pylist()
    return [(c.slot, c.number, c.count, int(c.canary)) for c in chunks]


def test_canaries_are_the_first_three_chunks_of_one_slot(tmp_path: Path) -> None:
    limits = ChunkLimits(messages=40, canary_slot=2)
    table = make_rows({0: 45, 2: 100})
    assert cut(table, tmp_path, limits, 17) == [
        (0, 0, 40, 0),
        (0, 1, 5, 0),
        (2, 0, 10, 1),
        (2, 1, 10, 1),
        (2, 2, 10, 1),
        (2, 3, 40, 0),
        (2, 4, 30, 0),
    ]


@pytest.mark.parametrize(("count", "expected"), [(4, [4]), (10, [10]), (23, [10, 10, 3])])
def test_few_messages_make_fewer_canaries(tmp_path: Path, count: int, expected: list[int]) -> None:
    made = cut(make_rows({1: count}), tmp_path, ChunkLimits(canary_slot=1), 7)
    assert [item[2] for item in made] == expected
    assert all(item[3] for item in made)


def test_a_chunk_is_cut_by_its_bytes_too(tmp_path: Path) -> None:
    limits = ChunkLimits(messages=100, bytes=1000)
    made = cut(make_rows({0: 9}, size=400), tmp_path, limits, 4)
    assert [item[2] for item in made] == [2, 2, 2, 2, 1]
    # A message larger than a chunk is still sent, alone.
    alone = cut(make_rows({0: 3}, size=5000), tmp_path / "large", limits, 2)
    assert [item[2] for item in alone] == [1, 1, 1]


@given(
    slots=st.dictionaries(st.integers(0, 4), st.integers(1, 60), min_size=1),
    batch=st.integers(1, 70),
    messages=st.integers(1, 50),
    size=st.integers(0, 60),
)
def test_chunks_do_not_depend_on_how_rows_arrive(
    tmp_path_factory: pytest.TempPathFactory,
    slots: dict[int, int],
    batch: int,
    messages: int,
    size: int,
) -> None:
    limits = ChunkLimits(messages=messages, bytes=500, canary_slot=min(slots))
    table = make_rows(dict(sorted(slots.items())), size)
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    first = list(write_chunks(table.to_batches(max_chunksize=batch), one, limits, VALUES))
    second = list(write_chunks(table.to_batches(), two, limits, VALUES))
    assert first == second
    assert sum(chunk.count for chunk in first) == table.num_rows
    for chunk in first:
        assert (one / chunk.path).read_bytes() == (two / chunk.path).read_bytes()


def test_headers_are_the_streams_own_then_the_stamps() -> None:
    table = make_rows({3: 7})
    stamped = stamp_messages(table.slice(2), VALUES)
    assert stamped.schema == CHUNK_SCHEMA
    for made, row in zip(stamped.to_pylist(), table.slice(2).to_pylist(), strict=True):
        expected = stamps.stamp(
            list(zip(("type", "trace"), row["header_values"], strict=True)),
            message_id=row["message_id"],
            recovery_id=VALUES.recovery_id,
            original_time=row["original_time"],
            fidelity="restated",
        )
        assert [(h["name"], h["value"]) for h in made["headers"]] == expected
        assert (made["key"], made["value"]) == (row["key"], row["value"])


def test_files_are_their_owners_only(tmp_path: Path) -> None:
    cut(make_rows({0: 3}), tmp_path / "r", ChunkLimits(), 10)
    files = list((tmp_path / "r").rglob("*.parquet"))
    assert len(files) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)
