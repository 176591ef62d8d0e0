"""A message's fingerprint: SHA-256 over its partition, key, value and headers.

All parts are joined twice, with other marks for a border and for NULL. Where the two texts differ
there is a mark, and nowhere else, so no two messages are written alike, whatever bytes they hold.

A topic is read by Spark, a staged file by Python, which reads it to check its hash anyway; so the
same is said twice here.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column

# Border, NULL: the second pair is the first one swapped.
_MARKS = (("\0", "\1"), ("\1", "\0"))


def fingerprint_read() -> Column:
    """Of a message as Spark reads it from a topic. No lambda: Spark interprets those."""

    def text(name: str, kind: str) -> Column:
        # The cast keeps the bytes as they are, also where they are no UTF-8.
        return F.col(name).cast(kind)

    own = F.array(*(text(name, "string") for name in ("partition", "key", "value")))
    kind = "array<string>"
    headers = (text(name, kind) for name in ("headers.key", "headers.value"))
    # Spark gives NULL for no headers, a staged file an empty list.
    parts = F.concat(own, *(F.coalesce(part, F.array().cast(kind)) for part in headers))
    twice = F.concat(*(F.array_join(parts, border, null) for border, null in _MARKS))
    return F.unhex(F.sha2(twice.cast("binary"), 256))


def fingerprint_staged(batch: pa.RecordBatch) -> pa.Array:
    """Of each message of a staged chunk, or of a part of one."""
    own = [batch[name].cast(pa.binary()) for name in ("key", "value")]
    own = [batch["partition"].cast(pa.string()).cast(pa.binary()), *own]
    headers = batch["headers"]
    # A slice's offsets count from the whole column's start.
    offsets = pa.compute.subtract(headers.offsets, headers.offsets[0])
    columns = [column.cast(pa.binary()) for column in headers.flatten().flatten()]

    def join(border: bytes, null: bytes) -> Any:
        lists = [pa.ListArray.from_arrays(offsets, c.fill_null(null)) for c in columns]
        texts = [pa.compute.binary_join(items, border) for items in lists]
        # Without headers there is no part to join, not an empty one.
        plain = _join_all([*own], border, null)
        full = _join_all([*own, *texts], border, null)
        return pa.compute.if_else(pa.compute.equal(headers.value_lengths(), 0), plain, full)

    twice = _join_all([join(border.encode(), null.encode()) for border, null in _MARKS], b"", b"")
    return pa.array([hashlib.sha256(text).digest() for text in twice.to_pylist()], pa.binary())


def _join_all(columns: list[Any], border: bytes, null: bytes) -> Any:
    return pa.compute.binary_join_element_wise(
        *columns, border, null_handling="replace", null_replacement=null
    )
