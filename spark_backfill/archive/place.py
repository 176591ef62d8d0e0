"""The place of an archive, and what can stop one that is being written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from backlogctl.errors import ConfigurationError, KafkaFailure, StagingError
from backlogctl.manifests import make_private, sync_path, write_synced
from backlogctl.spark_backfill.failures import is_target_full, translating
from backlogctl.spark_backfill.spark.cluster import needs_s3, require_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    # Asked for only where Spark is needed.
    Spark = SparkSession | Callable[[], SparkSession]


class ArchiveLagging(KafkaFailure):
    """Retention deletes what is to be archived before it is read.

    `moved` says of each partition which offset was needed next, and where its log starts now.
    """

    code = "archive_lagging"

    def __init__(
        self, message: str, *, moved: Mapping[int, tuple[int, int]] | None = None, **rest: Any
    ) -> None:
        super().__init__(message, **rest)
        self.moved = dict(moved or {})


class ArchiveFull(StagingError):
    """No space is left in the archive's place; what is in it stays, and the work goes on there."""

    code = "archive_full"
    retryable = True


def make_lagging(topic: str, moved: Mapping[int, tuple[int, int]]) -> ArchiveLagging:
    places = ", ".join(
        f"[{p}] needed from {needed}, starts at {low}" for p, (needed, low) in sorted(moved.items())
    )
    return ArchiveLagging(
        f"retention has deleted messages before they were archived ({places})",
        subject=f"topic {topic}",
        hint="what is archived stays; make the topic's retention longer and plan again from where "
        "its log starts now: what is gone is a gap",
        moved=moved,
    )


@contextmanager
def filling(location: str) -> Iterator[None]:
    """A full disk of the archive's place is told as that.

    Raises:
        ArchiveFull: no space is left there.
    """
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        if not is_target_full(error):
            raise
        raise ArchiveFull(
            "no space is left in the archive's place",
            subject=location,
            hint="free space there and run it again: it goes on from what is archived",
        ) from None


# The place itself. A folder is used without Spark; any other file system is the one that Spark's
# Hadoop writes the messages to, with the same settings and credentials, in the driver's JVM.

