"""The relay alone: a million messages from 3 partitions to 30, beside kcat piped into kcat.

`python -m benchmarks.relay [--messages 1000000] [--repeat 3]` prints a table and keeps
`results/relay.json`. The relay is the product's own: its processes, a guard in the group,
transactions that also commit the group's offsets. The ways take turns, so that all of them meet
the same machine; the first round is a warm-up that does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from backlog.jars import find_java
from benchmarks import machine
from benchmarks.relay_run import PARTITIONS, TARGETS, make_world, pipe, publish_orders, relay

RESULTS = Path(__file__).parent / "results" / "relay.json"
METHODS = ("kcat", "key", "round_robin")
TITLES = {"kcat": "kcat | kcat", "key": "relay, by key", "round_robin": "relay, round robin"}


def measure(messages: int, repeat: int, say: Console) -> dict[str, Any]:
    """Every way `repeat` times, in turns."""
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in METHODS}
    with make_world() as (kafka, scratch):
        say.print(f"publishing {messages:,} messages")
        size = publish_orders(kafka, messages)
        for turn in range(repeat + 1):
            for way in METHODS:
                if way == "kcat":
                    run = pipe(kafka, messages, turn)
                else:
                    run = relay(kafka, way, messages, scratch, turn)  # type: ignore[arg-type]
                figures = run.to_json(messages)
                if not figures["exact"]:
                    sys.exit(f"{TITLES[way]}: not each message is there exactly once")
                what = "warm-up" if not turn else f"{turn} of {repeat}"
                say.print(f"{TITLES[way]}, {what}: {figures['per_second']:,} messages/s")
                if turn:
                    results[way].append(figures)
    return {"bytes_per_message": round(size), "runs": results}


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Least, median and most of every figure."""
    found: dict[str, Any] = {}
    for name in runs[0]:
        values = [run[name] for run in runs]
        if name == "exact":
            found[name] = all(values)
        elif None in values:
            found[name] = None
        else:
            middle = statistics.median(values)
            found[name] = {"min": min(values), "median": middle, "max": max(values)}
    return found


def render(document: dict[str, Any]) -> Table:
    table = Table(
        title=f"{document['messages']:,} messages of {document['bytes_per_message']} B, lz4, "
        f"{PARTITIONS} → {TARGETS} partitions; median (least–most) of {document['repeat']}",
        caption="CPU seconds are for all of the messages. kcat's keys and values are lines of "
        "text: no tabs or line ends in them, and an empty value is the same as none.",
    )
    table.add_column("")
    for way in METHODS:
        table.add_column(TITLES[way], justify="right")
    for label, name, digits in (
        ("messages/s, start-up included", "per_second", 0),
        ("messages/s, after the first commit", "after_start_per_second", 0),
        ("first commit, s", "first_commit_seconds", 2),
        ("CPU s, who copies", "copier_cpu_seconds", 1),
        ("CPU s, broker", "broker_cpu_seconds", 1),
        ("fullest : emptiest partition", "fullest_by_emptiest", 3),
    ):
        table.add_row(
            label, *(format_figure(document["ways"][way][name], digits) for way in METHODS)
        )
    table.add_section()
    for label, without in (
        ("each message there once, this time", "yes"),
        ("… and after a crash (transactions)", "no"),
        ("commits the group's offsets with them", "no"),
        ("headers, timestamps, null values", "no"),
        ("refuses when a consumer comes back", "no"),
    ):
        table.add_row(label, without, "yes", "yes")
    return table


def format_figure(figure: dict[str, float] | None, digits: int) -> str:
    if figure is None:
        return "–"
    least, middle, most = (f"{figure[name]:,.{digits}f}" for name in ("min", "median", "max"))
    return f"{middle}\n({least}–{most})" if least != most else middle


def describe_machine() -> dict[str, Any]:
    java = subprocess.run(
        [find_java(), "-version"], capture_output=True, text=True, check=True
    ).stderr.splitlines()[0]
    kcat = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    return {
        **machine.describe_machine(),
        "java": java,
        "kcat": next(line for line in kcat.splitlines() if line.startswith("Version")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    found = measure(options.messages, options.repeat, Console(stderr=True))
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "messages": options.messages,
        "repeat": options.repeat,
        "bytes_per_message": found["bytes_per_message"],
        "ways": {way: summarize(found["runs"][way]) for way in METHODS},
        "runs": found["runs"],
    }
    Console(width=100).print(render(document))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
