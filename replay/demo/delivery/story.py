"""The story of the crashes that lose or double messages elsewhere: between a commit and its
message, and between a message and its mark. Everything is killed at random, for half a minute.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn

from backlog.clock import Deadline
from backlog.errors import BacklogError
from backlog.kafka.admin import create_topic
from backlogctl_delivery.lookback.admin import count_messages
from backlogctl_delivery.lookback.tables import Database as LookBackDatabase
from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.database import Database
from replay.demo.delivery import order_service, payment_service
from replay.demo.delivery.audit import Audit, audit_facts
from replay.demo.delivery.players import Part, Player, kill_at_random, playing
from replay.demo.delivery.result import Result, draw_audit
from replay.demo.delivery.shop import (
    LOOK_BACK_GROUP,
    LOOK_BACK_TOPIC,
    PARTITIONS,
    Ledger,
    Size,
    make_part,
    render_configuration,
)
from replay.demo.delivery.tables import (
    COMMITTED_ORDERS,
    COMMITTED_PAYMENTS,
    CONSUMER,
    PAYMENT_SERVICE,
    create_orders,
    create_tables,
)
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
from sandbox.ports import free_port

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
        "Now yours: docs/outbox.md takes an outbox in with five lines, "
        "[bold green]backlogctl outbox create[/] makes its table;\n"
        "docs/idempotent-consumer.md does the other half."
    )
    print_end(console, told, result, time.monotonic() - started)
    return result


class _Story:
    def __init__(self, console: Console, directory: Path, kafka: EmbeddedKafka, size: Size) -> None:
        self._console, self._directory, self._kafka, self._size = console, directory, kafka, size
        self._client = kafka.client_properties
        self._outbox = f"sqlite:///{directory / 'shop.db'}"
        self._stage = Stage(console, directory, {"BACKLOG_OUTBOX_URL": self._outbox})
        self._audits: dict[str, Audit] = {}
        self._kills: dict[str, int] = {}

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
            self._make_writer("order service", "order_service", ledger, rate=size.rate),
            Part("sender", make_command(*sending)),
            self._make_consumer("consumer", ledger),
        ]
        stage.open_chapter(
            f"{size.seconds:g} seconds of SIGKILL at random moments; the broker restarts once"
        )
        desk = OutboxAdmin(Database(ledger.database))

        def drain() -> None:
            _await(lambda: desk.read_status().unsent == 0, "all orders are sent")

        self._suffer(ledger, parts, size.seconds, drain, restarts=True)
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
                rate=size.rate / 2,
                prepared=LOOK_BACK_TOPIC,
            ),
            make_part("payment answers", "payment_answers", **answers),
            Part("look-back", make_command("lookback", "run")),
            self._make_consumer("consumer of payments", ledger),
        ]
        stage.open_chapter(f"{size.seconds / 2:g} more seconds of SIGKILL")
        database = LookBackDatabase(f"sqlite:///{self._directory / 'look-back.db'}")

        def drain() -> None:
            await_handled(self._client, LOOK_BACK_TOPIC, LOOK_BACK_GROUP, PARTITIONS)
            _await(
                lambda: not any(state.messages for state in count_messages(database)),
                "all payments are settled",
            )

        self._suffer(ledger, parts, size.seconds / 2, drain)
        stage.run("lookback", "status")
        self._audit("payments", ledger)

    def _make_ledger(self, name: str, rows: sa.Select[Any], database: str) -> Ledger:
        """With a topic of that name, and a consumer's own database."""
        handled = f"sqlite:///{self._directory / f'{name}-handled.db'}"
        create_tables(handled, CONSUMER)
        create_topic(self._client, name, partitions=PARTITIONS, replication=1)
        begun = self._directory / f"{name}.begun"
        return Ledger(rows, database, begun, name, f"{name}-group", handled)

    def _make_writer(self, name: str, module: str, ledger: Ledger, **options: object) -> Part:
        common = {"database": ledger.database, "topic": ledger.topic, "begun": ledger.begun}
        return make_part(name, module, bootstrap=self._kafka.bootstrap, **common, **options)

    def _make_consumer(self, name: str, ledger: Ledger) -> Part:
        return make_part(
            name,
            "order_consumer",
            database=ledger.handled,
            bootstrap=self._kafka.bootstrap,
            topic=ledger.topic,
            group=ledger.group,
        )

    def _suffer(
        self,
        ledger: Ledger,
        parts: Sequence[Part],
        seconds: float,
        drain: Callable[[], None],
        *,
        restarts: bool = False,
    ) -> None:
        """All of them at work and killed; then the first, which writes, is stopped, and the rest
        is drained."""
        with playing(parts, self._directory, self._stage.environment) as players:
            self._kill(players, ledger, seconds, restarts)
            with self._console.status("  what is left is sent and handled"):
                players[0].stop()
                drain()
                await_handled(self._client, ledger.topic, ledger.group, PARTITIONS)
        self._kills |= {player.name: player.kills for player in players}

    def _kill(
        self, players: Sequence[Player], ledger: Ledger, seconds: float, restarts: bool
    ) -> None:
        columns = (TextColumn("  "), BarColumn(30), TextColumn("{task.description}"))
        with (
            Progress(*columns, console=self._console) as progress,
            ThreadPoolExecutor(1) as aside,
        ):
            task = progress.add_task("", total=1.0)
            restarting: Future[None] | None = None
            for passed in kill_at_random(players, seconds, self._size.apart):
                if restarts and passed > 0.5 and restarting is None:
                    restarting = aside.submit(self._kafka.restart)
                committed, handled = ledger.count()
                told = f"{sum(player.kills for player in players)} kills"
                told += f" · {committed:,} committed · {handled:,} handled"
                progress.update(task, completed=passed, description=told)
            progress.update(task, completed=1.0)
            if restarting is not None:
                restarting.result()

    def _audit(self, rows: str, ledger: Ledger) -> None:
        self._stage.open_chapter(f"Is what the consumer handled what is in the table {rows}?")
        self._audits[rows] = audit = audit_facts(ledger.read_facts(self._client))
        self._stage.show(Padding(draw_audit(audit, rows), (0, 0, 0, 2)))


def _await(condition: Callable[[], bool], what: str) -> None:
    limit = Deadline(_PATIENCE_SECONDS)
    while not condition():
        if limit.expired:
            raise BacklogError(
                f"not within {_PATIENCE_SECONDS:g} s: {what}", subject="demo", hint="run it again"
            )
        time.sleep(0.1)
