"""The folder of a plan's staged files: empty, and its owner's only."""

from __future__ import annotations

import shutil
from pathlib import Path

from backlog.errors import StagingError
from backlog.manifest import MANIFEST_NAME
from spark_backfill.failures import translating


def prepare_staging(root: Path, directory: Path) -> Path:
    """An empty directory that only its owner can enter; a plan that was killed leaves remains.

    Returns:
        The folder in it for what is only needed meanwhile.

    Raises:
        StagingError: the recovery is staged already, or the directory cannot be made.
    """
    if (directory / MANIFEST_NAME).exists():
        raise StagingError(
            "this recovery is staged already", subject=str(directory), hint="plan a new one"
        )
    with translating("make the staging directory", subject=str(directory), kind=StagingError):
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(mode=0o700)
        work = directory / "work"
        work.mkdir(mode=0o700)
    return work
