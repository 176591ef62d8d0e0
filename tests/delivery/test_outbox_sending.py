"""Faults 45 to 49 and 53: what is committed arrives, in the order of its key, whatever happens."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from backlogctl.errors import KafkaFailure, Refused, UsageError
from backlogctl.replay.cli import main
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.outbox import Outbox, OutboxDatabaseError, Settings
from backlogctl_delivery.outbox import sender as outages
from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.claims import Acknowledged, Claims, Failure
from backlogctl_delivery.outbox.database import State, clock_ms, messages
from backlogctl_delivery.outbox.in_flight import InFlight
from backlogctl_delivery.outbox.messages import Message
from tests.conftest import MakeTopic
from tests.delivery.kit import FAST, Shop, crashing_at, list_own, make_topic_on, read_id
from tests.kit.kafka import properties_of, wait_until
from tests.kit.processes import ROOT, start_backlogctl
from tests.spark_backfill.world import place_key


def end_leases(shop: Shop) -> None:
    """As time would."""
    with shop.engine.begin() as connection:
        connection.execute(
            update(messages).where(messages.c.state == State.IN_PROGRESS).values(due_at=1)
        )


def test_keys_keep_their_order(shop: Shop, topic: MakeTopic) -> None:
    """Two senders, claims of few rows, one key with most of them."""
    name = topic(3)
    keys = ["hot" if number % 2 else f"k{number % 7}" for number in range(240)]
    for at in range(0, len(keys), 20):
        shop.add(name, *keys[at : at + 20])
    order = {id_: at for at, (id_,) in enumerate(shop.list_rows("message_id"))}
    settings = Settings(scan_every=timedelta(seconds=0.05), most=10, most_of_key=15)
    with shop.sending(settings), shop.sending(settings):
        shop.await_sent(len(keys))
    found = shop.read_ids(name, 3)
    assert len(found) == len(keys)
    by_key: dict[str, list[int]] = {}
    for id_ in found:
        assert id_ is not None
        by_key.setdefault(keys[order[id_]], []).append(order[id_])
    assert all(places == sorted(places) for places in by_key.values())


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({}, lambda key: place_key(key, 5)),
        ({"partitioner": "consistent_random"}, lambda key: zlib.crc32(key) % 5),
    ],
    ids=["as-java", "as-the-application-says"],
)
def test_a_key_lands_where_java_places_it(
    pg_shop: Shop, topic: MakeTopic, given: dict[str, Any], place: Callable[[bytes], int]
) -> None:
    name = topic(5)
    keys = ["k", *(f"order-{number}" for number in range(60)), "\N{SNOWMAN}"]
    pg_shop.add(name, *keys)
    with pg_shop.sending(kafka=given):
        pg_shop.await_sent(len(keys))
    placed = {message.key(): message.partition() for message in pg_shop.read(name, 5)}
    assert placed == {key.encode(): place(key.encode()) for key in keys}


def test_a_row_says_where_kafka_has_its_message(shop: Shop, topic: MakeTopic) -> None:
    name = topic(3)
    shop.add(name, *(f"k{number % 7}" if number % 5 else None for number in range(60)))
    with shop.sending(), shop.sending():
        shop.await_sent(60)
    rows = shop.list_rows("message_id", "sent_partition", "sent_offset")
    found = {(read_id(m), m.partition(), m.offset()) for m in shop.read(name, 3)}
    assert set(rows) == found


def test_an_offset_that_kafka_does_not_tell_is_unknown() -> None:
    """Of a repeat that it had already it says none, and the client counts on from that: -1, 0, 1."""

    def told(offset: int | None) -> Any:
        return SimpleNamespace(partition=lambda: 2, offset=lambda: offset)

    def find(attempts: int, *offsets: int | None) -> list[int | None]:
        message: Any = SimpleNamespace(topic="t", attempts=attempts)
        return [in_flight._find_place(message, told(offset)).offset for offset in offsets]

    in_flight = InFlight(SimpleNamespace(), lambda: None)  # type: ignore[arg-type,return-value]
    assert find(0, None, 0, 1, 3, 4) == [None, None, None, 3, 4]
    assert find(0, None, 0, 1, 2, 3, 4, 5, 8) == [None] * 7 + [8]
    assert find(0, -1001, None, 0, 20) == [None, None, None, 20]
    # Its topic was made anew.
    assert find(0, 0, 1) == [0, 1]
    # What goes alone goes by another client.
    assert [*find(1, None), *find(0, 2), *find(1, 0, 5)] == [None, 2, None, 5]


def test_a_mark_that_comes_late_says_when_kafka_acknowledged(shop: Shop, topic: MakeTopic) -> None:
    """The database was away meanwhile."""
    shop.add(topic(1), "a", "b", "c")
    held = shop.make_claims()
    with shop.engine.connect() as connection:
        before = connection.scalar(select(clock_ms()))
        rows = held.claim_due()
        now = time.monotonic()
        told = [Acknowledged(row, 0, at, now - 900 * at) for at, row in enumerate(rows)]
        assert held.mark_sent(told) == 3
        after = connection.scalar(select(clock_ms()))
    for at, (sent,) in enumerate(shop.list_rows("sent_at")):
        assert before <= sent + 900_000 * at <= after


def test_fault_45_a_crash_after_the_acknowledgement_repeats_the_same_id(
    shop: Shop, topic: MakeTopic
) -> None:
    name = topic(1)
    given = shop.add(name, "a", "a", "b")
    with crashing_at("p8.4.mark.before"):
        shop.make_sender().run()
    assert shop.count("in_progress") == 3
    first = shop.read_ids(name)
    assert set(first) <= set(given)
    end_leases(shop)
    with shop.sending():
        shop.await_sent(3)
    found = shop.read_ids(name)
    assert len(found) == 3 + len(first)
    assert sorted(dict.fromkeys(found), key=str) == sorted(given)


def test_fault_46_claims_are_disjoint_and_a_late_token_is_refused(
    shop: Shop, topic: MakeTopic
) -> None:
    name = topic(1)
    shop.add(name, "a", "a", "b", "c", None)
    first, second = shop.make_claims(most=2, most_of_key=1), shop.make_claims()
    held = first.claim_due()
    others = second.claim_due()
    assert {row.id for row in held}.isdisjoint(row.id for row in others)
    # The second of key a waits, whoever has the first.
    assert [len(held), len(others), shop.count("pending")] == [2, 2, 1]
    assert {row.ordering_key for row in held}.isdisjoint(row.ordering_key for row in others)
    assert second.claim_due() == []
    end_leases(shop)
    again = shop.make_claims().claim_due()
    assert len(again) == 5
    assert first.mark_sent([Acknowledged(row, 0, 7) for row in held]) == 0
    second.release(others)
    assert shop.count("in_progress") == 5


# SQLite has one writer: its ids are committed in their order.
@pytest.mark.parametrize("url", ["postgres", "mariadb"], indirect=True)
def test_fault_47_a_low_id_that_commits_late_is_sent(shop: Shop, topic: MakeTopic) -> None:
    name = topic(1)
    with Session(shop.engine) as slow:
        late = shop.outbox.add(slow, topic=name, key="slow", value="v")
        slow.flush()
        shop.add(name, "fast")
        with shop.sending():
            shop.await_sent(1)
            slow.commit()
            shop.await_sent(2)
    assert shop.read_ids(name)[-1] == late
    ids = dict(shop.list_rows("message_id", "id"))
    assert ids[late] == min(ids.values())


def test_fault_48_a_poison_head_parks_and_blocks_its_key_only(
    shop: Shop, topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic(1, {"max.message.bytes": "2000"})
    with Session(shop.engine) as session, session.begin():
        shop.outbox._max_attempts = 2
        poison = shop.outbox.add(session, topic=name, key="bad", value=b"\0" * 50_000)
    blocked = shop.add(name, "bad")
    shop.add(name, "good", "good", None)
    desk = OutboxAdmin(shop.database)
    # What is compressed would fit.
    with (
        caplog.at_level(logging.WARNING, "backlog.outbox"),
        shop.sending(kafka={"compression.type": "none"}) as sender,
    ):
        shop.await_sent(3)
        wait_until(lambda: shop.count("parked") == 1, what="it is parked")
        assert shop.count("pending") == 1
        parked, waiting = desk.list_entries([], None, 10)
        assert (parked.message_id, parked.state, parked.attempts) == (poison, State.PARKED, 2)
        assert "MSG_SIZE_TOO_LARGE" in (parked.last_error or "")
        assert parked.next_attempt_at is None
        assert waiting.message_id == blocked[0]
        assert sender.counts.parked == 1
        assert desk.read_status().parked == 1
        with pytest.raises(Refused, match="only a parked message"):
            desk.discard(waiting.id)
        desk.discard(parked.id)
        shop.await_sent(4)
    assert [line for line in caplog.messages if "is parked" in line]
    assert blocked[0] in shop.read_ids(name)
    assert poison not in shop.read_ids(name)


def test_a_parked_message_is_sent_when_it_is_retried(pg_shop: Shop, topic: MakeTopic) -> None:
    name = topic(1)
    given = pg_shop.add(name, "a", "a")
    desk = OutboxAdmin(pg_shop.database)
    (first, _) = (entry.id for entry in desk.list_entries([], name, 10))
    assert desk.park([first]) == 1
    assert pg_shop.make_claims().claim_due() == []
    with pytest.raises(Refused, match="not there; nothing was changed"):
        desk.retry([first, 999])
    assert desk.retry([], all_parked=True) == 1
    with pg_shop.sending():
        pg_shop.await_sent(2)
    assert pg_shop.read_ids(name) == given
    with pytest.raises(Refused, match="it is sent"):
        desk.park([first])


def test_fault_49_kafka_is_away_for_an_hour(
    pg_url: str,
    own_kafka: EmbeddedKafka,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A clock that runs fast: one warning, fewer and fewer attempts, nothing parked."""

    def hurry() -> float:
        return time.monotonic() * 400

    monkeypatch.setattr(outages, "time", SimpleNamespace(monotonic=hurry))
    settings = Settings(
        scan_every=timedelta(seconds=0.05),
        lease=timedelta(seconds=4),
        delivery_timeout=timedelta(seconds=1),
        first_interval=timedelta(seconds=0.1),
        longest_interval=timedelta(seconds=1),
    )
    name = make_topic_on(own_kafka, "orders")
    with Shop(pg_url, own_kafka.bootstrap) as shop:
        with caplog.at_level(logging.INFO), shop.sending(settings) as sender:
            shop.add(name, "k0")
            shop.await_sent(1)
            own_kafka.kill()
            shop.add(name, *[f"k{number}" for number in range(20)])
            began = hurry()
            wait_until(lambda: sender.counts.away > 0, what="an attempt found nobody")
            wait_until(lambda: hurry() - began > 3_600, what="an hour has passed")
            assert sender.kafka_outage.is_on
            warned = [record for record in list_own(caplog) if record.levelno >= logging.WARNING]
            assert len(warned) == 1, caplog.text
            assert shop.count("parked") == 0
            assert sender.counts.away < 400
            own_kafka.restart()
            shop.await_sent(21)
        assert sender.counts.refused == 0
        assert set(shop.read_ids(name)) == {id_ for (id_,) in shop.list_rows("message_id")}


