"""Peak resident memory of a process and of its descendants."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import psutil

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
            for kind, size in _measure().items():
                self.peaks[kind] = max(self.peaks.get(kind, 0.0), round(size / MIB, 1))


def _measure() -> dict[str, float]:
    this = psutil.Process()
    jvms: set[int] = set()
    found: dict[str, float] = {"driver_python": this.memory_info().rss}
    # Parents come before their children.
    for process in this.children(recursive=True):
        try:
            size, is_jvm = process.memory_info().rss, process.name() == "java"
            under_jvm = any(parent.pid in jvms for parent in process.parents())
        except psutil.Error:
            continue
        if is_jvm:
            jvms.add(process.pid)
            kind = "executor_jvm" if under_jvm else "driver_jvm"
            found[kind] = max(found.get(kind, 0.0), size)
        elif under_jvm:
            found["worker_python"] = found.get("worker_python", 0.0) + size
    return found
