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

from delivery.outbox import Settings
from delivery.outbox.databases import Database
from delivery.outbox.desk import Desk
from delivery.outbox.tables import clock_ms, messages
from tests.conftest import MakeTopic
from tests.delivery.outbox.shop import Shop

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
    desk = Desk(shop.database)
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
    assert caplog.messages == []
    assert len(shop.read_ids(name, 3)) == 3 * 12 * 21
