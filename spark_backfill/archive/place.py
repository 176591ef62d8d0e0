"""What is asked of the place of an archive, whether Spark or this process looks at it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


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
