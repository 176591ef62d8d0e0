"""Old messages as Parquet: read and written in pieces, and in place only when it is whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import Connection, Select

from backlog.ledger.columns import encode_json

_PIECE = 5_000
_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("id", "biz_type", "biz_id", "state")),
        *(pa.field(name, pa.string()) for name in ("decision", "decided_by", "service", "topic")),
        *(pa.field(name, pa.binary()) for name in ("key", "value")),
        pa.field("headers", pa.string()),  # JSON: [[name, base64 or null]]
        *(pa.field(name, _TIME) for name in ("created_at", "decided_at", "ended_at")),
        *(pa.field(name, pa.int32()) for name in ("checks", "forwards")),
    ]
)


def write_archive(connection: Connection, rows: Select[Any], file: Path) -> int:
    """Writes the rows to a file, readable by its owner only; how many.

    Raises:
        OSError: it could not be written; a file that was there is as it was.
    """
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    count = 0
    try:
        with os.fdopen(handle, "wb") as out:
            with pq.ParquetWriter(out, SCHEMA, compression="zstd") as writer:
                found = connection.execution_options(yield_per=_PIECE).execute(rows)
                for piece in found.mappings().partitions(_PIECE):
                    # JSON stays text: a header's name is data.
                    made = [{**row, "headers": _as_text(row["headers"])} for row in piece]
                    writer.write_table(pa.Table.from_pylist(made, SCHEMA))
                    count += len(made)
            out.flush()
            os.fsync(out.fileno())
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(file.parent)
    return count


def _as_text(headers: Any) -> str | None:
    return None if headers is None else encode_json(headers)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
