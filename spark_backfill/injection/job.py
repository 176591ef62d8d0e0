"""The input and the result of an injection."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from backlogctl.clock import Deadline
from backlogctl.errors import Paused, PlanStale
from backlogctl.kafka.admin import TopicInfo, describe_topic, list_offsets, read_metadata
from backlogctl.kafka.clients import Connection, connect, outlast
from backlogctl.kafka.errors import TopicMissing
from backlogctl.kafka.markers import FIND_HINT, find_hidden
from backlogctl.kafka.room import Room
from backlogctl.kafka.throttling import Throttling
from backlogctl.manifests import MESSAGE_BYTES, Manifest
from backlogctl.spark_backfill.injection.newer import PlannedLog
from backlogctl.spark_backfill.injection.snapshots import LedgerSnapshot
from backlogctl.spark_backfill.injection.transactional import (
    DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_PREFIX,
    TRANSACTION_TIMEOUT_MS,
    WriterSettings,
)
from backlogctl.values import Chunk

# The rate of an injection: which slots a wave takes, and how fast each chunk is written.

# An open transaction holds back every read_committed reader: a slow pace ends here.
MAX_TRANSACTION_SECONDS = 4.0
# How long a wave goes on beginning chunks where there is no rate.
WAVE_SECONDS = 5.0
# Of one slot in one wave; its task stops earlier when its time is over.
MAX_CHUNKS = 20


@dataclass(frozen=True, slots=True)
class Rate:
    """What all slots together may write in a second; None: as much as comes."""

    messages: float | None = None
    bytes: float | None = None

    @property
    def is_limited(self) -> bool:
        return self.messages is not None or self.bytes is not None

    def count_seconds(self, count: int, size: int) -> float:
        """That so many messages of so many bytes take at least."""
        return max(count / (self.messages or math.inf), size / (self.bytes or math.inf))

    def measure(self, chunk: Chunk) -> float:
        """Seconds that a chunk takes at least."""
        return self.count_seconds(chunk.count, measure_chunk(chunk))


def choose_slots(left: Mapping[int, Sequence[Chunk]], rate: Rate) -> list[int]:
    """Slots of the next wave: of those with chunks left all, or with a rate as many as fit.

    A wave lasts no longer than one transaction may, however many of its chunks are written at
    once: together they hold what the rate allows in that time, but always one chunk.

    Args:
        left: the chunks that are left of each slot, the next one first.
    """
    pending = [slot for slot, chunks in left.items() if chunks]
    if not rate.is_limited:
        return pending
    budget, chosen = MAX_TRANSACTION_SECONDS, list[int]()
    # The slots with the most left go first, so that none of them is late at the end.
    for slot in sorted(pending, key=lambda s: -len(left[s])):
        budget -= rate.measure(left[slot][0])
        if chosen and budget < 0:
            break
        chosen.append(slot)
    return chosen


def choose_chunks(left: Sequence[Chunk], rate: Rate, most: int) -> tuple[Chunk, ...]:
    """The next chunks of a slot in a wave: one with a rate or of the canary, else some seconds'
    worth, since a task that goes on with its producer does not have to take the slot over again.

    Args:
        left: the chunks that are left of the slot, at least one.
        most: so many at most.
    """
    if rate.is_limited or left[0].canary:
        return (left[0],)
    return tuple(islice(left, most))


def measure_chunk(chunk: Chunk) -> int:
    """Bytes that a chunk takes of each replica's disk at most: uncompressed."""
    return chunk.bytes + chunk.count * MESSAGE_BYTES


def count_fitting(
    wave: Mapping[int, Sequence[Chunk]], room: Room, least: int = 0
) -> dict[int, int]:
    """How many chunks of each slot there is room for together: the first one of each first."""
    wanted: dict[int, int] = {}
    kept = dict.fromkeys(wave, 0)
    for index in range(max(map(len, wave.values()))):
        for slot, chunks in wave.items():
            if kept[slot] != index or index >= len(chunks):
                continue
            size = wanted.get(slot, 0) + measure_chunk(chunks[index])
            if room.fits({**wanted, slot: size}):
                wanted[slot] = size
                kept[slot] += 1
    return {slot: max(least, count) for slot, count in kept.items()}


