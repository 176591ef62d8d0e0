"""What is committed is sent at once, and what is rolled back never."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import create_engine, event, make_url, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from backlogctl.errors import ConfigurationError, Refused, UsageError
from backlogctl_delivery import stamps
from backlogctl_delivery.outbox import Outbox, OutboxDatabaseError, Settings
from backlogctl_delivery.outbox import sender as outages
from backlogctl_delivery.outbox.admin import OutboxAdmin, OutboxStatus
from backlogctl_delivery.outbox.claims import Claims
from backlogctl_delivery.outbox.database import NEVER, OutboxDatabase, clock_ms, messages
from backlogctl_delivery.outbox.messages import Message
from backlogctl_delivery.outbox.metrics import CATALOGUE, OutboxCollector, collect_outboxes
from backlogctl_delivery.outbox.sender import OutboxSender
from tests.conftest import MakeTopic
from tests.delivery.kit import FAST, Shop, list_own, read_id
from tests.kit.kafka import properties_of, run_together, wait_until
from tests.kit.prometheus import scrape_registry

SECRET = "hunter2secret"


@pytest.fixture
def direct(shop: Shop) -> Iterator[Outbox]:
    """An outbox that sends within the application; no scanner helps within the test's time."""
    kafka = properties_of(shop.bootstrap)
    with Outbox(shop.engine, kafka, settings=FAST) as made:
        yield made


def test_what_is_committed_is_sent_at_once(shop: Shop, direct: Outbox, topic: MakeTopic) -> None:
    name = topic(1)
    with Session(shop.engine) as session, session.begin():
        given = direct.add(
            session, topic=name, key="k", value=b"\x00v", headers={"type": "paid", "none": None}
        )
    shop.await_sent(1)
    (message,) = shop.read(name)
    assert (message.key(), message.value(), read_id(message)) == (b"k", b"\x00v", given)
    assert dict(message.headers() or ())["type"] == b"paid"
    assert dict(message.headers() or ())["none"] is None
    assert shop.list_rows("attempts", "ordering_key", "due_at", "last_error") == [
        (1, None, None, None)
    ]


def test_what_is_rolled_back_is_never_sent(shop: Shop, direct: Outbox, topic: MakeTopic) -> None:
    name = topic(1)
    with Session(shop.engine) as session:
        direct.add(session, topic=name, key="k", value="undone")
        session.flush()
        session.rollback()
        with session.begin():
            outer = direct.add(session, topic=name, key="k", value="outer")
            with session.begin_nested() as savepoint:
                direct.add(session, topic=name, key="k", value="undone too")
                session.flush()
                savepoint.rollback()
            with session.begin_nested():
                inner = direct.add(session, topic=name, key="k", value="inner")
    shop.await_sent(2)
    assert shop.read_ids(name) == [outer, inner]
    assert len(shop.list_rows()) == 2


def test_a_connection_and_a_scoped_session_take_messages_too(
    shop: Shop, direct: Outbox, topic: MakeTopic
) -> None:
    name = topic(1)
    with shop.engine.connect() as connection:
        direct.add(connection, topic=name, value="undone")
        connection.rollback()
        first = direct.add(connection, topic=name, key="k", value="v")
        connection.commit()
    shop.await_sent(1)
    scoped = scoped_session(sessionmaker(shop.engine))
    second = direct.add(scoped, topic=name, key="k", value=None)
    scoped.commit()
    scoped.remove()
    shop.await_sent(2)
    assert shop.read_ids(name) == [first, second]


def test_headers_of_one_message_are_not_copied_into_another(
    pg_shop: Shop, topic: MakeTopic
) -> None:
    """A consumer that copies the headers of what it handles would give its own message the id and
    the number of that one, and call it put back."""
    name = topic(1)
    headers = [(name, b"r-20261121-0001") for name in sorted(stamps.OF_ONE_MESSAGE)]
    (given,) = pg_shop.add(name, "k", headers=[("a", b"1"), *headers, ("a", None)])
    with pg_shop.sending():
        pg_shop.await_sent(1)
    (message,) = pg_shop.read(name)
    assert message.headers() == [("a", b"1"), ("a", None), (stamps.EVENT_ID, given.encode())]


