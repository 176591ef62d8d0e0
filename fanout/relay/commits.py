"""Commits on the source partitions, with the relay's counters in their metadata.

Each transaction commits its source offset twice: into the original group, from where its consumers
go on, and into the recovery's own group, which nobody resets: that is the relay's own position.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from confluent_kafka import KafkaException, TopicPartition

from backlogctl.clock import Deadline
from backlogctl.errors import Refused
from backlogctl.fanout.movers import History, trace_moves
from backlogctl.kafka.clients import Admin, outlast, wait_for_broker
from backlogctl.kafka.groups import ask_for_commits
from backlogctl.kafka.markers import ProducerIdAndEpoch

# The relay's counters, carried in the committed offset's metadata, so they commit with it.
#
# Kafka limits the metadata (`offset.metadata.max.bytes`, 4096 by default).

MAX_TEXT = 3500
_VERSION = 1
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Counters:
    """What one source partition's relay has done in a recovery: messages, bytes, where they went.

    `counts` is None where it is not known by partition, `producer` where the engine does not tell
    whose transaction commits them.
    """

    recovery_id: str
    relayed: int = 0
    bytes: int = 0
    counts: Mapping[int, int] | None = field(default_factory=dict)
    producer: ProducerIdAndEpoch | None = None


def write_counters(counters: Counters, partitions: int) -> str:
    """The metadata; the counts by partition are left out where they would not fit."""
    document: dict[str, object] = {
        "v": _VERSION,
        "r": counters.recovery_id,
        "n": counters.relayed,
        "b": counters.bytes,
        **({"p": counters.producer} if counters.producer else {}),
    }
    if counters.counts is not None:
        counts = [counters.counts.get(number, 0) for number in range(partitions)]
        full = {**document, "c": _pack(counts)}
        text = json.dumps(full, separators=(",", ":"))
        if len(text) <= MAX_TEXT:
            return text
    return json.dumps(document, separators=(",", ":"))


def read_counters(text: str | None, recovery_id: str) -> Counters:
    """What the metadata says of this recovery; zero where another one, or nobody, wrote it.

    What follows the document is nobody's: see `_read_metadata`.
    """
    fresh = Counters(recovery_id)
    try:
        found, _ = _DECODER.raw_decode(text or "")
        if found["v"] != _VERSION or found["r"] != recovery_id:
            return fresh
        packed = found.get("c")
        counts = None if packed is None else dict(enumerate(_unpack(packed)))
        producer = ProducerIdAndEpoch(*map(int, of)) if (of := found.get("p")) else None
        return Counters(recovery_id, int(found["n"]), int(found["b"]), counts, producer)
    except (ValueError, TypeError, KeyError, binascii.Error):
        return fresh


def is_counted(text: str | None, recovery_id: str) -> bool:
    """Whether the metadata has this recovery's counters."""
    try:
        return bool(_DECODER.raw_decode(text or "")[0]["r"] == recovery_id)
    except (ValueError, TypeError, KeyError):
        return False


def _pack(numbers: list[int]) -> str:
    """Unsigned LEB128, as in Kafka's own varints, in base64."""
    data = bytearray()
    for number in numbers:
        while number > 0x7F:
            data.append(number & 0x7F | 0x80)
            number >>= 7
        data.append(number)
    return base64.b85encode(bytes(data)).decode()


def _unpack(text: str) -> list[int]:
    numbers: list[int] = []
    number = shift = 0
    for byte in base64.b85decode(text):
        number |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            continue
        numbers.append(number)
        number = shift = 0
    return numbers


# A broker that dies takes a request along; its client notices nothing until this is over.
_TRY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class CommitWithMetadata:
    """A committed offset and what was written beside it."""

    offset: int
    metadata: str | None
    epoch: int | None = None  # of the leader that the message before it came from

    def counters(self, recovery_id: str) -> Counters:
        """The relay's counters, zero where another recovery, or a consumer, committed."""
        return read_counters(self.metadata, recovery_id)

    def is_of(self, recovery_id: str) -> bool:
        """Whether a relay of this recovery made the commit."""
        return is_counted(self.metadata, recovery_id)


def read_start(
    admin: Admin, group: str, topic: str, partition: int, limit: Deadline
) -> CommitWithMetadata:
    """Where the relay of a partition goes on: its group's last stable commit.

    Stable: while a transaction that commits offsets is undecided, the answer is waited for.

    Raises:
        Refused: there is no committed offset.
    """
    found = find_commits(admin, group, topic, [partition], limit)
    if partition not in found:
        raise Refused(
            "it has no committed offset any more, so it is not known where to begin",
            subject=f"group {group} on topic {topic}, partition {partition}",
            hint="run the recovery again: it sets the group to where it left it",
        )
    return found[partition]


