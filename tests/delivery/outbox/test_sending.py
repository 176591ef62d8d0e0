"""Faults 45 to 49 and 53: what is committed arrives, in the order of its key, whatever happens."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from backlog.clock import Deadline
from backlog.errors import Refused
from backlog.kafka.admin import create_topic
from backlog.kafka.clients import make_admin
from backlogctl_delivery.outbox import Outbox, Settings, claims
from backlogctl_delivery.outbox import sender as outages
from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.claims import Acknowledged
from backlogctl_delivery.outbox.database import State, clock_ms, messages
from backlogctl_delivery.outbox.in_flight import InFlight
from sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.delivery.outbox.shop import FAST, Shop, read_id
from tests.kafka_tools import properties_of, wait_until
from tests.own_logs import list_own
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
    shop: Shop, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(1)
    given = shop.add(name, "a", "a", "b")

    class Crash(BaseException):
        """As SIGKILL: nothing handles it."""

    def crash(point: str) -> None:
        if point == "p8.4.mark.before":
            raise Crash

    monkeypatch.setattr(claims, "reach", crash)
    sender = shop.make_sender()
    with pytest.raises(Crash):
        sender.run()
    monkeypatch.undo()
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
    hurry = _speed_up(monkeypatch, 200)
    settings = Settings(
        scan_every=timedelta(seconds=0.05),
        lease=timedelta(seconds=4),
        delivery_timeout=timedelta(seconds=1),
        first_interval=timedelta(seconds=0.1),
        longest_interval=timedelta(seconds=1),
    )
    make_orders(own_kafka.bootstrap)
    with Shop(pg_url, own_kafka.bootstrap) as shop:
        with caplog.at_level(logging.INFO), shop.sending(settings) as sender:
            shop.add("orders", "k0")
            shop.await_sent(1)
            own_kafka.kill()
            shop.add("orders", *[f"k{number}" for number in range(20)])
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
        assert set(shop.read_ids("orders")) == {id_ for (id_,) in shop.list_rows("message_id")}


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
    settings = replace(FAST, lease=timedelta(seconds=4), delivery_timeout=timedelta(seconds=1))
    make_orders(own_kafka.bootstrap)
    with Shop(pg_url, own_kafka.bootstrap) as shop:
        desk = OutboxAdmin(shop.database)
        (first,) = shop.add("orders", "a")
        with shop.sending(settings):
            shop.await_sent(1)
            os.kill(own_kafka.pid, signal.SIGSTOP)  # what is sent waits in its socket
            (second,) = shop.add("orders", "a")

            def has_failed() -> bool:
                return any("Kafka may have it" in (error or "") for (error,) in errors(shop))

            wait_until(has_failed, what="its time is up")
        assert desk.park([2]) == 1
        os.kill(own_kafka.pid, signal.SIGCONT)
        wait_until(lambda: shop.read_ids("orders") == [first, second], what="it is there")
        entry = desk.get_entry(2)
        assert (entry.state, entry.attempts) == (State.PARKED, 0)
        assert "Kafka may have it" in (entry.last_error or "")
        assert desk.retry([2]) == 1
        with shop.sending(settings):
            shop.await_sent(2)
        assert shop.read_ids("orders") == [first, second, second]


def errors(shop: Shop) -> list[Any]:
    return shop.list_rows("last_error")


def test_a_row_whose_lease_ends_is_sent_by_another(pg_shop: Shop, topic: MakeTopic) -> None:
    name = topic(1)
    given = pg_shop.add(name, "a", "a")
    pg_shop.make_claims(lease=timedelta(seconds=0.5)).claim_due()
    with pg_shop.sending(FAST):
        pg_shop.await_sent(2)
    assert pg_shop.read_ids(name) == given


def make_orders(bootstrap: str) -> None:
    admin = make_admin(properties_of(bootstrap))
    create_topic(admin, "orders", partitions=1, replication=1, config={}, deadline=Deadline(60))


def _speed_up(patch: pytest.MonkeyPatch, factor: int) -> Callable[[], float]:
    def hurry() -> float:
        return time.monotonic() * factor

    fast: Any = SimpleNamespace(monotonic=hurry)
    patch.setattr(outages, "time", fast)
    return hurry
