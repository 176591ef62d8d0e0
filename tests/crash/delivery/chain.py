"""Chains from a business transaction to its effect: each step is a process, and may be killed."""

from __future__ import annotations

import os
import signal
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any, Self

import pyarrow.parquet as pq
import sqlalchemy as sa

from backlogctl.errors import KafkaFailure
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.coordinator import describe_group_state
from backlogctl_delivery.lookback.admin import count_messages, list_incidents
from backlogctl_delivery.lookback.messages import State
from backlogctl_delivery.lookback.tables import LookBackDatabase, list_partitions
from backlogctl_delivery.lookback.tables import create_tables as create_look_back
from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.database import OutboxDatabase
from examples.delivery.facts import (
    COMMITTED_ORDERS,
    COMMITTED_PAYMENTS,
    CONSUMER,
    HANDLED,
    MARKS,
    PAYMENT_SERVICE,
    Facts,
    create_orders,
    create_tables,
    open_engine,
)
from examples.delivery.payment_answers import make_server
from examples.delivery.story import PARTITIONS, Ledger
from examples.stage import await_handled
from tests.crash.delivery import cast, rival
from tests.crash.forking import kill_process, start_process
from tests.delivery.kit import add_old
from tests.kit.kafka import properties_of, set_offsets_raw, wait_until

APPLICATION, READER = "application", "consumer"
# Two of a group: each end of the first is a rebalance while it handles.
READERS = (READER, f"{READER} 2")
RATE = 60.0
_POINT_SECONDS, _PAUSE_SECONDS, _END_SECONDS = 6.0, 2.5, 150.0


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
        self.parts = {**self.make_parts(), **dict.fromkeys(READERS, Part(cast.consume, consuming))}
        self._running: dict[str, BaseProcess] = {}
        self.kills, self.reached = 0, 0
        # Handled before their marks were purged, and sent to be read again.
        self.forgotten: frozenset[str] = frozenset()
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
        create_topic(self.client, made, partitions=PARTITIONS)
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

    def kill_at(self, name: str, point: str, seconds: float = 0.0) -> None:
        """At a point, or after these seconds, else some, where it does not come to it."""
        self._kill(name)
        self._start(name, point)
        self._running[name].join(seconds or _POINT_SECONDS)
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

    def deadlock(self, names: Sequence[str]) -> None:
        """On MariaDB, until one of these was told so."""
        logs = [self.directory / f"{name}.log" for name in names]

        def count() -> int:
            return sum(log.read_text().count("Deadlock found") for log in logs)

        def has_another() -> bool:
            rival.cross(self.database, *locks)
            return count() > before

        before = count()
        locks = rival.OF_HANDLERS if READER in names else rival.OF_SENDERS
        wait_until(has_another, 120, "a deadlock is told")

    def replay(self, *, purges: bool = False) -> None:
        """Somebody sets the group back to the beginning.
        `purges`: and has removed all marks, too early.
        """
        for name in READERS:
            self._kill(name)
        wait_until(lambda: not self.list_members(), 60, "the group is empty")
        if purges:
            engine = open_engine(self.ledger.handled)
            MARKS.purge(engine, timedelta(microseconds=1), most=1_000_000)
            with engine.connect() as connection:
                self.forgotten = frozenset(connection.execute(sa.select(HANDLED.c.id)).scalars())
            engine.dispose()
        set_offsets_raw(
            self.client, self.ledger.group, self.ledger.topic, dict.fromkeys(range(PARTITIONS), 0)
        )
        for name in READERS:
            self._start(name)

    def list_members(self) -> dict[str, tuple[int, ...]]:
        """Of the readers' group: the partitions of each."""
        state = describe_group_state(self.client, self.ledger.group)
        return {one.member_id: one.partitions.get(self.ledger.topic, ()) for one in state.members}

    def read_facts(self) -> Facts:
        """When all is sent and handled: the application has ended, and then the others."""
        self._stop(APPLICATION)
        self.await_sent()
        try:
            await_handled(self.client, self.ledger.topic, self.ledger.group, PARTITIONS)
        except KafkaFailure as error:
            for name, process in self._running.items():
                self._tell_end(name, process.exitcode)
            raise AssertionError(f"{error}; {self._problems}") from error
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


SENDERS = ("sender 1", "sender 2")


class OutboxChain(Chain):
    """See there.

    Args:
        sends: the application sends by itself, right after each commit; the senders come after it.
    """

    rows = COMMITTED_ORDERS

    def __init__(
        self, bootstrap: str, directory: Path, database: str, *, sends: bool = False
    ) -> None:
        self._sends = sends
        super().__init__(bootstrap, directory, database)

    def make_parts(self) -> Mapping[str, Part]:
        create_orders(self.database)
        self._outbox = OutboxDatabase(self.database)
        self._desk = OutboxAdmin(self._outbox)
        self._desk.create()
        ledger, brokers = self.ledger, self.bootstrap if self._sends else None
        ordering = (self.database, brokers, ledger.topic, ledger.begun, RATE)
        sending = Part(cast.send, (self.database, self.bootstrap))
        return {
            APPLICATION: Part(cast.serve_orders, ordering),
            **dict.fromkeys(SENDERS, sending),
        }

    def await_sent(self) -> None:
        wait_until(lambda: self._desk.read_status().unsent == 0, 60, "all of it is sent")

    def close(self) -> None:
        """With the senders' database."""
        super().close()
        self._outbox.close()


