"""What outbox, look-back and idempotent consumer do and cost, on one broker and one machine.

`python -m benchmarks.delivery [--messages 20000] [--repeat 3] [--queued 1000000]`. All ways take
turns, so that ratios are those of one run. The servers wait for no disk (`fsync` off), so that what
is added weighs most.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import redis
import sqlalchemy as sa
from rich.table import Table

from backlogctl.formats import Say
from benchmarks import delivery_look_back, delivery_once, delivery_outbox
from benchmarks.harness import (
    Benchmark,
    Figures,
    format_figure,
    open_world,
    spread,
    tabulate,
    take_turns,
)
from tests.kit.services import EmbeddedMariaDb, EmbeddedPostgres, EmbeddedRedis

# A name's figure, what it is, its unit, and the figure of which it is a multiple.
ROWS: tuple[tuple[str, str, str, str | None], ...] = (
    ("outbox_per_second", "outbox: claimed, sent and marked by one scanner", "/s", None),
    ("outbox_cpu_us", "– its CPU for a message", "µs", None),
    (
        "polling_per_second",
        'polling by "id greater than", nothing marked',
        "/s",
        "outbox_per_second",
    ),
    ("polling_missed", "– never sent, of 1,000 that commit out of order", "", None),
    ("outbox_missed", "– by the outbox", "", None),
    ("claim_ms", "outbox: a claim of an ordinary queue", "ms", None),
    ("claim_parked_ms", "– half of it waits behind one that is parked", "ms", "claim_ms"),
    ("claim_hot_ms", "– its first rows are all of one key", "ms", "claim_ms"),
    ("insert_ms", "business transaction: an insert", "ms", None),
    ("insert_with_message_ms", "– with a message added", "ms", "insert_ms"),
    ("look_back_per_second", "look-back: read, stored, forwarded and marked", "/s", None),
    ("look_back_ms", "– from prepare to the consumer, median", "ms", None),
    ("look_back_ms_95", "– 95 of 100", "ms", None),
    ("postgresql_bare_us", "PostgreSQL: a message's work", "µs", None),
    ("postgresql_first_us", "– with handle_once", "µs", "postgresql_bare_us"),
    ("postgresql_repeat_us", "– a repeat, skipped", "µs", "postgresql_bare_us"),
    ("postgresql_bare_batch_us", "– 100 messages a transaction", "µs", None),
    ("postgresql_first_batch_us", "– – with handle_once", "µs", "postgresql_bare_batch_us"),
    ("mariadb_bare_us", "MariaDB: a message's work", "µs", None),
    ("mariadb_first_us", "– with handle_once", "µs", "mariadb_bare_us"),
    ("mariadb_repeat_us", "– a repeat, skipped", "µs", "mariadb_bare_us"),
    ("mariadb_bare_batch_us", "– 100 messages a transaction", "µs", None),
    ("mariadb_first_batch_us", "– – with handle_once", "µs", "mariadb_bare_batch_us"),
    ("redis_first_us", "Redis: begin and end, without any work", "µs", None),
    ("redis_repeat_us", "– a repeat, skipped", "µs", "redis_first_us"),
)


def measure(options: Namespace, say: Say) -> Figures:
    with ExitStack() as stack:
        broker, _ = stack.enter_context(open_world())
        postgres = stack.enter_context(EmbeddedPostgres())
        mariadb = stack.enter_context(EmbeddedMariaDb())
        client = stack.enter_context(stack.enter_context(EmbeddedRedis()).connect())
        mariadb.execute("CREATE DATABASE bench CHARACTER SET utf8mb4")
        engines = {
            "postgresql": sa.create_engine(postgres.url()),
            "mariadb": sa.create_engine(mariadb.url("bench")),
        }
        ways: dict[str, Callable[[], float]] = {
            **delivery_outbox.make_ways(engines["postgresql"], broker, options.messages),
            **delivery_outbox.make_claim_ways(
                engines["postgresql"], options.queued, options.queued_of_key
            ),
            **delivery_look_back.make_ways(
                *(postgres.url(), broker.bootstrap, options.messages // 2, options.one_by_one)
            ),
            **delivery_once.make_ways(engines, client, max(100, options.messages // 20)),
        }
        turn = lambda: {name: way() for name, way in ways.items()}  # noqa: E731
        turns = take_turns({"all": turn}, options.repeat, say)["all"]
        servers = describe_servers(engines, client)
        for engine in engines.values():
            engine.dispose()
    figures: Figures = {}
    for name, _, _, base in ROWS:
        figures[name] = spread([turn[name] for turn in turns])
        if base is not None:  # the median of ratios within a turn
            figures[name]["ratio"] = statistics.median(turn[name] / turn[base] for turn in turns)
    return {"keys": delivery_outbox.KEYS, "servers": servers, "figures": figures, "turns": turns}


def describe_servers(engines: dict[str, sa.Engine], client: redis.Redis) -> dict[str, Any]:
    """Versions, and what they do not wait for."""
    asked = {
        "postgresql": ("server_version", "fsync", "synchronous_commit"),
        "mariadb": ("version", "innodb_flush_log_at_trx_commit", "innodb_buffer_pool_size"),
    }
    found: dict[str, Any] = {"sqlalchemy": sa.__version__}
    for name, engine in engines.items():
        show = "SHOW {}" if name == "postgresql" else "SELECT @@{}"
        with engine.connect() as connection:
            found[name] = {
                each: str(connection.execute(sa.text(show.format(each))).scalar_one())
                for each in asked[name]
            }
    info: Any = client.info("server")
    return {**found, "redis": {"version": info["redis_version"], "save": ""}}


def draw(document: Figures) -> Iterable[Table]:
    rows = []
    for name, title, unit, _ in ROWS:
        figure = document["figures"][name]
        digits = 2 if unit == "ms" and figure["median"] < 10 else 0
        ratio = f"x {figure['ratio']:.2f}" if "ratio" in figure else ""
        rows.append([title, format_figure(figure, f"{{:,.{digits}f}} {unit}"), ratio])
    title = f"{document['messages']:,} messages; median (least–most) of {document['repeat']} turns"
    yield tabulate(title, {"figure": "", "ratio": "ratio"}, rows)


BENCHMARK = Benchmark(
    "delivery",
    __doc__,
    {
        "messages": 20_000,
        "repeat": 3,
        "one_by_one": 60,
        "queued": 1_000_000,
        "queued_of_key": 30_000,
    },
    {"messages": 200, "repeat": 0, "one_by_one": 5, "queued": 2_000, "queued_of_key": 500},
    measure,
    draw,
)

if __name__ == "__main__":
    BENCHMARK.main()
