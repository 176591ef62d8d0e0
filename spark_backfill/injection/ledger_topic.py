"""The Kafka ledger: the compacted topic that says which chunks are committed (protocol P3).

Its records are written in the same transaction as the messages they stand for, so it is the truth;
the SQL tables are a copy of it for people. A slot's record is in ledger partition
`(crc32(topic) + slot) % partitions`: all recoveries of a slot meet in the same place, and an open
transaction of one slot seldom hides the records of another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

from backlogctl.clock import Deadline, format_time, utc_now
from backlogctl.errors import (
    ClusterUnreachable,
    HangingTransaction,
    KafkaFailure,
    KafkaLedgerLost,
    PlanStale,
    Refused,
)
from backlogctl.kafka.admin import (
    create_topic,
    describe_topic,
    list_offsets,
    read_metadata,
    read_topic_id,
)
from backlogctl.kafka.clients import (
    Admin,
    Connection,
    Properties,
    assign_partitions,
    connect,
    find_addresses,
    make_admin,
    make_consumer,
)
from backlogctl.kafka.errors import TopicMissing, translate
from backlogctl.kafka.markers import FIND_HINT, ProducerIdAndEpoch
from backlogctl.spark_backfill.injection.snapshots import LedgerSnapshot
from backlogctl.values import Chunk

DEFAULT_TOPIC = "backlog-recovery-ledger"
DEFAULT_PARTITIONS = 12
# A coordinator looks for transactions to time out every 10 s; 5 s are slack.
COORDINATOR_SECONDS = 15.0
ANSWER_SECONDS = 30.0
DEFAULT_WAIT = 15.0 + COORDINATOR_SECONDS
# The chunk number of the record that `fence_slots` leaves: this recovery writes no more here.
CLOSED = -1
# What a person does where the ledger does not say any more what was sent.
LOST = (
    "find out who did it; cancelled, this recovery leaves what is there. A plan after that needs "
    "`--allow ledger`: check for messages that are sent twice"
)


@dataclass(frozen=True, slots=True)
class CommittedChunk:
    """One committed record of the ledger; `offset` and `partition` are the record's own.

    `left_out`: the messages of the chunk, counted from 0, that were not sent with it.
    """

    recovery: str
    topic: str
    slot: int
    chunk: int
    plan_hash: str
    sha256: str
    count: int
    at: str
    partition: int
    offset: int
    left_out: tuple[int, ...] = ()
    producer: ProducerIdAndEpoch | None = None  # of its transaction, where that was known

    @property
    def sent(self) -> int:
        """Its messages that are in the topic."""
        return self.count - len(self.left_out)


def ensure_ledger_topic(
    connection: Connection,
    topic: str = DEFAULT_TOPIC,
    *,
    partitions: int = DEFAULT_PARTITIONS,
    replication: int | None = None,
    deadline: Deadline | None = None,
) -> str:
    """Creates the ledger topic if it is missing; returns its topic id.

    Args:
        partitions: of a new topic. One that exists keeps its own number: the plan records it.
        replication: None takes three, or as many as there are brokers.

    Raises:
        Refused: it exists and is not compacted only.
    """
    admin, limit = connect(connection), deadline or Deadline(30.0)
    try:
        info = describe_topic(admin, topic, limit)
    except TopicMissing:
        brokers = len(read_metadata(admin, deadline=limit).brokers)
        copies = replication or min(3, max(1, brokers))
        config = {"cleanup.policy": "compact"}
        if copies >= 3:
            config["min.insync.replicas"] = "2"
        create_topic(
            admin,
            topic,
            partitions=partitions,
            replication=copies,
            config=config,
            deadline=limit,
            exist_ok=True,
        )
        info = describe_topic(admin, topic, limit)
    _require_compacted(topic, info.config)
    return info.topic_id


def snapshot_ledger(
    connection: Connection, topic: str = DEFAULT_TOPIC, deadline: Deadline | None = None
) -> LedgerSnapshot:
    """The ledger as it is now, for a plan; taken before the plan reads any evidence.

    Raises:
        Refused: the topic is not compacted only.
        TopicMissing, ClusterUnreachable, KafkaFailure.
    """
    admin = connect(connection)
    info = describe_topic(admin, topic, deadline)
    _require_compacted(topic, info.config)
    ends = list_offsets(admin, topic, range(info.partitions), "latest", deadline=deadline)
    return LedgerSnapshot(topic, info.topic_id, info.partitions, ends)


def check_ledger(
    connection: Connection, ledger: LedgerSnapshot, deadline: Deadline | None = None
) -> None:
    """Before a run: the ledger is still the one that the plan was made on.

    Raises:
        KafkaLedgerLost: deleted or recreated.
        PlanStale: with another number of partitions.
        Refused: not compacted only, so that records could disappear.
    """
    try:
        info = describe_topic(connection, ledger.topic, deadline)
    except TopicMissing as error:
        raise _lost(ledger) from error
    if info.topic_id != ledger.topic_id:
        raise _lost(ledger, info.topic_id)
    _require_compacted(ledger.topic, info.config)
    if info.partitions != ledger.partitions:
        raise PlanStale(
            f"the Kafka ledger has {info.partitions} partitions, the plan was made with "
            f"{ledger.partitions}; its records would be looked for in the wrong place",
            subject=f"topic {ledger.topic}",
            hint="never change this topic's partitions; plan again",
        )


def read_committed_chunks(
    properties: Properties,
    ledger: LedgerSnapshot | str,
    topic: str,
    *,
    wait: float = DEFAULT_WAIT,
) -> list[CommittedChunk]:
    """Every committed chunk of `topic`, of all recoveries, in the order of ledger offsets.

    Args:
        ledger: a snapshot, or the ledger topic's name.
        wait: seconds to wait for open transactions that hide records.

    Raises:
        HangingTransaction, PlanStale, ClusterUnreachable, KafkaFailure.
    """
    admin = make_admin(properties)
    known = ledger if isinstance(ledger, LedgerSnapshot) else snapshot_ledger(admin, ledger)
    records = read_visible(properties, known, range(known.partitions), wait=wait, admin=admin)
    return [record for record in records if record.topic == topic and record.chunk != CLOSED]


def read_visible(
    properties: Properties,
    ledger: LedgerSnapshot,
    partitions: Iterable[int],
    *,
    wait: float = DEFAULT_WAIT,
    admin: Admin | None = None,
) -> list[CommittedChunk]:
    """Reads whole ledger partitions up to their high watermark, with nothing hidden (P3, step 3).

    The end comes from `list_offsets` with READ_UNCOMMITTED: a read_committed consumer's own
    watermark is the last stable offset, and records above somebody's open transaction would be
    missed. An end of partition below it means that an open transaction hides records.

    Args:
        wait: seconds without a new record until a hidden part is called a hanging transaction;
            0 gives up as soon as it is known that something is hidden.

    Raises:
        HangingTransaction: an open transaction still hides records after `wait` seconds.
        PlanStale: the ledger topic was deleted, or is another one than the plan's.
        ClusterUnreachable, KafkaFailure.
    """
    client = admin or make_admin(properties)
    try:
        now_id, _ = read_topic_id(client, ledger.topic)
        if now_id != ledger.topic_id:
            raise _lost(ledger, now_id)
        ends = list_offsets(client, ledger.topic, partitions, "latest", "read_uncommitted")
    except TopicMissing as missing:
        raise _lost(ledger) from missing
    pending = {partition: end for partition, end in ends.items() if end > 0}
    found: list[CommittedChunk] = []
    if not pending:
        return found
    consumer = make_consumer(
        properties,
        {
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 20,  # the end is asked for, not waited for
        },
    )
    hidden: dict[int, int] = {}
    try:
        starts = [TopicPartition(ledger.topic, p, OFFSET_BEGINNING) for p in pending]
        assign_partitions(consumer, starts, ANSWER_SECONDS)
        patience, answer = Deadline(wait), Deadline(max(wait, ANSWER_SECONDS))
        while pending:
            if (patience.expired and len(hidden) == len(pending)) or answer.expired:
                raise _give_up(properties, ledger, pending, hidden, wait)
            message = consumer.poll(min(0.1, answer.remaining()))
            if message is None:
                continue
            partition, offset, error = message.partition(), message.offset(), message.error()
            if partition is None or offset is None:
                continue
            if error is None:
                if partition in pending:
                    found.append(_read_record(ledger.topic, message))
                    patience, answer = Deadline(wait), Deadline(max(wait, ANSWER_SECONDS))
                reached = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                reached = offset
            else:
                subject = f"topic {ledger.topic}[{partition}]"
                raise translate(error, subject, "read the Kafka ledger")
            if partition in pending and reached >= pending[partition]:
                del pending[partition]
                hidden.pop(partition, None)
            elif partition in pending:
                hidden[partition] = reached
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))


def make_record(
    recovery: str,
    topic: str,
    plan_hash: str,
    chunk: Chunk | None,
    slot: int,
    left_out: Sequence[int] = (),
    producer: ProducerIdAndEpoch | None = None,
) -> tuple[bytes, bytes]:
    """Key and value of a ledger record; without a chunk the slot's closing record."""
    number = CLOSED if chunk is None else chunk.number
    key = {"recovery": recovery, "topic": topic, "slot": slot, "chunk": number}
    value = {
        "plan_hash": plan_hash,
        "sha256": "" if chunk is None else chunk.sha256,
        "count": 0 if chunk is None else chunk.count,
        "at": format_time(utc_now()),
        **({"left_out": list(left_out)} if left_out else {}),
        **({"producer": producer} if producer else {}),
    }
    return _dump(key), _dump(value)


