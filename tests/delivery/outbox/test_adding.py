"""What is committed is sent at once, and what is rolled back never."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from backlog.errors import ConfigurationError, UsageError
from backlogctl_delivery import stamps
from backlogctl_delivery.outbox import Outbox
from tests.conftest import MakeTopic
from tests.delivery.outbox.shop import FAST, Shop, read_id
from tests.kafka_tools import properties_of


@pytest.fixture
def direct(shop: Shop) -> Iterator[Outbox]:
    """An outbox that sends within the application; no scanner helps within the test's time."""
    kafka = properties_of(shop.bootstrap)
    with Outbox(shop.engine, kafka, settings=FAST) as made:
        yield made


def test_importing_it_loads_nothing_heavy() -> None:
    program = (
        "import sys, backlogctl_delivery.outbox, backlogctl_delivery.outbox.metrics;"
        "print(sorted({'pyspark', 'pandas', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


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


def test_stamps_of_a_recovery_stay_with_the_message_that_was_put_back(
    pg_shop: Shop, topic: MakeTopic
) -> None:
    """A consumer that copies the headers of what it handles would call its own message put back."""
    name = topic(1)
    headers = [(stamp, b"r-20261121-0001") for stamp in stamps.ALL]
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": "no topic"}, "no name of a topic"),
        ({"value": {"order": 1}}, "value is of type dict"),
        ({"headers": {"backlog-event-id": "1"}}, "may not be named"),
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
