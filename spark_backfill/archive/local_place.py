"""An archive in a folder of this machine, with the verbs of `ArchivePlace`, and without Spark."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backlog.errors import StagingError

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
