"""Sampling and scraping of many groups: what a pass and a scrape cost.

`python -m benchmarks.watch [--groups 1000] [--partitions 100]` prints a table and keeps
`results/watch.json`. Two clusters are only figures (their answers cost nothing, so they show what
our side costs): of one, every tenth partition lags more and more and the others have read
everything; of the other, every partition has a few offsets unread in each sample. The third is a
real broker with fewer groups. Each is measured in a process of its own with full windows; the
figures are medians of the passes after that.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from backlog.ledger import open_ledger
from benchmarks.watch_world import Figures, make_groups, read_no_tails
from monitoring.board import Board
from monitoring.groups.bulk import BulkReader
from monitoring.groups.reading import ClusterReader
from monitoring.groups.survey import Survey, SurveyScope
from monitoring.groups.tails import Tails, make_tail_reader
from monitoring.metrics.catalogue import Family
from monitoring.metrics.scrape import Exported, Scrape
from sandbox.embedded import EmbeddedKafka

OTHERS: tuple[Family, ...] = ("kafka_exporter",)
RESULTS = Path(__file__).parent / "results" / "watch.json"
MIB = 1024 * 1024
FILL = 26  # passes until a window is full
PASSES = 5
SECONDS = 30.0  # between two passes, by a clock that only counts


def measure_figures(groups: int, partitions: int, busy: bool) -> dict[str, Any]:
    reader = Figures(groups, partitions, busy)
    return measure(reader, Tails(read_no_tails), reader.step)


def measure_real(groups: int, partitions: int) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory() as scratch,
        EmbeddedKafka.start(Path(scratch)) as kafka,
    ):
        make_groups(kafka.bootstrap, groups, partitions, 30)
        properties = {"bootstrap.servers": kafka.bootstrap}
        return measure(BulkReader(properties), Tails(make_tail_reader(properties)), lambda: None)


def measure(reader: ClusterReader, tails: Tails, step: Callable[[], None]) -> dict[str, Any]:
    """Fills the windows, then measures passes and scrapes."""
    now = [0.0]
    survey = Survey(reader, SurveyScope("main"), tails, clock=lambda: now[0])
    board = Board()
    with tempfile.TemporaryDirectory() as scratch:
        ledger = open_ledger(f"sqlite:///{scratch}/ledger.db")
        scrape = Scrape(board, ledger, Exported({}, ("main",), OTHERS))
        before = _read_rss()
        figures: dict[str, list[float]] = {}
        for number in range(FILL + PASSES):
            step()
            now[0] += SECONDS
            taken = {
                "pass": _time(lambda: board.put_cluster(survey.look())),
                "write": _time(scrape.prepare),
                "scrape": _time(scrape.answer),
            }
            if number >= FILL:
                for name, (seconds, cpu) in taken.items():
                    figures.setdefault(f"{name}_seconds", []).append(seconds)
                    figures.setdefault(f"{name}_cpu_seconds", []).append(cpu)
        body = scrape.answer()
        seen = board.seen.clusters["main"]
        reader.close()
        ledger.close()
        return {
            **{name: round(statistics.median(values), 3) for name, values in figures.items()},
            "partitions": sum(len(status.partitions) for status in seen.groups),
            "groups": len(seen.groups),
            "rss_before_mib": round(before / MIB),
            "rss_mib": round(_read_rss() / MIB),
            "peak_mib": round(_read_peak() / MIB),
            "body_bytes": _count_plain(body),
            "gzip_bytes": len(body),
        }


def compare_renderers(partitions: int) -> dict[str, Any]:
    """One family of so many lines, by prometheus-client and by us."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import GaugeMetricFamily

    labels = ["cluster", "group", "topic", "stream", "partition"]

    class Lines:
        def collect(self) -> list[GaugeMetricFamily]:
            family = GaugeMetricFamily("backlog_lag_messages", "Unread.", labels=labels)
            for number in range(partitions):
                place = f"{number // 100:04}"
                values = ("main", f"group-{place}", f"topic-{place}", "", str(number % 100))
                family.add_metric(values, number)
            return [family]

    def write() -> bytes:
        lines = []
        for number in range(partitions):
            if number % 100 == 0:
                from monitoring.metrics.exposition import write_labels

                place = f"{number // 100:04}"
                group = write_labels(labels[:4], ("main", f"group-{place}", f"topic-{place}", ""))
            lines.append(f'backlog_lag_messages{{{group},partition="{number % 100}"}} {number!r}\n')
        return "".join(lines).encode()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Lines())
    theirs = _time(lambda: generate_latest(registry))[0]
    ours = _time(write)[0]
    return {
        "lines": partitions,
        "prometheus_client_seconds": round(theirs, 3),
        "ours_seconds": round(ours, 3),
    }


def draw(document: dict[str, Any]) -> Table:
    table = Table(
        "", "a tenth lags", "all busy", "real broker", title="backlogctl watch, all groups"
    )
    runs = (document["figures"], document["busy"], document["real"])
    for title, name in (
        ("groups", "groups"),
        ("partitions of groups", "partitions"),
        ("a pass, s", "pass_seconds"),
        ("  of that CPU of ours, s", "pass_cpu_seconds"),
        ("writing the lines, s", "write_seconds"),
        ("a scrape, s", "scrape_seconds"),
        ("memory, MiB", "rss_mib"),
        ("  before the first pass", "rss_before_mib"),
        ("  at most", "peak_mib"),
        ("body, bytes", "body_bytes"),
        ("body with gzip, bytes", "gzip_bytes"),
    ):
        table.add_row(title, *(f"{run[name]:,}" for run in runs))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--real-groups", type=int, default=300)
    parser.add_argument("--real-partitions", type=int, default=30)
    given = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        document: dict[str, Any] = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
            "figures": pool.apply(measure_figures, (given.groups, given.partitions, False)),
            "busy": pool.apply(measure_figures, (given.groups, given.partitions, True)),
            "real": pool.apply(measure_real, (given.real_groups, given.real_partitions)),
            "renderers": pool.apply(compare_renderers, (100_000,)),
        }
    console = Console(file=sys.stdout)
    console.print(draw(document))
    both = document["renderers"]
    console.print(
        f"{both['lines']:,} lines of one family: prometheus-client "
        f"{both['prometheus_client_seconds']} s, ours {both['ours_seconds']} s"
    )
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")


def _time(work: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def _count_plain(body: bytes) -> int:
    size = 0
    while body:
        inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
        size += len(inflate.decompress(body))
        body = inflate.unused_data
    return size


def _read_rss() -> int:
    return int(psutil.Process().memory_info().rss)


def _read_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