def find_foreign_chunks(
    records: Iterable[CommittedChunk],
    ledger: LedgerSnapshot,
    *,
    recovery: str,
    topic: str,
    slot: int | None = None,
) -> list[CommittedChunk]:
    """Chunks that *other* recoveries of the topic committed since the plan was made."""
    return [
        record
        for record in records
        if record.topic == topic
        and record.recovery != recovery
        and record.chunk != CLOSED
        and record.offset >= ledger.ends.get(record.partition, 0)
        and (slot is None or record.slot == slot)
    ]


def find_own_chunks(
    records: Iterable[CommittedChunk],
    ledger: LedgerSnapshot,
    recovery: str,
    recorded: Iterable[tuple[int, int]],
) -> dict[tuple[int, int], CommittedChunk]:
    """A recovery's committed chunks, by slot and number.

    Args:
        recorded: those that are known as committed from elsewhere, too.

    Raises:
        KafkaLedgerLost: a record of one of these was deleted, so others may have been.
    """
    own = {(one.slot, one.chunk): one for one in records if one.recovery == recovery}
    if gone := [place for place in recorded if place not in own]:
        raise KafkaLedgerLost(
            f"records were deleted from the Kafka ledger: those of {len(gone)} chunks that are "
            "injected, and maybe more; nothing more is sent",
            subject=f"topic {ledger.topic}",
            hint=LOST,
        )
    return own