# No asynchronous driver of MariaDB is among the dependencies.
@pytest.mark.parametrize("url", ["postgres", "sqlite"], indirect=True)
def test_an_asynchronous_session(shop: Shop, topic: MakeTopic) -> None:
    name = topic(1)
    address = shop.url.replace("sqlite://", "sqlite+aiosqlite://")

    async def work() -> str:
        engine = create_async_engine(address)
        outbox = Outbox(engine, properties_of(shop.bootstrap), settings=FAST)
        async with AsyncSession(engine) as session:
            outbox.add(session, topic=name, key="k", value="undone")
            await session.rollback()
            async with session.begin():
                given = outbox.add(session, topic=name, key="k", value="v")
        await asyncio.to_thread(shop.await_sent, 1)
        await asyncio.to_thread(outbox.close)
        await engine.dispose()
        return given

    given = asyncio.run(work())
    assert shop.read_ids(name) == [given]


@pytest.mark.parametrize("by", ["connect_args", "do_connect"])
def test_fault_147_the_thread_connects_as_the_asynchronous_engine_does(
    pg_shop: Shop, topic: MakeTopic, by: str
) -> None:
    """Its address alone leads nowhere: such as TLS, a password that is asked for, a schema."""
    name, registry = topic(1), CollectorRegistry()
    url = make_url(pg_shop.url).set(drivername="postgresql+asyncpg")
    given = {"database": url.database}

    async def work() -> str:
        engine = create_async_engine(
            url.set(database="nowhere"), connect_args=given if by == "connect_args" else {}
        )
        if by == "do_connect":

            @event.listens_for(engine.sync_engine, "do_connect")
            def connect(_: Any, __: Any, ___: Any, named: dict[str, Any]) -> None:
                named.update(given)

        outbox = Outbox(engine, properties_of(pg_shop.bootstrap), settings=FAST)
        outbox.create()
        async with AsyncSession(engine) as session, session.begin():
            made = [outbox.add(session, topic=name, key=key, value="v") for key in ("a", "a")]
        await asyncio.to_thread(pg_shop.await_sent, 2)
        outbox.export_metrics(registry, "own")
        got = await asyncio.to_thread(scrape_registry, registry)
        assert got.value("backlog_outbox_messages", outbox="own", state="pending") == 0
        await asyncio.to_thread(outbox.close)
        await engine.dispose()
        return made[0]

    assert asyncio.run(work()) == pg_shop.read_ids(name)[0]


@pytest.mark.parametrize("inside", [False, True], ids=["no-loop", "in-a-loop"])
def test_fault_147_each_verb_works_with_an_asynchronous_engine(pg_shop: Shop, inside: bool) -> None:
    url = make_url(pg_shop.url).set(drivername="postgresql+asyncpg")
    pg_shop.add("t", "a", "b", None)
    desk = OutboxAdmin(OutboxDatabase(create_async_engine(url)))

    def work() -> None:
        desk.check()
        assert desk.park([1, 2]) == 2
        assert desk.retry([2]) == 1
        assert desk.read_status().parked == 1
        assert [entry.state for entry in desk.list_entries([], "t", 2)] == ["parked", "pending"]
        desk.discard(1)
        with pytest.raises(Refused, match="this one is pending"):
            desk.discard(2)
        with pytest.raises(UsageError, match="no such row"):
            desk.get_entry(1)
        assert desk.count_awaited() == 2
        assert desk.purge(timedelta(0), batch=1, most=5) == 0

    async def call() -> None:
        work()

    if inside:
        asyncio.run(call())
    else:
        work()


