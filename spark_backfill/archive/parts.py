"""What is archived so far, as files beside the messages: a run that was killed goes on from it.

_parts/job.json       which archive this is, who began it and when; written before anything else
_parts/000001.json    the pieces of one batch, once their files were read back and hashed
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from backlog.archive import ARCHIVE_MANIFEST, ARCHIVE_PARTS
from backlog.errors import Refused, StagingError
from spark_backfill.archive.filesystem import ArchivePlace
from spark_backfill.archive.job import ArchiveJob
from spark_backfill.archive.pieces import Piece

_VERSION = 1
# Of the record of the job: they do not make it another archive.
_MADE = ("made_by", "made_at")
_JOB = f"{ARCHIVE_PARTS}/job.json"
# A writer that was killed before its first file had its name leaves no more than this.
_UNNAMED = f"{ARCHIVE_PARTS}/."
_PART = re.compile(rf"{ARCHIVE_PARTS}/(\d+)\.json")
# What Spark's writer and we ourselves leave when they are killed.
_DATA = re.compile(r"partition=\d+/[^/]+|_temporary/.+")


class Parts:
    """The records of one archive's parts.

    Raises:
        Refused: the place holds something else.
        StagingError: it cannot be used, or a record is not readable.
    """

    def __init__(self, place: ArchivePlace, job: ArchiveJob) -> None:
        self._place, self._identity = place, {"version": _VERSION, **job.to_json()}
        self._made_by = job.made_by
        self.pieces: list[Piece] = []
        self._number = 0
        files = place.list_files()
        if _JOB in files:
            found = place.read_json(_JOB)
            if isinstance(found, dict):
                found = {name: value for name, value in found.items() if name not in _MADE}
            if found != self._identity:
                raise Refused(
                    "the place holds the archive of another recovery, or of another plan",
                    subject=place.location,
                    hint="each recovery has a place of its own: see `archive` in backlog.yaml",
                )
        elif not all(path.startswith(_UNNAMED) for path in files):
            raise Refused(
                "the place is not empty, and what is there is no archive",
                subject=place.location,
                hint="name an empty folder, or one that is not there yet",
            )
        for path in sorted(files):
            if found := _PART.fullmatch(path):
                self._number = max(self._number, int(found[1]))
                self.pieces += self._read(path)

    def begin(self) -> None:
        """Makes the place, and deletes what no record names: a writer was killed, or failed."""
        if not self._place.exists(_JOB):
            self._place.make()
            made = {"made_by": self._made_by, "made_at": datetime.now(UTC).isoformat()}
            self._place.write_text(_JOB, _dump({**self._identity, **made}))
        self.clear()

    def read_made(self) -> tuple[str, datetime]:
        """Who began the archive, and when. Each run that ends it says the same: a manifest that is
        written twice is the same manifest."""
        found = self._place.read_json(_JOB)
        try:
            return str(found["made_by"]), datetime.fromisoformat(found["made_at"])
        except (KeyError, TypeError, ValueError) as error:
            raise StagingError(
                "it does not say who began the archive, and when",
                subject=self._place.name(_JOB),
                hint="it was changed by others, or another version wrote it",
            ) from error

    def add(self, pieces: Sequence[Piece]) -> None:
        """Their files are whole: from now on they are part of the archive."""
        self._number += 1
        value = {"version": _VERSION, "pieces": [piece.to_json() for piece in pieces]}
        self._place.write_text(f"{ARCHIVE_PARTS}/{self._number:06d}.json", _dump(value))
        self.pieces += pieces

    def list_new(self) -> dict[str, int]:
        """Files of messages that no record names, with their bytes."""
        known = {piece.file.path for piece in self.pieces if piece.file is not None}
        files = self._place.list_files()
        return {path: size for path, size in files.items() if is_data(path) and path not in known}

    def clear(self) -> None:
        """Deletes what no record names: a writer was killed, or failed, before it was whole.

        The records are read again: another run may have taken over meanwhile, and this one must
        not delete what that has archived.
        """
        records = [path for path in self._place.list_files(ARCHIVE_PARTS) if _PART.fullmatch(path)]
        theirs = {
            piece.file.path
            for path in records
            for piece in self._read(path)
            if piece.file is not None
        }
        for path in self.list_new():
            if path not in theirs:
                self._place.delete(path)
        self._place.delete("_temporary")

    def _read(self, path: str) -> list[Piece]:
        value = self._place.read_json(path)
        try:
            if value["version"] == _VERSION:
                return [Piece.from_json(item) for item in value["pieces"]]
        except (KeyError, TypeError):
            pass
        raise StagingError(
            "it is not a record of this version",
            subject=self._place.name(path),
            hint="use the version that wrote it, or cancel the offload and plan again",
        )


def is_data(path: str) -> bool:
    """Whether a file is, or was to become, one of messages."""
    return _DATA.fullmatch(path) is not None


def is_ours(path: str) -> bool:
    """Whether a file is an archive's."""
    return is_data(path) or path == ARCHIVE_MANIFEST or path.startswith(f"{ARCHIVE_PARTS}/")


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1)
