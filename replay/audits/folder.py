"""Where an audit keeps what it reads of a consumer's table while it compares."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from backlog.config import Config

_PREFIX = "audit-"
_OLDEST_SECONDS = (
    2 * 86_400.0
)  # of one on another host, of which nobody knows whether it is at work


@contextmanager
def open_folder(config: Config) -> Iterator[Path]:
    """An empty folder under `staging.dir`, the owner's alone; it is gone afterwards.

    Those of audits that were killed are removed first: they hold the identities of messages.
    """
    root = config.staging.dir
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    sweep_folders(root)
    prefix = f"{_PREFIX}{socket.gethostname()}-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=root, ignore_cleanup_errors=True) as made:
        yield Path(made)


def sweep_folders(root: Path) -> None:
    """Removes what killed audits left; what cannot be removed stays."""
    for folder in root.glob(f"{_PREFIX}*-*-*"):
        host, pid, _ = folder.name.removeprefix(_PREFIX).rsplit("-", 2)
        with suppress(OSError, ValueError):
            if host == socket.gethostname():
                is_left = not psutil.pid_exists(int(pid))
            else:
                is_left = time.time() - folder.stat().st_mtime > _OLDEST_SECONDS
            if is_left:
                shutil.rmtree(folder)
