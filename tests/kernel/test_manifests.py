"""Staged messages: hashes cover the content, damage is noticed, files are the owner's only."""

from __future__ import annotations

import stat
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.errors import StagingError
from backlogctl.manifests import (
    CHUNK_SCHEMA,
    Manifest,
    hash_chunk,
    read_chunk,
    read_manifest,
    write_chunk,
    write_manifest,
)

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
