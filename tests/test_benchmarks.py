"""Each benchmark runs, at a tiny size, on the tests' own servers."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from backlogctl.sandbox.embedded import EmbeddedKafka
from benchmarks.harness import Benchmark

SPARK = ("audit_sequence", "offload", "rebuild", "relay")
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


@pytest.mark.airflow
def test_imports_of_dag_files_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark: Benchmark = import_module("benchmarks.airflow").BENCHMARK
    made = benchmark.main(["--smoke"])
    assert made["seconds"]["parse_our_files"] > 0
