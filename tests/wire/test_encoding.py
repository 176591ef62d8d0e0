"""Arrow columns that become batches, read by another reader."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backlogctl.kafka.batches import scan_batches
from backlogctl.wire.encoding import encode_table
from tests.wire.test_routing import Record, read, records, seal

SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"name": pa.string(), "value": pa.binary()})),
    }
)


def make_table(found: list[Record]) -> pa.Table:
    rows = [
        {"key": key, "value": value, "headers": [{"name": n, "value": v} for n, v in headers]}
        for _, key, value, headers in found
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


@settings(deadline=None)
@given(records, st.integers(0, 5), st.sampled_from((60, 400, 1_000_000)))
def test_each_row_is_a_record(found: list[Record], left: int, limit: int) -> None:
    """Of a part of a table as well, and of one in several chunks."""
    table = pa.concat_tables([make_table(found[:3]), make_table(found[3:])])[left:]
    batches = encode_table(table, "orders", 7, 1_700_000_000_000, "none", limit)
    got = []
    for one in batches:
        assert (one.topic, one.partition) == ("orders", 7)
        batch = seal(one)
        (header,) = scan_batches(batch).headers
        assert header.record_count == one.count
        assert one.count == 1 or header.size - 61 <= limit
        got += read(batch)
    assert got == [(1_700_000_000_000, *record[1:]) for record in found[left:]]


@pytest.mark.parametrize("codec", ["gzip", "lz4"])
def test_a_large_message_is_a_batch_of_its_own(codec: str) -> None:
    found: list[Record] = [(0, b"k", b"x" * 500_000, ()), (0, None, None, ()), (0, b"", b"", ())]
    batches = encode_table(make_table(found), "orders", 0, 5, codec, 10_000)
    assert [one.count for one in batches] == [1, 2]
    assert [r for one in batches for r in read(seal(one))] == [(5, *r[1:]) for r in found]
