"""Peak resident memory of a process and of what it started, from the kernel's own record."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1024 * 1024


@dataclass
class MemoryWatch:
    """Follows this process's tree; `peaks` has MiB by kind, the largest process of each kind.

    Kinds: `driver_python` (this process), `driver_jvm` (the JVM it started), `executor_jvm` (JVMs
    that a JVM started), `worker_python` (Spark's Python workers, all of them together).
    """

    peaks: dict[str, float] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> MemoryWatch:
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _follow(self) -> None:
        while not self._stop.wait(0.2):
            for kind, size in _measure(os.getpid()).items():
                self.peaks[kind] = max(self.peaks.get(kind, 0.0), round(size / MIB, 1))


def _measure(root: int) -> dict[str, float]:
    parents: dict[int, int] = {}
    jvms: set[int] = set()
    sizes: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            pages = int((entry / "statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
        pid = int(entry.name)
        name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :]
        parents[pid] = int(rest.split()[1])
        sizes[pid] = pages * os.sysconf("SC_PAGE_SIZE")
        if name == "java":
            jvms.add(pid)
    found: dict[str, float] = {"driver_python": sizes.get(root, 0)}
    for pid in parents:
        above = _list_ancestors(pid, parents)
        if root not in above:
            continue
        under_jvm = any(parent in jvms for parent in above)
        if pid in jvms:
            kind = "executor_jvm" if under_jvm else "driver_jvm"
        elif under_jvm:
            kind = "worker_python"
        else:
            continue
        if kind == "worker_python":
            found[kind] = found.get(kind, 0.0) + sizes[pid]
        else:
            found[kind] = max(found.get(kind, 0.0), sizes[pid])
    return found


def _list_ancestors(pid: int, parents: dict[int, int]) -> list[int]:
    above = []
    while (pid := parents.get(pid, 0)) > 1:
        above.append(pid)
    return above
