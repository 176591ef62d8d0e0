"""Spark's classes, read and verified once for all: with them the driver starts in half the time.

`python -m spark_backfill.spark.class_archive_maker` makes the archive, once in an environment: a
minute, and 150 MB. It is Java's dynamic class data sharing (JEP 350). Java itself checks at each
start that the archive is of this Java and of these jars, and else does without it.
"""

from __future__ import annotations

import sys
from pathlib import Path

DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
# A user who says one of these has an archive, or wants none.
_OWN = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")


def find_archive() -> Path:
    """Where this environment's archive is, if it was made."""
    return Path(sys.prefix, "share", "backlogctl", "spark.jsa")


def make_options(own: str) -> str:
    """Java options of a driver that uses the archive; "" where there is none, or the user's `own`
    say otherwise."""
    archive = find_archive()
    if any(word in own for word in _OWN) or not archive.is_file():
        return ""
    # A path with a space would be two options.
    return "" if " " in str(archive) else f"-XX:SharedArchiveFile={archive}"
