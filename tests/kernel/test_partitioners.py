"""Partitioners against known values and against Kafka's own code."""

from __future__ import annotations

import random
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from backlogctl.partitioners import hash_murmur2, place_crc32, place_murmur2

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
