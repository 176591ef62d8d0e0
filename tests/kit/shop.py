"""A shop that lost orders, what an offload leaves of it, and the command as a call."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from backlogctl.archive_manifest import ArchiveManifest
from backlogctl.clock import utc_now
from backlogctl.config import load_config
from backlogctl.kafka.admin import list_offsets, read_topic_id
from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.groups import committed_offsets
from backlogctl.ledger import upgrade
from backlogctl.replay.cli import main, shared
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.injection.ledger import find_ledger
from backlogctl.replay.kinds.rebuild.plan import RebuildOptions
from backlogctl.replay.kinds.rebuild.planning import plan_rebuild
from backlogctl.replay.opening import open_workspace
from backlogctl.spark_backfill.archive.job import ArchiveJob
from backlogctl.spark_backfill.archive.writing import write_archive
from backlogctl.spark_backfill.injection.ledger_topic import CLOSED, read_visible
from backlogctl.values import Cause, Certainty, Gap, GapState, OffsetRange, Recovery, RecoveryState
from backlogctl_delivery.stamps import MESSAGE_ID, find_header
from examples.stage import SHORT_LIVED_JVM
from tests.kit.kafka import commit, leave_at, move_log_start, read_all
from tests.kit.ledger import create_recovery
from tests.kit.processes import start_backlogctl
from tests.spark_backfill.world import (
    FIELDS,
    ORDERS,
    Row,
    encode_order,
    fill_table,
    make_order,
    place_key,
    publish_orders,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def call_main(
    words: tuple[str, ...], directory: Path, environment: Mapping[str, str]
) -> tuple[int, str, str]:
    """Its exit code, and what it said on stdout and stderr."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with pytest.MonkeyPatch.context() as patch, _turned(out, err):
            patch.chdir(directory)
            patch.setattr(shared, "SESSION", shared.Session())
            for name, value in environment.items():
                patch.setenv(name, value)
            code = main(words)
        for file in (out, err):
            file.seek(0)
        return code, out.read(), err.read()


@contextmanager
def _turned(out: IO[str], err: IO[str]) -> Iterator[None]:
    """The process's own outputs, where Java writes too: `--json` turns them once more."""
    with ExitStack() as undone:
        for number, file, redirect in ((1, out, redirect_stdout), (2, err, redirect_stderr)):
            kept = os.dup(number)
            undone.callback(os.close, kept)
            undone.callback(os.dup2, kept, number)
            os.dup2(file.fileno(), number)
            stream = os.fdopen(number, "w", closefd=False)
            undone.enter_context(stream)
            undone.enter_context(redirect(stream))
        yield


PARTITIONS = 3
PROCESSED = "CREATE TABLE processed (order_id BIGINT NOT NULL)"
LOCAL_SPARK = {"master": "local[2]", "conf": {"spark.sql.shuffle.partitions": "2"}}
SOURCE = {
    "database": "shop",
    "table": "orders",
    "primary_key": ["order_id"],
    "time_column": "updated_at",
    "mutable": False,
    "message": {"key": "order_id", "value": {"json": FIELDS}},
    "identity": {"row": "order_id", "message": "key"},
    "stale": "restate",
}
CONSUMED = {"consumed": {"database": "shop", "table": "processed", "column": "order_id"}}
# Of 260 orders 60 are handled, the next 90 are lost; the others survive, enough to prove the rules.
DONE, LOST, TOTAL = 60, 90, 260


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
    registries: dict[str, Any] = field(default_factory=dict)
    encode: Callable[[Row], bytes] = encode_order

    @property
    def properties(self) -> dict[str, str]:
        """Client properties."""
        return {"bootstrap.servers": self.bootstrap}

    def write_config(self, **extra: Any) -> None:
        """Writes backlog.yaml; `extra` are keys of the stream. JSON is YAML."""
        self.extra.update(extra)
        source = {**SOURCE, **CONSUMED}
        stream = {"cluster": "main", "topic": self.topic, "group": self.group, "source": source}
        document = {
            "ledger": self.ledger,
            "staging": {"dir": "./staging"},
            "kafka_ledger": {"topic": self.kafka_ledger, "transactional_prefix": self.topic},
            "spark": self.spark,
            "guards": self.guards,
            "clusters": {"main": {"bootstrap.servers": self.bootstrap}},
            "sources": {"shop": {"url": self.url}},
            "registries": self.registries,
            "streams": {"orders": {**stream, **self.extra}},
        }
        (self.directory / "backlog.yaml").write_text(json.dumps(document, indent=1))

    def lose_orders(self) -> None:
        """Publishes, handles the first, and deletes all but the last, at exact offsets."""
        rows = [make_order(number) for number in range(TOTAL)]
        fill_table(self.url, ORDERS, rows)
        handled = [{"order_id": row["order_id"]} for row in rows[:DONE]]
        fill_table(self.url, PROCESSED, handled, "processed")
        publish_orders(self.bootstrap, self.topic, rows, encode=self.encode)
        commit(self.properties, self.group, self.topic, count_by_partition(range(DONE)))
        move_log_start(self.properties, self.topic, count_by_partition(range(DONE + LOST)))
        self.write_config()

    def run(self, *words: str, code: int | None = 0, **environment: str) -> Said:
        """Runs `backlogctl` as a process; checks its exit code unless None."""
        process = self.start(*words, **environment)
        out, err = process.communicate(timeout=400)
        said = Said(process.returncode, out, err)
        if code is not None:
            assert said.code == code, f"backlogctl {' '.join(words)}: {said}"
        return said

    def call(self, *words: str, code: int | None = 0, **environment: str) -> Said:
        """Runs `backlogctl` in this process, with its Spark: where nothing depends on processes.

        Its exit code is checked unless None.
        """
        said = Said(*call_main(words, self.directory, {**self.environment, **environment}))
        assert code is None or said.code == code, f"backlogctl {' '.join(words)}: {said}"
        return said

    def start(
        self, *words: str, module: str = "backlogctl.replay.cli", **environment: str
    ) -> subprocess.Popen[str]:
        """Starts `backlogctl` in a process group of its own."""
        own = {"JDK_JAVA_OPTIONS": SHORT_LIVED_JVM, **self.environment, **environment}
        return start_backlogctl(self.directory, *words, environment=own, module=module)

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
            (place(number), str(number).encode(), self.encode(make_order(number)))
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


