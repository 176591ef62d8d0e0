"""Packed pieces make one gzip member, whatever they are."""

from __future__ import annotations

import gzip
import zlib

from hypothesis import given
from hypothesis import strategies as st

from monitoring.metrics.crc import combine_crc
from monitoring.metrics.exposition import Packed, pack, write_gzip


@given(st.binary(max_size=500), st.binary(max_size=500))
def test_a_crc_of_two_is_that_of_both_together(first: bytes, second: bytes) -> None:
    one, other = zlib.crc32(first), zlib.crc32(second)
    assert combine_crc(one, other, len(second)) == zlib.crc32(first + second)


@given(st.lists(st.binary(max_size=300), max_size=6), st.integers(0, 6))
def test_pieces_are_one_member_that_any_reader_reads(texts: list[bytes], joined: int) -> None:
    pieces = [pack(text) for text in texts]
    together = sum(pieces[:joined], Packed())
    data = b"".join(write_gzip([together, *pieces[joined:]]))
    assert gzip.decompress(data) == b"".join(texts)
    # A reader that knows one member only has all of it.
    reader = zlib.decompressobj(zlib.MAX_WBITS | 16)
    assert reader.decompress(data) + reader.flush() == b"".join(texts)
    assert (reader.eof, reader.unused_data) == (True, b"")