def test_fault_53_what_is_old_is_purged_in_batches_with_a_bound(
    shop: Shop, topic: MakeTopic
) -> None:
    name = topic(1)
    shop.add(name, *[f"k{number}" for number in range(10)])
    with shop.sending():
        shop.await_sent(10)
    shop.add(name, "not sent")
    desk = OutboxAdmin(shop.database)
    assert desk.purge(timedelta(hours=1), batch=3, most=100) == 0
    assert list(desk._purge_batches(0, 3, 7)) == [3, 3, 1]
    assert [entry.id for entry in desk.list_entries([State.SENT], None, 10)] == [8, 9, 10]
    assert list(desk._purge_batches(0, 2, 100)) == [2, 1]
    assert shop.list_rows("state") == [("pending",)]


@pytest.mark.parametrize("hours", [1, -1])
def test_fault_146_the_clock_of_an_application_decides_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    with monkeypatch.context() as patch:
        true = time.time_ns
        patch.setattr(time, "time_ns", lambda: true() + hours * 3_600 * 10**9)
        shop.add("t", "a", "b", None)
        with shop.engine.begin() as connection:
            shop.outbox.add(connection, topic="t", key="c", value="v")
        shop.outbox._wait_ms = 180_000
        shop.add("t", "d")
    with shop.engine.connect() as connection:
        now = connection.scalar(select(clock_ms())) or 0
    for created, due in shop.list_rows("created_at", "due_at"):
        assert now - 30_000 < created <= now
        assert (due - created + 50) // 100 * 100 in (0, 180_000)
    assert len(shop.make_claims().claim_due()) == 4


