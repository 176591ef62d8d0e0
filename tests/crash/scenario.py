"""A small staged recovery on a topic of its own, and the oracle that judges what became of it."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, TopicPartition

from backlogctl.kafka.admin import create_topic, list_offsets
from backlogctl.kafka.clients import make_admin, make_consumer, make_producer
from backlogctl.manifests import (
    CHUNK_SCHEMA,
    Manifest,
    read_chunk,
    read_manifest,
    write_chunk,
    write_manifest,
)
from backlogctl.spark_backfill.injection.job import InjectionJob, record_target_ends
from backlogctl.spark_backfill.injection.ledger_topic import (
    ensure_ledger_topic,
    read_committed_chunks,
    snapshot_ledger,
)
from backlogctl.spark_backfill.injection.newer import PlannedLog
from backlogctl.spark_backfill.injection.snapshots import LedgerSnapshot
from backlogctl_delivery.stamps import MESSAGE_ID, find_header, make_message_id, stamp
from tests.kit.kafka import read_all

Headers = tuple[tuple[str, bytes | None], ...]
# A reader connects again by itself.
_LAST = 2**63
_PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
Seen = Counter[tuple[int, bytes | None, bytes | None, Headers]]


@dataclass(frozen=True)
class Scenario:
    """A topic, its ledger and a staged recovery; written to `directory/job.json` for runners."""

    job: InjectionJob
    directory: Path = field(default=Path())

    @property
    def properties(self) -> Mapping[str, str]:
        """Client properties."""
        return self.job.properties

    def save(self) -> None:
        """For a runner in another process."""
        job = self.job
        value = {
            "recovery_id": job.recovery_id,
            "topic": job.topic,
            "topic_id": job.topic_id,
            "partitions": job.partitions,
            "plan_hash": job.plan_hash,
            "properties": dict(job.properties),
            "ledger": job.ledger.to_json(),
            "start_offsets": dict(job.start_offsets),
            "transaction_timeout_ms": job.transaction_timeout_ms,
            "messages_per_second": job.messages_per_second,
            "prefix": job.prefix,
            "gone": job.follows and sorted(key.decode() for key in job.follows.gone),
        }
        (self.directory / "job.json").write_text(json.dumps(value))


def load_job(directory: Path) -> InjectionJob:
    """What `Scenario.save` wrote."""
    value = json.loads((directory / "job.json").read_text())
    staged = directory / "staging" / value["recovery_id"]
    value["ledger"] = LedgerSnapshot.from_json(value["ledger"])
    value["start_offsets"] = {int(p): o for p, o in value["start_offsets"].items()}
    if (gone := value.pop("gone")) is not None:
        keys = frozenset(key.encode() for key in gone)
        value["follows"] = PlannedLog(value["start_offsets"], None, keys)
    return InjectionJob(**value, manifest=read_manifest(staged), directory=staged)


def make_table(
    topic: str, slot: int, ids: list[str], recovery_id: str, *, size: int = 20
) -> pa.Table:
    """Messages whose ids are made of `ids`: with NULL keys, values and headers among them."""
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(ids):
        message_id = make_message_id(topic, [name], "1")
        headers = stamp(
            [("type", b"OrderPaid"), ("empty", b""), ("none", None)],
            message_id=message_id,
            recovery_id=recovery_id,
            original_time="2026-01-01T00:00:00.000000Z",
            fidelity="restated",
        )
        rows.append(
            {
                "message_id": message_id,
                "key": None if number % 7 == 3 else name.encode(),
                "value": None if number % 11 == 5 else (name + "\u20ac" * size).encode(),
                "partition": slot,
                "headers": [{"name": key, "value": value} for key, value in headers],
                "original_time": "2026-01-01T00:00:00.000000Z",
            }
        )
    return pa.Table.from_pylist(rows, schema=CHUNK_SCHEMA)


def make_scenario(
    bootstrap: str,
    directory: Path,
    *,
    slots: int = 3,
    chunks: int = 2,
    messages: int = 50,
    canary: bool = False,
    recovery_id: str = "r-20261121-0001",
    topic: str | None = None,
    ledger: str | None = None,
    snapshot: LedgerSnapshot | None = None,
    config: Mapping[str, str] | None = None,
    size: int = 20,
    gone: Sequence[str] | None = None,
    **settings: Any,
) -> Scenario:
    """Stages `chunks` chunks of `messages` messages in each slot; `settings` go to the job.

    With `gone` they are states of rows, and the rows of these keys are not there any more.

    A second scenario of the same `topic` and `ledger` stages the same messages again, as an
    overlapping plan would.
    """
    properties = {"bootstrap.servers": bootstrap}
    name = uuid.uuid4().hex[:8]
    topic, ledger = topic or f"crash-{name}", ledger or f"ledger-{name}"
    admin = make_admin(properties)
    topic_id = create_topic(admin, topic, partitions=slots, config=config, exist_ok=True)
    ensure_ledger_topic(admin, ledger)
    staged = directory / "staging" / recovery_id
    made = []
    for slot in range(slots):
        numbered = list(range(chunks))
        if canary and slot == 0:
            numbered += [chunks, chunks + 1, chunks + 2]
        for number in numbered:
            first = canary and slot == 0 and number < 3
            ids = [f"{slot}.{number}.{i}" for i in range(5 if first else messages)]
            table = make_table(topic, slot, ids, recovery_id, size=size)
            made.append(write_chunk(staged, slot, number, table, canary=first))
    manifest = Manifest(recovery_id, topic, tuple(made), {})
    write_manifest(staged, manifest)
    job = InjectionJob(
        recovery_id=recovery_id,
        topic=topic,
        topic_id=topic_id,
        partitions=slots,
        plan_hash=f"hash of {recovery_id}",
        manifest=manifest,
        directory=staged,
        properties=properties,
        ledger=snapshot or snapshot_ledger(admin, ledger),
        start_offsets=record_target_ends(admin, topic, slots),
    )
    if gone is not None:
        keys = frozenset(key.encode() for key in gone)
        job = replace(job, follows=PlannedLog(job.start_offsets, None, keys))
    scenario = Scenario(replace(job, **{"wave_chunks": 1, **settings}), directory)
    scenario.save()
    return scenario


def list_expected(job: InjectionJob) -> Seen:
    """What a read_committed reader must see: every staged message, once."""
    expected: Seen = Counter()
    for chunk in job.manifest.chunks:
        for row in read_chunk(job.directory, chunk).to_pylist():
            headers = tuple((header["name"], header["value"]) for header in row["headers"])
            expected[row["partition"], row["key"], row["value"], headers] += 1
    return expected


def read_committed(
    properties: Mapping[str, str], topic: str, partitions: int, *, to_end: bool = True
) -> Seen:
    """Everything a read_committed reader sees, from the start to the end of the topic.

    With `to_end` an open transaction at the end is waited for, so nothing can still appear.
    """
    admin = make_admin(properties)
    isolation = "read_uncommitted" if to_end else "read_committed"
    ends = list_offsets(admin, topic, range(partitions), "latest", isolation)  # type: ignore[arg-type]
    pending = {partition: end for partition, end in ends.items() if end > 0}
    seen: Seen = Counter()
    if not pending:
        return seen
    reader = make_consumer(properties, {"enable.partition.eof": True, "fetch.wait.max.ms": 20})
    try:
        reader.assign([TopicPartition(topic, partition, 0) for partition in pending])
        quiet = 0
        while pending:
            message = reader.poll(1.0)
            quiet = 0 if message is not None else quiet + 1
            assert quiet < 120, f"{topic}: nothing more to read, but {pending} is not reached"
            if message is None:
                continue
            partition, offset, error = message.partition(), message.offset(), message.error()
            if error is not None and error.code() in _PASSING:
                continue
            assert partition is not None
            assert offset is not None
            if error is None:
                headers: Any = message.headers() or []
                seen[partition, message.key(), message.value(), tuple(headers)] += 1
                offset += 1
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
            if partition in pending and offset >= pending[partition]:
                del pending[partition]
    finally:
        reader.close()
    return seen


@dataclass(frozen=True)
class Judgement:
    """What the oracle found: counts of messages.

    `left_out` ones are told by the ledger; `late` ones stand behind a newer one of their key.
    """

    expected: int
    missing: int
    doubled: int
    foreign: int
    left_out: int = 0
    late: int = 0

    @property
    def is_same_set(self) -> bool:
        """Exactly the expected messages, each once."""
        return not (self.missing or self.doubled or self.foreign or self.late)


def judge(job: InjectionJob) -> Judgement:
    """The oracle: the committed multiset of bytes and partitions against the staged one."""
    expected = list_expected(job)
    seen = read_committed(job.properties, job.topic, job.partitions)
    return Judgement(
        expected=expected.total(),
        missing=(expected - seen).total(),
        doubled=sum(n - 1 for message, n in seen.items() if message in expected and n > 1),
        foreign=sum(n for message, n in seen.items() if message not in expected),
    )


NEWER = b"a newer state"


def send_newer(job: InjectionJob, chance: random.Random, count: int) -> None:
    """So many rows of what is staged move on."""
    producer = make_producer(job.properties)
    for chunk in chance.choices(job.manifest.chunks, k=count):
        keys = [key for key in read_chunk(job.directory, chunk)["key"].to_pylist() if key]
        producer.produce(job.topic, NEWER, chance.choice(keys), chunk.slot)
    assert producer.flush(60) == 0


def judge_restated(job: InjectionJob) -> Judgement:
    """The same of states of rows: left out is what the ledger says, if its row moved on or is gone,
    and no state stands behind a newer one."""
    gone = frozenset[bytes]() if job.follows is None else job.follows.gone
    messages: list[Any] = read_all(job.properties, job.topic, range(job.partitions))
    newer = {m.key(): m.offset() for m in reversed(messages) if m.value() == NEWER}
    ids = Counter(one for m in messages if (one := find_header(m.headers(), MESSAGE_ID)))
    records = read_committed_chunks(job.properties, job.ledger, job.topic)
    told = {(one.slot, one.chunk): one.left_out for one in records}
    missing = left_out = 0
    for chunk in job.manifest.chunks:
        for number, row in enumerate(read_chunk(job.directory, chunk).to_pylist()):
            is_told = number in told.get((chunk.slot, chunk.number), ())
            left_out += is_told
            may_be = row["key"] in newer or row["key"] in gone
            is_there = row["message_id"] in ids
            missing += (is_told and not may_be) or is_told == is_there
    late = [m for m in messages if m.value() != NEWER and m.offset() > newer.get(m.key(), _LAST)]
    staged = list_expected(job)
    foreign = sum(m.value() != NEWER for m in messages) - ids.total()
    return Judgement(staged.total(), missing, ids.total() - len(ids), foreign, left_out, len(late))
