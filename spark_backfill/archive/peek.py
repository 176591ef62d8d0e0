"""A few messages of an archive, for people: by place or by key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backlogctl.archive_manifest import ArchiveFile, ArchiveManifest
from backlogctl.errors import StagingError
from backlogctl.spark_backfill.archive.place import ArchivePlace
from backlogctl.spark_backfill.failures import translating

_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages; None takes any. `offset` is the first that is wanted."""

    partition: int | None = None
    offset: int | None = None
    key: bytes | None = None
    limit: int = 10


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """One message as it lies in an archive; `timestamp` is in milliseconds."""

    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def peek_archive(
    place: ArchivePlace, manifest: ArchiveManifest, wanted: Wanted
) -> tuple[ArchivedMessage, ...]:
    """By partition and offset; files of a folder are read no further than needed, and without
    Spark.

    Raises:
        StagingError: a file is missing or is no Parquet.
    """
    files = _choose_files(manifest, wanted)
    if place.folder is None:
        return _peek_by_spark(place, files, wanted)
    found: list[ArchivedMessage] = []
    for file in files:
        try:
            for message in _read_file(place.folder / file.path, file.partition, wanted):
                found.append(message)
                if len(found) >= wanted.limit:
                    return tuple(found)
        except (OSError, pa.ArrowException) as error:
            raise StagingError(
                f"it could not be read: {type(error).__name__}",
                subject=place.name(file.path),
                hint=f"`backlogctl archive verify {manifest.recovery_id}` says what is wrong",
            ) from error
    return tuple(found)


def _peek_by_spark(
    place: ArchivePlace, files: list[ArchiveFile], wanted: Wanted
) -> tuple[ArchivedMessage, ...]:
    from pyspark.sql import functions as F  # noqa: N812

    from backlogctl.spark_backfill.archive.reading import read_files

    with translating("read it", subject=place.location, kind=StagingError):
        frame = read_files(place.spark, place, [file.path for file in files])
        if wanted.offset is not None:
            frame = frame.where(F.col("offset") >= wanted.offset)
        if wanted.key is not None:
            frame = frame.where(F.col("key") == F.lit(bytearray(wanted.key)))
        rows = frame.orderBy("partition", "offset").limit(wanted.limit).collect()
    return tuple(_to_message(row["partition"], row.asDict(recursive=True)) for row in rows)


def _choose_files(manifest: ArchiveManifest, wanted: Wanted) -> list[ArchiveFile]:
    files = sorted(manifest.files, key=lambda file: (file.partition, file.first_offset))
    return [
        file
        for file in files
        if wanted.partition in (None, file.partition)
        and (wanted.offset is None or file.last_offset >= wanted.offset)
    ]


def _read_file(path: Path, partition: int, wanted: Wanted) -> Iterator[ArchivedMessage]:
    first = wanted.offset or 0
    with pq.ParquetFile(path) as source:
        groups = [n for n in range(source.num_row_groups) if _may_hold(source, n, first)]
        for batch in source.iter_batches(_BATCH, row_groups=groups):
            chosen = batch.filter(pc.greater_equal(batch["offset"], first))
            if wanted.key is not None:
                chosen = chosen.filter(pc.equal(chosen["key"], pa.scalar(wanted.key, pa.binary())))
            for row in chosen.to_pylist():
                yield _to_message(partition, row)


def _may_hold(source: Any, group: int, first: int) -> bool:
    columns = source.metadata.row_group(group)
    for number in range(columns.num_columns):
        column = columns.column(number)
        if column.path_in_schema == "offset" and column.is_stats_set:
            return bool(column.statistics.max >= first)
    return True


def _to_message(partition: int, row: dict[str, Any]) -> ArchivedMessage:
    return ArchivedMessage(
        partition,
        row["offset"],
        row["timestamp"],
        row["timestamp_type"],
        _read(row["key"]),
        _read(row["value"]),
        tuple((item["name"], _read(item["value"])) for item in row["headers"]),
    )


def _read(raw: bytes | bytearray | None) -> bytes | None:
    return None if raw is None else bytes(raw)