def choose_pace(chunk: Chunk, rate: Rate, width: int, parallelism: int) -> float | None:
    """Messages per second of one chunk of a wave; None for as fast as it goes.

    Evenly inside the wave, but never so slowly that the transaction stays open for long; what is
    missing to the rate then is waited for between the waves.

    Args:
        width: chunks of the wave.
        parallelism: how many of them are written at once; the others wait, and use no rate.
    """
    if not rate.is_limited:
        return None
    seconds = rate.measure(chunk) * max(1, min(width, parallelism))
    return chunk.count / min(seconds, MAX_TRANSACTION_SECONDS)


# Checks of the target topic: still the plan's, visible to readers, and enough replicas.

# How long restarting brokers are waited for, in seconds.
PATIENCE = 60.0
# The time limit of a live producer's transaction is a minute by default; the coordinator looks
# for such every 10 s.
HIDDEN_SECONDS = 90.0


def check_target(
    connection: Connection,
    topic: str,
    topic_id: str,
    partitions: int,
    deadline: Deadline | None = None,
) -> TopicInfo:
    """The target topic is the one that the plan was made on.

    Raises:
        PlanStale: deleted, recreated (other topic id), or with another number of partitions, so
            that keys would go elsewhere.
    """
    subject = f"topic {topic}"
    try:
        info = describe_topic(connection, topic, deadline)
    except TopicMissing as error:
        raise PlanStale(
            "the topic was deleted since the plan was made; nothing more is sent",
            subject=subject,
            hint="plan again when it is back",
        ) from error
    if info.topic_id != topic_id:
        raise PlanStale(
            f"the topic was recreated since the plan was made: its id is {info.topic_id}, was "
            f"{topic_id}; nothing more is sent",
            subject=subject,
            hint="what is in a new topic has other offsets: plan again",
        )
    if info.partitions != partitions:
        raise PlanStale(
            f"the topic has {info.partitions} partitions now, the plan was made with {partitions}; "
            "keys belong elsewhere; nothing more is sent",
            subject=subject,
            hint="plan again",
        )
    return info


def record_target_ends(connection: Connection, topic: str, partitions: int) -> dict[int, int]:
    """End offsets of the topic now; the plan keeps them, and verification reads from there."""
    return list_offsets(connection, topic, range(partitions), "latest", "read_uncommitted")


def await_visible(
    connection: Connection,
    topic: str,
    needed: Mapping[int, int],
    seconds: float = HIDDEN_SECONDS,
    *,
    hidden: str = "injected messages",
    patience: float = PATIENCE,
    look: Callable[[], None] | None = None,
) -> None:
    """Waits until a read_committed reader gets to the offsets `needed`, by partition.

    A live producer's open transaction hides what we committed above it, and for a moment after a
    commit its own markers are not written yet: neither means that a message is missing.

    Args:
        seconds: for which an open transaction is waited for.
        hidden: what it hides, in words.
        patience: seconds for which brokers that are away are waited for.
        look: called while waiting; may raise.

    Raises:
        Paused: an open transaction still hides them.
    """
    admin, limit = connect(connection), Deadline(seconds)

    find = partial(find_hidden, admin, topic, needed)
    while unread := outlast(Deadline(patience), find):
        if limit.expired:
            places = ", ".join(
                f"[{p}] readable to {at}, needed to {needed[p]}" for p, at in sorted(unread.items())
            )
            raise Paused(
                f"somebody's open transaction hides {hidden} for more than {seconds:g} s "
                f"({places}); they cannot be read yet",
                subject=f"topic {topic}",
                hint=f"run it again when it has ended; if it never does: {FIND_HINT}",
            )
        if look is not None:
            look()
        time.sleep(limit.remaining(0.3))


