"""Runs commands; when one of them ends, stdin is closed or a signal comes, it ends them all.

Run by its path, as `python guard.py COMMAND... -- COMMAND...`. The parent holds the other end of
stdin, which the kernel closes however the parent ends. `airflow standalone` stops its components on
SIGINT only, and tasks leave their session and lose their parent: they become children of this
process, and are killed.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_GRACE_SECONDS = 5.0


def main(words: list[str]) -> int:
    """The exit code of a command that ended by itself, else 0."""
    _set_process_option(_PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    # A handler, also of SIGINT: in the background of a shell the command would ignore it.
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    pids: set[int] = set()
    while words:
        end = words.index("--") if "--" in words else len(words)
        pids.add(_start(words[:end]))
        words = words[end + 1 :]
    try:
        while (code := _reap(pids)) is None:
            ready, _, _ = select.select([0, woken], [], [])
            signals = set(os.read(woken, 64)) if woken in ready else set()
            if signals & {signal.SIGINT, signal.SIGTERM} or (0 in ready and not os.read(0, 64)):
                return 0
        return code
    finally:
        _interrupt(pids)
        while left := psutil.Process().children(recursive=True):
            for process in left:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(left, _GRACE_SECONDS)


def _start(command: list[str]) -> int:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - there are no other threads here
    )
    process.returncode = 0  # it is reaped by number
    return process.pid


def _reap(pids: set[int]) -> int | None:
    """Takes leave of all that has ended, orphans too; the exit code of one of these."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return None
        if pid in pids:
            pids.remove(pid)
            return os.waitstatus_to_exitcode(status)


def _interrupt(pids: set[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    limit = time.monotonic() + _GRACE_SECONDS
    while pids and time.monotonic() < limit:
        if _reap(pids) is None:
            time.sleep(0.05)


def _end_with_parent() -> None:
    _set_process_option(_PR_SET_PDEATHSIG, signal.SIGINT)


def _set_process_option(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
