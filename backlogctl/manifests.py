"""Staged messages and archives: their layout on disk, and the manifests with their hashes."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from backlogctl.errors import StagingChanged, StagingError
from backlogctl.values import Chunk, hash_value

#     <staging>/<recovery id>/manifest.json
#     <staging>/<recovery id>/messages/slot=00003/chunk=000007.parquet   payloads
#     <staging>/<recovery id>/ids/slot=00003/chunk=000007.parquet        message ids, kept longer
#
# Files are readable by their owner only: they hold customers' data.

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
MESSAGES_FOLDER = "messages"
# Of a message in the log beside key and value: our headers, a record's own bytes, indexes.
MESSAGE_BYTES = 300

HEADER_TYPE = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
CHUNK_SCHEMA = pa.schema(
    [
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("headers", HEADER_TYPE, nullable=False),
        pa.field("original_time", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was staged for one recovery. `origin` says what made it (configuration, bounds)."""

    recovery_id: str
    topic: str
    chunks: tuple[Chunk, ...]
    origin: Mapping[str, Any]

    @property
    def count(self) -> int:
        """Messages staged."""
        return sum(chunk.count for chunk in self.chunks)

    def list_slots(self) -> dict[int, tuple[Chunk, ...]]:
        """Chunks of each slot in their order."""
        slots: dict[int, list[Chunk]] = {}
        for chunk in sorted(self.chunks, key=lambda c: (c.slot, c.number)):
            slots.setdefault(chunk.slot, []).append(chunk)
        return {slot: tuple(chunks) for slot, chunks in slots.items()}


def hash_chunk(table: pa.Table) -> str:
    """SHA-256 of a chunk's messages: the Arrow IPC stream of its columns in schema order."""
    whole = table.select(CHUNK_SCHEMA.names).cast(CHUNK_SCHEMA).combine_chunks()
    sink = _HashSink()
    for column in whole.columns:
        flat = column.chunk(0) if column.num_chunks else pa.array([], type=column.type)
        _hash_array(sink, flat)
    return sink.digest.hexdigest()


class _HashSink:
    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def add(self, data: bytes | memoryview) -> None:
        self.digest.update(len(data).to_bytes(8, "big"))
        self.digest.update(data)


def _hash_array(sink: _HashSink, array: Any) -> None:
    """Hashes content, not buffers: a slice or a file's padding must not change the hash."""
    sink.add(len(array).to_bytes(8, "big"))
    sink.add(memoryview(array.is_valid().cast(pa.uint8()).to_numpy(zero_copy_only=False)).cast("B"))
    if pa.types.is_list(array.type):
        sink.add(_lengths(array.value_lengths()))
        _hash_array(sink, array.flatten())
    elif pa.types.is_struct(array.type):
        for index in range(array.type.num_fields):
            _hash_array(sink, array.field(index))
    elif pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        raw = array.cast(pa.binary())
        if raw.null_count:
            raw = raw.fill_null(b"")
        sink.add(_lengths(pa.compute.binary_length(raw)))
        sink.add(_content(raw))
    else:
        sink.add(memoryview(array.fill_null(0).to_numpy(zero_copy_only=False)).cast("B"))


def _content(raw: Any) -> memoryview:
    """The bytes of all values, one after another, without a copy."""
    _, offsets, data = raw.buffers()
    if data is None or len(raw) == 0:
        return memoryview(b"")
    ends = memoryview(offsets).cast("B").cast("i")
    return memoryview(data).cast("B")[ends[raw.offset] : ends[raw.offset + len(raw)]]


def _lengths(lengths: Any) -> memoryview:
    plain = lengths.fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return memoryview(plain).cast("B")


def name_messages(slot: int, number: int) -> str:
    """The file of a chunk's messages, in the recovery's staging directory."""
    return f"{MESSAGES_FOLDER}/slot={slot:05d}/chunk={number:06d}.parquet"


def name_ids(slot: int, number: int) -> str:
    """The file of a chunk's id list."""
    return f"ids/slot={slot:05d}/chunk={number:06d}.parquet"


