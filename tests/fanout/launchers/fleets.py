"""Consumers that tests start: what they learned is on disk, and who still lives can be asked."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backlogctl.config import Consumers
from backlogctl.fanout.launchers import Fleet, ProcessLauncher, Role
from backlogctl.fanout.launchers.supervisor import find_start

# Says what it learned, then waits for SIGTERM. As quick to start as Python is.
CONSUMER = """\
import json, os, signal, sys
place = sys.argv[1]
told = {"argv": sys.argv, "environment": dict(os.environ), "cwd": os.getcwd()}
written = os.path.join(place, f".{os.getpid()}")
with open(written, "w") as file:
    json.dump(told, file)
os.rename(written, os.path.join(place, f"{os.getpid()}.json"))
signal.sigwait({signal.SIGTERM})
"""
# A user's own tool: scale N | stop | status. It knows its processes by a file for each.
MANAGER = """\
import os, signal, subprocess, sys, time
from pathlib import Path
place = Path(sys.argv[1])
def living():
    found = []
    for path in sorted(place.glob("*.pid")):
        try:
            state = Path(f"/proc/{path.stem}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            state = "Z"
        found += [int(path.stem)] if state != "Z" else []
    return found
def end(pids):
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    while set(pids) & set(living()):
        time.sleep(0.01)
verb = sys.argv[2]
if verb == "scale":
    count = int(sys.argv[3])
    assert os.environ["BACKLOG_REPLICAS"] == sys.argv[3]
    end(living()[count:])
    # It is not ended between a start and the note of it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for _ in range(count - len(living())):
        command = [sys.executable, "-I", "-S", "-c", Path(sys.argv[4]).read_text(), *sys.argv[5:]]
        (place / f"{subprocess.Popen(command, start_new_session=True).pid}.pid").touch()
elif verb == "stop":
    end(living())
else:
    print("running:", len(living()), "of 99")
"""
WORDS = ("--topic={topic}", "--group={group}", "{bootstrap_servers}", "{role}-{recovery}")


def make_fleet(directory: Path, **changes: Any) -> Fleet:
    """A fleet of recovery consumers; nothing of it exists yet."""
    fleet: dict[str, Any] = {
        "stream": "orders",
        "role": Role.RECOVERY,
        "topic": "orders.recovery.r-1",
        "group": "service.recovery.r-1",
        "bootstrap_servers": "127.0.0.1:1",
        "directory": directory / "fleet",
        "recovery_id": "r-1",
    }
    return Fleet(**{**fleet, **changes})


def python(text: str, *arguments: str) -> list[str]:
    """A quick Python command; the text's own braces are not words to fill in."""
    doubled = text.replace("{", "{{").replace("}", "}}")
    return [sys.executable, "-I", "-S", "-c", doubled, *arguments]


def make_processes(command: list[str], place: Path, **settings: Any) -> ProcessLauncher:
    """A process launcher of a command."""
    document: dict[str, Any] = {"launcher": "process", "command": command, "directory": place}
    document.update(settings)
    return ProcessLauncher(Consumers.model_validate(document))


def read_seen(place: Path) -> dict[int, Mapping[str, Any]]:
    """What consumers that still live have learned, by pid."""
    found = {int(path.stem): json.loads(path.read_text()) for path in place.glob("*.json")}
    return {pid: told for pid, told in found.items() if find_start(pid)}


def kill_all(pids: Mapping[int, object]) -> None:
    """Ends consumers that a broken launcher left."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def no_stop() -> None:
    """Nothing stops the run."""
