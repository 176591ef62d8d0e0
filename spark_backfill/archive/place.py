"""What can stop an archive that is being written, and whether it can go on."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from backlogctl.errors import ConfigurationError, KafkaFailure, StagingError
from backlogctl.spark_backfill.failures import is_target_full, translating
from backlogctl.spark_backfill.spark.cluster import needs_s3, require_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


# The place of an archive, a folder or a prefix in an object store, through Hadoop's file systems.
#
# All is done in the driver's JVM: no byte of a message comes through Python.

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

    Raises:
        ConfigurationError: the location is not a folder or URL that can hold an archive.
        SparkFailure: it is in an object store, and this Spark was started without its jars.
        StagingError: of every verb: it could not be done.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = normalize_location(location)
        if needs_s3(self.location):
            require_s3(spark, self.location)
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._conf = jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
        for name, value in self.settings.items():
            self._conf.set(name, value)
        self._root = jvm.org.apache.hadoop.fs.Path(self.location)
        with self._doing("reach", ""):
            self._fs = self._root.getFileSystem(self._conf)

    @property
    def settings(self) -> Mapping[str, str]:
        """Of Hadoop, to write here: what is written is for its owner only."""
        return _LOCAL if self.is_local else _PRIVATE

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of a file system that is mounted."""
        return self.location.startswith("file:")

    def name(self, path: str = "") -> str:
        """Of a file, in full."""
        return f"{self.location}/{path}" if path else self.location

    def exists(self, path: str = "") -> bool:
        with self._doing("look for", path):
            return bool(self._fs.exists(self._at(path)))

    def make(self) -> None:
        """Makes the folder and its missing parents, for the owner only."""
        with self._doing("make", ""):
            self._fs.mkdirs(self._root)

    def list_files(self, under: str = "") -> dict[str, int]:
        """All files below, with their bytes; none where nothing is there."""
        found: dict[str, int] = {}
        with self._doing("list", under):
            if not self._fs.exists(self._at(under)):
                return found
            begin = len(str(self._fs.makeQualified(self._root).toUri().getPath()).rstrip("/")) + 1
            files = self._fs.listFiles(self._at(under), True)
            while files.hasNext():
                status = files.next()
                found[str(status.getPath().toUri().getPath())[begin:]] = int(status.getLen())
        return found

    def read_text(self, path: str) -> str:
        with self._doing("read", path):
            stream = self._fs.open(self._at(path))
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def write_text(self, path: str, text: str) -> None:
        """Writes a small file, whole or not at all; one that is there is replaced."""
        with self._doing("write", path):
            if not self.is_local:  # one put, which is there when it is closed
                self._put(self._at(path), text)
                return
            folder, _, name = path.rpartition("/")
            temporary = f"{folder}/.{name}.{uuid.uuid4().hex}".lstrip("/")
            try:
                self._put(self._at(temporary), text)
                self.sync([temporary])
                if not self._fs.rename(self._at(temporary), self._at(path)):
                    raise OSError("it could not be renamed")
            except BaseException:
                self._fs.delete(self._at(temporary), False)
                raise
        self.sync([path])

    def read_json(self, path: str) -> Any:
        """What `write_text` wrote as JSON."""
        text = self.read_text(path)
        try:
            return json.loads(text)
        except ValueError as error:
            raise StagingError(
                "it holds no JSON", subject=self.name(path), hint="it was changed by others"
            ) from error

    def delete(self, path: str) -> None:
        """Deletes a file, or a folder with all that is in it; one that is gone is no failure."""
        with self._doing("delete", path):
            self._fs.delete(self._at(path), True)

    def delete_all(self) -> None:
        """Deletes the place itself."""
        self.delete("")

    def hash_file(self, path: str) -> str:
        """SHA-256 of its bytes."""
        with self._doing("hash", path):
            java = self._jvm.java
            digest = java.security.MessageDigest.getInstance("SHA-256")
            source = java.security.DigestInputStream(self._fs.open(self._at(path)), digest)
            nowhere = java.io.OutputStream.nullOutputStream()
            self._jvm.org.apache.hadoop.io.IOUtils.copyBytes(source, nowhere, _BUFFER, True)
            return bytes(digest.digest()).hex()

    def hash_files(self, paths: Sequence[str]) -> dict[str, str]:
        """Of several at a time."""
        with ThreadPoolExecutor(_HASHERS) as pool:
            return dict(zip(paths, pool.map(self.hash_file, paths), strict=True))

    def sync(self, paths: Sequence[str]) -> None:
        """On this machine's disks: when it returns they outlast a loss of power."""
        if not self.is_local:
            return
        for path in sorted({*paths, *(path.rpartition("/")[0] for path in paths)}):
            full = Path(self.location.removeprefix("file:")) / path
            # Elsewhere there may be no such path: then closing the file has to do.
            if full.exists():
                handle = os.open(full, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def _at(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path) if path else self._root

    def _put(self, at: Any, text: str) -> None:
        stream = self._fs.create(at, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    @contextmanager
    def _doing(self, verb: str, path: str) -> Iterator[None]:
        hint = "is it there, and may you use it?"
        with (
            translating(f"{verb} it", subject=self.name(path), hint=hint, kind=StagingError),
            filling(self.location),
        ):
            yield


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
