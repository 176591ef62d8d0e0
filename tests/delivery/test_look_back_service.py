"""The whole service: from `prepare` to the business topic, on a real broker."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer
from pydantic import SecretStr, ValidationError

from backlogctl.clock import Deadline
from backlogctl.config import LookBack
from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.coordinator import describe_group_state
from backlogctl.kafka.topics import alter_topic_config
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.lookback import service as service_module
from backlogctl_delivery.lookback.admin import (
    count_messages,
    list_incidents,
    list_messages,
    resume_messages,
)
from backlogctl_delivery.lookback.asker import claim_questions, record_answer
from backlogctl_delivery.lookback.checkers import Answer
from backlogctl_delivery.lookback.messages import Decision, Outcome, State, make_id
from backlogctl_delivery.lookback.producer import LookBackProducer
from backlogctl_delivery.lookback.service import make_sender
from backlogctl_delivery.lookback.tables import LookBackDatabase
from backlogctl_delivery.outbox.sender import OutboxSender, Settings
from backlogctl_delivery.stamps import OF_ONE_MESSAGE
from tests.conftest import MakeTopic
from tests.delivery.kit import (
    Answerer,
    Teller,
    crashing_at,
    list_own,
    make_service,
    make_settings,
    make_topic_on,
    read_ids,
    run_instance,
)
from tests.kit.kafka import read_all, wait_until


def _count_open(database: LookBackDatabase) -> int:
    return sum(one.messages for one in count_messages(database))


def make_payments(kafka: EmbeddedKafka, topic: str) -> LookBackProducer:
    """An application's producer of the service `payments`."""
    return LookBackProducer(
        Producer({"bootstrap.servers": kafka.bootstrap}), "payments", topic=topic
    )


def test_fault_52_a_service_that_hangs_holds_up_no_other_and_two_instances_share_the_work(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    group: str,
    pg_database: LookBackDatabase,
    answerer: Answerer,
) -> None:
    own, out = topic(4), topic(2)
    settings = make_settings(
        topic=own,
        group=group,
        first_check=timedelta(milliseconds=1),
        services={
            "hangs": make_service(f"{answerer.url}/hang", timeout=timedelta(minutes=5), at_once=2),
            "floods": make_service(f"{answerer.url}/huge", at_once=1),
            "payments": make_service(f"{answerer.url}/ok"),
        },
    )
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    good = [f"good-{number}" for number in range(10)]
    answerer.statuses |= dict.fromkeys(good, "committed")
    for service, ids in (
        ("hangs", [f"bad-{number}" for number in range(10)]),
        ("floods", ["flood"]),
        ("payments", good),
    ):
        sender = LookBackProducer(producer, service, topic=own)
        for biz_id in ids:
            sender.prepare("payment", biz_id, topic=out, key=biz_id, value=b"{}")
    one = run_instance(pg_database, settings, kafka.bootstrap)
    two = run_instance(pg_database, settings, kafka.bootstrap)
    with one as first, two as second:
        wait_until(lambda: len(read_ids(kafka.bootstrap, out)) == len(good))
        wait_until(lambda: _count_open(pg_database) == 11)
    # Each was asked about by one instance, and sent by one.
    assert all(answerer.asked[biz_id] == 1 for biz_id in good)
    assert all(len(ids) == 1 for ids in read_ids(kafka.bootstrap, out).values())
    asked = [
        service.metrics.checks.labels("payments", "committed")._value.get()
        for service in (first, second)
    ]
    assert sum(asked) == len(good)


def test_what_commits_is_forwarded_and_who_falls_silent_is_asked(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    group: str,
    database: LookBackDatabase,
    answerer: Answerer,
) -> None:
    own, out = topic(3), topic(2)
    settings = make_settings(
        topic=own,
        group=group,
        first_check=timedelta(milliseconds=50),
        services={"payments": make_service(f"{answerer.url}/ok")},
    )
    answerer.statuses |= {"silent": "committed", "silent-gone": "rolled_back"}
    sender = make_payments(kafka, own)
    ids = ("told", "told-gone", "silent", "silent-gone")
    for biz_id in ids:
        sender.prepare("payment", biz_id, topic=out, key=biz_id, value=b"{}")
    sender.commit("payment", "told")
    sender.roll_back("payment", "told-gone")
    with run_instance(database, settings, kafka.bootstrap):
        wait_until(lambda: len(read_ids(kafka.bootstrap, out)) == 2)
        wait_until(lambda: _count_open(database) == 0)
    assert read_ids(kafka.bootstrap, out) == {
        one: [make_id(own, "payment", one)] for one in ("told", "silent")
    }


