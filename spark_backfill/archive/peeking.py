"""A few messages of an archive, for people: by place or by key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backlog.archive import ArchiveFile, ArchiveManifest
from backlog.errors import StagingError
from spark_backfill.archive.local_place import LocalPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def peek_local(
    place: LocalPlace, manifest: ArchiveManifest, wanted: Wanted
) -> tuple[ArchivedMessage, ...]:
    """By partition and offset; files are read no further than needed.

    Raises:
        StagingError: a file is missing or is no Parquet.
    """
    found: list[ArchivedMessage] = []
    for file in _choose_files(manifest, wanted):
        try:
            for message in _read_file(place, file, wanted):
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


def peek_archive(
    spark: SparkSession, location: str, manifest: ArchiveManifest, wanted: Wanted
) -> tuple[ArchivedMessage, ...]:
    """The same by Spark, for object stores.

    Raises:
        StagingError: it could not be read.
    """
    from pyspark.sql import functions as F  # noqa: N812

    from spark_backfill.archive.filesystem import ArchivePlace
    from spark_backfill.archive.reading import read_files
    from spark_backfill.failures import translating

    paths = [file.path for file in _choose_files(manifest, wanted)]
    with translating("read it", subject=location, kind=StagingError):
        frame = read_files(spark, ArchivePlace(spark, location), paths)
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


def _read_file(place: LocalPlace, file: ArchiveFile, wanted: Wanted) -> Iterator[ArchivedMessage]:
    first = wanted.offset or 0
    with pq.ParquetFile(place.folder / file.path) as source:
        groups = [n for n in range(source.num_row_groups) if _may_hold(source, n, first)]
        for batch in source.iter_batches(_BATCH, row_groups=groups):
            chosen = batch.filter(pc.greater_equal(batch["offset"], first))
            if wanted.key is not None:
                chosen = chosen.filter(pc.equal(chosen["key"], pa.scalar(wanted.key, pa.binary())))
            for row in chosen.to_pylist():
                yield _to_message(file.partition, row)


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
