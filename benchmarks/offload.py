"""The archive alone: two million messages from 3 partitions into files that were read back.

`python -m benchmarks.offload [--messages 2000000] [--repeat 3]` prints a table and keeps
`results/offload.json`. Beside it, in turns, so that all meet the same machine: Spark's own Kafka
reader into Parquet with its defaults, and kcat into a file. Spark's start does not count; the first
round is a warm-up that does not count either. At the end the last archive is put back by a redrive.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyspark
from rich.console import Console
from rich.table import Table

from backlog.config import SparkSection
from benchmarks.offload_redrive import redrive
from benchmarks.offload_run import Run, archive, dump, write_plainly
from benchmarks.relay import describe_machine, format_figure, summarize
from benchmarks.relay_run import PARTITIONS, make_world, publish_orders
from spark_backfill.spark.session import open_session

RESULTS = Path(__file__).parent / "results" / "offload.json"
METHODS = ("archive", "spark", "kcat")
TITLES = {"archive": "archive", "spark": "Spark's own to Parquet", "kcat": "kcat > file"}


def measure(messages: int, repeat: int, say: Console) -> dict[str, Any]:
    """Every way `repeat` times, in turns."""
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in METHODS}
    with make_world() as (kafka, scratch):
        say.print(f"publishing {messages:,} messages")
        payload = publish_orders(kafka, messages)
        spark = open_session(SparkSection(), "offload benchmark")
        try:
            for turn in range(repeat + 1):
                for way in METHODS:
                    place = scratch / f"{way}-{turn}"
                    run: Run
                    if way == "archive":
                        run, manifest = archive(spark, kafka, messages, payload, place)
                        if turn < repeat:
                            shutil.rmtree(place)
                        else:
                            kept = place
                    elif way == "spark":
                        run = write_plainly(spark, kafka, messages, place)
                    else:
                        run = dump(kafka, messages, place)
                    figures = run.to_json(messages, payload)
                    if not figures["exact"]:
                        sys.exit(f"{TITLES[way]}: not each message is there exactly once")
                    what = "warm-up" if not turn else f"{turn} of {repeat}"
                    say.print(f"{TITLES[way]}, {what}: {figures['per_second']:,} messages/s")
                    if turn:
                        results[way].append(figures)
            say.print("putting the last archive back")
            back = redrive(kafka, manifest, kept, scratch)
        finally:
            spark.stop()
    return {"redrive": back, "payload_bytes_per_message": round(payload), "runs": results}


def render(document: dict[str, Any]) -> Table:
    table = Table(
        title=f"{document['messages']:,} messages of {document['payload_bytes_per_message']} B, "
        f"lz4, {PARTITIONS} partitions; median (least–most) of {document['repeat']}",
        caption="After Spark's start. Spark's own way is with its defaults: Snappy, no headers, "
        "aborted messages too. CPU seconds are for all of the messages.",
    )
    table.add_column("")
    for way in METHODS:
        table.add_column(TITLES[way], justify="right")
    for label, name, digits in (
        ("messages/s, all of it", "per_second", 0),
        ("messages/s, writing alone", "write_per_second", 0),
        ("messages/s, reading back and hashing", "check_per_second", 0),
        ("CPU s, who reads", "reader_cpu_seconds", 1),
        ("CPU s, broker", "broker_cpu_seconds", 1),
        ("bytes of files a message", "bytes_per_message", 1),
        ("… by bytes of keys and values", "bytes_ratio", 3),
    ):
        table.add_row(
            label, *(format_figure(document["ways"][way][name], digits) for way in METHODS)
        )
    table.add_section()
    for label, answers in (
        ("read back, and hashed", ("yes", "no", "no")),
        ("headers, timestamps, null values", ("yes", "no headers", "no")),
        ("killed, it goes on", ("yes", "no", "no")),
    ):
        table.add_row(label, *answers)
    return table


def render_redrive(figures: dict[str, Any]) -> Table:
    table = Table(
        title=f"{figures['messages']:,} messages put back from the archive, {figures['state']}",
        caption="Each chunk a transaction, on one broker. The plan verifies the archive's files.",
    )
    for name in ("", "s", "messages/s"):
        table.add_column(name, justify="right" if name else "left")
    for part in ("plan", "inject", "verify"):
        rate = f"{figures[f'{part}_per_second']:,}"
        table.add_row(part, f"{figures[f'{part}_seconds']:g}", rate)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    found = measure(options.messages, options.repeat, Console(stderr=True))
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**describe_machine(), "pyspark": pyspark.__version__},
        "messages": options.messages,
        "repeat": options.repeat,
        "payload_bytes_per_message": found["payload_bytes_per_message"],
        "ways": {way: summarize(found["runs"][way]) for way in METHODS},
        "redrive": found["redrive"],
        "runs": found["runs"],
    }
    Console(width=100).print(render(document))
    Console(width=100).print(render_redrive(document["redrive"]))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
