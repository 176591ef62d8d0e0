"""What the tests of offloads change in the product: short waits, and an archive of many small files.

`python -m tests.replay.offload.shortened run ...` is `backlogctl` with these changes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from backlogctl.replay.kinds.offload import planning, steps
from backlogctl.spark_backfill.archive import writing
from backlogctl.spark_backfill.archive.job import split_ranges
from backlogctl.values import OffsetRange
from tests.replay.expand import shortened

OFFSETS = 60.0  # a file; so that an archive takes several batches


def shorten(patch: shortened.Patch) -> None:
    """Args: `patch` sets an attribute: `setattr`, or pytest's."""
    shortened.shorten(patch)
    patch(planning, "READINGS_APART", 0.1)
    patch(steps, "FREED_SECONDS", 8.0)
    patch(writing, "split_ranges", _cut_small)
    patch(writing, "_PIECES_PER_CORE", 2)


def _cut_small(
    ranges: Iterable[OffsetRange], bytes_per_message: float | None, file_bytes: int
) -> list[OffsetRange]:
    del bytes_per_message, file_bytes
    return split_ranges(ranges, 1.0, int(OFFSETS))


if __name__ == "__main__":
    shorten(setattr)
    from backlogctl.replay.cli import main

    sys.exit(main())
