"""The same with asynchronous drivers."""
# The order of the blocks is what is tested.
# ruff: noqa: SIM117

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from backlog.errors import UsageError
from backlogctl_delivery.idempotent.sql import Marks
from tests.delivery.once.payments import Payment, WorkFailed, list_marks, list_orders

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
        for fails in (True, False, False):
            async with AsyncSession(asynchronous) as session, session.begin():
                try:
                    async with marks.handle_once(session, "m-1") as attempt:
                        told.append(attempt.is_first)
                        if attempt.is_first:
                            session.add(Payment(order="m-1", amount=1))
                            if fails:
                                raise WorkFailed
                except WorkFailed:
                    pass
        async with asynchronous.connect() as connection, connection.begin():
            async with marks.handle_once(connection, "m-2") as attempt:
                told.append(bool(attempt))
        await asynchronous.dispose()
        return told

    assert asyncio.run(story()) == [True, True, False, True]
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
