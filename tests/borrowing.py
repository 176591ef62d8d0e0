"""One Kafka and one PostgreSQL for all processes of a run.

Of several pytest processes the one that leads them is the lender: it starts a service when the
first test asks for it, and stops it when all processes have ended. A lender that is killed takes
its services along (see `backlogctl.sandbox.watchdog`). They talk through files in a folder of the run.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.kit.services import EmbeddedPostgres

_WITHIN = 200.0  # seconds; a service that does not start gives up before, and says why
_PAUSE = 0.05
_FAILED = "failed: "

# Runs a service in a folder of its own and tells its address.
Service = Callable[[Path], AbstractContextManager[str]]


def start_kafka(folder: Path, heap: str = "512m") -> EmbeddedKafka:
    """One broker, or as many as TEST_BROKERS says. As none ever comes back, its session may be
    long: a pause does not end it."""
    count = int(os.environ.get("TEST_BROKERS", "1"))
    own = {"broker.session.timeout.ms": "60000"}
    if count > 1:
        own |= {"default.replication.factor": str(min(3, count)), "min.insync.replicas": "2"}
    return EmbeddedKafka.start(folder, brokers=count, properties=own, heap=heap)


@contextmanager
def _run_kafka(folder: Path) -> Iterator[str]:
    # It has the clients of all processes.
    with start_kafka(folder, heap="768m") as running:
        yield running.bootstrap


@contextmanager
def _run_postgres(folder: Path) -> Iterator[str]:
    with EmbeddedPostgres() as running:
        yield str(running.port)


SERVICES: Mapping[str, Service] = {"kafka": _run_kafka, "postgres": _run_postgres}


class Lender:
    """Starts what is asked for in a folder, and stops it when it is closed."""

    def __init__(self, place: Path, services: Mapping[str, Service] = SERVICES) -> None:
        place.mkdir()
        self._place = place
        self._closed = threading.Event()
        self._threads = [
            # Daemons: where a run ends in haste, the services end with it.
            threading.Thread(target=self._lend, args=(name, service), daemon=True)
            for name, service in services.items()
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stops what was started; nobody may use it any more."""
        self._closed.set()
        for thread in self._threads:
            thread.join()

    def _lend(self, name: str, service: Service) -> None:
        while not (self._place / f"{name}.asked").exists():
            if self._closed.wait(_PAUSE):
                return
        told = False
        try:
            with service(self._place / name) as address:
                self._answer(name, address)
                told = True
                self._closed.wait()
        except Exception as error:
            if told:
                raise
            self._answer(name, f"{_FAILED}{error}")

    def _answer(self, name: str, text: str) -> None:
        unfinished = self._place / f"{name}.unfinished"
        unfinished.write_text(text)
        unfinished.rename(self._place / f"{name}.answer")


def borrow(place: Path, name: str) -> str:
    """The address of a service of the run, which is started where nobody has asked before."""
    (place / f"{name}.asked").touch()
    answer = place / f"{name}.answer"
    end = time.monotonic() + _WITHIN
    while not answer.exists():
        assert time.monotonic() < end, f"{name} was not started within {_WITHIN:.0f} s"
        time.sleep(_PAUSE)
    address = answer.read_text()
    assert not address.startswith(_FAILED), f"{name}: {address}"
    return address
