"""What `handle_once` costs, in PostgreSQL and in Redis, beside the same work without it.

    make bench-once

The work in SQL is one row. The server waits for no disk (`fsync` off), so that what is added weighs
most: each wait for a disk makes the overhead smaller. With Redis there is no work, so that the
figure is that of the mark alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import redis
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from delivery.once.redis import RedisMarks
from delivery.once.sql import Marks
from tests.redis_server import EmbeddedRedis
from tests.services import EmbeddedPostgres

RESULTS = Path(__file__).parent / "results" / "once.json"
WORK = sa.table("work", sa.column("id"))
TITLES = {
    "bare": "PostgreSQL: the work alone",
    "first": "– with handle_once",
    "repeat": "– a repeat, skipped",
    "bare_batch": "PostgreSQL, 100 messages a transaction: the work alone",
    "first_batch": "– with handle_once",
    "redis_first": "Redis: begin and end, without any work",
    "redis_repeat": "– a repeat, skipped",
}
_BATCH = 100

Way = Callable[[range], None]


def make_sql_ways(engine: sa.Engine) -> dict[str, Way]:
    marks = Marks("marks")
    marks.create_tables(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE work (id text)"))
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
                        with marks.handle_once(connection, f"m-{number}") as turn:
                            if turn.is_first:
                                connection.execute(insert, {"id": f"m-{number}"})

    return {
        "bare": do_bare,
        "first": do_once,
        "repeat": do_once,
        "bare_batch": lambda numbers: do_bare(numbers, _BATCH),
        "first_batch": lambda numbers: do_once(numbers, _BATCH),
    }


def make_redis_ways(client: redis.Redis) -> dict[str, Way]:
    marks = RedisMarks(
        client,
        "bench",
        lease=timedelta(minutes=1),
        keep=timedelta(hours=1),
        when_away="closed",
    )

    def do_once(numbers: range) -> None:
        for number in numbers:
            with marks.handle_once(f"m-{number}", b"payload") as turn:
                assert turn.is_first in (True, False)

    return {"redis_first": do_once, "redis_repeat": do_once}


def measure(messages: int, repeat: int, say: Console) -> list[dict[str, float]]:
    """Microseconds a message of every way, in turns; the first turn warms up."""
    turns = []
    with EmbeddedPostgres() as postgres, EmbeddedRedis() as server, server.connect() as client:
        engine = sa.create_engine(postgres.url())
        ways = {**make_sql_ways(engine), **make_redis_ways(client)}
        for number in range(repeat + 1):
            turn: dict[str, float] = {}
            for name, way in ways.items():
                # Ids of their own for each that must be first, and those of before for repeats.
                place = list(ways).index(name.replace("repeat", "first")) + number * len(ways)
                began = time.perf_counter()
                way(range(place * messages, (place + 1) * messages))
                turn[name] = (time.perf_counter() - began) / messages * 1e6
            figures = ", ".join(f"{name} {turn[name]:,.0f}" for name in ways)
            say.print(f"{number or 'warm-up'}: {figures} µs")
            if number:
                turns.append(turn)
        engine.dispose()
    return turns


def render(document: dict[str, Any]) -> Table:
    table = Table(
        title=f"{document['messages']:,} messages, one thread; median of {document['repeat']}"
    )
    for title in ("", "µs a message", "least–most"):
        table.add_column(title, justify="right" if title else "left")
    for name, title in TITLES.items():
        figure = document["ways"][name]
        table.add_row(
            title, f"{figure['median']:,.0f}", f"{figure['min']:,.0f}–{figure['max']:,.0f}"
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    turns = measure(options.messages, options.repeat, Console(stderr=True))
    values = {name: [turn[name] for turn in turns] for name in TITLES}
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "load_before": load_before,
            "system": platform.platform(),
            "python": platform.python_version(),
            "sqlalchemy": sa.__version__,
            "redis": redis.__version__,
        },
        "messages": options.messages,
        "repeat": options.repeat,
        "ways": {
            name: {"min": min(found), "median": statistics.median(found), "max": max(found)}
            for name, found in values.items()
        },
        "turns": turns,
    }
    Console(width=100).print(render(document))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
