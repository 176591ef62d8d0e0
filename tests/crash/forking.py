"""Processes to be killed, forked from a server that has the imports done already.

A schedule of three kills then takes seconds and not a minute.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from backlogctl_delivery.crashpoints import VARIABLE

_CONTEXT = multiprocessing.get_context("forkserver")
# With what the program of `make crash` imports: each child runs its imports once more.
_CONTEXT.set_forkserver_preload(
    [
        "tests.crash.runner",
        "tests.crash.delivery.schedule",
        "tests.crash.offload.schedule",
        "tests.crash.expand_schedule",
    ]
)
_BEGUN_SECONDS = 120


def start_process(
    target: Callable[..., None], *arguments: Any, crash_at: str = "", log: Path | None = None
) -> BaseProcess:
    """A process in a group of its own; when it has begun.

    Args:
        crash_at: as BACKLOG_CRASH_AT.
        log: takes what it prints.
    """
    begun, tell = _CONTEXT.Pipe(duplex=False)
    with begun:
        with tell:
            process = _CONTEXT.Process(target=_run, args=(tell, target, arguments, crash_at, log))
            process.start()
        assert begun.poll(_BEGUN_SECONDS), "a process does not begin"
        with contextlib.suppress(EOFError):  # somebody killed it already
            begun.recv()
    return process


def kill_process(process: BaseProcess) -> None:
    """SIGKILL for its process group."""
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _run(
    tell: Connection,
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    crash_at: str,
    log: Path | None,
) -> None:
    os.setsid()
    if crash_at:
        os.environ[VARIABLE] = crash_at
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
    # One that comes before the program has its own handler is an end as good as a later one.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    with tell:
        tell.send(None)
    target(*arguments)