def await_ended(
    connection: Connection,
    topic: str,
    partitions: Sequence[int],
    seconds: float,
    *,
    look: Callable[[], None] | None = None,
) -> None:
    """Waits until all that is in these partitions now is committed or aborted.

    Raises:
        Paused: a transaction stays open.
    """
    if partitions:
        admin = connect(connection)
        ends = list_offsets(admin, topic, partitions, "latest", "read_uncommitted")
        hidden = "messages that may be newer than staged ones"
        await_visible(admin, topic, ends, seconds, hidden=hidden, look=look)


def require_replicas(connection: Connection, topics: list[str], deadline: Deadline) -> None:
    """Enough replicas are in sync for a write to be acknowledged.

    Raises:
        Paused: below min.insync.replicas, or without a leader; names the partitions.
    """
    admin = connect(connection)
    for topic in topics:
        config = describe_topic(admin, topic, deadline).config
        needed = int(config.get("min.insync.replicas", "1"))
        described = read_metadata(admin, topic, deadline)
        weak = sorted(
            number
            for number, partition in described.topics[topic].partitions.items()
            # A broker asks for no more than there are.
            if len(partition.isrs) < min(needed, len(partition.replicas)) or partition.leader < 0
        )
        if weak:
            raise Paused(
                f"partitions {weak} have fewer than min.insync.replicas={needed} replicas in sync, "
                "so the broker takes no message; no partial chunk was committed",
                subject=f"topic {topic}",
                hint="bring the missing brokers back, then run it again",
            )


@dataclass(frozen=True, slots=True)
class InjectionJob:
    """One approved and staged recovery; `properties` hold secrets and are not in its repr.

    Attributes:
        topic_id, partitions: of the target topic when the plan was made.
        directory: the recovery's staging directory, `<staging>/<recovery id>`.
        ledger: the Kafka ledger when the plan was made.
        compression: a codec that the group's clients can read.
        start_offsets: the target topic's ends when the plan was made (`record_target_ends`).
        group: of the stream; where it has members it must commit past the canary.
        messages_per_second, bytes_per_second: over all slots; None for as fast as it goes.
        canary_wait: seconds for the group to commit past the canary.
        hidden_wait: seconds for which an open transaction of somebody else that hides the canary is
            waited for.
        wave_chunks: at most so many chunks of one slot in one wave.
        patience: seconds for which a chunk is tried again while brokers are away.
        follows: where staged messages are states of rows: what is newer in the topic is looked
            for, and such a message is not sent. None sends all.
        recorded: slot and number of the chunks that are on record as committed elsewhere, too.
    """

    recovery_id: str
    topic: str
    topic_id: str
    partitions: int
    plan_hash: str
    manifest: Manifest
    directory: Path
    properties: Mapping[str, str] = field(repr=False)
    ledger: LedgerSnapshot
    start_offsets: Mapping[int, int]
    group: str | None = None
    messages_per_second: int | None = None
    bytes_per_second: float | None = None
    prefix: str = DEFAULT_PREFIX
    compression: str = "none"
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    canary_wait: float = 60.0
    hidden_wait: float = HIDDEN_SECONDS
    wave_chunks: int = MAX_CHUNKS
    patience: float = PATIENCE
    follows: PlannedLog | None = None
    recorded: frozenset[tuple[int, int]] = frozenset()

    @property
    def rate(self) -> Rate:
        return Rate(self.messages_per_second, self.bytes_per_second)

    def writer_settings(self, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> WriterSettings:
        """What the executors need of it."""
        return WriterSettings(
            properties=dict(self.properties),
            topic=self.topic,
            recovery_id=self.recovery_id,
            plan_hash=self.plan_hash,
            ledger=self.ledger,
            prefix=self.prefix,
            compression=self.compression,
            transaction_timeout_ms=self.transaction_timeout_ms,
            max_message_bytes=max_message_bytes,
        )


@dataclass(frozen=True, slots=True)
class InjectionResult:
    """Every staged message is committed, but those `left_out` as a newer one is there, or their row
    is gone; `skipped` ones were committed before this run."""

    injected: int
    skipped: int
    waves: int
    seconds: float
    left_out: int = 0
    throttling: Throttling = field(default_factory=Throttling)
