"""A command of a launcher, run to its end without a shell."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError
from backlogctl.fanout.launchers.interface import CheckStop, cut_tail

_TICK = 0.02
_END_WITHIN = 5.0


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """A command, and how its errors name it.

    Attributes:
        environment: all variables that it has; may hold secrets.
        subject: what its errors are about.
        found: where its program is looked for, for the hint of an error.
        see: what says how long it may take.
        given: what it reads from stdin; may hold secrets.
        retryable: whether its failure is worth another try: it only asks.
    """

    words: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    directory: Path
    subject: str
    found: str
    see: str
    given: str = field(default="", repr=False)
    retryable: bool = False


def run_to_end(command: LaunchCommand, limit: Deadline, check_stop: CheckStop) -> str:
    """What it printed on stdout.

    Raises:
        BacklogError: it could not be started, failed or took too long; with its last lines,
            masked.
    """
    # Files without a name: what goes through them may be secret, and a child of the command may
    # stay and hold them open.
    with contextlib.ExitStack() as files:
        given, out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(command.given.encode())
        given.seek(0)
        process = _start(command, given, out, err)
        try:
            while process.poll() is None and not limit.expired:
                check_stop()
                time.sleep(limit.remaining(_TICK))
        finally:
            ended = process.poll() is not None
            if not ended:
                _end(process)
        output, complaint = _read(out), _read(err)
    if ended and process.returncode == 0:
        return output
    last = cut_tail(complaint) or cut_tail(output) or "(nothing)"
    if ended:
        why, hint = f"ended with exit code {process.returncode}", "run it by hand to see more"
    else:
        why = f"took longer than {limit.seconds:g} s and was ended"
        hint = f"see `{command.see}`"
    raise BacklogError(
        f"the command {why}; its last lines:\n  {last}",
        subject=command.subject,
        hint=hint,
        retryable=command.retryable,
    )


def _start(
    command: LaunchCommand, given: IO[bytes], out: IO[bytes], err: IO[bytes]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(command.words),
            cwd=command.directory,
            env=command.environment,
            stdin=given,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    except OSError as error:
        raise BacklogError(
            f"the command could not be started: {error.strerror}: {error.filename}",
            subject=command.subject,
            hint=command.found,
        ) from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a command that may not go on, and its children."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(_END_WITHIN)
        except subprocess.TimeoutExpired:
            continue
        return


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
