"""Sending to the business topic: at least once, one id, and what the brokers refuse."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from pydantic import SecretStr, ValidationError
from sqlalchemy import update

from backlog.config import LookBack
from backlogctl_delivery.lookback import forwarding
from backlogctl_delivery.lookback.admin import resume_messages
from backlogctl_delivery.lookback.asker import claim_due
from backlogctl_delivery.lookback.forwarding import Forwarder
from backlogctl_delivery.lookback.messages import State
from backlogctl_delivery.lookback.metrics import Metrics
from backlogctl_delivery.lookback.tables import (
    MESSAGES,
    Database,
    LookBackDatabaseError,
    create_tables,
)
from sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.delivery.lookback.world import Teller, make_settings, read_ids
from tests.kafka_tools import read_all, wait_until


class _Runner:
    """A forwarder in a thread."""

    def __init__(self, teller: Teller, bootstrap: str, token: str) -> None:
        properties = {"bootstrap.servers": bootstrap}
        self.metrics = Metrics(teller.database)
        self.forwarder = Forwarder(
            teller.database, teller.settings, properties, token, self.metrics
        )
        self.failed: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.forwarder.run(self._stop)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.failed.append(error)

    def __enter__(self) -> _Runner:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()


@pytest.fixture
def teller(pg_database: Database) -> Teller:
    return Teller(pg_database, make_settings(max_forwards=2))


def test_fault_45_forwarded_but_marked_as_failed_is_sent_again_with_the_same_id(
    kafka: EmbeddedKafka, topic: MakeTopic, teller: Teller, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = topic(2)
    teller.prepare("1", topic=out, headers=(("type", b"Paid"), ("backlog-event-id", b"false")))
    teller.commit("1")

    def fail(point: str) -> None:
        if point == "p8.marked.before":
            raise LookBackDatabaseError("gone", subject="test", retryable=True)

    with monkeypatch.context() as patched:
        patched.setattr(forwarding, "reach", fail)
        with _Runner(teller, kafka.bootstrap, "first") as runner:
            wait_until(lambda: runner.failed)
    row = teller.find("1")
    assert (row["state"], row["lease_token"]) == (State.FORWARDING, "first")
    with teller.database.write() as connection:
        past = teller.database.now(connection) - timedelta(seconds=1)
        connection.execute(update(MESSAGES).values(lease_until=past))
    with _Runner(teller, kafka.bootstrap, "second"):
        wait_until(lambda: teller.state("1") == State.FORWARDED)
    assert read_ids(kafka.bootstrap, out) == {"1": [row["id"], row["id"]]}
    (first, _) = read_all({"bootstrap.servers": kafka.bootstrap}, out, range(2))
    assert first.headers() == [("type", b"Paid"), ("backlog-event-id", row["id"].encode())]


def test_what_the_brokers_refuse_is_parked_and_holds_up_nobody(
    kafka: EmbeddedKafka, topic: MakeTopic, teller: Teller, unique: str
) -> None:
    out, small = topic(2), topic(1, {"max.message.bytes": "100"})
    teller.prepare("lost", topic=f"nowhere-{unique}")
    teller.prepare("large", topic=small, value=b"x" * 1000)
    teller.prepare("good", topic=out)
    for biz_id in ("lost", "large", "good"):
        teller.commit(biz_id)
    with _Runner(teller, kafka.bootstrap, "me") as runner:
        wait_until(lambda: teller.state("good") == State.FORWARDED)
        for biz_id in ("large", "lost"):
            wait_until(lambda name=biz_id: teller.state(name) == State.PARKED)  # type: ignore[misc]
    assert not runner.failed
    row = teller.find("large")
    assert row["forwards"] == 2
    assert "MSG_SIZE_TOO_LARGE" in row["parked_because"]
    # It is committed, whatever came of sending it: a resume sends it, and asks nobody.
    resume_messages(teller.database, teller.settings, [row["id"]], 1)
    assert teller.state("large") == State.FORWARDING


def test_a_lease_is_no_shorter_than_two_seconds(pg_url: str) -> None:
    with pytest.raises(ValidationError, match="`lease` must be 2 s or more"):
        LookBack(database=SecretStr("sqlite:///a.db"), cluster="main", lease=timedelta(seconds=1))


def test_the_lease_is_what_the_configuration_says(
    kafka: EmbeddedKafka, topic: MakeTopic, pg_url: str, unique: str
) -> None:
    """What a dead instance held is sent soon; with a short one a topic that is gone is told too."""
    database, out = Database(pg_url), topic(2)
    create_tables(database)
    settings = make_settings(max_forwards=2, lease=timedelta(seconds=2))
    teller = Teller(database, settings)
    for biz_id, to in (("1", out), ("2", f"nowhere-{unique}")):
        teller.prepare(biz_id, topic=to)
        teller.commit(biz_id)
    # Of an instance that dies right after this.
    assert len(claim_due(database, "dead", settings.lease, 10, State.FORWARDING)) == 2
    began = time.monotonic()
    with _Runner(teller, kafka.bootstrap, "me"):
        wait_until(lambda: teller.state("1") == State.FORWARDED, 20)
        assert time.monotonic() - began > 1.5
        wait_until(lambda: teller.state("2") == State.PARKED, 30)
    database.close()


def test_brokers_that_are_away_use_up_no_tries(teller: Teller) -> None:
    teller.settings = replace(teller.settings, lease=timedelta(seconds=2))
    teller.prepare("1")
    teller.commit("1")
    with _Runner(teller, "127.0.0.1:1", "me") as runner:
        wait_until(lambda: "MSG_TIMED_OUT" in (teller.find("1")["last_outcome"] or ""))
        wait_until(lambda: runner.metrics.forwards.labels("failed")._value.get() > 2)
    row = teller.find("1")
    assert (row["state"], row["forwards"]) == (State.FORWARDING, 0)
