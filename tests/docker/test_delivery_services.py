"""The services of the outbox and of look-back: their commands as they stand in compose.yaml, run as
processes against a PostgreSQL set up by the stack's own scripts, and a Kafka."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from sqlalchemy import create_engine, text
from sqlalchemy.exc import ProgrammingError

from backlogctl.clock import Deadline
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import make_admin
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import free_port
from backlogctl_delivery.lookback.producer import LookBackProducer
from tests.docker.compose import DOCKER, ROOT, read_compose
from tests.kafka_tools import properties_of, read_all, wait_until
from tests.services import EmbeddedPostgres

_TOPICS = ("orders", "receipts", "look_back_msg", "announced")
_SECRETS = "/run/secrets"
# Each user may see the outbox, and do what it is for and no more.
_FORBIDDEN = {
    "outbox": "SELECT * FROM public.orders",
    "shop": "DELETE FROM backlog_outbox",
    "shop_reader": "UPDATE outbox.backlog_outbox SET state = 'sent'",
}


class Stack:
    """As much of it as these services need, at other addresses."""

    def __init__(self, place: Path, kafka: str, postgres: EmbeddedPostgres) -> None:
        self.kafka, self._postgres, self._place = kafka, postgres, place
        self._changes = {
            "kafka-1:9092,kafka-2:9092,kafka-3:9092": kafka,
            "@database/": f"@127.0.0.1:{postgres.port}/",
            "@shop-database/": f"@127.0.0.1:{postgres.port}/",
            "host=shop-database": f"host=127.0.0.1 port={postgres.port}",
            "0.0.0.0:9406": f"127.0.0.1:{free_port()}",
            "0.0.0.0:9322": f"127.0.0.1:{free_port()}",
            _SECRETS: str(place),
        }
        for service in ("database", "shop-database", "exporter", "shop-producer"):
            for secret in SERVICES[service]["secrets"]:
                (place / secret).write_text(f"p@ss/{secret}")
        (place / "backlog.yaml").write_text(self._move((DOCKER / "backlog.yaml").read_text()))
        for name in ("platform.sh", "shop.sh"):
            script = self._move((DOCKER / "postgres" / name).read_text())
            environment = {**os.environ, "POSTGRES_USER": "postgres", "PGHOST": "127.0.0.1"}
            environment["PGPORT"] = str(postgres.port)
            subprocess.run(["bash", "-c", script], check=True, env=environment)

    def run(self, *words: str) -> None:
        """A command to its end."""
        subprocess.run(self._find(list(words)), check=True, env=self._environment({}), cwd=ROOT)

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """A service."""
        service = SERVICES[name]
        own = {key: self._move(str(value)) for key, value in service.get("environment", {}).items()}
        command = self._find(service["command"])
        return subprocess.Popen(command, env=self._environment(own), cwd=ROOT)

    def is_healthy(self, name: str) -> bool:
        """What its health check says."""
        test = SERVICES[name]["healthcheck"]["test"][1:]
        port = re.search(r":(\d+)/", test[-1])
        assert port is not None
        listen = self._changes[f"0.0.0.0:{port[1]}"]
        command = [sys.executable, str(DOCKER / "shop/healthy.py"), f"http://{listen}/metrics"]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    def connect(self, user: str, database: str = "shop") -> str:
        return f"postgresql+psycopg://{user}@127.0.0.1:{self._postgres.port}/{database}"

    def read_keys(self, topic: str) -> list[str]:
        return [
            (message.key() or b"").decode()
            for message in read_all(properties_of(self.kafka), topic, [0])
        ]

    def _move(self, words: str) -> str:
        for before, after in self._changes.items():
            words = words.replace(before, after)
        return words

    def _find(self, command: list[str]) -> list[str]:
        program, *rest = command
        if program == "backlogctl":
            return [sys.executable, "-m", "backlogctl.replay.cli", *rest]
        return [sys.executable, *(word.replace("/opt/shop", str(DOCKER / "shop")) for word in rest)]

    def _environment(self, own: dict[str, str]) -> dict[str, str]:
        file = str(self._place / "backlog.yaml")
        return {**os.environ, "BACKLOG_CONFIG": file, "PYTHONPATH": str(ROOT), **own}


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with (
        EmbeddedKafka.start(tmp_path / "kafka") as kafka,
        EmbeddedPostgres() as postgres,
    ):
        admin = make_admin(properties_of(kafka.bootstrap))
        for name in _TOPICS:
            create_topic(admin, name, partitions=1, replication=1, config={}, deadline=Deadline(60))
        yield Stack(tmp_path, kafka.bootstrap, postgres)


def end(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, as `docker compose stop`; its exit code."""
    process.send_signal(signal.SIGTERM)
    return process.wait(60)


def test_receipts_are_sent_and_what_was_prepared_is_forwarded(stack: Stack) -> None:
    # As `init` does, and once more, as after `up` again.
    for _ in range(2):
        stack.run("backlogctl", "outbox", "create", "--outbox", "shop_outbox")
    names = ("shop-producer", "outbox", "lookback")
    running = {name: stack.start(name) for name in names}
    try:
        for name in ("outbox", "lookback"):
            wait_until(lambda name=name: stack.is_healthy(name), what=f"{name} is healthy")  # type: ignore[misc]
        look_back = LookBackProducer(Producer(properties_of(stack.kafka)), service="shop")
        look_back.prepare("refund", "r-1", topic="announced", key="r-1", value="{}")
        look_back.commit("refund", "r-1")
        wait_until(lambda: len(stack.read_keys("receipts")) > 50, what="receipts are sent")
        wait_until(lambda: stack.read_keys("announced"), what="it is forwarded")
        assert end(running["shop-producer"]) == 0
        engine = create_engine(stack.connect("shop"))
        with engine.connect() as table:
            orders = sorted(table.scalars(text("SELECT order_id FROM orders")))
        engine.dispose()
        wait_until(lambda: len(stack.read_keys("receipts")) >= len(orders), what="all are sent")
        assert sorted(stack.read_keys("receipts")) == orders
        assert stack.read_keys("announced") == ["r-1"]
        assert [end(running[name]) for name in ("outbox", "lookback")] == [0, 0]
    finally:
        for process in running.values():
            process.kill()
            process.wait()

    for user, forbidden in _FORBIDDEN.items():
        engine = create_engine(stack.connect(user))
        with engine.connect() as connection:
            connection.execute(text("SELECT count(*) FROM outbox.backlog_outbox"))
            with pytest.raises(ProgrammingError, match="permission denied"):
                connection.execute(text(forbidden))
        engine.dispose()
