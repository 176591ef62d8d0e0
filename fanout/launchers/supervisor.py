"""Keeps the wanted number of consumer processes of one fleet running; outlives `backlogctl`.

Run by its path, as `python -I -S supervisor.py DIRECTORY LOCK_FD`, so it imports the standard
library only and nothing of the consumers' Python settings touches it. It holds the fleet's lock
from its first moment to its last: whoever starts it hands the locked file over, so there is never
a second one. Consumers die with it (Linux), and what escapes is found by its start time or by a
mark in its environment. Secrets reach consumers by the environment only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOCK, WANTED, STATE, OWN_LOG = "lock", "wanted.json", "state.json", "supervisor.log"
MARK = "BACKLOG_FLEET_DIRECTORY"  # in every consumer's environment, and in its children's
POLL_SECONDS = 0.05
QUICK = 10.0  # a consumer that ends sooner than this did not really run
LOG_LIMIT = 1_000_000
_BACK_OFF, _MOST_BACK_OFF = 1.0, 30.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_HAS_PROC = Path("/proc/self/stat").exists()
# Start times count from the boot, so those of another boot do not compare.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOT = _BOOT_ID.read_text()[:8] if _BOOT_ID.exists() else ""


def write_private(path: Path, document: Any) -> None:
    """Writes JSON that only the owner can read, whole or not at all."""
    written = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(document, file)
    written.replace(path)


def read_private(path: Path) -> dict[str, Any]:
    """What `write_private` wrote; empty where nothing was."""
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}


def log_of(directory: Path, index: int) -> Path:
    return directory / f"consumer-{index:03}.log"


def find_start(pid: int) -> str | None:
    """When this process started, as the system reports it; None when it does not run.

    By hand, since only the standard library may be imported here.
    """
    if _HAS_PROC:
        found = _read_stat(pid)
        return found[1] if found else None
    answer = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or None


def _read_stat(pid: int | str) -> tuple[int, str] | None:
    """Process group and start time of a process that is not a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (int(fields[2]), f"{_BOOT}:{fields[19]}")


def _list_pids() -> list[int]:
    names = (path.name for path in Path("/proc").iterdir()) if _HAS_PROC else ()
    return [int(name) for name in names if name.isdigit()]


def _find_groups(groups: Iterable[int]) -> set[int]:
    """Those process groups that have a living process."""
    wanted = set(groups)
    found = {stat[0] for pid in _list_pids() if (stat := _read_stat(pid))}
    return wanted & found


def _find_marked(directory: Path) -> set[int]:
    """Living processes whose environment says that they are this fleet's."""
    mark = os.fsencode(f"{MARK}={directory}")
    found: set[int] = set()
    for pid in _list_pids():
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if mark in environment and mark in environment.split(b"\0") and _read_stat(pid):
                found.add(pid)
    return found


def _find_leftovers(directory: Path) -> set[int]:
    consumers = read_private(directory / STATE).get("consumers", [])
    known = {c["pid"] for c in consumers if c["pid"] and find_start(c["pid"]) == c["started"]}
    return known | _find_marked(directory)


def end_leftovers(directory: Path, within: float, check_stop: Callable[[], None]) -> None:
    """Ends the fleet's processes that no supervisor holds; the caller holds the lock.

    SIGTERM first, SIGKILL after `within` seconds. A process is ours by its start time or its mark,
    never by its pid alone.
    """
    end = time.monotonic() + within
    asked: set[int] = set()
    while left := _find_leftovers(directory):
        killing = time.monotonic() >= end
        for pid in left if killing else left - asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if killing else signal.SIGTERM)
        asked |= left
        check_stop()
        time.sleep(POLL_SECONDS)


@dataclass
class _Slot:
    """The place of one consumer, and who has it."""

    index: int
    process: subprocess.Popen[bytes] | None = None
    started: str = ""
    born: float = 0.0
    stopping: float | None = None  # since when
    restarts: int = 0
    quick_ends: int = 0  # one after another
    next_start: float = 0.0
    exit_code: int | None = None
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "pid": self.process.pid if self.process else 0,
            "started": self.started if self.process else "",
            "born": self.born,
            "stopping": self.stopping is not None,
            "restarts": self.restarts,
            "quick_ends": self.quick_ends,
            "exit_code": self.exit_code,
            "error": self.error,
        }

    def signal(self, number: int) -> None:
        """To the consumer and its children. Not reaped yet, so the group is still its own."""
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


