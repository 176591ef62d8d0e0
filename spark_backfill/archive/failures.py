"""What can stop an archive that is being written, and whether it can go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from backlog.errors import KafkaFailure, StagingError
from spark_backfill.full_disk import is_target_full


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
