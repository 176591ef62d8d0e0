"""Run a command as a child and end it when our own parent goes away.

Run by its path, as `python -I -S watchdog.py COMMAND...`, so it imports the standard library only.
The parent holds the other end of our stdin: when it is closed, by will or because the parent was
killed, the command is killed too. The first line on stdout is the command's pid.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    # Tied to the parent's thread, which is safe here: this program has only one.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(command: list[str]) -> int:
    """Run `command` until it ends or stdin is closed; its exit code is ours."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - there are no other threads here
    )
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.flush()
    while child.poll() is None:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 64)
        if 0 in ready and not os.read(0, 64):
            child.kill()
            child.wait()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