@dataclass
class Supervisor:
    """One fleet's. `count` and the command come from the file `wanted.json`, read as it changes."""

    directory: Path
    lock: int
    wanted: dict[str, Any] = field(default_factory=dict)
    slots: dict[int, _Slot] = field(default_factory=dict)
    ending: bool = False
    _seen: tuple[int, int] = (0, 0)
    _written: Any = None

    def run(self) -> None:
        """Until nothing is wanted and nothing runs."""
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._end())
        # Handlers, since a signal that is ignored would be ignored by the consumers too.
        for number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self._read_wanted()
        end_leftovers(self.directory, self._stop_within, lambda: None)
        while True:
            self._read_wanted()
            self._note_ended()
            self._stop_surplus()
            self._start_missing()
            self._write_state()
            # What was wanted may have changed since it was read: whoever asked for consumers looks
            # at the lock, and starts the next supervisor.
            if self.count == 0 and not self.slots:
                return
            select.select([woken], [], [], POLL_SECONDS)
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)

    @property
    def count(self) -> int:
        return 0 if self.ending else int(self.wanted.get("count", 0))

    @property
    def _stop_within(self) -> float:
        return float(self.wanted.get("stop_within", 60))

    def _end(self) -> None:
        self.ending = True

    def _read_wanted(self) -> None:
        try:
            # Another directory under our name has another lock, and another supervisor.
            if os.fstat(self.lock).st_ino != (self.directory / LOCK).stat().st_ino:
                self.ending = True
            stat = (self.directory / WANTED).stat()
        except FileNotFoundError:
            self.ending = True
            return
        if (stat.st_ino, stat.st_mtime_ns) == self._seen:
            return
        self._seen = (stat.st_ino, stat.st_mtime_ns)
        before, self.wanted = self.wanted.get("request"), read_private(self.directory / WANTED)
        if self.wanted.get("request") != before:
            for slot in self.slots.values():
                slot.quick_ends, slot.next_start = 0, 0.0

    def _note_ended(self) -> None:
        ended = [s for s in self.slots.values() if s.process and _has_ended(s.process.pid)]
        if not ended:
            return
        now = time.monotonic()
        groups = _find_groups(s.process.pid for s in ended if s.process)
        for slot in ended:
            assert slot.process is not None
            if slot.process.pid in groups:  # its children are still there
                if slot.stopping is None:
                    slot.stopping = now
                    slot.signal(signal.SIGTERM)
                continue
            slot.exit_code = slot.process.wait()
            slot.process = None
            self._back_off(slot, now)

    def _back_off(self, slot: _Slot, now: float) -> None:
        slot.quick_ends = slot.quick_ends + 1 if now - slot.born < QUICK else 0
        wait = min(_MOST_BACK_OFF, _BACK_OFF * 2 ** min(10, max(0, slot.quick_ends - 1)))
        # One that was to end and is wanted again did nothing wrong.
        slot.next_start = now + (wait if slot.stopping is None else 0.0)
        slot.stopping = None

    def _stop_surplus(self) -> None:
        now = time.monotonic()
        for slot in [s for s in self.slots.values() if s.index >= self.count]:
            if slot.process is None:
                del self.slots[slot.index]
            elif slot.stopping is None:
                slot.stopping = now
                slot.signal(signal.SIGTERM)
        for slot in self.slots.values():
            if slot.stopping is not None and now - slot.stopping >= self._stop_within:
                slot.signal(signal.SIGKILL)

    def _start_missing(self) -> None:
        for index in range(self.count):
            slot = self.slots.setdefault(index, _Slot(index))
            if slot.process is None and time.monotonic() >= slot.next_start:
                self._start(slot)

    def _start(self, slot: _Slot) -> None:
        again = slot.born > 0
        slot.born = time.monotonic()
        environment = {**os.environ, "BACKLOG_INDEX": str(slot.index), MARK: str(self.directory)}
        words = {**self.wanted["words"], "index": str(slot.index)}
        ours = os.getpid()

        def die_with_us() -> None:
            if _LIBC is not None:
                _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != ours:
                    os._exit(1)

        try:
            log = _open_log(log_of(self.directory, slot.index))
            try:
                slot.process = subprocess.Popen(
                    [argument.format_map(words) for argument in self.wanted["command"]],
                    cwd=self.wanted["directory"],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=die_with_us,  # noqa: PLW1509 - there are no other threads here
                )
            finally:
                os.close(log)
        except (OSError, subprocess.SubprocessError) as error:
            slot.error = f"{type(error).__name__}: {error}"
            self._back_off(slot, slot.born)
            return
        slot.started = find_start(slot.process.pid) or ""
        slot.error = ""
        slot.restarts += again

    def _write_state(self) -> None:
        document = {
            "request": self.wanted.get("request"),
            "supervisor": {"pid": os.getpid(), "started": find_start(os.getpid())},
            "consumers": [slot.to_json() for _, slot in sorted(self.slots.items())],
        }
        if document != self._written:
            with contextlib.suppress(FileNotFoundError):  # the directory was removed: we end
                write_private(self.directory / STATE, document)
            self._written = document


def _has_ended(pid: int) -> bool:
    """Whether our child has ended; it stays unreaped, so that its pid stays its own."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _open_log(path: Path) -> int:
    """The log, to append to; what is above a limit was kept once and is then replaced."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_LIMIT:
            path.replace(path.with_suffix(".log.1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def main(directory: Path, lock: int) -> int:
    """Checks that the lock is ours, leaves the caller, and supervises."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.stderr.write(f"another supervisor has the lock of {directory}\n")
        return 1
    os.set_inheritable(lock, False)
    os.chdir("/")
    if os.fork():  # the caller has no child to reap
        os._exit(0)
    Supervisor(directory, lock).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
