"""A broker that outlives the process that started it: `backlogctl broker start|stop|status`.

Its state file holds the pid and when that process started, so a process that was given the same
pid later is never taken for the broker.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from backlog.embedded import EmbeddedKafka
from backlog.jars import Progress

_DOWN_WITHIN = 20.0


class BrokerState(NamedTuple):
    """A detached broker as its state file tells it."""

    pid: int
    started: str
    bootstrap: str
    running: bool


def start_broker(
    directory: Path | str,
    *,
    properties: Mapping[str, str] | None = None,
    heap: str = "512m",
    port: int = 0,
    progress: Progress | None = None,
) -> BrokerState:
    """Start a broker that outlives this process; one that runs there already is left as it is."""
    place = Path(directory).absolute()
    place.mkdir(parents=True, exist_ok=True)
    state = broker_state(place)
    if state is not None and state.running:
        return state
    kafka = EmbeddedKafka.start(
        place, properties=properties, heap=heap, port=port, progress=progress, detached=True
    )
    started = _started(kafka.pid) or ""
    document = {"pid": kafka.pid, "started": started, "bootstrap": kafka.bootstrap}
    written = _state_file(place).with_suffix(".tmp")
    written.write_text(json.dumps(document))
    written.replace(_state_file(place))
    return BrokerState(kafka.pid, started, kafka.bootstrap, running=True)


def broker_state(directory: Path | str) -> BrokerState | None:
    """What `start_broker` left in this directory, and whether that very process still runs."""
    try:
        told = json.loads(_state_file(Path(directory)).read_text())
    except FileNotFoundError:
        return None
    pid, started = int(told["pid"]), str(told["started"])
    return BrokerState(pid, started, str(told["bootstrap"]), running=_started(pid) == started)


def stop_broker(directory: Path | str) -> bool:
    """Stop the broker that `start_broker` left here; False when none was running."""
    state = broker_state(directory)
    if state is not None and state.running:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(state.pid, sign)
            deadline = time.monotonic() + _DOWN_WITHIN
            while time.monotonic() < deadline and _started(state.pid) == state.started:
                time.sleep(0.05)
    _state_file(Path(directory)).unlink(missing_ok=True)
    return state is not None and state.running


def _state_file(directory: Path) -> Path:
    return directory / "broker.json"


def _started(pid: int) -> str | None:
    """When this process started, as the system tells it; None when it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        answer = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return answer.stdout.strip() or None
    return None if fields[0] == "Z" else fields[19]
