"""Keys and values with a schema, as conditions see them: their JSON, and fields with types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from backlogctl.config import Part
from backlogctl.schemas.codecs import Decoder, StreamFormat
from backlogctl.schemas.frames import (
    KEY_HEADER,
    LEADS,
    VALUE_HEADER,
    Unreadable,
    find_frame_header,
    read_schema_id,
)
from backlogctl.schemas.shapes import Entries, Items, Shape
from backlogctl.spark_backfill.spark.frames import last_header, quote_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The column with a part's JSON, NULL where it cannot be decoded.
TEXTS: Mapping[Part, str] = {"key": "key_json", "value": "value_json"}
_HEADERS: Mapping[Part, str] = {"key": KEY_HEADER, "value": VALUE_HEADER}
# A stream whose messages have more schemas than this is no stream of one format.
_MOST_SCHEMAS = 1000
_ROOT = "v"


@dataclass(frozen=True, slots=True)
class Readable:
    """How a part of messages is decoded, and what comes of it."""

    decoder: Decoder
    shape: Shape


def find_readable(frame: DataFrame, formats: Mapping[Part, StreamFormat]) -> dict[Part, Readable]:
    """Of messages with `key`, `value` and `headers`: they are read once for the schemas they name.

    Raises:
        RegistryFailure: a registry does not answer.
    """
    found = {}
    leads = frame.select(*(_read_lead(part).alias(part) for part in formats)).distinct()
    rows = leads.limit(_MOST_SCHEMAS).collect()
    for part, its in formats.items():
        named = sorted({bytes(row[part]) for row in rows if row[part] is not None})
        ids = [one for lead in named if (one := read_schema_id(lead)) is not None]
        decoder = its.make_decoder(ids)
        found[part] = Readable(decoder, decoder.find_shape())
    return found


def _read_lead(part: Part) -> Column:
    """The bytes that name the schema, of the header where there is one; else NULL."""
    raw = F.coalesce(last_header(_HEADERS[part]), F.col(part))
    first = F.substring(raw, 1, 1)
    made = F.lit(None).cast("binary")
    for byte, size in LEADS.items():
        made = F.when(first == F.lit(bytearray([byte])), F.substring(raw, 1, size)).otherwise(made)
    return made


def add_texts(frame: DataFrame, decoders: Mapping[Part, Decoder]) -> DataFrame:
    """Adds the columns of `TEXTS`."""
    made = [T.StructField(TEXTS[part], T.StringType()) for part in decoders]
    its = dict(decoders)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _decode_batch(batch, its)

    return frame.mapInArrow(run, T.StructType([*frame.schema.fields, *made]))


def _decode_batch(batch: pa.RecordBatch, decoders: Mapping[Part, Decoder]) -> pa.RecordBatch:
    headers = batch.column("headers").to_pylist()
    columns = {name: batch.column(name) for name in batch.schema.names}
    for part, decoder in decoders.items():
        texts = [
            _decode(decoder, raw, part, pairs)
            for raw, pairs in zip(batch.column(part).to_pylist(), headers, strict=True)
        ]
        columns[TEXTS[part]] = pa.array(texts, pa.string())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _decode(decoder: Decoder, raw: bytes | None, part: Part, headers: Any) -> str | None:
    if raw is None:
        return None
    named = {pair["name"]: pair["value"] for pair in headers or ()}
    try:
        return decoder.decode(raw, find_frame_header(named, key=part == "key"))
    except Unreadable:
        return None


def read_fields(part: Part, shape: Shape) -> Column:
    """The part with its fields, of its JSON."""
    # A value of its own, such as a text, is no JSON that Spark reads; inside of an object it is.
    text = F.concat(F.lit(f'{{"{_ROOT}":'), F.col(TEXTS[part]), F.lit("}"))
    return F.from_json(text, f"{_ROOT} {render_shape(shape)}")[_ROOT]


def render_shape(shape: Shape) -> str:
    """The type in Spark's SQL."""
    match shape:
        case str():
            return shape
        case Items():
            return f"array<{render_shape(shape.item)}>"
        case Entries():
            return f"map<string,{render_shape(shape.item)}>"
    if not shape:
        return "string"
    fields = (f"{quote_column(name)}: {render_shape(one)}" for name, one in shape.items())
    return f"struct<{', '.join(fields)}>"
