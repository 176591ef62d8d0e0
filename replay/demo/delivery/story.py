"""The story of two crashes that lose or double messages elsewhere: between a commit and its message,
and between a message and its mark. Everything is killed at random, for half a minute.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import sqlalchemy as sa
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn

from backlog.clock import Deadline
from backlog.errors import BacklogError
from backlog.kafka.admin import create_topic
from delivery.outbox.databases import Database
from delivery.outbox.desk import Desk
from replay.demo.delivery.audit import Audit, audit_facts
from replay.demo.delivery.order_service import LEASE, REFUSED
from replay.demo.delivery.players import Part, Player, kill_at_random, playing
from replay.demo.delivery.result import Result, draw_audit
from replay.demo.delivery.shop import PARTITIONS, Ledger, Size, make_part
from replay.demo.delivery.tables import ORDERS, create_handled, create_orders
from replay.demo.reading import await_handled
from replay.demo.stage import (
    Stage,
    ending_on_sigterm,
    make_command,
    print_end,
    print_opening,
    tell_progress,
)
from sandbox.embedded import EmbeddedKafka

_PATIENCE_SECONDS = 60.0


def tell_story(console: Console, size: Size | None = None) -> Result:
    """Plays the whole story in a temporary directory that is gone at the end, as is every process.

    Raises:
        BacklogError: a part of it failed.
    """
    size, started = size or Size(), time.monotonic()
    print_opening(
        console,
        "demo delivery",
        "An order is committed, and its message must be sent and handled, whatever dies in "
        "between. An [bold]outbox[/] makes order and message one transaction; [bold]handle_once[/] "
        "makes a message's work and its mark another one. Here all of it is killed at random "
        "moments, and then every id is compared. All of it is real.",
    )
    with (
        ending_on_sigterm(),
        tempfile.TemporaryDirectory(prefix="backlogctl-demo-") as name,
        EmbeddedKafka.start(Path(name) / "kafka", progress=tell_progress(console)) as kafka,
    ):
        result = _Story(console, Path(name), kafka, size).tell()
    told = (
        "Now yours: docs/outbox.md takes an outbox in with ten lines, "
        "[bold green]backlogctl outbox create[/] makes its table;\n"
        "docs/idempotent-consumer.md does the other half."
    )
    print_end(console, told, result, time.monotonic() - started)
    return result


class _Story:
    def __init__(
        self, console: Console, directory: Path, kafka: EmbeddedKafka, size: Size
    ) -> None:
        self._console, self._directory, self._kafka, self._size = console, directory, kafka, size
        self._client = kafka.client_properties
        self._outbox = f"sqlite:///{directory / 'shop.db'}"
        self._stage = Stage(console, directory, {"BACKLOG_OUTBOX_URL": self._outbox})
        self._audits: dict[str, Audit] = {}
        self._kills: dict[str, int] = {}

    def tell(self) -> Result:
        self._play_outbox()
        return Result(self._audits, self._kills, restarts=1)

    def _play_outbox(self) -> None:
        stage, size = self._stage, self._size
        stage.open_chapter("An order service with an outbox, and a consumer that handles once")
        ledger = self._make_ledger(ORDERS, self._outbox)
        create_orders(self._outbox)
        stage.run("outbox", "create")
        words = ("outbox", "run", "--bootstrap", self._kafka.bootstrap)
        words += ("--lease", f"{LEASE.total_seconds():g}s")
        stage.show_command(*words)
        stage.tell(
            f"{size.rate:g} orders a second, each in one transaction with its message; "
            f"{REFUSED:.0%} of them are rolled back after that.\nThe service sends by itself after "
            "each commit; [bold]outbox run[/] sends what a killed service left."
        )
        service = make_part(
            "order service",
            "order_service",
            database=self._outbox,
            bootstrap=self._kafka.bootstrap,
            topic=ledger.topic,
            begun=ledger.begun,
            rate=size.rate,
        )
        sender = Part("sender", make_command(*words))
        stage.open_chapter(
            f"{size.seconds:g} seconds of SIGKILL, at random moments; the broker restarts once"
        )
        desk = Desk(Database(self._outbox))
        self._suffer(ledger, service, sender, lambda: desk.read_status().unsent == 0)
        stage.run("outbox", "status")
        self._audit("outbox", "orders", ledger)

    def _make_ledger(self, table: sa.Table, database: str) -> Ledger:
        handled = f"sqlite:///{self._directory / f'{table.name}-handled.db'}"
        create_handled(handled)
        create_topic(self._client, table.name, partitions=PARTITIONS, replication=1)
        begun = self._directory / f"{table.name}.begun"
        return Ledger(table, database, begun, table.name, f"{table.name}-group", handled)

    def _suffer(
        self, ledger: Ledger, writer: Part, mover: Part, is_sent: Callable[[], bool]
    ) -> None:
        """All of them at work and killed; then the writer is stopped, and the rest drained."""
        consumer = make_part(
            f"consumer of {ledger.topic}",
            "order_consumer",
            database=ledger.handled,
            bootstrap=self._kafka.bootstrap,
            topic=ledger.topic,
            group=ledger.group,
        )
        environment = self._stage.environment
        with playing((writer, mover, consumer), self._directory, environment) as players:
            self._kill(players, ledger)
            players[0].stop()
            _await(is_sent, f"all of {ledger.topic} is sent")
            await_handled(self._client, ledger.topic, ledger.group, PARTITIONS)
        self._kills |= {player.name: player.kills for player in players}

    def _kill(self, players: Sequence[Player], ledger: Ledger) -> None:
        columns = (TextColumn("  "), BarColumn(30), TextColumn("{task.description}"))
        with (
            Progress(*columns, console=self._console) as progress,
            ThreadPoolExecutor(1) as aside,
        ):
            task = progress.add_task("", total=1.0)
            restarting: Future[None] | None = None
            for passed in kill_at_random(players, self._size.seconds, self._size.apart):
                if passed > 0.5 and restarting is None:
                    restarting = aside.submit(self._kafka.restart)
                committed, handled = ledger.count()
                told = f"{sum(player.kills for player in players)} kills"
                told += f" · {committed:,} committed · {handled:,} handled"
                progress.update(task, completed=passed, description=told)
            progress.update(task, completed=1.0)
            if restarting is not None:
                restarting.result()

    def _audit(self, name: str, rows: str, ledger: Ledger) -> None:
        self._stage.open_chapter(f"Is what the consumer handled what is in the table {rows}?")
        self._audits[name] = audit = audit_facts(ledger.read_facts(self._client))
        self._stage.show(Padding(draw_audit(audit, rows), (0, 0, 0, 2)))


def _await(condition: Callable[[], bool], what: str) -> None:
    limit = Deadline(_PATIENCE_SECONDS)
    while not condition():
        if limit.expired:
            raise BacklogError(
                f"not within {_PATIENCE_SECONDS:g} s: {what}", subject="demo", hint="run it again"
            )
        time.sleep(0.1)
