"""`backlogctl` with short waits and small archive files: an offload has several batches.

Where STOP_INSTEAD is set, the process is stopped at its crash point, not killed.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

from backlogctl.replay.kinds.offload import planning, steps
from backlogctl.spark_backfill.archive import writing
from backlogctl_delivery import crashpoints
from tests.replay.expand.shortened import Patch, shorten

if TYPE_CHECKING:
    from backlogctl.replay.kinds.offload.context import OffloadContext
    from backlogctl.spark_backfill.archive.job import ArchiveJob

STOP_INSTEAD = "STOP_INSTEAD"
# Of a piece: some dozens of messages.
_FILE_BYTES, _EACH = 14_000, 100.0

_make_job = steps.make_job


def shorten_offload(patch: Patch) -> None:
    """Args: `patch` sets an attribute: `setattr`, or pytest's."""
    shorten(patch)
    patch(planning, "READINGS_APART", 0.1)
    patch(steps, "FREED_SECONDS", 0.5)  # how much is freed is judged elsewhere
    patch(steps, "make_job", _make_small)
    patch(writing, "_PIECES_PER_CORE", 1)
    if STOP_INSTEAD in os.environ:
        patch(crashpoints, "signal", SimpleNamespace(SIGKILL=signal.SIGSTOP))


def _make_small(context: OffloadContext) -> ArchiveJob:
    return replace(_make_job(context), file_bytes=_FILE_BYTES, bytes_per_message=_EACH)


if __name__ == "__main__":
    shorten_offload(setattr)
    os.environ[crashpoints.GROUP] = str(os.getpgrp())
    from backlogctl.replay.cli import main

    sys.exit(main())
