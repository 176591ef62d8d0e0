"""Each benchmark runs, at a tiny size, on the tests' own servers."""

from __future__ import annotations

import json
from argparse import Namespace
from importlib import import_module
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from backlogctl.formats import Say
from backlogctl.sandbox.embedded import EmbeddedKafka
from benchmarks.harness import Benchmark, Figures

SPARK = ("audit_sequence", "offload", "rebuild", "rebuild_sources", "relay")
PLAIN = (
    "delivery",
    "first_minute",
    "forensics",
    "healthy_clients",
    "live_loss",
    "sequenced",
    "streams",
    "watch",
    "watch_memory",
)


def run(name: str, output: Path, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_KAFKA", kafka.bootstrap)
    benchmark: Benchmark = import_module(f"benchmarks.{name}").BENCHMARK
    made = benchmark.main(["--smoke", "--output", str(output)])
    assert json.loads(output.read_text()) == json.loads(json.dumps(made))
    assert made["machine"]["cores"]


@pytest.mark.parametrize("name", PLAIN)
def test_runs(
    name: str, tmp_path: Path, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(name, tmp_path / "document.json", kafka, monkeypatch)


@pytest.mark.parametrize("name", SPARK)
def test_runs_with_spark(
    name: str,
    tmp_path: Path,
    kafka: EmbeddedKafka,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(name, tmp_path / "document.json", kafka, monkeypatch)


def test_load_is_there_while_it_measures_and_ends_with_it() -> None:
    me = psutil.Process()
    others = {child.pid for child in me.children()}

    def look(options: Namespace, say: Say) -> Figures:
        return {"pids": [child.pid for child in me.children() if child.pid not in others]}

    benchmark = Benchmark("load", "", {}, {}, look, lambda _: ())
    made = benchmark.main(["--smoke", "--load", "2"])
    assert made["load"] == len(made["pids"]) == 2
    assert not [pid for pid in made["pids"] if psutil.pid_exists(pid)]


@pytest.mark.airflow
def test_imports_of_dag_files_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark: Benchmark = import_module("benchmarks.airflow").BENCHMARK
    made = benchmark.main(["--smoke"])
    assert made["seconds"]["parse_our_files"] > 0