ACTOR = "os:tester@here"


def offload(
    shop: Shop,
    spark: SparkSession,
    *,
    workspace: Workspace | None = None,
    partitions: int = PARTITIONS,
    starts: Mapping[int, int] | None = None,
    file_bytes: int = 2_000,
    store: str | None = None,
) -> str:
    """Archives what is unread, moves the group behind it and deletes it; the offload's id.

    The offload itself is on record as rejected: what a verified one leaves is the same.

    Args:
        store: the ledger says that the archive lies there, in a folder of its id.
    """
    opened = workspace or shop.open()
    stream = opened.config.stream(shop.stream)
    admin = make_admin(shop.properties)
    numbers = range(partitions)
    fence = list_offsets(admin, shop.topic, numbers, "latest", "read_committed")
    if starts is None:
        lows = list_offsets(admin, shop.topic, numbers, "earliest")
        found = committed_offsets(shop.properties, shop.group, shop.topic, numbers)
        starts = {number: max(lows[number], found.get(number) or 0) for number in numbers}
    ranges = [OffsetRange(n, starts[n], fence[n]) for n in numbers if starts[n] < fence[n]]
    recovery_id = record_offload(opened, shop)
    job = ArchiveJob(
        recovery_id=recovery_id,
        stream=stream.name,
        cluster=stream.cluster,
        topic=shop.topic,
        topic_id=read_topic_id(admin, shop.topic)[0],
        group=shop.group,
        partitions=partitions,
        plan_hash=opened.ledger.recoveries.get(recovery_id).plan_hash,
        made_by=ACTOR,
        location=str(opened.config.staging.dir / "archives" / recovery_id),
        ranges=tuple(ranges),
        properties=shop.properties,
        bytes_per_message=100,
        file_bytes=file_bytes,
    )
    manifest = write_archive(spark, job)
    keep(opened, manifest, job.location if store is None else f"{store}/{recovery_id}")
    leave_at(shop.properties, shop.group, shop.topic, fence)
    move_log_start(shop.properties, shop.topic, fence)
    return recovery_id


def record_offload(workspace: Workspace, shop: Shop) -> str:
    """An offload of which nothing is left to do."""
    ledger = workspace.ledger
    made = create_recovery(
        ledger,
        "offload",
        shop.stream,
        topic=shop.topic,
        group=shop.group,
        plan_hash="f" * 64,
        by=ACTOR,
    )
    ledger.recoveries.advance(made.id, RecoveryState.REJECTED, ACTOR)
    return made.id


def keep(workspace: Workspace, manifest: ArchiveManifest, location: str) -> tuple[Gap, ...]:
    """Puts an archive and its gaps on record, as an offload does."""
    ledger = workspace.ledger
    ledger.archives.record(
        manifest.recovery_id,
        stream=manifest.stream,
        cluster=manifest.cluster,
        topic=manifest.topic,
        topic_id=manifest.topic_id,
        location=location,
        manifest_sha256=manifest.sha256(),
        messages=manifest.count,
        bytes=manifest.bytes,
        ranges=manifest.ranges,
    )
    for item in manifest.ranges:
        if item.start == item.end:
            continue
        ledger.gaps.record(
            Gap(
                id="",
                stream=manifest.stream,
                cluster=manifest.cluster,
                topic=manifest.topic,
                group=manifest.group,
                topic_id=manifest.topic_id,
                partition=item.partition,
                start=item.start,
                end=item.end,
                cause=Cause.DISCARDED,
                certainty=Certainty.EXACT,
                state=GapState.OPEN,
                first_time=item.first_time,
                last_time=item.last_time,
                detected_at=utc_now(),
                archive=manifest.recovery_id,
            )
        )
    # What an older gap covers is cut out of them.
    gaps = [gap for gap in ledger.gaps.list() if gap.archive == manifest.recovery_id]
    ids = [gap.id for gap in gaps]
    for state in (GapState.PLANNED, GapState.STAGED):
        ledger.gaps.advance(ids, state, manifest.recovery_id, actor=ACTOR)
    return tuple(replace(gap, state=GapState.STAGED) for gap in gaps)


def list_states(workspace: Workspace) -> Sequence[str]:
    """The states of all gaps, each once."""
    return sorted({str(gap.state) for gap in workspace.ledger.gaps.list()})