def _dump(value: Mapping[str, Any]) -> bytes:
    # Compaction compares keys byte by byte, so they are written in one way only.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _read_record(topic: str, message: Any) -> CommittedChunk:
    try:
        key = json.loads(message.key())
        # A deleted record is as good as one with another hash: the chunk is refused, not sent.
        value = json.loads(message.value() or b"{}")
        return CommittedChunk(
            recovery=str(key["recovery"]),
            topic=str(key["topic"]),
            slot=int(key["slot"]),
            chunk=int(key["chunk"]),
            plan_hash=str(value.get("plan_hash", "")),
            sha256=str(value.get("sha256", "")),
            count=int(value.get("count", 0)),
            at=str(value.get("at", "")),
            partition=message.partition(),
            offset=message.offset(),
            left_out=tuple(map(int, value.get("left_out", ()))),
            producer=ProducerIdAndEpoch(*map(int, of)) if (of := value.get("producer")) else None,
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise Refused(
            "the Kafka ledger holds a record that is not ours; nothing was sent",
            subject=f"topic {topic}[{message.partition()}] offset {message.offset()}",
            hint="use a topic of its own as `kafka_ledger.topic`, one that nobody else writes to",
        ) from error


def _require_compacted(topic: str, config: Mapping[str, str]) -> None:
    policy = config.get("cleanup.policy", "")
    if {part.strip() for part in policy.split(",")} != {"compact"}:
        raise Refused(
            f"the Kafka ledger has cleanup.policy={policy or 'unknown'}: its records would be "
            "deleted, and messages sent again",
            subject=f"topic {topic}",
            hint=f"set cleanup.policy=compact on {topic} again",
        )


def _lost(ledger: LedgerSnapshot, now_id: str | None = None) -> PlanStale:
    """It was deleted, or recreated with the id `now_id`."""
    change = f"recreated (its id is {now_id}, was {ledger.topic_id})" if now_id else "deleted"
    return KafkaLedgerLost(
        f"the Kafka ledger topic was {change} since the plan was made: what was injected "
        "already is no longer known, and nothing more is sent",
        subject=f"topic {ledger.topic}",
        hint=LOST,
    )


def _give_up(
    properties: Properties,
    ledger: LedgerSnapshot,
    pending: Mapping[int, int],
    hidden: Mapping[int, int],
    wait: float,
) -> KafkaFailure:
    if not hidden:
        seconds = max(wait, ANSWER_SECONDS)
        return ClusterUnreachable(
            f"the Kafka ledger could not be read: no answer for {seconds:g} s from "
            f"{find_addresses(properties)}",
            subject=f"topic {ledger.topic}",
            hint="check the brokers, then try again",
        )
    places = ", ".join(
        f"[{partition}] readable to {at}, written to {pending[partition]}"
        for partition, at in sorted(hidden.items())
        if partition in pending
    )
    return HangingTransaction(
        f"an open transaction hides records of the Kafka ledger for more than {wait:g} s "
        f"({places}); nothing was sent",
        subject=f"topic {ledger.topic}",
        hint=FIND_HINT,
    )
