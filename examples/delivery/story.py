"""The story of the crashes that lose or double messages elsewhere: between a commit and its
message, and between a message and its mark. Everything is killed between its steps, twice at each.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from confluent_kafka import Message
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import Properties
from backlogctl.sandbox import watchdog
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import free_port
from backlogctl_delivery import crashpoints
from backlogctl_delivery.lookback.admin import count_messages
from backlogctl_delivery.lookback.tables import LookBackDatabase, has_tables
from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.database import OutboxDatabase
from backlogctl_delivery.stamps import EVENT_ID, find_header
from examples.delivery import order_service, payment_service
from examples.delivery.facts import (
    COMMITTED_ORDERS,
    COMMITTED_PAYMENTS,
    CONSUMER,
    DROPPED,
    HANDLED,
    PAYMENT_SERVICE,
    Audit,
    Facts,
    Row,
    Sent,
    audit_facts,
    connect,
    create_orders,
    create_tables,
    read_value,
)
from examples.stage import Stage, await_handled, draw_checks, make_command, read_topic, tell_whole

# Processes that are killed between two of their steps, and started again at once.

# By the place of crashpoints.py, what is done there and what is not.
PLACES: Mapping[str, str] = {
    "p8.1.added": "an order is written, and not committed",
    "p8.1.hint.before": "an order is committed, and not sent",
    "p8.2.claim.before": "a sender is about to claim",
    "p8.3.acknowledged": "Kafka has a message, and its row does not say so",
    "p8.prepared.after": "a payment is prepared, and not made",
    "p8.decided.before": "a payment is made or refused, and nobody was told",
    "p8.applied.after": "look-back has stored a message, and Kafka does not know",
    "p8.answer.before": "look-back has an answer, and has not stored it",
    "answer.decided": "an answer is decided, and not given",
    "once.worked": "a message's work is done, and not committed",
    "once.committed": "a message is handled, and Kafka does not know",
}
# It dies there at the first time or a later one, so that it is another message each time.
_LATEST_TIME = 10
_STOP_SECONDS, _TICK = 30.0, 0.1


@dataclass(frozen=True, slots=True)
class Part:
    """A command, what people call the process that runs it, and at which places it dies."""

    name: str
    command: tuple[str, ...]
    places: tuple[str, ...]


class Player:
    """One process after the other, of one command. It ends with this process, however that ends."""

    def __init__(self, part: Part, directory: Path, environment: Mapping[str, str]) -> None:
        self.name, self._command = part.name, part.command
        self._directory, self._environment = directory, environment
        self._log = directory / f"{part.name.replace(' ', '-')}.log"
        self._process: subprocess.Popen[str] | None = None
        self._pid, self._place = 0, ""
        self.kills = dict.fromkeys(part.places, 0)

    def start(self, times: int = 0) -> None:
        """Starts it; it dies at the place where it died least, unless it did at each so many times.
        Ctrl-C is for whoever started it, who stops it.
        """
        place = min(self.kills, key=self.kills.__getitem__)
        self._place = place if self.kills[place] < times else ""
        crash = f"{place}:{random.randint(1, _LATEST_TIME)}" if self._place else ""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__, *self._command],
                cwd=self._directory,
                env={**self._environment, crashpoints.VARIABLE: crash},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
            )
        assert self._process.stdout is not None
        self._pid = int(self._process.stdout.readline())

    def has_died(self) -> bool:
        """Whether it was killed at its place. Raises BacklogError: it has ended in another way."""
        assert self._process is not None
        if (code := self._process.poll()) is None:
            return False
        # With its whole group: the watchdog, which would say 128 + 9, is killed with it.
        if code != -signal.SIGKILL or not self._place:
            told = self._log.read_text(errors="replace").strip().splitlines()
            raise BacklogError(
                f"it ended by itself: {told[-1] if told else 'it said nothing'}",
                subject=f"demo, {self.name}",
                hint="run it again",
            )
        self._await(_STOP_SECONDS)
        self.kills[self._place] += 1
        return True

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
    parts: Sequence[Part], directory: Path, environment: Mapping[str, str], times: int
) -> Iterator[list[Player]]:
    """All of them at work, each to die at each of its places so many times; none afterwards."""
    players = [Player(part, directory, environment) for part in parts]
    try:
        for player in players:
            player.start(times)
        yield players
    finally:
        for player in players:
            player.stop()


def start_again(players: Sequence[Player], times: int) -> Iterator[float]:
    """Who has died at its place, until each has died at each of its places so many times.

    A busy machine may be as slow as it is: who dies at a place has been at work, and there is a
    limit for the time between two deaths only.

    Yields:
        now and then, how much of it is over: 0 to 1.
    """
    wanted = times * sum(len(player.kills) for player in players)
    died, limit = 0, Deadline(_PATIENCE_SECONDS)
    while died < wanted:
        for player in players:
            if player.has_died():
                died, limit = died + 1, Deadline(_PATIENCE_SECONDS)
                player.start(times)
        if limit.expired:
            left = {p for one in players for p, count in one.kills.items() if count < times}
            raise _late(
                f"one more dies where {', or where '.join(PLACES[p] for p in sorted(left))}"
            )
        yield died / wanted
        time.sleep(_TICK)


# What the story came to, and how it is shown.


@dataclass(frozen=True, slots=True)
class Result:
    """The audit of each half, by what it counts; and what was done to it: kills by process, and
    there by place."""

    audits: Mapping[str, Audit]
    kills: Mapping[str, Mapping[str, int]]
    restarts: int

    @property
    def passed(self) -> bool:
        """All is handled once, though everything was killed meanwhile, and messages came again."""
        return all(
            audit.passed and audit.repeats and audit.dropped for audit in self.audits.values()
        ) and all(count for places in self.kills.values() for count in places.values())

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: audit.to_json() for name, audit in self.audits.items()},
            "kills": {name: dict(places) for name, places in self.kills.items()},
            "broker_restarts": self.restarts,
            "passed": self.passed,
        }

    def __str__(self) -> str:
        told = "; ".join(audit.tell(rows) for rows, audit in self.audits.items())
        return f"{told}; {sum(sum(places.values()) for places in self.kills.values())} kills"


def draw_audit(audit: Audit, rows: str) -> Table:
    """Each figure, and whether it is as it should be. `rows`: what is counted: `orders`, ..."""
    return draw_checks(
        (name, f"{figure:,}", how, is_right)
        for name, figure, how, is_right in (
            (f"{rows} in the table", audit.committed, "committed", audit.committed > 0),
            ("handled", audit.handled, "of these", audit.handled == audit.committed),
            ("missing", len(audit.missing), "not sent, or not handled", not audit.missing),
            ("twice", len(audit.twice), "whose work was done again", not audit.twice),
            (
                "rolled back, and seen",
                len(audit.not_committed),
                f"of {audit.rolled_back:,} rolled back, on purpose or by a kill",
                not audit.not_committed,
            ),
            (
                *("out of order", len(audit.out_of_order)),
                *("keys, by first arrival", not audit.out_of_order),
            ),
            (
                *("other id", len(audit.other_id)),
                *("whose repeats bear another id", not audit.other_id),
            ),
            (
                *("repeats in Kafka", audit.repeats),
                *("sent again after a kill, with the same id", audit.repeats > 0),
            ),
            (
                *("repeats dropped", audit.dropped),
                *("sent or read again, and handle_once knew them", audit.dropped > 0),
            ),
        )
    )


# What of the shop the story starts, counts and compares: its orders, and who handles them.

PARTITIONS = 3
LOOK_BACK_TOPIC, LOOK_BACK_GROUP = "look_back_msg", "backlog-look-back"

# What is silent is asked about soon, and what a killed process held waits for seconds.
_TEXT = """\
clusters:
  main:
    bootstrap.servers: "@BOOTSTRAP@"

