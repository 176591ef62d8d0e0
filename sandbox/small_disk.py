"""A broker on a disk of a given size: a file system in memory that only its process sees.

Made in a mount namespace of the process's own, which needs no rights on most Linux systems. It is
gone with the process, and all that is on it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from backlogctl.errors import EmbeddedError

# What was formatted before is copied onto the new disk.
_SCRIPT = """
set -e
data=$1; size=$2; shift 2
made=$(mktemp -d); cp -a "$data/." "$made"
mount -t tmpfs -o "size=$size,mode=700" backlogctl "$data"
cp -a "$made/." "$data"; rm -rf "$made"
exec "$@"
"""
_SECONDS = 10.0


@cache
def can_limit() -> bool:
    """Whether this machine lets us make such a disk."""
    if shutil.which("unshare") is None:
        return False
    try:
        done = subprocess.run(
            [*_unshare(), "true"], capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def limit_disk(command: Sequence[str], data: Path, size: int) -> list[str]:
    """The command, run with a disk of `size` bytes at `data`; its process id stays the same.

    Raises:
        EmbeddedError: this machine does not let us.
    """
    if not can_limit():
        raise EmbeddedError(
            "a disk of a given size cannot be made: `unshare --mount` is refused here",
            subject=str(data),
            hint="let users make namespaces, or run it as root",
        )
    return [*_unshare(), "sh", "-c", _SCRIPT, "sh", str(data), str(size), *command]


def _unshare() -> list[str]:
    mine = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *mine, "--mount", "--propagation", "private"]
