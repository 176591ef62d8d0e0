"""Processes that are killed at random moments, and started again at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backlog.errors import BacklogError
from sandbox import watchdog

_STOP_SECONDS, _TICK = 30.0, 0.1


@dataclass(frozen=True, slots=True)
class Part:
    """A command, and what people call the process that runs it."""

    name: str
    command: tuple[str, ...]


class Player:
    """One process after the other, of one command. It ends with this process, however that ends."""

    def __init__(self, part: Part, directory: Path, environment: Mapping[str, str]) -> None:
        self.name, self._command = part.name, part.command
        self._directory, self._environment = directory, environment
        self._log = directory / f"{part.name.replace(' ', '-')}.log"
        self._process: subprocess.Popen[str] | None = None
        self._pid = 0
        self.kills = 0

    def start(self) -> None:
        """Starts it. Ctrl-C is for whoever started it, who stops it."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__, *self._command],
                cwd=self._directory,
                env=dict(self._environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
            )
        assert self._process.stdout is not None
        self._pid = int(self._process.stdout.readline())

    def kill(self) -> None:
        """SIGKILL.

        Raises:
            BacklogError: it has ended by itself.
        """
        assert self._process is not None
        if self._process.poll() is not None:
            told = self._log.read_text(errors="replace").strip().splitlines()
            raise BacklogError(
                f"it ended by itself: {told[-1] if told else 'it said nothing'}",
                subject=f"demo, {self.name}",
                hint="run it again",
            )
        os.kill(self._pid, signal.SIGKILL)
        self._await(_STOP_SECONDS)
        self.kills += 1

    def stop(self) -> None:
        """SIGTERM, and SIGKILL where that is not enough."""
        if self._process is None:
            return
        if self._process.poll() is None:
            os.kill(self._pid, signal.SIGTERM)
        try:
            self._await(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the watchdog takes it along
            self._await(_STOP_SECONDS)

    def _await(self, seconds: float) -> None:
        assert self._process is not None
        self._process.wait(seconds)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process = None


@contextmanager
def playing(
    parts: Sequence[Part], directory: Path, environment: Mapping[str, str]
) -> Iterator[list[Player]]:
    """All of them at work; none afterwards."""
    players = [Player(part, directory, environment) for part in parts]
    try:
        for player in players:
            player.start()
        yield players
    finally:
        for player in players:
            player.stop()


def kill_at_random(
    players: Sequence[Player], seconds: float, apart: tuple[float, float]
) -> Iterator[float]:
    """For so long each is killed after some time at work, and started again.

    Args:
        apart: the shortest and the longest time between two kills of one.

    Yields:
        now and then, how much of the time is over: 0 to 1.
    """
    chance, began = random.Random(), time.monotonic()
    due = {player.name: began + chance.uniform(*apart) for player in players}
    while (passed := time.monotonic() - began) < seconds:
        for player in players:
            if time.monotonic() >= due[player.name]:
                player.kill()
                player.start()
                due[player.name] = time.monotonic() + chance.uniform(*apart)
        yield passed / seconds
        time.sleep(_TICK)
