"""How exact a rebuild is: `python -m tests.accuracy.measure [--seed 7] [--scenario tight]`.

Each scenario is simulated, made real in Kafka and PostgreSQL, and planned with Spark from the
evidence that `watch` would have. An oracle that knows the simulation says what is missed and what is
doubled. Prints a table and keeps it as JSON; fails where a plan says `exact` and is not, or where a
figure is above what docs/accuracy.md promises.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.accuracy.planning import Measured, Method, find_broken, measure, set_stage
from tests.accuracy.scenarios import MESSAGES, SCENARIOS, Scenario, Shape
from tests.accuracy.traffic import simulate
from tests.accuracy.watching import Sampling, watch
from tests.kit.services import EmbeddedPostgres, Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "accuracy.json"
# Each kind of evidence alone, where `watch` would have it.
PLANS = (
    (Sampling.ALWAYS, Method.BOOKMARKS),
    (Sampling.TEN_MINUTES, Method.BOOKMARKS),
    (Sampling.AFTERWARDS, Method.COUNTING),
    (Sampling.ALWAYS, Method.COUNTING),
    (Sampling.ALWAYS, Method.WINDOWS),
    (Sampling.AFTERWARDS, Method.CONSUMED),
)


def list_plans(
    scenario: Scenario, samplings: Sequence[str], methods: Sequence[str]
) -> list[tuple[Sampling, Method]]:
    """What is measured of a scenario; asked for by name, every combination of these."""
    plans = list(PLANS)
    if samplings or methods:
        plans = [
            (sampling, method)
            for sampling in (map(Sampling, samplings) if samplings else Sampling)
            for method in (map(Method, methods) if methods else Method)
        ]
    if scenario.mutable:
        # That an order was handled says nothing of its later changes.
        plans = [plan for plan in plans if plan[1] is not Method.CONSUMED]
    return plans


def run_scenario(
    spark: SparkSession,
    bootstrap: str,
    postgres: Postgres,
    scenario: Scenario,
    *,
    seed: int,
    shape: Shape,
    plans: Sequence[tuple[Sampling, Method]],
    scratch: Path,
) -> Iterator[Measured]:
    """Measures one scenario, all plans on one topic."""
    traffic = simulate(scenario, shape, seed)
    name = f"accuracy-{scenario.name}-{seed}-{time.time_ns():x}"
    stage = set_stage(traffic, bootstrap, postgres, name)
    seen = {
        sampling: watch(traffic, sampling, stage.topic, stage.topic_id)
        for sampling in {sampling for sampling, _ in plans}
    }
    for sampling, method in plans:
        yield measure(spark, stage, seen[sampling], sampling, method, scratch)


def render(results: Sequence[Measured]) -> Table:
    """One line a plan."""
    table = Table(title="How exact a rebuild is, in messages")
    for name in ("scenario", "sampled", "evidence"):
        table.add_column(name)
    for name in (
        "lost",
        "staged",
        "missed",
        "no row",
        "doubled",
        "unsent",
        "misplaced",
        "listed",
        "not listed",
    ):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    table.add_column("s", justify="right")
    before = ""
    for item in results:
        if before and item.scenario != before:
            table.add_section()
        before = item.scenario
        found = item.judgement
        table.add_row(
            item.scenario, item.sampling, item.method,
            *(f"{n:,}" for n in (found.lost, found.staged, found.missed, found.gone,
              found.doubled, found.unsent, found.misplaced, item.uncertain, found.unlisted)),
            item.verdict if item.is_honest else f"{item.verdict} (wrong)",
            f"{item.seconds:.1f}",
        )  # fmt: skip
    return table


@contextmanager
def open_spark() -> Iterator[SparkSession]:
    from backlogctl.config import SparkSection
    from backlogctl.spark_backfill.spark.session import open_session

    conf = {"spark.sql.shuffle.partitions": "4", "spark.driver.memory": "1g"}
    session = open_session(SparkSection(master="local[2]", conf=conf), "accuracy")
    try:
        yield session
    finally:
        session.stop()


def main(arguments: list[str] | None = None) -> int:
    """Measures; returns 1 if something promised does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), default=[])
    parser.add_argument("--sampling", action="append", choices=list(Sampling), default=[])
    parser.add_argument("--method", action="append", choices=list(Method), default=[])
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    # Ended from outside, it stops its services and leaves no files.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    print(f"seed {seed}, {options.messages} messages in a scenario", flush=True)
    results: list[Measured] = []
    with (
        tempfile.TemporaryDirectory(prefix="backlog-accuracy-") as scratch,
        EmbeddedPostgres() as postgres,
        EmbeddedKafka.start(Path(scratch) / "kafka") as kafka,
        open_spark() as spark,
    ):
        for name in options.scenario or SCENARIOS:
            scenario = SCENARIOS[name]
            for item in run_scenario(
                spark, kafka.bootstrap, postgres, scenario,
                seed=seed, shape=Shape(options.messages),
                plans=list_plans(scenario, options.sampling, options.method),
                scratch=Path(scratch) / "staging",
            ):  # fmt: skip
                results.append(item)
                print(f"  {_describe(item)}", flush=True)
            # Each time: a run that is interrupted leaves what it found.
            _keep(options.output, seed, options.messages, results)
    Console(width=140).print(render(results))
    broken = find_broken(results)
    for line in broken:
        print(f"BROKEN {line}")
    return 1 if broken else 0


def _describe(item: Measured) -> str:
    told = f"{item.scenario}, sampled {item.sampling}, {item.method}: {item.verdict}"
    found = item.judgement
    return (
        f"{told}, {found.missed} missed and {found.doubled} doubled of {found.lost}, "
        f"{found.unlisted} of these not listed; "
        f"{item.evidence}; {'; '.join(item.reasons)} ({item.seconds:.1f} s)"
    )


def _keep(path: Path, seed: int, messages: int, results: Sequence[Measured]) -> None:
    document: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "seed": seed,
        "messages": messages,
        "results": [{**asdict(item), "seconds": round(item.seconds, 1)} for item in results],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