look_back:
  database: sqlite:///look-back.db
  cluster: main
  first_check: 1s
  pause: 200ms
  longest_pause: 1s
  max_checks: 1000
  lease: 3s
  listen: 127.0.0.1:0
  services:
    payments:
      http: "http://127.0.0.1:@PORT@/look-back"
      networks: [127.0.0.0/8]
      timeout: 2s
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How large the story is.

    Attributes:
        times: so many times everything is killed at each of its places.
        rate: business transactions a second.
    """

    times: int = 2
    rate: float = 100.0


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the facts are: a business table and its begun ids, a topic, a consumer's table.
    `rows`: what is committed: id, key, number.
    """

    rows: sa.Select[Any]
    database: str
    begun: Path
    topic: str
    group: str
    handled: str

    def count(self) -> tuple[int, int]:
        """How many rows are committed, and how many are handled."""
        return _count(self.database, self.rows), _count(self.handled, sa.select(HANDLED))

    def read_facts(self, client: Properties) -> Facts:
        """All that the audit compares."""
        with connect(self.handled) as connection:
            handled = connection.execute(sa.select(HANDLED).order_by(HANDLED.c.place)).all()
        return Facts(
            begun=frozenset(self.begun.read_text().split()),
            committed=tuple(_read_rows(self.database, self.rows)),
            topic=tuple(_read_sent(found) for found in read_topic(client, self.topic, PARTITIONS)),
            handled=tuple(Row(row.id, row.key, row.number) for row in handled),
            dropped=_count(self.handled, sa.select(DROPPED)),
        )


def render_configuration(bootstrap: str, port: int) -> str:
    """backlog.yaml, for look-back."""
    return _TEXT.replace("@BOOTSTRAP@", bootstrap).replace("@PORT@", str(port))


