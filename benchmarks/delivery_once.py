"""What `handle_once` costs in PostgreSQL, MariaDB and Redis, beside the same work without it.

The work in SQL is one row. With Redis there is none, so that the figure is that of the mark alone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import timedelta

import redis
import sqlalchemy as sa

from backlogctl_delivery.idempotent.redis import RedisMarks
from backlogctl_delivery.idempotent.sql import Marks

WORK = sa.table("work", sa.column("id"))
_BATCH = 100

Way = Callable[[range], None]


def make_ways(
    engines: dict[str, sa.Engine], client: redis.Redis, count: int
) -> dict[str, Callable[[], float]]:
    """By name what is measured: microseconds a message."""
    ways = {
        f"{name}_{way}": call
        for name, engine in engines.items()
        for way, call in _make_sql_ways(engine).items()
    }
    ways |= _make_redis_ways(client)
    starts = itertools.count(0, count)
    ranges: dict[str, range] = {}

    def measure(name: str) -> float:
        store = name.partition("_")[0]
        if not name.endswith("_repeat"):
            # Ids of their own; a repeat has those of before.
            start = next(starts)
            ranges[store] = range(start, start + count)
        began = time.perf_counter()
        ways[name](ranges[store])
        return (time.perf_counter() - began) / count * 1e6

    return {f"{name}_us": lambda name=name: measure(name) for name in ways}  # type: ignore[misc]


def _make_sql_ways(engine: sa.Engine) -> dict[str, Way]:
    marks = Marks("marks")
    marks.create_tables(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE work (id VARCHAR(40))"))
    insert = sa.insert(WORK)

    def do_bare(numbers: range, batch: int = 1) -> None:
        with engine.connect() as connection:
            for at in range(0, len(numbers), batch):
                with connection.begin():
                    for number in numbers[at : at + batch]:
                        connection.execute(insert, {"id": f"m-{number}"})

    def do_once(numbers: range, batch: int = 1) -> None:
        with engine.connect() as connection:
            for at in range(0, len(numbers), batch):
                with connection.begin():
                    for number in numbers[at : at + batch]:
                        with marks.handle_once(connection, f"m-{number}") as attempt:
                            if attempt.is_first:
                                connection.execute(insert, {"id": f"m-{number}"})

    return {
        "bare": do_bare,
        "first": do_once,
        "repeat": do_once,
        "bare_batch": lambda numbers: do_bare(numbers, _BATCH),
        "first_batch": lambda numbers: do_once(numbers, _BATCH),
    }


def _make_redis_ways(client: redis.Redis) -> dict[str, Way]:
    marks = RedisMarks(
        client, "bench", lease=timedelta(minutes=1), keep=timedelta(hours=1), when_away="closed"
    )

    def do_once(numbers: range) -> None:
        for number in numbers:
            with marks.handle_once(f"m-{number}", b"payload") as attempt:
                _ = attempt.is_first

    return {"redis_first": do_once, "redis_repeat": do_once}
