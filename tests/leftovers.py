"""What a story left running."""

from __future__ import annotations

import os
from pathlib import Path


def find_processes(word: str) -> list[str]:
    """Command lines and directories of the processes that have to do with a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                place = str((entry / "cwd").readlink())
            except OSError:
                continue
            if word in told.decode(errors="replace") or word in place:
                found.append(told[:200].decode(errors="replace"))
    return found
