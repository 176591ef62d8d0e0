"""Writes a file whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from backlog.errors import BacklogError, UsageError


def write_whole(path: Path, text: str) -> None:
    """Puts a file in the place of one that may be there, at once; a link keeps what it is.

    Raises:
        UsageError: it is a directory or a device, or its directory is not there.
        BacklogError: it could not be written; what was there before is as it was.
    """
    check_writable(path)
    target = path.resolve()
    # With the rights that any new file has; in the same directory, so that it can be renamed.
    passing = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        passing.unlink(missing_ok=True)
        with passing.open("x", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        passing.replace(target)
    except OSError as error:
        with suppress(OSError):
            passing.unlink()
        raise BacklogError(
            f"cannot be written: {error.strerror or error}",
            subject=str(path),
            hint="name another file; `-` is stdout",
        ) from error


def check_writable(path: Path) -> None:
    """Refuses what no file can take the place of.

    Raises:
        UsageError: it is a directory or a device, or its directory is not there.
    """
    hint = "name a file; `-` is stdout"
    if path.is_dir():
        raise UsageError("it is a directory", subject=str(path), hint=hint)
    if path.exists() and not path.is_file():
        raise UsageError("it is not a regular file", subject=str(path), hint=hint)
    if not path.resolve().parent.is_dir():
        raise UsageError("its directory is not there", subject=str(path), hint=hint)
