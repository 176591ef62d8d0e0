"""Kernels are compiled when they are imported, and never later."""

from __future__ import annotations

import subprocess
import sys

import pytest

from backlogctl.wire.kernels import write_batches

_NOWHERE = """
from numba.core import caching
caching.CacheImpl._locator_classes = []
import backlogctl.wire.kernels
"""
# As an injection and a relay do it: import, then write.
_READY = """
import io
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from backlogctl.spark_backfill.injection import batch_producer
from backlogctl.wire import kernels
from backlogctl.wire.encoding import encode_table
kept = [kernels.place_records, kernels.write_batches, kernels.encode_tails]
before = [list(one.signatures) for one in kept]
assert not any(one.stats.cache_misses for one in kept), "it was compiled"
rows = {"key": [b"a", None, b"c"], "value": [b"1", b"2", None],
        "headers": [[{"name": "n", "value": b"v"}], [], [{"name": "m", "value": None}]]}
made = pa.table(rows, batch_producer._RECORD)
file = io.BytesIO()
pq.write_table(made, file)
read = pq.read_table(pa.BufferReader(file.getvalue()))
large = made.set_column(0, "key", made["key"].cast(pa.large_binary()))
for table in (made, made.slice(1), made[:0], read, read.slice(1, 1), large, large.slice(1),
              pa.concat_tables([made, read])):
    encode_table(table, "orders", 0, 1, "none", 1_000_000)
data = np.frombuffer(bytes(1), np.uint8)
args = np.zeros((1, kernels.RECORD_COLUMNS), np.int64), np.zeros(kernels.TOTALS, np.int64)
none = np.zeros((0, kernels.BATCH_COLUMNS), np.int64)
kernels.place_records(data, none, 0, 0, 0, 1, 0, kernels.crc_table(), *args)
assert [list(one.signatures) for one in kept] == before, "there is another signature"
assert [len(one) for one in before] == [1, 1, 1]
assert not any(one.stats.cache_misses for one in kept), "it was compiled"
"""


def run(code: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stderr


def test_without_a_place_for_their_cache_kernels_are_compiled_each_time() -> None:
    """As where a home directory may not be written, and the code is in a zip."""
    assert run(_NOWHERE) == (0, "")


def test_an_injection_compiles_nothing_once_the_cache_is_there() -> None:
    """Whatever its tables come from: of Arrow, buffers are read-only or not."""
    assert run("import backlogctl.wire.kernels") == (0, "")
    assert run(_READY) == (0, "")


def test_what_has_another_type_is_refused_and_not_compiled() -> None:
    with pytest.raises(TypeError, match="No matching definition"):
        write_batches(b"", 0, 0, 0, 0, 0)
