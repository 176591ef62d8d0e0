"""Sampling and scraping of many groups: what a pass and a scrape cost.

`python -m benchmarks.watch [--groups 1000] [--partitions 100]`. Two clusters are only figures
(their answers cost nothing, so they show what our side costs): of one, every tenth partition lags
more and more and the others have read everything; of the other, every partition has a few offsets
unread in each sample. The third is a real broker with fewer groups. Each is measured in a process
of its own with full windows; the figures are medians of the passes after that.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import Any

import psutil
from rich.table import Table

from backlogctl.formats import Say
from backlogctl.kafka.bulk import BulkReader
from backlogctl.ledger import open_ledger
from backlogctl.monitoring.groups.dating import Tails, make_tail_reader
from backlogctl.monitoring.groups.survey import Survey, SurveyScope
from backlogctl.monitoring.metrics.catalogue import Family
from backlogctl.monitoring.metrics.scrape import Exported, Scrape
from backlogctl.monitoring.watch.board import Board
from benchmarks.harness import Benchmark, open_world, run_apart, tabulate
from benchmarks.harness import Figures as Measured
from benchmarks.watch_world import Figures, make_groups, read_no_tails

OTHERS: tuple[Family, ...] = ("kafka_exporter",)
MIB = 1024 * 1024
PASSES = 5
SECONDS = 30.0  # between two passes, by a clock that only counts


def measure_figures(groups: int, partitions: int, busy: bool, fill: int) -> Measured:
    reader: Any = Figures(groups, partitions, busy)
    return measure_passes(reader, Tails(read_no_tails), reader.step, fill)


def measure_real(groups: int, partitions: int, fill: int) -> Measured:
    with open_world() as (broker, _):
        make_groups(broker.bootstrap, "watch", groups, partitions, 30)
        reader, tails = BulkReader(broker.properties), Tails(make_tail_reader(broker.properties))
        return measure_passes(reader, tails, lambda: None, fill)


def measure_passes(
    reader: BulkReader, tails: Tails, step: Callable[[], None], fill: int
) -> Measured:
    """Fills the windows, then measures passes and scrapes."""
    now = [0.0]
    survey = Survey(reader, SurveyScope("main"), tails, clock=lambda: now[0])
    board = Board()
    with tempfile.TemporaryDirectory() as scratch:
        ledger = open_ledger(f"sqlite:///{scratch}/ledger.db")
        scrape = Scrape(board, ledger, Exported({}, ("main",), OTHERS))
        before = _read_rss()
        figures: dict[str, list[float]] = {}
        for number in range(fill + PASSES):
            step()
            now[0] += SECONDS
            taken = {
                "pass": _time(lambda: board.put_cluster(survey.look())),
                "write": _time(scrape.prepare),
                "scrape": _time(scrape.answer),
            }
            if number >= fill:
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
            "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            "body_bytes": _count_plain(body),
            "gzip_bytes": len(body),
        }


def measure(options: Namespace, _: Say) -> Measured:
    many = (options.groups, options.partitions)
    real = (options.real_groups, options.real_partitions)
    return {
        "figures": run_apart(measure_figures, *many, False, options.fill),
        "busy": run_apart(measure_figures, *many, True, options.fill),
        "real": run_apart(measure_real, *real, options.fill),
    }


def draw(document: Measured) -> Iterable[Table]:
    columns = {"figures": "a tenth lags", "busy": "all busy", "real": "real broker"}
    lines = (
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
    )
    rows = [[title, *(f"{document[run][name]:,}" for run in columns)] for title, name in lines]
    yield tabulate("backlogctl watch, all groups", columns, rows)


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


BENCHMARK = Benchmark(
    "watch",
    __doc__,
    {"groups": 1000, "partitions": 100, "real_groups": 300, "real_partitions": 30, "fill": 26},
    {"groups": 10, "partitions": 10, "real_groups": 5, "real_partitions": 2, "fill": 2},
    measure,
    draw,
)

if __name__ == "__main__":
    BENCHMARK.main()