def test_fault_146_rows_of_a_clock_that_is_ahead_hold_up_nobody_and_are_told(
    shop: Shop, topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """That of somebody else who writes rows, or of a database that has failed over since."""
    name = topic(1)
    given = shop.add(name, "a", "b")
    with shop.engine.begin() as connection:
        later = {name: messages.c[name] + 3_600_000 for name in ("created_at", "due_at")}
        connection.execute(update(messages).values(**later))
    given += shop.add(name, "a")
    desk = OutboxAdmin(shop.database)
    assert desk.read_status().ahead == 2
    with shop.sending():
        shop.await_sent(3)
    assert sorted(map(str, shop.read_ids(name))) == sorted(given)
    assert "2 messages were written by a clock ahead of the database's" in caplog.text
    assert desk.read_status().ahead == 0


def shift_clock(shop: Shop, seconds: int) -> None:
    """Rows as a clock that was so far ahead wrote them, or gave them back, or claimed them."""
    with shop.engine.begin() as connection:
        later = {name: messages.c[name] + seconds * 1_000 for name in ("created_at", "due_at")}
        connection.execute(update(messages).values(**later))


def test_fault_161_all_that_waits_for_a_clock_that_went_back_comes_forward(
    shop: Shop, topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a database that has failed over: also what had failed, or a dead sender had claimed."""
    name = topic(1)
    shop.add(name, *[f"k{number % 300}" for number in range(1_200)])
    failing, dead = shop.make_claims(most=10), shop.make_claims(most=10)
    failing.mark_failed([Failure(row, "refused", refused=True) for row in failing.claim_due()])
    assert len(dead.claim_due()) == 10
    shift_clock(shop, 7_200)
    settings = replace(FAST, lease=timedelta(seconds=4), delivery_timeout=timedelta(seconds=2))
    with shop.sending(settings):
        shop.await_sent(1_200)
    assert [line for line in caplog.messages if "a clock ahead" in line] == [
        "1200 messages were written by a clock ahead of the database's: due as if written now; "
        "correct the clock of the application, or of the database"
    ]


def test_fault_161_what_waits_by_right_is_left_alone(shop: Shop) -> None:
    """For its next attempt, for the end of a lease of somebody else's length, for its own thread."""
    shop.outbox._wait_ms = 180_000
    shop.add("t", "a")
    shop.outbox._wait_ms = 0
    shop.add("t", "b", "c")
    slow = timedelta(minutes=5)
    failing = shop.make_claims(most=1, first_interval=slow, longest_interval=slow)
    failing.mark_failed([Failure(row, "refused", refused=True) for row in failing.claim_due()])
    assert len(shop.make_claims(lease=timedelta(hours=1)).claim_due()) == 1
    before = shop.list_rows("due_at", "created_at")
    assert OutboxAdmin(shop.database).read_status().ahead == 0
    assert shop.make_claims(lease=timedelta(seconds=1)).bring_forward() == (0, False)
    assert shop.list_rows("due_at", "created_at") == before
    shift_clock(shop, 7_200)
    assert OutboxAdmin(shop.database).read_status().ahead == 3
    with pytest.raises(UsageError, match="too long"):
        Settings(lease=timedelta(minutes=61))


@pytest.mark.parametrize("by", ["session", "connection"])
def test_what_was_committed_just_before_the_end_is_sent(
    pg_shop: Shop, topic: MakeTopic, by: str
) -> None:
    name = topic(1)
    outbox = Outbox(pg_shop.engine, kafka=properties_of(pg_shop.bootstrap))
    with outbox, Session(pg_shop.engine) as session, session.begin():
        at = session if by == "session" else session.connection()
        given = [outbox.add(at, topic=name, key=key, value="v") for key in ("a", "a", "b")]
    assert pg_shop.count("sent") == 3
    assert sorted(map(str, pg_shop.read_ids(name))) == sorted(given)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_fault_48_a_header_that_the_client_would_cut_or_die_of_is_parked(
    pg_shop: Shop, topic: MakeTopic, name: str
) -> None:
    """Of a row that somebody else wrote."""
    out = topic(1)
    pg_shop.add(out, "bad")
    with pg_shop.engine.begin() as connection:
        changed = {"headers": json.dumps([[name, None]]), "max_attempts": 2}
        connection.execute(update(messages).values(**changed))
    (good,) = pg_shop.add(out, "good")
    with pg_shop.sending():
        wait_until(lambda: pg_shop.count("parked") == 1, what="it is parked")
        pg_shop.await_sent(1)
    assert pg_shop.read_ids(out) == [good]


def test_fault_45_forwarded_but_marked_as_failed_is_told_and_keeps_its_id(
    pg_url: str, own_kafka: EmbeddedKafka
) -> None:
    """The broker took it and its answer was lost; the row says failed, then parked by a person."""
    settings = replace(FAST, lease=timedelta(seconds=16), delivery_timeout=timedelta(seconds=6))
    name = make_topic_on(own_kafka, "orders")
    with Shop(pg_url, own_kafka.bootstrap) as shop:
        desk = OutboxAdmin(shop.database)
        (first,) = shop.add(name, "a")
        with shop.sending(settings):
            shop.await_sent(1)
            os.kill(own_kafka.pid, signal.SIGSTOP)  # what is sent waits in its socket
            (second,) = shop.add(name, "a")

            def has_failed() -> bool:
                return any(
                    "Kafka may have it" in (error or "")
                    for (error,) in shop.list_rows("last_error")
                )

            wait_until(has_failed, what="its time is up")
        assert desk.park([2]) == 1
        os.kill(own_kafka.pid, signal.SIGCONT)

        def is_there() -> bool:
            # Its controller has taken the broker for dead: leaders' epochs are new.
            with suppress(KafkaFailure):
                return shop.read_ids(name) == [first, second]
            return False

        wait_until(is_there, what="it is there")
        entry = desk.get_entry(2)
        assert (entry.state, entry.attempts) == (State.PARKED, 0)
        assert "Kafka may have it" in (entry.last_error or "")
        assert desk.retry([2]) == 1
        with shop.sending(settings):
            shop.await_sent(2)
        assert shop.read_ids(name) == [first, second, second]


def test_a_row_whose_lease_ends_is_sent_by_another(pg_shop: Shop, topic: MakeTopic) -> None:
    name = topic(1)
    given = pg_shop.add(name, "a", "a")
    pg_shop.make_claims(lease=timedelta(seconds=0.5)).claim_due()
    with pg_shop.sending(FAST):
        pg_shop.await_sent(2)
    assert pg_shop.read_ids(name) == given


# What a sender does where something stands still: a lock, its database, its own thread, a table


def test_of_a_table_of_an_older_version_nothing_is_sent(
    shop: Shop, topic: MakeTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows could be claimed, and never be marked: they would be sent again at each lease's end."""
    name = topic(1)
    shop.add(name, "a")
    with shop.engine.begin() as connection:
        connection.execute(text("ALTER TABLE backlog_outbox DROP COLUMN sent_offset"))
    with shop.sending() as sender:
        wait_until(lambda: sender.database_outage.is_on, what="it is told")
    assert main(["outbox", "run", "--bootstrap", shop.bootstrap, "--url", shop.url]) == 1
    assert "of an older version, without sent_offset" in capsys.readouterr().err
    assert shop.read_ids(name) == []


def test_what_could_not_be_marked_is_marked_before_more_is_claimed(
    shop: Shop, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at the end: a short error of the database has nothing sent twice."""
    name, marking, calls = topic(1), Claims.mark_sent, [0]

    def mark(claims: Claims, delivered: Any) -> int:
        calls[0] += 1
        if calls[0] < 3:
            raise OutboxDatabaseError("away", subject="outbox", retryable=True)
        # Until then nothing else was claimed.
        assert shop.count("pending") == later
        return marking(claims, delivered)

    monkeypatch.setattr(Claims, "mark_sent", mark)
    later = 0
    shop.add(name, "a", "b")
    sender = shop.make_sender(replace(FAST, lease=timedelta(seconds=60)))
    sender.start()
    wait_until(lambda: calls[0] > 0, what="it could not be marked")
    sender.close()
    assert shop.count("sent") == 2
    assert len(shop.read_ids(name)) == 2


# SQLite has no locks of rows.
@pytest.mark.parametrize("url", ["postgres", "mariadb"], indirect=True)
def test_a_row_that_somebody_holds_open_holds_up_its_own_key_only(
    shop: Shop, topic: MakeTopic
) -> None:
    name = topic(1)
    shop.add(name, "a", "a", "a", "b", "b")
    ids = [row[0] for row in shop.list_rows("id")]
    with shop.engine.begin() as other:
        other.execute(select(messages.c.id).where(messages.c.id == ids[1]).with_for_update())
        with shop.sending():
            shop.await_sent(3)
            other.rollback()
            shop.await_sent(5)
    values = [message.value() for message in shop.read(name) if message.key() == b"a"]
    assert values == [b"0", b"1", b"2"]


def test_a_row_claimed_again_before_its_first_report_leaves_nothing_behind() -> None:
    """A thread that stood still for longer than its lease."""
    reports: list[Any] = []
    client = SimpleNamespace(
        produce=lambda *_, on_delivery, **__: reports.append(on_delivery), poll=lambda _: None
    )
    in_flight = InFlight(client, lambda: client, clock=lambda: 0.0)  # type: ignore[arg-type,return-value]
    first = Message(1, "old", "i-1", "t", 7, 0, 10, 0, b"k", b"v", [])
    run = [first, replace(first, id=2, message_id="i-2")]
    in_flight.start(run, lease_end=1.0)
    in_flight.start([replace(message, token="new") for message in run], lease_end=1.0)
    told = SimpleNamespace(partition=lambda: 0, offset=lambda: len(reports))
    while reports:
        reports.pop(0)(None, told)
    assert len(in_flight) == 0
    results = in_flight.take_results()
    assert [(one.message.id, one.message.token) for one in results.delivered] == [
        *((1, "old"), (1, "new"), (2, "old"), (2, "new"))
    ]


def test_ended_before_all_is_sent_is_no_success(pg_shop: Shop) -> None:
    """By a deadline of the job that runs it, while Kafka is away."""
    pg_shop.add("t", "a")
    words = ("outbox", "run", "--until-sent", "--bootstrap", "127.0.0.1:1")
    running = start_backlogctl(ROOT, *words, environment={"BACKLOG_OUTBOX_URL": pg_shop.url})
    assert running.stderr is not None
    while "no broker answers" not in running.stderr.readline():
        assert running.poll() is None
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=400)
    assert running.returncode == 1, err
    assert "1 not sent" in err


def test_a_time_limit_that_kafka_takes_for_none_is_refused() -> None:
    with pytest.raises(UsageError, match="too short"):
        Settings(lease=timedelta(milliseconds=2), delivery_timeout=timedelta(microseconds=900))
