"""The shop's consumers, several processes in one container.

    fleet.py run              starts and restarts them, for ever
    fleet.py scale NAME N     asks for N of them (the environment says what they read)
    fleet.py status NAME      prints how many run

The last two are the commands of `consumers:` in backlog.yaml. They reach the first through files in
SHOP_CONTROL, a volume that the containers share.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from settings import ALIVE, catch_signals

ORIGINAL = "original-"
_TICK = 0.5
_START_AGAIN_SECONDS = 5.0
_END_WITHIN = 20.0
_READ = ("BACKLOG_TOPIC", "BACKLOG_GROUP", "BACKLOG_BOOTSTRAP_SERVERS")
_CONSUMER = (sys.executable, str(Path(__file__).with_name("consumer.py")))


def write(path: Path, text: str) -> None:
    """In one go: a reader sees the old text or the new one."""
    # Of its own: NAME.wanted and NAME.running are written by different processes.
    scratch = path.with_name(f"{path.name}.tmp")
    scratch.write_text(text)
    scratch.replace(path)


def scale(control: Path, name: str, count: int) -> None:
    """Asks for so many."""
    settings = {key: os.environ[key] for key in _READ}
    if not name.startswith(ORIGINAL):  # a topic of a recovery: it is read from its beginning
        settings["SHOP_OFFSET_RESET"] = "earliest"
    write(control / f"{name}.wanted", json.dumps({"count": count, "environment": settings}))


def read_status(control: Path, name: str) -> int:
    """How many run, as `run` says."""
    try:
        return int((control / f"{name}.running").read_text())
    except FileNotFoundError:
        return 0


class Fleet:
    """The processes of one name."""

    def __init__(self, control: Path, name: str) -> None:
        self._control, self._name = control, name
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start_at = 0.0

    def follow(self) -> None:
        """Starts and ends processes until the wanted number runs, and writes how many do."""
        wanted = json.loads((self._control / f"{self._name}.wanted").read_text())
        running = [process for process in self._processes if process.poll() is None]
        if len(running) < len(self._processes):  # one has failed, and will do so again at once
            self._start_at = time.monotonic() + _START_AGAIN_SECONDS
        self._processes = running
        environment = {**os.environ, **wanted["environment"]}
        while len(self._processes) < wanted["count"] and time.monotonic() >= self._start_at:
            self._processes.append(subprocess.Popen(_CONSUMER, env=environment))
        self._end(wanted["count"])
        write(self._control / f"{self._name}.running", str(len(self._processes)))

    def stop(self) -> None:
        """Ends all of them; the wanted number is kept."""
        self._end(0)
        write(self._control / f"{self._name}.running", "0")

    def _end(self, left: int) -> None:
        ending, self._processes = self._processes[left:], self._processes[:left]
        for process in ending:
            process.terminate()
        end = time.monotonic() + _END_WITHIN
        for process in ending:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run(control: Path) -> None:
    """Goes on until SIGTERM."""
    stop = catch_signals()
    if not (control / f"{ORIGINAL}.wanted").exists():
        scale(control, ORIGINAL, int(os.environ["SHOP_CONSUMERS"]))
    fleets: dict[str, Fleet] = {}
    try:
        while not stop.wait(_TICK):
            for path in sorted(control.glob("*.wanted")):
                fleets.setdefault(path.stem, Fleet(control, path.stem)).follow()
            ALIVE.touch()
    finally:
        for fleet in fleets.values():
            fleet.stop()


def main() -> None:
    control = Path(os.environ.get("SHOP_CONTROL", "/var/lib/shop"))
    match sys.argv[1:]:
        case ["run"]:
            run(control)
        case ["scale", name, count]:
            scale(control, name, int(count))
        case ["status", name]:
            sys.stdout.write(f"{read_status(control, name)}\n")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