def make_part(name: str, module: str, places: tuple[str, ...], **options: object) -> Part:
    """A process of the shop."""
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    return Part(name, (sys.executable, "-m", f"examples.delivery.{module}", *words), places)


def _read_rows(url: str, rows: sa.Select[Any]) -> list[Row]:
    with connect(url) as connection:
        return [Row(*row) for row in connection.execute(rows)]


def _read_sent(message: Message) -> Sent:
    headers = message.headers()
    found = find_header(headers, EVENT_ID)  # type: ignore[arg-type]
    return Sent(found or "", read_value(message.key(), message.value()))


def _count(url: str, rows: sa.Select[Any]) -> int:
    counted = sa.select(sa.func.count()).select_from(rows.subquery())
    with connect(url) as connection:
        return int(connection.execute(counted).scalar_one())


_PATIENCE_SECONDS = 180.0


def tell_story(console: Console, size: Size | None = None) -> Result:
    """Plays the whole story; nothing of it is left at the end."""
    wanted = size or Size()
    return tell_whole(
        console,
        "demo delivery",
        "An order is committed, and its message must be sent and handled, whatever dies in "
        "between. An [bold]outbox[/] makes order and message one transaction; [bold]handle_once[/] "
        "makes a message's work and its mark another one. Here all of it is killed between its "
        "steps, and then every id is compared. All of it is real.",
        "Now yours: docs/outbox.md takes an outbox in with five lines, "
        "[bold green]backlogctl outbox create[/] makes its table;\n"
        "docs/idempotent-consumer.md does the other half.",
        lambda directory, kafka: _Story(console, directory, kafka, wanted).tell(),
    )


