"""Brokers whose disk fills, and is given room."""

from __future__ import annotations

import secrets
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.kafka.clients import make_producer
from backlogctl.kafka.log_dirs import read_log_dirs
from backlogctl.sandbox.embedded import EmbeddedKafka

MIB = 2**20
BALLAST = "ballast"  # a topic of no stream
_MESSAGE = 2**19


def fill(properties: Mapping[str, Any], topic: str, size: int, each: int = _MESSAGE) -> None:
    """That many bytes which no codec makes smaller, each message with a key of its own."""
    producer = make_producer(properties, {"compression.type": "none"})
    for number in range(size // each):
        producer.produce(topic, secrets.token_bytes(each), str(number).encode())
        producer.poll(0)
    assert producer.flush(90) == 0


def fill_up(kafka: EmbeddedKafka) -> None:
    """Until the broker ends by itself, as its disk is full."""
    producer = make_producer(kafka.client_properties, {"compression.type": "none"})
    while not kafka._nodes[0].wait(0.01):
        with suppress(BufferError):
            producer.produce(BALLAST, secrets.token_bytes(_MESSAGE))
        producer.poll(0.01)


def read_usable(properties: Mapping[str, str], topic: str) -> int:
    """Of the only broker."""
    (broker,) = read_log_dirs(properties, topic, Deadline(30.0)).brokers or ()
    assert broker.usable_bytes is not None
    return broker.usable_bytes


def resize(place: Path, size: int) -> None:
    """Of a disk that `small_disk` has made."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True)


@contextmanager
def doing(action: Callable[[], None]) -> Iterator[None]:
    """Beside the test; its failure is the test's."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            action()
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not failed
