"""A chain from a business transaction to its effect: each step is a process, and may be killed."""

from __future__ import annotations

import os
import signal
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from backlogctl.kafka.admin import create_topic
from examples.delivery.facts import CONSUMER, Facts, create_tables
from examples.delivery.story import PARTITIONS, Ledger
from examples.stage import await_handled
from tests.crash.delivery import cast
from tests.crash.forking import kill_process, start_process
from tests.kafka_tools import properties_of

APPLICATION, READER = "application", "consumer"
RATE = 60.0
_POINT_SECONDS, _PAUSE_SECONDS, _END_SECONDS = 6.0, 2.5, 45.0


@dataclass(frozen=True)
class Part:
    """What a process of the chain runs."""

    target: Callable[..., None]
    arguments: tuple[Any, ...]


class Chain(ABC):
    """Its processes are at work while it is entered.

    Args:
        database: URL of an empty database of its own.
    """

    rows: sa.Select[Any]

    def __init__(self, bootstrap: str, directory: Path, database: str) -> None:
        self.bootstrap, self.directory, self.database = bootstrap, directory, database
        self.client = properties_of(bootstrap)
        self.name = f"chain-{uuid.uuid4().hex[:8]}"
        # SQLite has one writer at a time: the application's file is not the consumer's.
        handled = f"sqlite:///{directory / 'handled.db'}" if self.is_sqlite else database
        create_tables(handled, CONSUMER)
        topic, begun = self.make_topic("out"), directory / "begun"
        self.ledger = Ledger(self.rows, database, begun, topic, f"{self.name}-group", handled)
        consuming = (handled, bootstrap, topic, self.ledger.group)
        self.parts = {**self.make_parts(), READER: Part(cast.consume, consuming)}
        self._running: dict[str, BaseProcess] = {}
        self.kills, self.reached = 0, 0
        self._problems: list[str] = []

    @property
    def is_sqlite(self) -> bool:
        return self.database.startswith("sqlite")

    @abstractmethod
    def make_parts(self) -> Mapping[str, Part]:
        """Its processes but the consumer; what they need is there then."""

    @abstractmethod
    def await_sent(self) -> None:
        """Until all that is committed is sent."""

    def find_problems(self) -> list[str]:
        """What the audit does not see."""
        return list(self._problems)

    def make_topic(self, name: str) -> str:
        """One of its own."""
        made = f"{self.name}-{name}"
        create_topic(self.client, made, partitions=PARTITIONS, replication=1)
        return made

    def kill(self, names: Sequence[str], seconds: float = 0.0) -> None:
        """Several at the same moment, after so many seconds; then they are started again."""
        for name in names:
            self._running[name].join(seconds)
            seconds = 0.0
        for name in names:
            self._kill(name)
        for name in names:
            self._start(name)

    def kill_at(self, name: str, point: str) -> None:
        """At a point, or after some seconds where it does not come to it."""
        self._kill(name)
        self._start(name, point)
        self._running[name].join(_POINT_SECONDS)
        self.reached += self._running[name].exitcode == -signal.SIGKILL
        self._kill(name)
        self._start(name)

    def pause(self, name: str) -> None:
        """For longer than its lease: others take over from one that goes on."""
        pid = self._running[name].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        self._running[name].join(_PAUSE_SECONDS)
        os.kill(pid, signal.SIGCONT)

    def read_facts(self) -> Facts:
        """When all is sent and handled: the application has ended, and then the others."""
        self._stop(APPLICATION)
        self.await_sent()
        await_handled(self.client, self.ledger.topic, self.ledger.group, PARTITIONS)
        for name in list(self._running):
            self._stop(name)
        return self.ledger.read_facts(self.client)

    def close(self) -> None:
        """Nothing of it runs then."""
        for process in self._running.values():
            kill_process(process)
            process.join()

    def _start(self, name: str, point: str = "") -> None:
        part, log = self.parts[name], self.directory / f"{name}.log"
        self._running[name] = start_process(part.target, *part.arguments, crash_at=point, log=log)

    def _kill(self, name: str) -> None:
        process = self._running[name]
        if process.exitcode not in (None, -signal.SIGKILL):
            self._tell_end(name)
        kill_process(process)
        process.join()
        self.kills += 1

    def _stop(self, name: str) -> None:
        process = self._running.pop(name)
        process.terminate()
        process.join(_END_SECONDS)
        if process.is_alive():
            kill_process(process)
        if process.exitcode != 0:
            self._tell_end(name, process.exitcode)

    def _tell_end(self, name: str, code: int | None = None) -> None:
        told = (self.directory / f"{name}.log").read_text().strip().splitlines()
        self._problems.append(f"{name} ended with code {code}: {told[-1:]}")

    def __enter__(self) -> Self:
        for name in self.parts:
            self._start(name)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