INSTANCES = ("look-back 1", "look-back 2")
# A clock of the database's own, for all of its users: what is found before pg_catalog's.
_CLOCK = """\
CREATE SCHEMA simulated;
CREATE TABLE simulated.clock AS SELECT interval '0' AS ahead;
CREATE FUNCTION simulated.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
  'SELECT pg_catalog.clock_timestamp() + ahead FROM simulated.clock';
ALTER DATABASE "{database}" SET search_path = public, simulated, pg_catalog;
"""
_TO_MIDNIGHT = """\
UPDATE simulated.clock SET ahead = ahead + date_trunc('day', now, 'UTC') + interval '24 hours'
  - interval '1 second' - now FROM (SELECT simulated.clock_timestamp() AS now) AS given
"""
_OLD, _OF_A_DAY = date(2020, 2, 29), 50

_CONFIG = """\
clusters: {{main: {{bootstrap.servers: "{bootstrap}"}}}}
look_back:
  database: {url}
  cluster: main
  topic: {topic}
  group: {topic}
  first_check: 200ms
  pause: 50ms
  longest_pause: 200ms
  max_checks: 1000000
  lease: 2s
  archive: ./archive
  listen: 127.0.0.1:0
  services:
    payments: {{http: "http://127.0.0.1:{port}/", networks: [127.0.0.0/8], timeout: 2s}}
"""


class LookBackChain(Chain):
    """See there; on PostgreSQL."""

    rows = COMMITTED_PAYMENTS

    def make_parts(self) -> Mapping[str, Part]:
        self._turn_clock(_CLOCK.format(database=sa.make_url(self.database).database))
        create_tables(self.database, PAYMENT_SERVICE)
        self._look_back = LookBackDatabase(self.database)
        create_look_back(self._look_back)
        self._days = self._midnights = 0
        self._prepared = self.make_topic("prepared")
        self._engine = open_engine(self.database)
        self._answers = make_server(self._engine, 0)
        Thread(target=self._answers.serve_forever, daemon=True).start()
        config = self.directory / "backlog.yaml"
        names = {"bootstrap": self.bootstrap, "url": self.database, "topic": self._prepared}
        config.write_text(_CONFIG.format(port=self._answers.server_port, **names))
        paying = (self.ledger.topic, self._prepared, self.ledger.begun, RATE)
        return {
            APPLICATION: Part(cast.serve_payments, (self.database, self.bootstrap, *paying)),
            **dict.fromkeys(INSTANCES, Part(cast.look_back, (config,))),
        }

    def kill_at_midnight(self, name: str) -> None:
        """Just after the day has changed: its next one makes the days ahead."""
        self._turn_clock(_TO_MIDNIGHT)
        self._midnights += 1
        self.kill([name], 1.5)

    def _turn_clock(self, sql: str) -> None:
        engine = open_engine(self.database)
        with engine.begin() as connection:
            connection.exec_driver_sql(sql)
        engine.dispose()

    def add_old_day(self) -> None:
        """Messages that ended long ago, for the next instance that starts."""
        day = _OLD + timedelta(days=self._days)
        self._days += 1
        add_old(self._look_back, _OF_A_DAY, State.FORWARDED, day)

    def await_sent(self) -> None:
        await_handled(self.client, self._prepared, self._prepared, PARTITIONS)
        wait_until(
            lambda: not any(one.messages for one in count_messages(self._look_back)),
            what="all of it is settled",
        )

    def find_problems(self) -> list[str]:
        """Incidents, old days that are not archived whole and dropped, days that nobody made."""
        found = super().find_problems()
        with self._look_back.read() as connection:
            today = self._look_back.now(connection).date()
            real = connection.execute(
                sa.select(sa.text("pg_catalog.clock_timestamp()"))
            ).scalar_one()
            if today - real.astimezone(UTC).date() < timedelta(days=self._midnights):
                found.append(f"{self._midnights} midnights, and it is {today}")
            if today not in list_partitions(connection):
                found.append(f"{today} has no partition")
        found += [f"incident: {one}" for one in list_incidents(self._look_back, 10)]
        for number in range(self._days):
            day = _OLD + timedelta(days=number)
            file = self.directory / "archive" / f"{day.isoformat()}.parquet"
            kept = pq.read_metadata(file).num_rows if file.exists() else 0
            with self._look_back.read() as connection:
                is_there = day in list_partitions(connection)
            if is_there or kept != _OF_A_DAY:
                found.append(f"{day}: {kept} of {_OF_A_DAY} archived, dropped: {not is_there}")
        return found

    def close(self) -> None:
        """With who answers."""
        super().close()
        self._answers.shutdown()
        self._answers.server_close()
        self._engine.dispose()
        self._look_back.close()
