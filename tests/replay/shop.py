"""A shop that lost orders: table, topic, group, consumer's table and configuration file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backlogctl.config import load_config
from backlogctl.kafka.admin import list_offsets
from backlogctl.ledger import upgrade
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.injection.ledger import find_ledger
from backlogctl.replay.kinds.rebuild.plan import RebuildOptions
from backlogctl.replay.kinds.rebuild.planning import plan_rebuild
from backlogctl.replay.opening import open_workspace
from backlogctl.spark_backfill.injection.ledger_topic import CLOSED, read_visible
from backlogctl.values import Recovery
from backlogctl_delivery.stamps import MESSAGE_ID, find_header
from examples.stage import SHORT_LIVED_JVM
from tests.kafka_tools import commit, move_log_start, read_all
from tests.replay.calling import call_main
from tests.spark_backfill.world import (
    FIELDS,
    ORDERS,
    encode_order,
    fill_table,
    make_order,
    place_key,
    publish_orders,
)

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 3
PROCESSED = "CREATE TABLE processed (order_id BIGINT NOT NULL)"
LOCAL_SPARK = {"master": "local[2]", "conf": {"spark.sql.shuffle.partitions": "2"}}
DONE, LOST, TOTAL = 60, 90, 240  # of 240 orders 60 are handled, the next 90 are lost


@dataclass(frozen=True)
class Said:
    """What one call of the command said."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout, and nothing else."""
        value: dict[str, Any] = json.loads(self.out)
        return value

    @property
    def error(self) -> dict[str, Any]:
        """The error's document."""
        value: dict[str, Any] = self.document["error"]
        return value


@dataclass
class Shop:
    """Files, names and addresses of one shop."""

    directory: Path
    bootstrap: str
    topic: str
    group: str
    url: str
    ledger: str
    kafka_ledger: str
    extra: dict[str, Any] = field(default_factory=dict)
    guards: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    spark: Mapping[str, Any] = field(default_factory=lambda: LOCAL_SPARK)
    stream: str = "orders"

    @property
    def properties(self) -> dict[str, str]:
        """Client properties."""
        return {"bootstrap.servers": self.bootstrap}

    def write_config(self, **extra: Any) -> None:
        """Writes backlog.yaml; `extra` are keys of the stream. JSON is YAML."""
        self.extra.update(extra)
        source = {
            "database": "shop",
            "table": "orders",
            "primary_key": ["order_id"],
            "time_column": "updated_at",
            "mutable": False,
            "message": {"key": "order_id", "value": {"json": FIELDS}},
            "identity": {"row": "order_id", "message": "key"},
            "consumed": {"database": "shop", "table": "processed", "column": "order_id"},
            "stale": "restate",
        }
        stream = {"cluster": "main", "topic": self.topic, "group": self.group, "source": source}
        document = {
            "ledger": self.ledger,
            "staging": {"dir": "./staging"},
            "kafka_ledger": {"topic": self.kafka_ledger, "transactional_prefix": self.topic},
            "spark": self.spark,
            "guards": self.guards,
            "clusters": {"main": {"bootstrap.servers": self.bootstrap}},
            "sources": {"shop": {"url": self.url}},
            "streams": {"orders": {**stream, **self.extra}},
        }
        (self.directory / "backlog.yaml").write_text(json.dumps(document, indent=1))

    def lose_orders(self) -> None:
        """Publishes, handles the first, and deletes all but the last, at exact offsets."""
        rows = [make_order(number) for number in range(TOTAL)]
        fill_table(self.url, ORDERS, rows)
        handled = [{"order_id": row["order_id"]} for row in rows[:DONE]]
        fill_table(self.url, PROCESSED, handled, "processed")
        publish_orders(self.bootstrap, self.topic, rows)
        commit(self.properties, self.group, self.topic, count_by_partition(range(DONE)))
        move_log_start(self.properties, self.topic, count_by_partition(range(DONE + LOST)))
        self.write_config()

    def run(self, *words: str, code: int | None = 0, **environment: str) -> Said:
        """Runs `backlogctl` as a process; checks its exit code unless None."""
        process = self.start(*words, **environment)
        out, err = process.communicate(timeout=240)
        said = Said(process.returncode, out, err)
        if code is not None:
            assert said.code == code, f"backlogctl {' '.join(words)}: {said}"
        return said

    def call(self, *words: str, code: int = 0, **environment: str) -> Said:
        """Runs `backlogctl` in this process, with its Spark: where nothing depends on processes."""
        said = Said(*call_main(words, self.directory, {**self.environment, **environment}))
        assert said.code == code, f"backlogctl {' '.join(words)}: {said}"
        return said

    def start(
        self, *words: str, module: str = "backlogctl.replay.cli", **environment: str
    ) -> subprocess.Popen[str]:
        """Starts `backlogctl` in a process group of its own."""
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JDK_JAVA_OPTIONS": SHORT_LIVED_JVM,
            **self.environment,
            **environment,
        }
        return subprocess.Popen(
            [sys.executable, "-m", module, *words],
            cwd=self.directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def open(self) -> Workspace:
        """The workspace, in this process."""
        path = self.directory / "backlog.yaml"
        return open_workspace(load_config(path, {**os.environ, **self.environment}))

    def plan(self, workspace: Workspace | None = None) -> Recovery:
        """Plans in this process, with the session's Spark."""
        opened = workspace or self.open()
        return plan_rebuild(opened, opened.config.stream(self.stream), RebuildOptions())

    def plan_approved(self) -> Recovery:
        """Plans and approves in this process."""
        workspace = self.open()
        planned = self.plan(workspace)
        return approve_plan(workspace, planned, by="tester")

    def read_injected(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """(partition, key, value) of each committed message that we put back."""
        found = []
        for message in read_all(self.properties, self.topic, range(PARTITIONS)):
            headers: Any = message.headers()
            if find_header(headers, MESSAGE_ID):
                found.append((message.partition() or 0, message.key(), message.value()))
        return found

    def read_closed(self, recovery_id: str) -> set[int]:
        """Slots that the Kafka ledger says are closed for this recovery."""
        workspace = self.open()
        ledger = find_ledger(workspace, workspace.ledger.recoveries.get(recovery_id))
        assert ledger is not None
        records = read_visible(self.properties, ledger, range(ledger.partitions))
        return {r.slot for r in records if r.chunk == CLOSED and r.recovery == recovery_id}

    def check_same_set(self) -> None:
        """Exactly the lost orders were put back, each once, where they belong."""
        expected = Counter(
            (place(number), str(number).encode(), encode_order(make_order(number)))
            for number in range(DONE, DONE + LOST)
        )
        assert Counter(self.read_injected()) == expected

    def read_ends(self) -> dict[int, int]:
        """Where the topic ends."""
        return list_offsets(self.properties, self.topic, range(PARTITIONS), "latest")


def place(number: int) -> int:
    """The partition of an order's key."""
    return place_key(str(number).encode(), PARTITIONS)


def count_by_partition(numbers: range) -> Mapping[int, int]:
    """How many of these orders are in each partition."""
    counts = Counter(place(number) for number in numbers)
    return {partition: counts[partition] for partition in range(PARTITIONS)}


def upgrade_ledger(url: str) -> None:
    """Makes a PostgreSQL ledger's tables."""
    upgrade(url)