_PRIVATE: Mapping[str, str] = {"fs.permissions.umask-mode": "077"}
# Without the .crc file that Hadoop puts beside each: it says less than our own hash. From its cache
# there would come a file system with other settings.
_LOCAL: Mapping[str, str] = {
    **_PRIVATE,
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
_HASHERS = 4
_BUFFER = 1024 * 1024


class ArchivePlace:
    """Files under one location; paths are relative to it, with slashes.

    Args:
        spark: called, where it is a function, unless the location is a folder.

    Raises:
        ConfigurationError: the location is not a folder or URL that can hold an archive.
        SparkFailure: it is in an object store, and this Spark was started without its jars.
        StagingError: of every verb: it could not be done.
    """

    def __init__(self, spark: Spark, location: str) -> None:
        self.location = normalize_location(location)
        # None where it is no folder of this machine.
        path = self.location.removeprefix("file:")
        self.folder = Path(path) if path != self.location else None
        self._ask = spark
        self._files = self._open()

    @cached_property
    def spark(self) -> SparkSession:
        return self._ask() if callable(self._ask) else self._ask

    @property
    def settings(self) -> Mapping[str, str]:
        """Of Hadoop, to write here: what is written is for its owner only."""
        return _PRIVATE if self.folder is None else _LOCAL

    def name(self, path: str = "") -> str:
        """Of a file, in full."""
        return f"{self.location}/{path}" if path else self.location

    def exists(self, path: str = "") -> bool:
        with self._doing("look for", path):
            return self._files.exists(path)

    def make(self) -> None:
        """Makes the folder and its missing parents, for the owner only."""
        with self._doing("make", ""):
            self._files.make()

    def list_files(self, under: str = "") -> dict[str, int]:
        """All files below, with their bytes; none where nothing is there."""
        with self._doing("list", under):
            return self._files.list_files(under)

    def write_text(self, path: str, text: str) -> None:
        """Writes a small file, whole or not at all; one that is there is replaced."""
        with self._doing("write", path):
            self._files.write_text(path, text)

    def read_json(self, path: str) -> Any:
        """What `write_text` wrote as JSON."""
        with self._doing("read", path):
            text = self._files.read_text(path)
        try:
            return json.loads(text)
        except ValueError as error:
            raise StagingError(
                "it holds no JSON", subject=self.name(path), hint="it was changed by others"
            ) from error

    def delete(self, path: str) -> None:
        """Deletes a file, or a folder with all that is in it; one that is gone is no failure."""
        with self._doing("delete", path):
            self._files.delete(path)

    def delete_all(self) -> None:
        """Deletes the place itself."""
        self.delete("")

    def hash_file(self, path: str) -> str:
        """SHA-256 of its bytes."""
        with self._doing("hash", path):
            return self._files.hash_file(path)

    def hash_files(self, paths: Sequence[str]) -> dict[str, str]:
        """Of several at a time."""
        with ThreadPoolExecutor(_HASHERS) as pool:
            return dict(zip(paths, pool.map(self.hash_file, paths), strict=True))

    def sync(self, paths: Sequence[str]) -> None:
        """On this machine's disks: when it returns they outlast a loss of power. Elsewhere closing
        a file has to do."""
        if self.folder is None:
            return
        with self._doing("sync", ""):
            for path in sorted({*paths, *(path.rpartition("/")[0] for path in paths)}):
                sync_path(self.folder / path)

    def _open(self) -> _Files:
        if self.folder is not None:
            return _Folder(self.folder)
        if needs_s3(self.location):
            require_s3(self.spark, self.location)
        with self._doing("reach", ""):
            return _HadoopFiles(self.spark, self.location)

    @contextmanager
    def _doing(self, verb: str, path: str) -> Iterator[None]:
        hint = "is it there, and may you use it?"
        with (
            translating(f"{verb} it", subject=self.name(path), hint=hint, kind=StagingError),
            filling(self.location),
        ):
            yield


class _Files(Protocol):
    """The files below one root, in one kind of file system."""

    def exists(self, path: str) -> bool: ...
    def make(self) -> None: ...
    def list_files(self, under: str) -> dict[str, int]: ...
    def read_text(self, path: str) -> str: ...
    def write_text(self, path: str, text: str) -> None: ...
    def delete(self, path: str) -> None: ...
    def hash_file(self, path: str) -> str: ...


class _Folder:
    """Of this machine. No symbolic link is followed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def make(self) -> None:
        make_private(self._root)

    def list_files(self, under: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for folder, _, names in os.walk(self._root / under, onerror=_raise):
            for name in names:
                path = Path(folder) / name
                with suppress(FileNotFoundError):  # another run has moved it
                    found[str(path.relative_to(self._root))] = path.lstat().st_size
        return found

    def read_text(self, path: str) -> str:
        return (self._root / path).read_text(encoding="utf-8", errors="replace")

    def write_text(self, path: str, text: str) -> None:
        write_synced(self._root / path, text)

    def delete(self, path: str) -> None:
        whole = self._root / path
        if whole.is_dir() and not whole.is_symlink():
            shutil.rmtree(whole)
        else:
            whole.unlink(missing_ok=True)

    def hash_file(self, path: str) -> str:
        with (self._root / path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


class _HadoopFiles:
    """In the driver's JVM: no byte of a message comes through Python. A file is one put, which is
    there when it is closed."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        java: Any = spark
        self._jvm = java._jvm
        conf = self._jvm.org.apache.hadoop.conf.Configuration(java._jsc.hadoopConfiguration())
        for name, value in _PRIVATE.items():
            conf.set(name, value)
        self._root = self._jvm.org.apache.hadoop.fs.Path(location)
        self._fs = self._root.getFileSystem(conf)

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._at(path)))

    def make(self) -> None:
        self._fs.mkdirs(self._root)

    def list_files(self, under: str) -> dict[str, int]:
        found: dict[str, int] = {}
        if not self._fs.exists(self._at(under)):
            return found
        begin = len(str(self._fs.makeQualified(self._root).toUri().getPath()).rstrip("/")) + 1
        files = self._fs.listFiles(self._at(under), True)
        while files.hasNext():
            status = files.next()
            found[str(status.getPath().toUri().getPath())[begin:]] = int(status.getLen())
        return found

    def read_text(self, path: str) -> str:
        stream = self._fs.open(self._at(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        stream = self._fs.create(self._at(path), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def delete(self, path: str) -> None:
        self._fs.delete(self._at(path), True)

    def hash_file(self, path: str) -> str:
        java = self._jvm.java
        digest = java.security.MessageDigest.getInstance("SHA-256")
        source = java.security.DigestInputStream(self._fs.open(self._at(path)), digest)
        nowhere = java.io.OutputStream.nullOutputStream()
        self._jvm.org.apache.hadoop.io.IOUtils.copyBytes(source, nowhere, _BUFFER, True)
        return bytes(digest.digest()).hex()

    def _at(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path) if path else self._root


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def normalize_location(location: str) -> str:
    """A URL without a slash at its end; a path becomes one.

    Raises:
        ConfigurationError: it is no URL of a Hadoop file system, or all of one.
    """
    scheme = urlsplit(location).scheme
    if scheme in ("s3", "s3n"):
        raise ConfigurationError(
            f"Hadoop writes `{scheme}:` as `s3a:`",
            subject=f"archive {location}",
            hint=f"write s3a:{location.partition(':')[2]}",
        )
    if scheme in ("", "file"):
        path = location.removeprefix("file:")
        path = f"/{path.lstrip('/')}" if path.startswith("//") else path
        return f"file:{os.path.abspath(os.path.expanduser(path))}"  # noqa: PTH100, PTH111
    return location.rstrip("/")
