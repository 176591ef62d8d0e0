"""A broker that outlives the process that started it: `backlogctl broker start|stop|status`.

A process is taken for the broker only when its command line names this directory's settings, never
by the pid of the state file alone.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from backlog.progress import Say
from sandbox.embedded import EmbeddedKafka

_DOWN_WITHIN = 20.0


class BrokerState(NamedTuple):
    """What the state file records of a detached broker, and whether it runs."""

    pid: int
    bootstrap: str
    running: bool


def start_broker(
    directory: Path | str,
    *,
    properties: Mapping[str, str] | None = None,
    heap: str = "512m",
    port: int = 0,
    progress: Say | None = None,
) -> BrokerState:
    """Start a broker that outlives this process; one that runs there already is left as it is."""
    place = Path(directory).resolve()
    place.mkdir(parents=True, exist_ok=True)
    state = broker_state(place)
    if state is not None and state.running:
        return state
    kafka = EmbeddedKafka.start(
        place, properties=properties, heap=heap, port=port, progress=progress, detached=True
    )
    document = {"pid": kafka.pid, "bootstrap": kafka.bootstrap}
    written = _state_file(place).with_suffix(".tmp")
    written.write_text(json.dumps(document))
    written.replace(_state_file(place))
    return BrokerState(kafka.pid, kafka.bootstrap, running=True)


def broker_state(directory: Path | str) -> BrokerState | None:
    """The broker that `start_broker` started in this directory; None when it started none."""
    try:
        state = json.loads(_state_file(Path(directory)).read_text())
    except FileNotFoundError:
        return None
    pid = int(state["pid"])
    return BrokerState(pid, str(state["bootstrap"]), _find_broker(pid, directory) is not None)


def stop_broker(directory: Path | str) -> bool:
    """Stop the broker that `start_broker` left here; False when none was running."""
    state = broker_state(directory)
    broker = _find_broker(state.pid, directory) if state else None
    if broker:
        with contextlib.suppress(psutil.NoSuchProcess):
            broker.terminate()
            if psutil.wait_procs([broker], _DOWN_WITHIN)[1]:
                broker.kill()
                psutil.wait_procs([broker], _DOWN_WITHIN)
    _state_file(Path(directory)).unlink(missing_ok=True)
    return broker is not None


def _state_file(directory: Path) -> Path:
    return directory / "broker.json"


def _find_broker(pid: int, directory: Path | str) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        settings = str(Path(directory).resolve() / "broker-1" / "server.properties")
        return process if settings in process.cmdline() else None
    except psutil.Error:
        return None