@pytest.mark.parametrize(
    ("change", "said", "retryable"),
    [
        ({"port": 1}, "cannot be reached", True),
        ({"database": "nowhere"}, "nowhere", False),
        ({"username": "nobody", "password": SECRET}, "nobody", False),
    ],
    ids=["away", "no-database", "no-user"],
)
def test_fault_147_what_asyncpg_raises_is_explained_as_with_any_driver(
    pg_shop: Shop, change: dict[str, Any], said: str, retryable: bool
) -> None:
    url = make_url(pg_shop.url).set(drivername="postgresql+asyncpg", **change)
    with pytest.raises(OutboxDatabaseError) as caught:
        OutboxAdmin(OutboxDatabase(create_async_engine(url))).read_status()
    assert said in caught.value.message
    assert caught.value.retryable == retryable
    assert SECRET not in f"{caught.value!r} {caught.value.to_json()}"


def test_fault_147_an_asynchronous_engine_without_a_server_is_told(
    pg_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    url = make_url(pg_shop.url).set(drivername="postgresql+asyncpg", port=1)
    with closing(
        OutboxSender(create_async_engine(url), {"bootstrap.servers": pg_shop.bootstrap})
    ) as sender:
        sender.start()
        wait_until(lambda: sender.database_outage.is_on, what="it is told")
    assert "the database cannot be reached" in caplog.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": "no topic"}, "no name of a topic"),
        ({"value": {"order": 1}}, "value is of type dict"),
        ({"headers": {"a\0b": "1"}}, "may not be named"),
        ({"headers": {"\ud800": "1"}}, "may not be named"),
        ({"message_id": "7"}, "32 hexadecimal digits"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_it_is_written(
    given: dict[str, Any], said: str
) -> None:
    outbox = Outbox("sqlite:///never.db")
    with pytest.raises(UsageError, match=said) as refused:
        outbox.add(Session(), **{"topic": "t", "value": b"secret payload", **given})
    assert "secret payload" not in str(refused.value)


def test_a_wrong_place_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Outbox("oracle://user:geheim@host/db")
    assert "geheim" not in str(refused.value)
    with pytest.raises(UsageError, match="no transaction"):
        Outbox(create_engine("sqlite://")).add(cast("Any", object()), topic="t", value="v")


# What a database's settings must not change: its clock, its isolation, how it compares texts.

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
    with OutboxDatabase(strict).begin() as connection:
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

    with (
        caplog.at_level(logging.WARNING, "backlog.outbox"),
        shop.sending(settings),
        shop.sending(settings),
        shop.sending(settings),
    ):
        run_together(*[partial(write, number) for number in range(3)])
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


# Rows that this connection has read; of PostgreSQL in this transaction.
_READS = {
    "postgresql": "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) "
    "FROM pg_stat_xact_user_tables",
    "mariadb": "SELECT sum(variable_value) FROM information_schema.session_status "
    "WHERE variable_name LIKE 'HANDLER_READ%'",
}
_ANALYZE = {"postgresql": "ANALYZE", "mariadb": "ANALYZE TABLE backlog_outbox"}


@pytest.mark.parametrize("url", ["postgres", "mariadb"], indirect=True)
@pytest.mark.parametrize(
    ("head", "last"),
    [
        ({"state": "parked", "due_at": NEVER}, 1),
        ({"due_at": 2**60}, 1),
        ({"due_at": 1}, 1),
        ({"state": "parked", "due_at": NEVER}, 10**9),
    ],
    ids=["parked", "waits", "hot", "all-parked"],
)
def test_fault_148_a_claim_reads_what_it_claims(
    shop: Shop, head: dict[str, Any], last: int
) -> None:
    """However much waits behind a key's first row, is parked, or waits for its next attempt."""
    shop.add("t", "hot")
    names = [column.name for column in messages.c if column.name != "id"]
    with shop.engine.begin() as connection:
        for there in (2**power for power in range(16)):
            copied = select(*[messages.c[name] for name in names]).limit(there)
            connection.execute(messages.insert().from_select(names, copied))
        connection.execute(messages.update().values(**head).where(messages.c.id <= last))
        connection.execute(text(_ANALYZE[connection.dialect.name]))
    shop.add("t", "a", "b", None)
    database, reads = OutboxDatabase(shop.url), []

    @event.listens_for(database._engine, "commit")
    def count(connection: Any) -> None:
        reads.append(connection.scalar(text(_READS[connection.dialect.name])))

    claimed = shop.make_claims(database=database).claim_due()
    database.close()
    assert {row.key for row in claimed} >= {b"a", b"b", None}
    assert len(claimed) == (103 if head == {"due_at": 1} else 3)
    assert reads[0] < 20_000


# SQLite's RETURNING promises no order: SQLAlchemy inserts one row at a time there.
@pytest.mark.parametrize("url", ["postgres", "mariadb"], indirect=True)
def test_the_rows_of_a_flush_are_one_statement(shop: Shop) -> None:
    statements: list[str] = []

    @event.listens_for(shop.engine, "before_cursor_execute")
    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        statements.append(statement)

    shop.add("t", *[f"k{number}" for number in range(50)])
    assert len([one for one in statements if one.startswith("INSERT")]) == 1


# Outboxes as Prometheus sees them: what is not known is absent, and no scrape waits for long.


@pytest.fixture
def registry(pg_shop: Shop) -> Iterator[CollectorRegistry]:
    """Of a sender that is not started."""
    made, database = CollectorRegistry(), OutboxDatabase(pg_shop.url)
    sender = OutboxSender(pg_shop.engine, {"bootstrap.servers": pg_shop.bootstrap})
    made.register(OutboxCollector(OutboxAdmin(database), lambda: sender, "shop"))
    yield made
    database.close()


def test_each_outbox_has_its_figures_and_what_is_unknown_is_absent() -> None:
    registry = CollectorRegistry()
    statuses = {
        "shop": OutboxStatus(3, 2, 1, oldest_seconds=700.0, oldest_waiting_seconds=9.5),
        "held": OutboxStatus(0, 0, 1, oldest_seconds=700.0, oldest_waiting_seconds=None),
        "away\n": None,
    }

    class Source:
        def collect(self) -> object:
            return collect_outboxes(statuses)

    registry.register(Source())  # type: ignore[arg-type]
    got = scrape_registry(registry)
    assert got.value("backlog_outbox_messages", outbox="shop", state="parked") == 1
    assert got.value("backlog_outbox_messages", outbox="held", state="pending") == 0
    assert got.labels_of("backlog_outbox_messages", "outbox") == {"shop", "held"}
    assert got.value("backlog_outbox_oldest_seconds") == 9.5, "what is parked waits for nobody"
    assert got.value("backlog_outbox_away", outbox="shop", what="database") == 0
    assert got.value("backlog_outbox_away", outbox="away\\n", what="database") == 1


def test_an_application_exports_what_its_own_thread_does(pg_shop: Shop, topic: MakeTopic) -> None:
    name, registry = topic(), CollectorRegistry()
    with Outbox(pg_shop.engine, properties_of(pg_shop.bootstrap)) as outbox:
        outbox.export_metrics(registry, "own")
        attempts = "backlog_outbox_attempts_total"
        before = scrape_registry(registry)
        assert before.value(attempts, outbox="own", outcome="delivered") == 0
        assert not before.labels_of("backlog_outbox_away", "what") - {"database"}, "not begun yet"
        with Session(pg_shop.engine) as session, session.begin():
            outbox.add(session, topic=name, key="k", value="v")
        wait_until(
            lambda: (
                scrape_registry(registry).value(attempts, outbox="own", outcome="delivered") == 1
            ),
            what="it is counted",
        )
        assert scrape_registry(registry).value("backlog_outbox_away", what="kafka") == 0


def test_fault_162_a_thread_that_dies_begins_again_and_is_told(
    pg_shop: Shop,
    topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, registry, claim = topic(1), CollectorRegistry(), Claims.claim_hinted

    def fail(*_: Any) -> list[Message]:
        raise MemoryError("no room")

    def ask() -> float:
        return scrape_registry(registry).value("backlog_outbox_away", what="thread")

    monkeypatch.setattr(Claims, "claim_hinted", fail)
    monkeypatch.setattr(outages, "_LONGEST_SECONDS", 2.0)
    with Outbox(pg_shop.engine, properties_of(pg_shop.bootstrap), settings=FAST) as outbox:
        outbox.export_metrics(registry, "own")
        with Session(pg_shop.engine) as session, session.begin():
            given = [outbox.add(session, topic=name, key="k", value="v")]
        wait_until(
            lambda: (
                scrape_registry(registry).labels_of("backlog_outbox_away", "what") >= {"thread"}
            ),
            what="it has begun",
        )
        wait_until(lambda: ask() == 1, what="it is told")
        monkeypatch.setattr(Claims, "claim_hinted", claim)
        with Session(pg_shop.engine) as session, session.begin():
            given.append(outbox.add(session, topic=name, key="k", value="v"))
        pg_shop.await_sent(2)
        wait_until(lambda: ask() == 0, what="it works")
    assert pg_shop.read_ids(name) == given
    assert [line for line in caplog.messages if "thread" in line] == [
        "the sender's thread: it has ended, and begins again: MemoryError: no room",
        "the sender's thread: works again",
    ]


def test_fault_162_a_commit_goes_well_where_no_thread_can_be_started(
    pg_shop: Shop, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one starts it."""
    name = topic(1)

    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with Outbox(pg_shop.engine, properties_of(pg_shop.bootstrap), settings=FAST) as outbox:
        with monkeypatch.context() as patch, Session(pg_shop.engine) as session, session.begin():
            patch.setattr(threading.Thread, "start", refuse)
            outbox.add(session, topic=name, key="k", value="v")
            session.commit()
        with Session(pg_shop.engine) as session, session.begin():
            outbox.add(session, topic=name, key="k", value="v")
        pg_shop.await_sent(2)


def test_a_sender_serves_all_of_the_catalogue(pg_shop: Shop, registry: CollectorRegistry) -> None:
    pg_shop.add("orders", "k")
    got = scrape_registry(registry)
    for metric in CATALOGUE:
        found = got.find(metric.exported_name)
        assert found
        assert {tuple(name for name, _ in labels) for labels in found} == {
            tuple(sorted(metric.labels))
        }
    assert got.labels_of("backlog_outbox_away", "what") == {"database", "kafka", "thread"}


def test_a_database_that_hangs_holds_up_no_scrape(
    pg_shop: Shop, registry: CollectorRegistry
) -> None:
    with pg_shop.engine.begin() as holder:
        holder.execute(text(f"LOCK TABLE {messages.name} IN ACCESS EXCLUSIVE MODE"))
        for _ in range(2):
            began = time.monotonic()
            got = scrape_registry(registry)
            assert time.monotonic() - began < 10
            assert got.value("backlog_outbox_away", what="database") == 1
            assert not got.find("backlog_outbox_messages")
            assert got.value("backlog_outbox_parked_total") == 0

    def is_seen() -> bool:
        return bool(scrape_registry(registry).find("backlog_outbox_messages"))

    wait_until(is_seen, what="the table is seen again")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://user:secret@db.example:5433/shop?password=other", "db.example/shop"),
        ("postgresql:///shop?host=/run/postgresql", "shop"),
        ("mariadb://user:secret@db/shop", "db/shop"),
        ("sqlite:////var/lib/{place}/shop.db", "shop.db"),
    ],
)
def test_an_outbox_without_a_name_is_called_by_its_place(
    url: str, name: str, tmp_path: Path
) -> None:
    assert OutboxDatabase(url.format(place=tmp_path)).name == name
