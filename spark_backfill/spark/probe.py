"""What a task reports of the machine that it runs on. The standard library only: anything else may
be missing there."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

# With what they import, all that our tasks use.
_NEEDED = (
    "backlogctl.spark_backfill.injection.waves",
    "backlogctl.spark_backfill.messages.staging",
)
_TOKEN = "token"  # noqa: S105 (not a secret)


@dataclass(frozen=True, slots=True)
class ExecutorReport:
    """What one task found.

    Attributes:
        origin: where our code was imported from.
        missing: why our code cannot be imported; empty if it can.
        unshared: why it cannot read and write the staging directory; empty if it can.
        answer: the file that it left in the probe's directory.
    """

    host: str
    python: str
    origin: str
    missing: str = ""
    staging_error: str = ""
    answer: str = ""


def write_token(directory: Path) -> str:
    """Makes the probe's directory, with a token in it for tasks to read."""
    token = uuid.uuid4().hex
    directory.mkdir(mode=0o700, parents=True)
    (directory / _TOKEN).write_text(token)
    return token


def inspect_executor(directory: str | None, token: str) -> ExecutorReport:
    """Runs in a task: imports our code, reads the driver's token and leaves an answer beside it."""
    missing = staging_error = answer = ""
    try:
        for module in _NEEDED:
            importlib.import_module(module)
    except ImportError as error:
        missing = str(error)
    if directory is not None:
        try:
            if (Path(directory) / _TOKEN).read_text() != token:
                staging_error = "another directory is in its place"
            answer = f"answer-{uuid.uuid4().hex}"
            (Path(directory) / answer).write_text(token)
        except OSError as error:
            staging_error = f"{error.strerror} (as user {os.geteuid()})"
    return ExecutorReport(
        socket.gethostname(), sys.executable, __file__, missing, staging_error, answer
    )