class _Story:
    def __init__(self, console: Console, directory: Path, kafka: EmbeddedKafka, size: Size) -> None:
        self._console, self._directory, self._kafka, self._size = console, directory, kafka, size
        self._client = kafka.client_properties
        self._outbox = f"sqlite:///{directory / 'shop.db'}"
        self._stage = Stage(console, directory, {"BACKLOG_OUTBOX_URL": self._outbox})
        self._audits: dict[str, Audit] = {}
        self._kills: dict[str, Mapping[str, int]] = {}

    def tell(self) -> Result:
        self._play_outbox()
        self._play_look_back()
        return Result(self._audits, self._kills, restarts=1)

    def _play_outbox(self) -> None:
        stage, size = self._stage, self._size
        stage.open_chapter("An order service with an outbox, and a consumer that handles once")
        ledger = self._make_ledger("orders", COMMITTED_ORDERS, self._outbox)
        create_orders(ledger.database)
        stage.run("outbox", "create")
        sending = ("outbox", "run", "--bootstrap", self._kafka.bootstrap, "--lease", "3s")
        stage.show_command(*sending)
        stage.tell(
            f"{size.rate:g} orders a second, each in one transaction with its message; "
            f"{order_service.REFUSED:.0%} are rolled back after that. The service sends by itself "
            "after each commit; [bold]outbox run[/] sends what a killed service left."
        )
        parts = [
            self._make_writer(
                *("order service", "order_service", ledger),
                ("p8.1.added", "p8.1.hint.before", "p8.3.acknowledged"),
                rate=size.rate,
            ),
            Part("sender", make_command(*sending), ("p8.2.claim.before",)),
            self._make_consumer("consumer", ledger),
        ]
        stage.open_chapter("SIGKILL between the steps of each; the broker restarts once")
        desk = OutboxAdmin(OutboxDatabase(ledger.database))

        def drain() -> None:
            _await(lambda: desk.read_status().unsent == 0, "all orders are sent")

        self._suffer(ledger, parts, drain, restarts=True)
        stage.run("outbox", "status")
        self._audit("orders", ledger)

    def _play_look_back(self) -> None:
        stage, size = self._stage, self._size
        stage.open_chapter("A payment service without an outbox: look-back asks what became of it")
        ledger = self._make_ledger(
            "payments", COMMITTED_PAYMENTS, f"sqlite:///{self._directory / 'payments.db'}"
        )
        create_tables(ledger.database, PAYMENT_SERVICE)
        create_topic(self._client, LOOK_BACK_TOPIC, partitions=PARTITIONS, replication=1)
        port = free_port()
        text = render_configuration(self._kafka.bootstrap, port)
        (self._directory / "backlog.yaml").write_text(text)
        stage.show_command("lookback", "run")
        stage.tell(
            f"{size.rate / 2:g} payments a second: prepared, then paid in a transaction. After "
            f"{payment_service.SILENT:.0%} of them the service says nothing, and is asked."
        )
        answers = {"database": ledger.database, "port": port}
        parts = [
            self._make_writer(
                *("payment service", "payment_service", ledger),
                ("p8.prepared.after", "p8.decided.before"),
                rate=size.rate / 2,
                prepared=LOOK_BACK_TOPIC,
            ),
            make_part("payment answers", "payment_answers", ("answer.decided",), **answers),
            Part(
                "look-back",
                make_command("lookback", "run"),
                ("p8.applied.after", "p8.answer.before", "p8.3.acknowledged"),
            ),
            self._make_consumer("consumer of payments", ledger),
        ]
        stage.open_chapter("SIGKILL between the steps of these")
        database = LookBackDatabase(f"sqlite:///{self._directory / 'look-back.db'}")

        def drain() -> None:
            _await(lambda: _has_begun(database), "look-back has begun")
            await_handled(self._client, LOOK_BACK_TOPIC, LOOK_BACK_GROUP, PARTITIONS)
            _await(
                lambda: not any(state.messages for state in count_messages(database)),
                "all payments are settled",
            )

        self._suffer(ledger, parts, drain)
        stage.run("lookback", "status")
        self._audit("payments", ledger)

    def _make_ledger(self, name: str, rows: sa.Select[Any], database: str) -> Ledger:
        """With a topic of that name, and a consumer's own database."""
        handled = f"sqlite:///{self._directory / f'{name}-handled.db'}"
        create_tables(handled, CONSUMER)
        create_topic(self._client, name, partitions=PARTITIONS, replication=1)
        begun = self._directory / f"{name}.begun"
        return Ledger(rows, database, begun, name, f"{name}-group", handled)

    def _make_writer(
        self, name: str, module: str, ledger: Ledger, places: tuple[str, ...], **options: object
    ) -> Part:
        common = {"database": ledger.database, "topic": ledger.topic, "begun": ledger.begun}
        return make_part(name, module, places, bootstrap=self._kafka.bootstrap, **common, **options)

    def _make_consumer(self, name: str, ledger: Ledger) -> Part:
        return make_part(
            name,
            "order_consumer",
            ("once.worked", "once.committed"),
            database=ledger.handled,
            bootstrap=self._kafka.bootstrap,
            topic=ledger.topic,
            group=ledger.group,
        )

    def _suffer(
        self,
        ledger: Ledger,
        parts: Sequence[Part],
        drain: Callable[[], None],
        *,
        restarts: bool = False,
    ) -> None:
        """All of them at work and killed; then the first, which writes, is stopped, and the rest
        is drained."""
        environment, times = self._stage.environment, self._size.times
        with playing(parts, self._directory, environment, times) as players:
            self._kill(players, ledger, restarts)
            with self._console.status("  what is left is sent and handled"):
                players[0].stop()
                drain()
                await_handled(self._client, ledger.topic, ledger.group, PARTITIONS)
        self._kills |= {player.name: player.kills for player in players}
        died = [(PLACES[place], n) for player in players for place, n in player.kills.items()]
        checks = draw_checks(("killed where", f"{n:,}", place, n > 0) for place, n in died)
        self._stage.show(Padding(checks, (0, 0, 0, 2)))

    def _kill(self, players: Sequence[Player], ledger: Ledger, restarts: bool) -> None:
        columns = (TextColumn("  "), BarColumn(30), TextColumn("{task.description}"))
        with Progress(*columns, console=self._console) as progress, ThreadPoolExecutor(1) as aside:
            task = progress.add_task("", total=1.0)
            restarting: Future[None] | None = None
            for passed in start_again(players, self._size.times):
                if restarts and passed > 0.5 and restarting is None:
                    restarting = aside.submit(self._kafka.restart)
                committed, handled = ledger.count()
                told = f"{sum(sum(player.kills.values()) for player in players)} kills"
                told += f" · {committed:,} committed · {handled:,} handled"
                progress.update(task, completed=passed, description=told)
            progress.update(task, completed=1.0)
            if restarting is not None:
                restarting.result()

    def _audit(self, rows: str, ledger: Ledger) -> None:
        self._stage.open_chapter(f"Is what the consumer handled what is in the table {rows}?")
        self._audits[rows] = audit = audit_facts(ledger.read_facts(self._client))
        self._stage.show(Padding(draw_audit(audit, rows), (0, 0, 0, 2)))


def _has_begun(database: LookBackDatabase) -> bool:
    """Whether the service has made its tables: it may be killed before."""
    with database.read() as connection:
        return has_tables(connection)


def _await(condition: Callable[[], bool], what: str) -> None:
    limit = Deadline(_PATIENCE_SECONDS)
    while not condition():
        if limit.expired:
            raise _late(what)
        time.sleep(0.1)


def _late(what: str) -> BacklogError:
    return BacklogError(
        f"not within {_PATIENCE_SECONDS:g} s: {what}", subject="demo", hint="run it again"
    )
