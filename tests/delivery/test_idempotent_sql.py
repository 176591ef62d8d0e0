"""The mark and the work are one: both are there, or neither, whoever asks at the same time."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from backlogctl.errors import UsageError
from backlogctl_delivery.idempotent import sql
from backlogctl_delivery.idempotent.attempts import NoMessageId
from backlogctl_delivery.idempotent.sql import Marks
from backlogctl_delivery.stamps import EVENT_ID, MESSAGE_ID
from tests.delivery.kit import (
    Payment,
    WorkFailed,
    counted,
    list_marks,
    list_orders,
    make_message,
    pay,
)
from tests.kit.kafka import run_together, wait_until

# The order of the blocks is what is tested.
# ruff: noqa: PT012, SIM117


def test_what_was_handled_is_not_handled_again(engine: sa.Engine, marks: Marks) -> None:
    message = make_message((MESSAGE_ID, b"m-1"))
    for is_first in (True, False, False):
        with Session(engine) as session, session.begin():
            assert pay(marks, session, message) is is_first
    with Session(engine) as session, session.begin():  # and twice in one transaction
        assert [pay(marks, session, "m-2") for _ in range(2)] == [True, False]
    assert counted(marks) == {"first": 2, "repeat": 3}
    assert list_orders(engine) == list_marks(engine, marks) == ["m-1", "m-2"]


def test_fault_54_a_rollback_leaves_neither_mark_nor_work(engine: sa.Engine, marks: Marks) -> None:
    with pytest.raises(WorkFailed), Session(engine) as session, session.begin():
        assert pay(marks, session, "m-1")
        raise WorkFailed
    with engine.connect() as connection:  # closed without a commit
        with marks.handle_once(connection, "m-1") as attempt:
            assert attempt.is_first
    assert list_orders(engine) == list_marks(engine, marks) == []
    with Session(engine) as session, session.begin():
        assert pay(marks, session, "m-1")
    assert list_orders(engine) == list_marks(engine, marks) == ["m-1"]


def test_fault_54_work_that_fails_takes_its_mark_along_and_nothing_else(
    engine: sa.Engine, marks: Marks
) -> None:
    """A batch in one transaction goes on after one message that cannot be handled."""
    with Session(engine) as session, session.begin():
        assert pay(marks, session, "m-1")
        with pytest.raises(WorkFailed), marks.handle_once(session, "m-2") as attempt:
            assert attempt.is_first
            session.add(Payment(order="half", amount=1))
            session.flush()
            raise WorkFailed
        with pytest.raises(sa.exc.DBAPIError):
            pay(marks, session, "m-3", amount=0)  # refused when it is flushed
        assert pay(marks, session, "m-4")
    assert list_orders(engine) == list_marks(engine, marks) == ["m-1", "m-4"]
    with Session(engine) as session, session.begin():
        assert pay(marks, session, "m-2")
    assert counted(marks) == {"first": 3, "failed": 2}


def test_fault_54_work_on_the_sessions_connection_is_taken_back_too(
    engine: sa.Engine, marks: Marks
) -> None:
    """A session makes a savepoint on a connection only once it is asked for that within it."""
    with Session(engine) as session, session.begin():
        connection = session.connection()
        with pytest.raises(WorkFailed), marks.handle_once(session, "m-1") as attempt:
            assert attempt.is_first
            connection.execute(sa.insert(Payment).values(order="half", amount=1))
            raise WorkFailed
        assert pay(marks, session, "m-2")
    assert list_orders(engine) == list_marks(engine, marks) == ["m-2"]


@pytest.mark.parametrize(
    "ids",
    [
        ("Order-1", "order-1", "ORDER-1"),
        ("strasse", "stra\xdfe", "STRASSE"),
        ("e", "\xe9", "e\u0301", "\uff45"),
        ("x" * 254 + "a", "x" * 254 + "b"),
        ("\U0001f600" * 255, "\U0001f600" * 254, "\U0001f600" * 254 + "\U0001f601"),
        ("a%", "a_", "a\\", "a'", 'a"'),
    ],
    ids=["case", "sharp s", "accents", "long", "four bytes", "signs"],
)
def test_ids_that_look_alike_are_two_marks(
    engine: sa.Engine, marks: Marks, ids: tuple[str, ...]
) -> None:
    for is_first in (True, False):
        with engine.begin() as connection:
            for message_id in ids:
                with marks.handle_once(connection, message_id) as attempt:
                    assert attempt.is_first is is_first, message_id
    assert list_marks(engine, marks) == sorted(ids)


def test_a_savepoint_around_it_takes_both_back(engine: sa.Engine, marks: Marks) -> None:
    with Session(engine) as session, session.begin():
        session.add(Payment(order="before", amount=1))
        session.flush()
        savepoint = session.begin_nested()
        assert pay(marks, session, "m-1")
        savepoint.rollback()
    assert list_orders(engine) == ["before"]
    assert list_marks(engine, marks) == []


def test_fault_55_the_same_id_at_the_same_time_has_one_effect(
    engine: sa.Engine, marks: Marks
) -> None:
    """The second worker waits; it is told by what becomes of the first."""
    for message_id, commits in (("m-1", True), ("m-2", False)):
        told: list[bool] = []

        def work(message_id: str, told: list[bool]) -> None:
            with Session(engine) as session, session.begin():
                told.append(pay(marks, session, message_id))

        with Session(engine) as session:
            assert pay(marks, session, message_id)
            session.flush()
            other = threading.Thread(target=work, args=(message_id, told))
            other.start()
            other.join(0.3)
            assert told == []
            session.commit() if commits else session.rollback()
        other.join(60)
        assert told == [not commits]
    assert list_orders(engine) == list_marks(engine, marks) == ["m-1", "m-2"]


def test_fault_55_many_workers_each_message_once(engine: sa.Engine, marks: Marks) -> None:
    firsts: list[str] = []
    gate = threading.Barrier(4)

    def work() -> None:
        gate.wait(60)
        for number in range(25):
            with Session(engine) as session, session.begin():
                if pay(marks, session, f"m-{number}"):
                    firsts.append(f"m-{number}")

    run_together(*[work] * 4)
    wanted = sorted(f"m-{number}" for number in range(25))
    assert sorted(firsts) == list_orders(engine) == list_marks(engine, marks) == wanted


def test_who_does_not_ask_is_told_and_nothing_is_marked(engine: sa.Engine, marks: Marks) -> None:
    for repeat in (False, True):
        with pytest.raises(UsageError, match="nobody asked whether its work"):
            with Session(engine) as session, session.begin():
                with marks.handle_once(session, "m-1"):
                    session.add(Payment(order="careless", amount=1))
        assert list_orders(engine) == []
        if not repeat:
            assert list_marks(engine, marks) == []
            with (
                Session(engine) as session,
                session.begin(),
                marks.handle_once(session, "m-1") as t,
            ):
                assert t.is_first
    assert counted(marks) == {"first": 1, "failed": 2}


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_a_transaction_that_ends_within_the_block_is_refused(
    engine: sa.Engine, marks: Marks, verb: str
) -> None:
    with Session(engine) as session, pytest.raises(UsageError, match="was ended within the block"):
        with marks.handle_once(session, "m-1") as attempt:
            assert attempt.is_first
            getattr(session, verb)()
    assert list_marks(engine, marks) == (["m-1"] if verb == "commit" else [])


def test_autocommit_is_refused(url: str, marks: Marks, engine: sa.Engine) -> None:
    for made in (
        sa.create_engine(url, isolation_level="AUTOCOMMIT"),
        engine.execution_options(isolation_level="AUTOCOMMIT"),
    ):
        with made.connect() as connection, pytest.raises(UsageError, match="commits by itself"):
            with marks.handle_once(connection, "m-1"):
                pytest.fail("the block was entered")
        made.dispose()
    assert list_marks(engine, marks) == []


@pytest.mark.parametrize(
    "header",
    [None, b"", b"\xff\xfe", b"a\nb", b" a", b"x" * 256, b"a\x00"],
    ids=["none", "empty", "not UTF-8", "line break", "space", "long", "NUL"],
)
def test_a_message_without_an_id_is_refused_with_its_place(header: bytes | None) -> None:
    marks = Marks("payments_handled", identity="order-id")
    message = make_message(("order-id", header), (MESSAGE_ID, b"not this one"))
    with sa.create_engine("sqlite://").connect() as connection:
        with pytest.raises(NoMessageId, match=r"orders\[2\] at offset 17.*header order-id"):
            marks.handle_once(connection, message)
    assert counted(marks) == {"refused": 1}


def test_a_copy_that_is_put_back_is_the_message_that_its_sender_named(engine: sa.Engine) -> None:
    marks = Marks("payments_handled")
    marks.create_tables(engine)
    sent = make_message((EVENT_ID, b"e-1"))
    copy = make_message((EVENT_ID, b"e-1"), (MESSAGE_ID, b"m-1"))
    for message, is_first in ((sent, True), (copy, False)):
        with engine.connect() as connection:
            with marks.handle_once(connection, message) as attempt:
                assert (attempt.is_first, attempt.message_id) == (is_first, "e-1")
            connection.commit()


def test_an_id_is_any_header_or_what_a_function_says(engine: sa.Engine) -> None:
    def by_place(message: Any) -> str:
        return f"{message.topic()}-{message.partition()}-{message.offset()}"

    for identity, wanted in (("order-id", "7"), (by_place, "orders-2-17")):
        marks = Marks("payments_handled", identity=identity)
        marks.create_tables(engine)
        with engine.connect() as connection:
            with marks.handle_once(connection, make_message(("order-id", b"7"))) as attempt:
                assert (attempt.is_first, attempt.message_id) == (True, wanted)
    unmarked = Marks("payments_handled", without_id="unmarked")
    for _ in range(2):
        with engine.connect() as connection:
            with unmarked.handle_once(connection, make_message()) as attempt:
                assert (attempt.is_first, attempt.is_marked) == (True, False)


def test_old_marks_go_in_batches_with_a_bound(engine: sa.Engine, marks: Marks) -> None:
    now = datetime.now(UTC)
    with engine.begin() as connection:
        rows = [
            {"message_id": f"m-{n}", "handled_at": now - timedelta(days=10 - n)} for n in range(10)
        ]
        connection.execute(sa.insert(marks.table), rows)
    sizes: list[int] = []

    @sa.event.listens_for(engine, "after_cursor_execute")
    def note(_: Any, cursor: Any, statement: str, *__: Any) -> None:
        if statement.startswith("DELETE"):
            sizes.append(cursor.rowcount)

    week = timedelta(days=3, hours=12)
    assert marks.purge(engine, week, batch=2, most=3) == 3
    assert sizes == [2, 1]
    assert list_marks(engine, marks) == [f"m-{n}" for n in range(3, 10)]
    with engine.connect() as connection:
        assert marks.purge(connection, week, batch=2) == 4
    assert list_marks(engine, marks) == ["m-7", "m-8", "m-9"]
    for wrong in ({"older_than": timedelta(0)}, {"batch": 0}, {"most": 0}):
        with pytest.raises(UsageError, match="above zero"):
            marks.purge(engine, **{"older_than": week, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("hours", [5, -5])
def test_fault_146_the_clock_of_a_worker_purges_neither_early_nor_late(
    engine: sa.Engine, marks: Marks, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """Early: what comes again would be handled twice."""

    class OwnClock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:  # the drivers know a datetime only
            return datetime.now(tz) + timedelta(hours=hours)

    def is_first(message_id: str) -> bool:
        with Session(engine) as session, session.begin():
            return pay(marks, session, message_id)

    old = datetime.now(UTC) - timedelta(hours=3)
    with engine.begin() as connection:
        connection.execute(sa.insert(marks.table), {"message_id": "old", "handled_at": old})
    monkeypatch.setattr(sql, "datetime", OwnClock)
    assert is_first("m-1")
    assert marks.purge(engine, timedelta(hours=4)) == 0
    assert not is_first("m-1")
    assert marks.purge(engine, timedelta(hours=2)) == 1
    monkeypatch.undo()
    assert marks.purge(engine, timedelta(hours=2)) == 0
    with engine.connect() as connection:
        written = connection.execute(sa.select(marks.table.c.handled_at)).scalar_one()
    assert abs(written.replace(tzinfo=UTC) - datetime.now(UTC)) < timedelta(minutes=1)
    assert list_marks(engine, marks) == ["m-1"]


def test_workers_that_start_at_once_make_one_table(engine: sa.Engine) -> None:
    failed: list[Exception] = []
    gate = threading.Barrier(4)

    def start() -> None:
        gate.wait(60)
        try:
            Marks("payments_handled").create_tables(engine)
        except sa.exc.DBAPIError as error:
            failed.append(error)

    run_together(*[start] * 4)
    wait_until(lambda: sa.inspect(engine).has_table("payments_handled"))
    assert failed == []


# The same with asynchronous drivers.

ASYNC = [
    ("postgres", "postgresql+psycopg"),
    ("postgres", "postgresql+asyncpg"),
    ("mariadb", "mariadb+aiomysql"),
    ("sqlite", "sqlite+aiosqlite"),
]


def use_driver(url: str, driver: str) -> sa.URL:
    return sa.make_url(url).set(drivername=driver)


@pytest.mark.parametrize(("url", "driver"), ASYNC, indirect=["url"])
def test_an_async_session_is_the_same(
    url: str, driver: str, engine: sa.Engine, marks: Marks
) -> None:
    async def story() -> list[bool]:
        asynchronous = create_async_engine(use_driver(url, driver))
        told = []
        for error in (WorkFailed(), asyncio.CancelledError(), None, None):
            async with AsyncSession(asynchronous) as session, session.begin():
                with suppress(WorkFailed, asyncio.CancelledError):
                    async with marks.handle_once(session, "m-1") as attempt:
                        told.append(attempt.is_first)
                        if attempt.is_first:
                            session.add(Payment(order="m-1", amount=1))
                            if error is not None:
                                raise error
        async with asynchronous.connect() as connection, connection.begin():
            async with marks.handle_once(connection, "m-2") as attempt:
                told.append(bool(attempt))
        await asynchronous.dispose()
        return told

    assert asyncio.run(story()) == [True, True, True, False, True]
    assert counted(marks) == {"first": 2, "repeat": 1, "failed": 2}
    assert list_orders(engine) == ["m-1"]
    assert list_marks(engine, marks) == ["m-1", "m-2"]


@pytest.mark.parametrize(("url", "driver"), ASYNC, indirect=["url"])
@pytest.mark.parametrize("by", ["engine", "connection"])
def test_autocommit_of_an_async_driver_is_refused(
    url: str, driver: str, by: str, engine: sa.Engine, marks: Marks
) -> None:
    async def story() -> None:
        level: Any = "AUTOCOMMIT"
        options = {"isolation_level": level} if by == "engine" else {}
        made = create_async_engine(use_driver(url, driver), **options)
        async with made.connect() as connection:
            if by == "connection":
                await connection.execution_options(isolation_level=level)
            with pytest.raises(UsageError, match="commits by itself"):
                async with marks.handle_once(connection, "m-1"):
                    pytest.fail("the block was entered")
        await made.dispose()

    asyncio.run(story())
    assert list_marks(engine, marks) == []