def read_all(
    admin: Admin,
    group: str,
    topic: str,
    partitions: list[int],
    limit: Deadline,
    *,
    stable: bool = True,
) -> dict[int, CommitWithMetadata]:
    """Every partition's commit; not `stable`: without what is undecided.
    Raises Refused: one has none.
    """
    found = find_commits(admin, group, topic, partitions, limit, stable=stable)
    for partition in partitions:
        if partition not in found:
            raise Refused(
                "it has no committed offset, so it is not known where to begin",
                subject=f"group {group} on topic {topic}, partition {partition}",
                hint="set one with kafka-consumer-groups, and plan again",
            )
    return found


def read_positions(
    admin: Admin,
    recovery_group: str,
    topic: str,
    partitions: list[int],
    recovery_id: str,
    limit: Deadline,
    *,
    stable: bool = True,
) -> dict[int, CommitWithMetadata]:
    """The relay's own positions on the source, of the partitions of which it relayed something."""
    found = find_commits(admin, recovery_group, topic, partitions, limit, stable=stable)
    return {number: commit for number, commit in found.items() if commit.is_of(recovery_id)}


def find_commits(
    admin: Admin,
    group: str,
    topic: str,
    partitions: list[int],
    limit: Deadline,
    *,
    stable: bool = True,
) -> dict[int, CommitWithMetadata]:
    """Commits of the partitions that have one; not `stable`: without what is undecided."""
    subject, doing = f"group {group} on topic {topic}", "read stable committed offsets"
    reader = admin.open_reader(group, require_stable=stable)
    wait_for_broker(admin, subject, doing, limit)  # a refused login would be tried until the end

    def call() -> dict[int, CommitWithMetadata]:
        wanted = [TopicPartition(topic, partition) for partition in partitions]
        try:
            answer = ask_for_commits(reader, wanted, Deadline(limit.remaining(_TRY_SECONDS)))
        except KafkaException as error:
            raise admin.translate(error, subject, doing, limit.seconds) from error
        finally:
            reader.poll(0)
        found: dict[int, CommitWithMetadata] = {}
        for item in answer:
            if item.error is not None:
                raise admin.translate(item.error, f"{subject}, partition {item.partition}", doing)
            if item.offset < 0:
                continue
            epoch = cast(int | None, item.leader_epoch)  # the stub says int; it is None too
            known = None if epoch is None or epoch < 0 else epoch
            found[item.partition] = CommitWithMetadata(item.offset, _read_metadata(item), known)
        return found

    return outlast(limit, call)


def _read_metadata(item: TopicPartition) -> str | None:
    """What was written beside a commit, and perhaps other bytes after it: librdkafka copies it
    without its end (`rd_kafka_topic_partition_list_update`), and confluent-kafka looks for one."""
    try:
        return item.metadata
    except UnicodeDecodeError as error:
        return bytes(error.object).decode(errors="replace")


# What somebody else did to the group's commits while nobody guarded them.
#
# The relay's own position says what was relayed; a commit elsewhere is somebody else's.

UNDECIDED = "the group moved past what was relayed, and by whom is not known"
READ_BESIDE = "somebody else read on past what was relayed"
REPEATED = "the group was set back behind what was relayed"


@dataclass(frozen=True, slots=True)
class Moved:
    """Offsets `[start, end)` of a partition between the relay's position and somebody's commit."""

    partition: int
    start: int
    end: int
    what: str


def find_moved_commits(
    commits: Mapping[int, CommitWithMetadata],
    positions: Mapping[int, CommitWithMetadata],
    begun: Mapping[int, int],
    recovery_id: str,
    history: Callable[[], History | None] = lambda: None,
) -> tuple[Moved, ...]:
    """Where the original group does not stand where the relay left it.

    Args:
        begun: where its consumers were stopped; of partitions of which nothing was relayed.
        history: the group's commits since then; asked only where one went forward. Where they are
            not known, a commit with a leader epoch is a reader's.
    """
    found = []
    known: History | None = None
    is_asked = False
    for number, commit in sorted(commits.items()):
        own = positions[number].offset if number in positions else begun.get(number)
        if own is None or commit.offset == own or commit.is_of(recovery_id):
            continue
        if commit.offset < own:
            found.append(Moved(number, commit.offset, own, REPEATED))
            continue
        if not is_asked:
            known, is_asked = history(), True
        if known is None:
            what = UNDECIDED if commit.epoch is None else READ_BESIDE
            found.append(Moved(number, own, commit.offset, what))
            continue
        made = [one for one in known.get(number, ()) if not is_counted(one.metadata, recovery_id)]
        found += [
            Moved(number, move.start, move.end, READ_BESIDE if move.is_read else UNDECIDED)
            for move in trace_moves(own, commit.offset, made)
        ]
    return tuple(found)
