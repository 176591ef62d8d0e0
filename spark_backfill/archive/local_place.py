"""An archive in a folder of this machine, with the verbs of `ArchivePlace`, and without Spark."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backlogctl.archive_manifest import ArchiveFile, ArchiveManifest
from backlogctl.errors import StagingError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# What is asked of the place of an archive, whether Spark or this process looks at it.


class Place(Protocol):
    """Files under one location; paths are relative to it, with slashes."""

    location: str

    def name(self, path: str = "") -> str:
        """Of a file, in full."""

    def exists(self, path: str = "") -> bool:
        """Whether a file is there."""

    def list_files(self) -> dict[str, int]:
        """All files below, with their bytes; none where nothing is there."""

    def read_json(self, path: str) -> Any:
        """What was written as JSON."""

    def hash_files(self, paths: Sequence[str]) -> dict[str, str]:
        """SHA-256 of each."""

    def delete(self, path: str) -> None:
        """A file, or a folder with all that is in it; one that is gone is no failure."""

    def delete_all(self) -> None:
        """The place itself."""


_SCHEME = "file:"


def find_folder(location: str) -> Path | None:
    """Of a location as `normalize_location` gives it; None where it is no folder."""
    return Path(location.removeprefix(_SCHEME)) if location.startswith(_SCHEME) else None


class LocalPlace:
    """Files under one folder; paths are relative to it. No symbolic link is followed.

    Raises:
        StagingError: of every verb: it could not be done.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.location = f"{_SCHEME}{folder}"

    def name(self, path: str = "") -> str:
        """Of a file, in full."""
        return f"{self.location}/{path}" if path else self.location

    def exists(self, path: str = "") -> bool:
        return (self.folder / path).exists()

    def list_files(self) -> dict[str, int]:
        """All files below, with their bytes; none where nothing is there."""
        found: dict[str, int] = {}
        with self._doing("list", ""):
            for folder, _, names in os.walk(self.folder, onerror=_raise):
                for name in names:
                    path = Path(folder) / name
                    found[str(path.relative_to(self.folder))] = path.lstat().st_size
        return found

    def read_json(self, path: str) -> Any:
        """What was written as JSON."""
        with self._doing("read", path):
            text = (self.folder / path).read_text()
        try:
            return json.loads(text)
        except ValueError as error:
            raise StagingError(
                "it holds no JSON", subject=self.name(path), hint="it was changed by others"
            ) from error

    def hash_files(self, paths: Sequence[str]) -> dict[str, str]:
        """SHA-256 of each."""
        found: dict[str, str] = {}
        for path in paths:
            with self._doing("hash", path), (self.folder / path).open("rb") as file:
                found[path] = hashlib.file_digest(file, "sha256").hexdigest()
        return found

    def delete(self, path: str) -> None:
        """A file, or a folder with all that is in it; one that is gone is no failure."""
        whole = self.folder / path
        with self._doing("delete", path):
            if whole.is_dir() and not whole.is_symlink():
                shutil.rmtree(whole)
            else:
                whole.unlink(missing_ok=True)

    def delete_all(self) -> None:
        """The place itself."""
        self.delete("")

    @contextmanager
    def _doing(self, verb: str, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StagingError(
                f"could not {verb} it: {error.strerror or type(error).__name__}",
                subject=self.name(path),
                hint="is it there, and may you use it?",
            ) from error


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


# A few messages of an archive, for people: by place or by key.

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

    from backlogctl.spark_backfill.archive.place import ArchivePlace
    from backlogctl.spark_backfill.archive.reading import read_files
    from backlogctl.spark_backfill.failures import translating

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
