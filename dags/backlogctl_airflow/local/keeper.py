"""Starts Airflow's components; ends them and all that they started when it is asked to, or when its
parent is gone.

Run by its path, as `python -I -S keeper.py SPEC`, so it imports the standard library only. SPEC is
a JSON file:

    {"prepare": [...command], "components": {"scheduler": [...command], ...}, "logs": directory}

The first line on stdout is a JSON document: `{"pids": {name: pid}}`, or `{"ended": "prepare"}` when
that failed; a component that ends unasked later is reported as `{"ended": name, "code": n}`, and
everything ends with it. The parent holds the other end of our stdin: lines `kill NAME`
and `start NAME` are answered with the component's pid; when it is closed, all is ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LINUX = sys.platform == "linux"
_GRACE_SECONDS = 5.0
_TICK = 0.05


class Keeper:
    """What runs, by name and by process id."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._pids: dict[str, int] = {}
        self._codes: dict[str, int] = {}
        self._ended_on_request: set[str] = set()  # ended because the parent asked
        self._woken, wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._stopping = False
        self._heard = b""

    def serve(self) -> int:
        """Until the parent is gone, or something ended that should not; the exit code."""
        self._start("prepare", self._spec["prepare"])
        while not self._codes:
            if not self._listen():
                return 0
        if self._codes.pop("prepare"):
            _say({"ended": "prepare"})
            return 1
        for name, command in self._spec["components"].items():
            self._start(name, command)
        _say({"pids": self._pids})
        while self._listen():
            for name in list(self._codes):
                if name not in self._ended_on_request:
                    _say({"ended": name, "code": self._codes[name]})
                    return 1
        return 0

    def end(self) -> None:
        """Asks the components to end, then kills all that is left, theirs included."""
        for pid in self._pids.values():
            _send(pid, signal.SIGTERM)
        limit = time.monotonic() + _GRACE_SECONDS
        while self._pids and time.monotonic() < limit:
            self._reap()
            time.sleep(_TICK)
        # What lost its parent is a child of ours now, so there is an end to it.
        while True:
            for pid in list_descendants(os.getpid()):
                _send(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                time.sleep(_TICK)
                continue
            return

    def _start(self, name: str, command: list[str]) -> None:
        log = Path(self._spec["logs"], f"{name}.log")
        with log.open("ab") as out:
            # Not kept: its children are reaped here, by number.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - there are no other threads here
            )
        process.returncode = 0
        self._pids[name] = process.pid

    def _listen(self) -> bool:
        """Waits for something to happen; False when the parent is gone."""
        ready, _, _ = select.select([0, self._woken], [], [])
        if self._woken in ready:
            os.read(self._woken, 64)
            self._reap()
        if 0 not in ready or self._stopping:
            return not self._stopping
        heard = os.read(0, 4096)
        *lines, self._heard = (self._heard + heard).split(b"\n")
        for line in lines:
            self._obey(*line.decode().split())
        return bool(heard)

    def _obey(self, verb: str, name: str) -> None:
        if verb == "kill":
            self._ended_on_request.add(name)
            pid = self._pids[name]
            _send(pid, signal.SIGKILL)
            while name in self._pids:
                self._reap()
                time.sleep(_TICK)
        else:
            self._ended_on_request.discard(name)
            self._codes.pop(name, None)
            self._start(name, self._spec["components"][name])
            pid = self._pids[name]
        _say({"pid": pid})

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                for name in [name for name, its in self._pids.items() if its == pid]:
                    self._codes[name] = os.waitstatus_to_exitcode(status)
                    del self._pids[name]


def list_descendants(root: int) -> list[int]:
    """Children of a process, their children, and so on."""
    if not _LINUX:
        told = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False
        )
        pairs = [(int(a), int(b)) for a, b in map(str.split, told.stdout.splitlines())]
    else:
        pairs = []
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                with contextlib.suppress(OSError):
                    # The name before it may hold anything, brackets too.
                    after = (path / "stat").read_text().rpartition(")")[2].split()
                    pairs.append((int(path.name), int(after[1])))
    found, left = [], [root]
    while left:
        children = [pid for pid, parent in pairs if parent in left]
        found += children
        left = children
    return found


def _die_with_parent() -> None:
    # Tied to the parent's thread, which is safe here: this program has only one.
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _adopt_orphans() -> None:
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _say(document: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()


def main(spec: str) -> int:
    """Keeps what the file names."""
    _adopt_orphans()
    keeper = Keeper(json.loads(Path(spec).read_text()))
    try:
        return keeper.serve()
    finally:
        keeper.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
