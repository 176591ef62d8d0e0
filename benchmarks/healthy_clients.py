"""What is told of healthy groups of every client: twenty thousand samples, and no gap.

`python -m benchmarks.healthy_clients [--rounds 1000]`. 40 messages a second of 1 KB are written;
each client of the zoo reads them as they come, in a group of its own, on a topic that keeps about
three minutes of them once all have begun. A watcher looks on without a pause, for half of the
rounds with the commit log and for the other half by samples alone: a sample of each client a round.
It fails where anything is on record as lost or skipped.
"""

from __future__ import annotations

import threading
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import timedelta

from rich.table import Table

from backlogctl.formats import Say
from backlogctl.kafka.admin import alter_topic_config, create_topic
from backlogctl.ledger import open_ledger
from backlogctl.monitoring.verdict.status import GroupStatus
from backlogctl.monitoring.watch.loop import watch_streams
from benchmarks.harness import KEEP, Benchmark, Figures, open_world, tabulate
from benchmarks.live_loss import configure, write
from tests.clients.zoo import KINDS, Client

SEGMENT_BYTES = 1024 * 1024
OUT = "healthy-out"
KEPT = {"retention.ms": "-1", "retention.bytes": str(7 * SEGMENT_BYTES)}


def measure(options: Namespace, say: Say) -> Figures:
    kinds = list(KINDS)[: options.clients]
    found: dict[str, Figures] = {kind: {} for kind in kinds}
    with open_world() as (broker, folder), ExitStack() as stack:
        topics = {"kept": "healthy"}
        for topic in (topics["kept"], OUT):
            settings = {"segment.bytes": str(SEGMENT_BYTES), **KEEP}
            create_topic(broker.properties, topic, partitions=1, config=settings)
        stack.enter_context(write(broker.bootstrap, [topics["kept"]], options.rate))
        running = [
            stack.enter_context(
                Client(
                    *(kind, broker.bootstrap, topics["kept"], f"{kind}-kept"),
                    record=folder / kind,
                    out=OUT,
                )
            )
            for kind in kinds
        ]
        for client in running:
            client.await_handled(1)
        alter_topic_config(broker.properties, topics["kept"], KEPT)
        for by in ("log", "samples"):
            ledger = f"sqlite:///{folder}/{by}.db"
            config = configure(broker.bootstrap, topics, kinds, ledger, by == "log")
            told: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}

            def note(status: GroupStatus, told: dict[str, Counter[str]] = told) -> None:
                told[status.stream.removesuffix("-kept")][str(status.verdict)] += 1

            with open_ledger(ledger) as opened:
                rounds = options.rounds // 2
                watch_streams(
                    *(config, opened, timedelta(milliseconds=10), threading.Event()),
                    on_status=note,
                    rounds=rounds,
                )
                for kind in kinds:
                    gaps = opened.gaps.list(f"{kind}-kept")
                    found[kind][by] = {"samples": told[kind].total(), "verdicts": told[kind]}
                    found[kind][by]["gaps"] = [f"{gap.cause} {gap.reason}" for gap in gaps]
            say(f"{rounds:,} rounds by {by}")
    wrong = {
        kind: gaps for kind, by in found.items() for one in by.values() if (gaps := one["gaps"])
    }
    if wrong:
        raise SystemExit(f"on record, though nothing was lost: {wrong}")
    return {"clients": found}


def draw(document: Figures) -> Iterable[Table]:
    columns = {"log": "by the commit log", "samples": "by samples alone"}
    rows = [
        [kind, *(describe(by[name]) for name in columns)]
        for kind, by in document["clients"].items()
    ]
    yield tabulate("healthy groups: samples, gaps, verdicts", columns, rows)


def describe(one: Figures) -> str:
    said = ", ".join(f"{word} {count:,}" for word, count in one["verdicts"].items())
    return f"{one['samples']:,}, {len(one['gaps'])} gaps, {said}"


BENCHMARK = Benchmark(
    name="healthy_clients",
    text=__doc__,
    sizes={"rounds": 1_000, "clients": len(KINDS), "rate": 40},
    smoke={"rounds": 20, "clients": 2, "rate": 40},
    measure=measure,
    draw=draw,
)

if __name__ == "__main__":
    BENCHMARK.main()