# What tears the two halves of a transaction apart, on a real broker.


def test_commit_before_prepare_is_forwarded_when_the_prepare_comes(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str, database: LookBackDatabase
) -> None:
    """The application's commit was faster, or its first prepare was lost and is sent again."""
    own, out = topic(1), topic(2)
    settings = make_settings(topic=own, group=group)
    sender = make_payments(kafka, own)
    teller = Teller(database, settings)
    sender.commit("payment", "1")
    with run_instance(database, settings, kafka.bootstrap):
        wait_until(lambda: count_messages(database)[1].messages == 1, what="the commit is kept")
        assert read_ids(kafka.bootstrap, out) == {}
        for _ in range(2):
            sender.prepare("payment", "1", topic=out, key="1", value=b"{}")
        wait_until(lambda: teller.state("1") == State.FORWARDED)
    assert read_ids(kafka.bootstrap, out) == {"1": [make_id(own, "payment", "1")]}
    assert list_incidents(database, 10) == []


def test_prepared_by_an_application_that_never_comes_back_is_parked_and_waits_for_it(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    group: str,
    database: LookBackDatabase,
    answerer: Answerer,
) -> None:
    """Nobody answers: neither a commit nor a rollback. It is seen, and asked again when resumed."""
    own, out = topic(1), topic(2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gone = f"http://127.0.0.1:{taken.getsockname()[1]}/"
    common: dict[str, Any] = {
        "topic": own,
        "group": group,
        "first_check": timedelta(milliseconds=1),
    }
    settings = make_settings(**common, max_checks=3, services={"payments": make_service(gone)})
    sender = make_payments(kafka, own)
    sender.prepare("payment", "1", topic=out, key="1", value=b"{}")
    teller = Teller(database, settings)
    with run_instance(database, settings, kafka.bootstrap) as instance:
        wait_until(lambda: count_messages(database)[-1].messages == 1, what="it is parked")
        failed = instance.metrics.checks.labels("payments", "failed")._value.get()
    row = teller.find("1")
    assert (row["state"], row["decision"], row["checks"], failed) == (State.PARKED, None, 3, 3)
    assert "asked 3 times" in row["parked_because"]
    assert read_ids(kafka.bootstrap, out) == {}
    # Years later.
    answerer.statuses["1"] = "committed"
    back = {"payments": make_service(f"{answerer.url}/ok")}
    settings = make_settings(**common, services=back)
    assert resume_messages(database, settings, None, 10) == [row["id"]]
    with run_instance(database, settings, kafka.bootstrap):
        wait_until(lambda: teller.state("1") == State.FORWARDED)
    assert read_ids(kafka.bootstrap, out) == {"1": [row["id"]]}


def test_fault_45_forwarded_and_parked_as_failed_is_told_and_keeps_its_id(
    own_kafka: EmbeddedKafka, pg_database: LookBackDatabase
) -> None:
    """The broker took it and its answer was lost; later attempts are refused: the row says parked."""
    own, out = make_topic_on(own_kafka, "own"), make_topic_on(own_kafka, "out")
    soon = timedelta(seconds=3)
    pauses = {"pause": soon, "longest_pause": soon, "lease": soon}
    settings = make_settings(topic=own, group=own, max_forwards=2, **pauses)
    teller = Teller(pg_database, settings)
    for number in ("0", "1"):
        teller.prepare(number, topic=out, value=os.urandom(1_000))
    teller.commit("0")
    with run_instance(pg_database, settings, own_kafka.bootstrap):
        wait_until(lambda: teller.state("0") == State.FORWARDED)
        os.kill(own_kafka.pid, signal.SIGSTOP)  # what is sent waits in its socket
        teller.commit("1")
        wait_until(lambda: teller.find("1")["last_outcome"], what="its time is up")
        row = teller.find("1")
        sending = teller.find_sending("1")
        assert (row["state"], sending.attempts) == (State.FORWARDING, 0)
        assert "Kafka may have it" in row["last_outcome"]
        # Nothing is sent until the topic takes it no more.
        teller.change_sending("1", due_at=sending.due_at + 86_400_000)
        os.kill(own_kafka.pid, signal.SIGCONT)
        wait_until(lambda: "1" in read_ids(own_kafka.bootstrap, out, 1), what="it is there")
        admin = make_admin({"bootstrap.servers": own_kafka.bootstrap})
        alter_topic_config(admin, out, {"max.message.bytes": "100"}, deadline=Deadline(60))
        teller.change_sending("1", due_at=sending.due_at)
        wait_until(lambda: teller.state("1") == State.PARKED)
        alter_topic_config(admin, out, {"max.message.bytes": "100000"}, deadline=Deadline(60))
        resume_messages(pg_database, settings, [row["id"]], 1)
        wait_until(lambda: teller.state("1") == State.FORWARDED)
    found = read_ids(own_kafka.bootstrap, out, 1)
    assert set(found["1"]) == {row["id"]}
    assert len(found["1"]) >= 2


def test_fault_49_look_back_without_brokers_says_so_once(
    own_kafka: EmbeddedKafka,
    pg_database: LookBackDatabase,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    own, out = make_topic_on(own_kafka, "own"), make_topic_on(own_kafka, "out")
    settings = make_settings(topic=own, group=own)
    teller = Teller(pg_database, settings)
    said: list[Any] = []
    for number in range(20):
        teller.prepare(str(number), topic=out)
    with (
        caplog.at_level(logging.INFO),
        run_instance(pg_database, settings, own_kafka.bootstrap, said) as instance,
    ):
        teller.commit("0")
        wait_until(lambda: teller.state("0") == State.FORWARDED)
        own_kafka.kill()
        for number in range(1, 20):
            teller.commit(str(number))
        wait_until(lambda: count_messages(pg_database)[2].messages == 19)
        wait_until(lambda: [part for part, error in said if error is not None], what="it is said")
        threading.Event().wait(8)  # as long as every reconnect and a first pause take
        assert instance.metrics.forwards.refused == 0
        own_kafka.restart()
        wait_until(lambda: count_messages(pg_database)[2].messages == 0)
    begun = [part for part, error in said if error is not None]
    assert begun == ["intake"], said
    assert len(list_own(caplog)) <= 4, caplog.text
    assert len(capfd.readouterr().err.splitlines()) <= 4
    assert {len(ids) for ids in read_ids(own_kafka.bootstrap, out, 1).values()} == {1}


def test_a_client_that_no_broker_answers_is_made_anew(
    own_kafka: EmbeddedKafka, pg_database: LookBackDatabase
) -> None:
    """Its connections stand, so it reports no error: it has to ask."""
    own = make_topic_on(own_kafka, "own")
    settings = make_settings(topic=own, group=own)
    admin = make_admin({"bootstrap.servers": own_kafka.bootstrap})
    said: list[Any] = []
    with run_instance(pg_database, settings, own_kafka.bootstrap, said):
        wait_until(lambda: describe_group_state(admin, own).members, what="it is in its group")
        os.kill(own_kafka.pid, signal.SIGSTOP)
        # Before the client itself gives up a request, which takes it a minute.
        wait_until(lambda: [part for part, error in said if error is not None], 45, "it is said")
        os.kill(own_kafka.pid, signal.SIGCONT)
        wait_until(lambda: ("intake", None) in said, what="it reads again")


@pytest.mark.parametrize("answered", [Outcome.COMMITTED, Outcome.ROLLED_BACK])
@pytest.mark.parametrize("commits", [True, False])
def test_fault_50_an_answer_and_the_application_at_the_same_moment_make_one_decision(
    pg_database: LookBackDatabase, answered: Outcome, commits: bool
) -> None:
    """Whoever is first: its word stands; another word is an incident, and never a second end."""
    settings = make_settings(first_check=timedelta(microseconds=1))
    teller = Teller(pg_database, settings)
    said = Decision.COMMITTED if commits else Decision.ROLLED_BACK
    by: set[str] = set()
    for number in range(25):
        biz_id = str(number)
        teller.prepare(biz_id)
        (claim,) = claim_questions(pg_database, "payments", "me", timedelta(seconds=60), 1)
        gate = threading.Barrier(2)

        def answer(claim: Any = claim, gate: threading.Barrier = gate) -> None:
            gate.wait(60)
            record_answer(pg_database, settings, claim, Answer(answered))

        asker = threading.Thread(target=answer)
        asker.start()
        gate.wait(60)
        (teller.commit if commits else teller.roll_back)(biz_id)
        asker.join(60)
        row = teller.find(biz_id)
        first = row["decided_by"]
        by.add(first)
        wanted = said if first == "application" else answered.decision
        assert row["decision"] == wanted
        ended = State.FORWARDING if wanted is Decision.COMMITTED else State.ROLLED_BACK
        assert row["state"] == ended
        is_conflict = first == "look-back" and said is not answered.decision
        assert len(list_incidents(pg_database, 10, row["id"])) == is_conflict
    print(f"decided by {by}")


def test_what_commits_is_forwarded_before_the_sender_scans(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    group: str,
    pg_database: LookBackDatabase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        service_module, "Settings", partial(Settings, scan_every=timedelta(hours=1))
    )
    own, out = topic(1), topic(2)
    settings = make_settings(topic=own, group=group)
    sender = make_payments(kafka, own)

    def is_forwarded(biz_id: str) -> bool:
        rows = list_messages(pg_database, [State.FORWARDED], 10)
        return biz_id in {row["biz_id"] for row in rows}

    with run_instance(pg_database, settings, kafka.bootstrap):
        for biz_id in ("1", "2"):
            sender.prepare("payment", biz_id, topic=out, key=biz_id, value=b"{}")
            sender.commit("payment", biz_id)
            wait_until(partial(is_forwarded, biz_id), what=f"{biz_id} is forwarded")


# What commits is a row of the outbox in the same transaction; the outbox's sender sends it.


@contextmanager
def running(teller: Teller, bootstrap: str) -> Iterator[None]:
    """The service's sender in a thread."""
    with closing(make_sender_of(teller, bootstrap)) as sender:
        sender.start()
        yield


def make_sender_of(teller: Teller, bootstrap: str) -> OutboxSender:
    return make_sender(teller.database, teller.settings, {"bootstrap.servers": bootstrap})


@pytest.fixture
def teller(database: LookBackDatabase) -> Teller:
    return Teller(database, make_settings(max_forwards=2))


def test_fault_45_sent_and_not_marked_is_sent_again_with_the_same_id(
    kafka: EmbeddedKafka, topic: MakeTopic, teller: Teller
) -> None:
    out = topic(2)
    # Copied from the message that is being handled: what is of that one only is left out.
    copied = [(name, b"false") for name in sorted(OF_ONE_MESSAGE)]
    teller.prepare("1", topic=out, headers=(("type", b"Paid"), *copied))
    teller.commit("1")

    with crashing_at("p8.4.mark.before"):
        make_sender_of(teller, kafka.bootstrap).run()
    row = teller.find("1")
    assert (row["state"], teller.find_sending("1").state) == (State.FORWARDING, "in_progress")
    teller.change_sending("1", due_at=0)  # its lease has ended
    with running(teller, kafka.bootstrap):
        wait_until(lambda: teller.state("1") == State.FORWARDED)
    assert read_ids(kafka.bootstrap, out) == {"1": [row["id"], row["id"]]}
    (first, _) = read_all({"bootstrap.servers": kafka.bootstrap}, out, range(2))
    assert first.headers() == [("type", b"Paid"), ("backlog-event-id", row["id"].encode())]


def test_what_the_brokers_refuse_is_parked_and_holds_up_nobody(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    teller: Teller,
    unique: str,
    caplog: pytest.LogCaptureFixture,
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
    assert "is parked: " in caplog.text
    assert "see `backlogctl lookback list --state parked`" in caplog.text
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


def test_the_sender_has_the_times_of_the_configuration(database: LookBackDatabase) -> None:
    """Half of a lease is the brokers': what was given up is over before another one sends it."""
    lease, pause = timedelta(seconds=2), timedelta(minutes=3)
    settings = make_settings(lease=lease, pause=pause, longest_pause=2 * pause)
    sender = make_sender(database, settings, {"bootstrap.servers": "unused:1"})
    assert sender._settings == Settings(
        lease=lease, delivery_timeout=lease / 2, first_interval=pause, longest_interval=2 * pause
    )
    with pytest.raises(ValidationError, match="`lease` must be 2 s or more"):
        LookBack(database=SecretStr("sqlite:///a.db"), cluster="main", lease=lease / 2)
