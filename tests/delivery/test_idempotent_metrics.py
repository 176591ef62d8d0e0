"""What came of messages is counted, and only that: each once, when its block ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
import redis
import sqlalchemy as sa
from confluent_kafka import Message
from prometheus_client import CollectorRegistry
from sqlalchemy.ext.asyncio import create_async_engine

from backlogctl.errors import UsageError
from backlogctl_delivery.idempotent.attempts import (
    OUTCOMES,
    Counts,
    InProgress,
    LeaseLost,
    MarksAway,
    NoMessageId,
    PayloadConflict,
)
from backlogctl_delivery.idempotent.metrics import CATALOGUE, OnceCollector
from backlogctl_delivery.idempotent.redis import RedisMarks
from backlogctl_delivery.idempotent.sql import Marks
from tests.monitoring.metric_lines import scrape_registry
from tests.redis_server import EmbeddedRedis

# The order of the blocks is what is tested.
# ruff: noqa: PT012, SIM117


LONG, SHORT = timedelta(minutes=5), timedelta(milliseconds=50)
WITHOUT_ID = Message(topic="orders", partition=2, offset=17, value=b"v")


class WorkFailed(Exception):
    pass


@pytest.fixture
def client(redis_server: EmbeddedRedis) -> Iterator[redis.Redis]:
    with redis_server.connect() as client:
        yield client


@pytest.fixture
def marks(engine: sa.Engine) -> Marks:
    marks = Marks("payments_handled")
    marks.create_tables(engine)
    return marks


def make_marks(client: redis.Redis, consumer: str, **settings: Any) -> RedisMarks:
    given = {"lease": LONG, "keep": LONG, "when_away": "closed", "wait": timedelta(0), **settings}
    return RedisMarks(client, consumer, **given)


def list_counted(counts: Counts) -> Mapping[str, int]:
    return {outcome: count for outcome, count in counts.read().items() if count}


def take(marks: RedisMarks, message: Any) -> bool:
    with marks.handle_once(message) as attempt:
        return attempt.is_first


def test_in_sql_each_message_counts_once(engine: sa.Engine, marks: Marks) -> None:
    with engine.begin() as connection:
        for _ in range(3):
            with marks.handle_once(connection, "m-1") as attempt:
                assert attempt.is_first or attempt.message_id
        with pytest.raises(WorkFailed), marks.handle_once(connection, "m-2") as attempt:
            raise WorkFailed if attempt.is_first else AssertionError
        with pytest.raises(UsageError), marks.handle_once(connection, "m-3"):
            pass
        with pytest.raises(NoMessageId):
            marks.handle_once(connection, WITHOUT_ID)
    assert list_counted(marks.counts) == {"first": 1, "repeat": 2, "failed": 2, "refused": 1}


def test_what_the_work_raises_about_another_message_is_a_failure(
    engine: sa.Engine, marks: Marks
) -> None:
    with engine.begin() as connection:
        with pytest.raises(PayloadConflict), marks.handle_once(connection, "m-1") as attempt:
            raise PayloadConflict("another's", subject=f"{attempt.is_first}")
    assert list_counted(marks.counts) == {"failed": 1}


def test_an_async_block_counts_once(url: str, engine: sa.Engine, marks: Marks) -> None:
    async def run() -> None:
        made = create_async_engine(
            url.replace("sqlite:", "sqlite+aiosqlite:").replace("pymysql", "aiomysql")
        )
        async with made.begin() as connection:
            for _ in range(2):
                async with marks.handle_once(connection, "m-1") as attempt:
                    assert attempt.is_first or attempt.message_id
            with pytest.raises(WorkFailed):
                async with marks.handle_once(connection, "m-2") as attempt:
                    raise WorkFailed if attempt.is_first else AssertionError
            with pytest.raises(asyncio.CancelledError):
                async with marks.handle_once(connection, "m-3") as attempt:
                    raise asyncio.CancelledError if attempt.is_first else AssertionError
        await made.dispose()

    asyncio.run(run())
    assert list_counted(marks.counts) == {"first": 1, "repeat": 1, "failed": 2}


def test_in_redis_each_message_counts_once(client: redis.Redis, unique: str) -> None:
    marks = make_marks(client, unique)
    assert [take(marks, "m-1") for _ in range(2)] == [True, False]
    with marks.handle_once("m-2", b"one") as attempt:
        assert attempt.is_first
        with pytest.raises(InProgress):
            take(marks, "m-2")
    with pytest.raises(PayloadConflict), marks.handle_once("m-2", b"two"):
        pytest.fail("the block was entered")
    with pytest.raises(WorkFailed), marks.handle_once("m-3") as attempt:
        raise WorkFailed if attempt.is_first else AssertionError
    with pytest.raises(NoMessageId):
        take(marks, WITHOUT_ID)
    assert list_counted(marks.counts) == {
        "first": 2,
        "repeat": 1,
        "in_progress": 1,
        "conflict": 1,
        "failed": 1,
        "refused": 1,
    }
    late = make_marks(client, unique, lease=SHORT, without_id="unmarked")
    with pytest.raises(LeaseLost), late.handle_once("m-4") as attempt:
        assert attempt.is_first
        other = make_marks(client, unique, wait=LONG)
        assert take(other, "m-4")
    assert take(late, WITHOUT_ID)
    assert list_counted(late.counts) == {"lease_lost": 1, "without_id": 1}


def test_fault_56_work_without_a_mark_is_counted_as_that(unique: str) -> None:
    with EmbeddedRedis() as server, server.connect() as client:
        opened = make_marks(client, unique, when_away="open")
        closed = make_marks(client, unique)
        with opened.handle_once("m-1") as attempt:
            assert (attempt.is_first, attempt.is_marked) == (True, True)
            server.kill()
        assert not attempt.is_marked, "its end could not be noted"
        assert take(opened, "m-2")
        with pytest.raises(MarksAway):
            take(closed, "m-3")
    assert list_counted(opened.counts) == {"unmarked": 2}
    assert opened.unmarked == 2
    assert list_counted(closed.counts) == {"away": 1}


def test_an_application_exports_them_from_0(client: redis.Redis, unique: str) -> None:
    mailer = make_marks(client, unique)
    take(mailer, "m-1")
    registry = CollectorRegistry()
    registry.register(OnceCollector(mailer, mailer, Marks("handled", schema="shop")))
    got = scrape_registry(registry)
    (metric,) = CATALOGUE
    assert got.labels_of(metric.exported_name, "marks") == {unique, "shop.handled"}
    assert got.labels_of(metric.exported_name, "outcome") == set(OUTCOMES)
    assert got.value(metric.exported_name, marks=unique, outcome="first") == 2
    assert sum(got.find(metric.exported_name).values()) == 2
