"""What commits is a row of the outbox in the same transaction; the outbox's sender sends it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from pydantic import SecretStr, ValidationError

from backlog.config import LookBack
from backlogctl_delivery.lookback.admin import count_messages, list_messages, resume_messages
from backlogctl_delivery.lookback.messages import State
from backlogctl_delivery.lookback.service import make_sender
from backlogctl_delivery.lookback.tables import Database
from backlogctl_delivery.outbox import claims
from backlogctl_delivery.outbox.sender import OutboxSender, Settings
from sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.delivery.lookback.world import Teller, make_settings, read_ids
from tests.kafka_tools import read_all, wait_until


class _Crash(BaseException):
    pass


@contextmanager
def running(teller: Teller, bootstrap: str) -> Iterator[OutboxSender]:
    """The service's sender in a thread."""
    sender = make_sender(teller.database, teller.settings, {"bootstrap.servers": bootstrap})
    failed: list[BaseException] = []

    def run() -> None:
        try:
            sender.run()
        except _Crash as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield sender
    sender.close(10)
    thread.join(120)
    assert not thread.is_alive()


@pytest.fixture
def teller(database: Database) -> Teller:
    return Teller(database, make_settings(max_forwards=2))


def test_fault_45_sent_and_not_marked_is_sent_again_with_the_same_id(
    kafka: EmbeddedKafka, topic: MakeTopic, teller: Teller, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = topic(2)
    teller.prepare("1", topic=out, headers=(("type", b"Paid"), ("backlog-event-id", b"false")))
    teller.commit("1")

    def crash(point: str) -> None:
        if point == "p8.4.mark.before":
            raise _Crash

    with monkeypatch.context() as patched:
        patched.setattr(claims, "reach", crash)
        with running(teller, kafka.bootstrap):
            wait_until(lambda: read_ids(kafka.bootstrap, out))
    row = teller.find("1")
    assert (row["state"], teller.find_sending("1").state) == (State.FORWARDING, "in_progress")
    teller.change_sending("1", due_at=0)  # its lease has ended
    with running(teller, kafka.bootstrap):
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
    assert len(list_messages(teller.database, [State.FORWARDING], 10)) == 3
    with running(teller, kafka.bootstrap):
        wait_until(lambda: teller.state("good") == State.FORWARDED)
        for biz_id in ("large", "lost"):
            wait_until(lambda name=biz_id: teller.state(name) == State.PARKED)  # type: ignore[misc]
    row = teller.find("large")
    assert row["parked_because"] == "the brokers refused it 2 times"
    assert "MSG_SIZE_TOO_LARGE" in row["last_outcome"]
    (parked,) = (one for one in count_messages(teller.database) if one.messages)
    assert (parked.state, parked.messages) == (State.PARKED, 2)
    listed = list_messages(teller.database, [State.PARKED, State.PREPARED], 10, "payments")
    assert {one["biz_id"] for one in listed} == {"lost", "large"}
    assert [one["biz_id"] for one in list_messages(teller.database, [State.FORWARDED], 10)] == [
        "good"
    ]
    # It is committed, whatever came of sending it: a resume sends it, and asks nobody.
    assert resume_messages(teller.database, teller.settings, [row["id"]], 1) == [row["id"]]
    assert teller.state("large") == State.FORWARDING
    assert teller.find_sending("large").attempts == 0


def test_the_sender_has_the_times_of_the_configuration(database: Database) -> None:
    """Half of a lease is the brokers': what was given up is over before another one sends it."""
    lease, pause = timedelta(seconds=2), timedelta(minutes=3)
    settings = make_settings(lease=lease, pause=pause, longest_pause=2 * pause)
    sender = make_sender(database, settings, {"bootstrap.servers": "unused:1"})
    assert sender._settings == Settings(
        lease=lease, delivery_timeout=lease / 2, first_interval=pause, longest_interval=2 * pause
    )
    with pytest.raises(ValidationError, match="`lease` must be 2 s or more"):
        LookBack(database=SecretStr("sqlite:///a.db"), cluster="main", lease=lease / 2)
