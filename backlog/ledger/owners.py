"""Who holds a lease: a process that can be told from a later one with the same pid."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Owner:
    """A holder of a lease.

    `started` is `<boot id>/<pid namespace>/<start ticks>` from /proc, or `unknown` where there is
    no /proc. `token` tells two holders in one process apart.
    """

    host: str
    pid: int
    started: str
    token: str = ""

    @classmethod
    def current(cls) -> Owner:
        """This process, as a new holder."""
        pid = os.getpid()
        place, ticks = _read_place(), _read_ticks(pid)
        started = f"{place}/{ticks}" if place and ticks else UNKNOWN
        return cls(socket.gethostname(), pid, started, uuid.uuid4().hex)

    def is_dead(self) -> bool:
        """Whether the process is certainly gone; False where this cannot be known from here.

        Only asked of processes of this boot and pid namespace: two containers may have the same
        host name, and a pid means nothing in another one.
        """
        place, _, ticks = self.started.rpartition("/")
        if self.host != socket.gethostname() or not place or place != _read_place():
            return False
        return _read_ticks(self.pid) != ticks

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"


def _read_place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _read_ticks(pid: int) -> str:
    """The start time of a living process in clock ticks since boot; empty for a dead one."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The second field is the command in brackets, and may itself hold brackets and blanks.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]
