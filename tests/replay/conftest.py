"""A shop for each test."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backlogctl.replay.cli import shared
from backlogctl.replay.engine.kind import Workspace
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kit.recoveries import open_desk
from tests.kit.shop import PARTITIONS, Said, Shop, call_main

Verb = Callable[..., Said]


@pytest.fixture(autouse=True)
def fresh_session(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`main` in this process is a call of its own: `--json` of another one has turned stdout.

    `watch` takes the signals for itself.
    """
    monkeypatch.setattr(shared, "SESSION", shared.Session())
    stdout = os.dup(1)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    os.dup2(stdout, 1)
    os.close(stdout)


@pytest.fixture
def desk(tmp_path: Path) -> Workspace:
    """A workspace on a cluster that is not there."""
    return open_desk(tmp_path)


@pytest.fixture
def verb(tmp_path: Path) -> Verb:
    """`backlogctl` in this process and in the test's directory; its exit code is checked."""

    def call(*words: str, code: int = 0) -> Said:
        said = Said(*call_main(words, tmp_path, {}))
        assert said.code == code, said
        return said

    return call


@pytest.fixture
def empty_shop(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str, unique: str, tmp_path: Path
) -> Shop:
    """SQLite source and ledger; the topic is empty and there is no table yet."""
    shop = Shop(
        directory=tmp_path,
        bootstrap=kafka.bootstrap,
        topic=topic(partitions=PARTITIONS, name="orders"),
        group=group,
        url=f"sqlite:///{tmp_path / 'shop.db'}",
        ledger="sqlite:///ledger.db",
        kafka_ledger=f"recovery-ledger-{unique}",
    )
    shop.write_config()
    return shop


@pytest.fixture
def shop(empty_shop: Shop) -> Shop:
    """A shop that has lost its orders."""
    empty_shop.lose_orders()
    return empty_shop
