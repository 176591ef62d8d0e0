"""Empty databases for schedules that no test runs; their servers end with this process."""

from __future__ import annotations

import atexit
import functools
import uuid
from pathlib import Path

from tests.crash.delivery.schedule import DeliverySchedule, DeliveryVerdict, run_delivery
from tests.services import EmbeddedMariaDb, EmbeddedPostgres


def run_alone(bootstrap: str, directory: Path, schedule: DeliverySchedule) -> DeliveryVerdict:
    """`run_delivery` on a database of its own."""
    return run_delivery(bootstrap, directory, schedule, make_database(schedule.chain, directory))


def make_database(chain: str, directory: Path) -> str:
    """Its URL."""
    name = f"crash_{uuid.uuid4().hex[:8]}"
    if chain == "sqlite":
        return f"sqlite:///{directory / 'shop.db'}"
    server = _start_mariadb() if chain == "mariadb" else _start_postgres()
    server.execute(f"CREATE DATABASE {name}")
    return server.url(name)


@functools.cache
def _start_postgres() -> EmbeddedPostgres:
    server = EmbeddedPostgres().start()
    atexit.register(server.stop)
    return server


@functools.cache
def _start_mariadb() -> EmbeddedMariaDb:
    server = EmbeddedMariaDb().start()
    atexit.register(server.stop)
    return server
