"""What a database's settings must not change: its clock, its isolation, how it compares texts."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, event, select
from sqlalchemy.orm import Session

from backlogctl_delivery.outbox import Settings
from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.database import Database, clock_ms, messages
from tests.conftest import MakeTopic
from tests.delivery.outbox.shop import Shop
from tests.own_logs import list_own

_ZONES = {
    "postgresql": "SET TIME ZONE '{}'",
    "mariadb": "SET time_zone = '{}'",
    "sqlite": "SELECT '{}'",
}


@pytest.mark.parametrize("zone", ["+05:30", "-11:00"])
def test_its_clock_is_utc_whatever_the_time_zone(url: str, zone: str) -> None:
    engine = create_engine(url)

    @event.listens_for(engine, "connect")
    def set_zone(connection: Any, _: Any) -> None:
        connection.cursor().execute(_ZONES[engine.dialect.name].format(zone))

    with engine.connect() as connection:
        now = connection.execute(select(clock_ms())).scalar_one()
    engine.dispose()
    assert abs(now / 1_000 - time.time()) < 30


def test_topics_and_ids_that_differ_in_case_are_two(shop: Shop) -> None:
    """A rebuild from the outbox asks for one topic's rows; so does a list."""
    (upper,) = shop.add("Orders", "k")
    (lower,) = shop.add("orders", "k")
    desk = OutboxAdmin(shop.database)
    for topic, id_ in (("Orders", upper), ("orders", lower)):
        assert [entry.message_id for entry in desk.list_entries([], topic, 10)] == [id_]
        with shop.engine.connect() as connection:
            chosen = select(messages.c.message_id).where(messages.c.topic == topic)
            assert connection.execute(chosen).scalars().all() == [id_]
    # And each has an order of its own.
    assert len(shop.make_claims(most_of_key=1).claim_due()) == 2


@pytest.mark.parametrize("url", ["postgres", "mariadb"], indirect=True)
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_claims_see_what_is_there_now_whatever_the_engine_prefers(shop: Shop, level: Any) -> None:
    strict = create_engine(shop.url, isolation_level=level)
    with Session(strict) as session, session.begin():
        shop.outbox.add(session, topic="t", key="k", value="v")
    with Database(strict).begin() as connection:
        count = select(messages.c.id)
        assert len(connection.execute(count).all()) == 1
        shop.add("t", "k", "l")
        assert len(connection.execute(count).all()) == 3
    strict.dispose()


@pytest.mark.parametrize("url", ["postgres", "mariadb"], indirect=True)
def test_fault_46_busy_senders_and_writers_never_end_each_other(
    shop: Shop, topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """No deadlock: the database would end one of them, and its work would wait."""
    name = topic(3)
    settings = Settings(scan_every=timedelta(seconds=0.01), most=40, most_of_key=5)

    def write(number: int) -> None:
        for at in range(12):
            shop.add(name, *[f"k{(number + at + place) % 17}" for place in range(20)], None)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    with (
        caplog.at_level(logging.WARNING, "backlog.outbox"),
        shop.sending(settings),
        shop.sending(settings),
        shop.sending(settings),
    ):
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(120)
        shop.await_sent(3 * 12 * 21)
    assert list_own(caplog) == []
    assert len(shop.read_ids(name, 3)) == 3 * 12 * 21


def test_a_claim_holds_what_was_asked_for_and_leaves_the_rest_to_others(shop: Shop) -> None:
    shop.add("t", *[f"k{number % 30}" for number in range(150)])
    first = shop.make_claims(most=10, most_of_key=100).claim_due()
    assert len({message.ordering_key for message in first}) == len(first) == 10
    # Few keys: some of each, about as many in all.
    shop.add("few", *[f"k{number % 2}" for number in range(100)])
    with shop.engine.begin() as connection:
        connection.execute(messages.delete().where(messages.c.topic == "t"))
    second = shop.make_claims(most=9, most_of_key=100).claim_due()
    assert len(second) == 10
    assert [message.id for message in second] == sorted(message.id for message in second)


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_look_reads_of_the_index_only_what_is_due(shop: Shop) -> None:
    """However much is parked or waits for its next attempt."""
    found: list[str] = []

    @event.listens_for(shop.database._engine, "before_cursor_execute")
    def explain(connection: Any, cursor: Any, statement: str, given: Any, *_: Any) -> None:
        if "SKIP LOCKED" in statement:
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute(f"EXPLAIN {statement}", given)
            found.extend(line for (line,) in cursor.fetchall())

    shop.make_claims().claim_due()
    assert any("Index Cond: (due_at <= " in line for line in found), found