def write_ids(directory: Path, slot: int, number: int, table: pa.Table) -> None:
    """Writes the id list of a chunk with these messages."""
    _write_table(directory / name_ids(slot, number), table.select(["message_id"]))


def write_chunk(
    directory: Path, slot: int, number: int, table: pa.Table, *, canary: bool = False
) -> Chunk:
    """Writes one chunk and its id list under the recovery's staging `directory`.

    Safe when a retried task writes the same chunk again: each file appears whole or not at all.
    """
    whole = table.select(CHUNK_SCHEMA.names).cast(CHUNK_SCHEMA)
    path, ids_path = name_messages(slot, number), name_ids(slot, number)
    _write_table(directory / path, whole)
    write_ids(directory, slot, number, whole)
    return Chunk(
        slot=slot,
        number=number,
        count=whole.num_rows,
        bytes=count_payload_bytes(whole),
        sha256=hash_chunk(whole),
        path=path,
        ids_path=ids_path,
        canary=canary,
    )


def count_payload_bytes(table: pa.Table) -> int:
    """Bytes of keys and values."""
    total = 0
    for name in ("key", "value"):
        lengths = pa.compute.sum(pa.compute.binary_length(table[name])).as_py()
        total += int(lengths or 0)
    return total


def read_chunk(directory: Path, chunk: Chunk) -> pa.Table:
    """Reads a staged chunk and checks its hash.

    Raises:
        StagingError: the file is missing, damaged, or not what the manifest says.
    """
    path = directory / chunk.path
    try:
        table = pq.ParquetFile(path).read().cast(CHUNK_SCHEMA)
    except (OSError, pa.ArrowException) as error:
        raise StagingError(
            f"staged messages could not be read: {type(error).__name__}",
            subject=str(path),
            hint="restore the staging directory; what is lost of it comes with a new plan only",
        ) from error
    if table.num_rows != chunk.count or hash_chunk(table) != chunk.sha256:
        raise StagingChanged(
            "staged messages are not those of the plan (their hash differs); nothing was sent",
            subject=str(path),
            hint="cancel this recovery and plan again",
        )
    return table


def write_manifest(directory: Path, manifest: Manifest) -> str:
    """Writes the manifest, whole or not at all; returns the SHA-256 that the plan keeps."""
    value = {"version": SCHEMA_VERSION, **asdict(manifest)}
    write_synced(directory / MANIFEST_NAME, json.dumps(value, indent=1, ensure_ascii=False))
    return hash_value(value)


def read_manifest(directory: Path, expected_sha256: str | None = None) -> Manifest:
    """Reads a manifest back.

    Raises:
        StagingError: it is missing, unreadable, or its hash is not `expected_sha256`.
    """
    path = directory / MANIFEST_NAME
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StagingError(
            f"the manifest could not be read: {type(error).__name__}",
            subject=str(path),
            hint="check `staging.dir`; it must be the directory that the plan was made with",
        ) from error
    if expected_sha256 is not None and hash_value(value) != expected_sha256:
        raise StagingChanged(
            "the manifest is not the one that was approved",
            subject=str(path),
            hint="cancel this recovery and plan again",
        )
    return Manifest(
        recovery_id=value["recovery_id"],
        topic=value["topic"],
        chunks=tuple(Chunk(**chunk) for chunk in value["chunks"]),
        origin=value["origin"],
    )


def _write_table(path: Path, table: pa.Table) -> None:
    make_private(path.parent)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with os.fdopen(_create_private(temporary), "wb") as file:
        pq.write_table(table, file, compression="zstd", compression_level=1)
    temporary.replace(path)


def write_synced(path: Path, text: str) -> None:
    """Writes a file for the owner only, whole or not at all; it outlasts a loss of power."""
    make_private(path.parent)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with os.fdopen(_create_private(temporary), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


def make_private(directory: Path) -> None:
    """Makes a directory and its missing parents, each for the owner only (mkdir: the last one)."""
    for parent in reversed([directory, *directory.parents]):
        parent.mkdir(exist_ok=True, mode=0o700)


def sync_path(path: Path) -> None:
    """What is written of a file, or the names in a directory, outlast a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _create_private(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
