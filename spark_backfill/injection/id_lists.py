"""Id lists made again: of the staged messages, else of the messages in the topic.

No message says which chunk it is of. But the chunks of a slot are committed one after another, in
the order of their ledger records, and each record has the hash of its chunk: messages of that hash
are that chunk, and nothing else is taken for it. A chunk of which some were left out has another
hash than its messages in the topic: its list comes from the staged messages alone.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from backlogctl.clock import Deadline
from backlogctl.errors import StagingError
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import Properties
from backlogctl.kafka.ranges import read_ranges
from backlogctl.manifests import CHUNK_SCHEMA, hash_chunk, name_ids, name_messages, read_chunk
from backlogctl.spark_backfill.injection.ledger_topic import CommittedChunk
from backlogctl.values import Chunk
from backlogctl_delivery.stamps import MESSAGE_ID, ORIGINAL_TIME, RECOVERY_ID, Headers, find_header

_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PlacedChunk:
    """A committed chunk all of whose messages are in the topic, and where; `ids` is its list."""

    record: CommittedChunk
    first_offset: int
    last_offset: int
    ids: pa.Table


def read_staged_ids(directory: Path, record: CommittedChunk) -> pa.Table | None:
    """The ids of the staged messages; None where they are gone, or not those of the record."""
    names = name_messages(record.slot, record.chunk), name_ids(record.slot, record.chunk)
    chunk = Chunk(record.slot, record.chunk, record.count, 0, record.sha256, *names)
    try:
        return read_chunk(directory, chunk).select(["message_id"])
    except StagingError:
        return None


def place_chunks(
    properties: Properties, topic: str, records: Sequence[CommittedChunk]
) -> dict[CommittedChunk, PlacedChunk]:
    """Where in the topic committed chunks are; those that are not there whole are left out.

    Args:
        records: every committed chunk of some recoveries in this topic, in the ledger's order.

    Raises:
        TopicMissing, ClusterUnreachable, KafkaFailure.
    """
    slots = sorted({record.slot for record in records})
    limit = Deadline(_SECONDS)
    starts = list_offsets(properties, topic, slots, "earliest", deadline=limit)
    ends = list_offsets(
        properties, topic, slots, "latest", isolation="read_committed", deadline=limit
    )
    found: dict[CommittedChunk, PlacedChunk] = {}
    for slot in slots:
        own = [record for record in records if record.slot == slot]
        reader = _Reader(properties, topic, slot, {record.recovery for record in own})
        spans = _find_spans(reader, own, starts[slot], ends[slot])
        found.update((placed.record, placed) for placed in _prove(reader, spans))
    return found


@dataclass(frozen=True, slots=True)
class _Span:
    """Offsets where a chunk would be, by the counts of the chunks behind it."""

    record: CommittedChunk
    first: int
    last: int


def _find_spans(
    reader: _Reader, records: Sequence[CommittedChunk], start: int, end: int
) -> list[_Span]:
    """From the newest chunk back: retention deletes the oldest messages first."""
    spans: list[_Span] = []
    offsets: Mapping[str, list[int]] = defaultdict(list)
    for message in reader.read(start, end):
        offsets[message.recovery].append(message.offset)
    for record in reversed(records):
        own = offsets[record.recovery]
        if not record.sent:
            continue
        if len(own) < record.sent:
            own.clear()  # of the chunks before it there is less
            continue
        spans.append(_Span(record, own[-record.sent], own[-1]))
        del own[-record.sent :]
    return sorted(spans, key=lambda span: span.first)


def _prove(reader: _Reader, spans: Sequence[_Span]) -> Iterator[PlacedChunk]:
    """Those whose messages have the hash of their record; a chunk of each recovery at a time."""
    waiting: Mapping[str, deque[_Span]] = defaultdict(deque)
    for span in spans:
        waiting[span.record.recovery].append(span)
    rows: Mapping[str, list[dict[str, Any]]] = defaultdict(list)
    start = min((span.first for span in spans), default=0)
    for message in reader.read(start, max((span.last + 1 for span in spans), default=0)):
        own, held = waiting[message.recovery], rows[message.recovery]
        if not own or message.offset < own[0].first:
            continue
        held.append(message.row)
        if message.offset == own[0].last:
            span = own.popleft()
            table = pa.Table.from_pylist(held, schema=CHUNK_SCHEMA)
            held.clear()
            if hash_chunk(table) == span.record.sha256:
                ids = table.select(["message_id"])
                yield PlacedChunk(span.record, span.first, span.last, ids)


@dataclass(frozen=True, slots=True)
class _Stamped:
    """A message that a recovery put back."""

    offset: int
    recovery: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def row(self) -> dict[str, Any]:
        """As it was staged."""
        return {
            "message_id": find_header(self.headers, MESSAGE_ID) or "",
            "key": self.key,
            "value": self.value,
            "partition": self.partition,
            "headers": [{"name": name, "value": value} for name, value in self.headers],
            "original_time": find_header(self.headers, ORIGINAL_TIME),
        }


@dataclass(frozen=True, slots=True)
class _Reader:
    """Committed messages of a partition that some recoveries put back."""

    properties: Properties
    topic: str
    partition: int
    recoveries: Collection[str]

    def read(self, start: int, end: int) -> Iterator[_Stamped]:
        """Those of offsets `[start, end)`, in order."""
        place = self.partition
        starts, ends = {place: start}, {place: end}
        for message in read_ranges(
            self.properties, self.topic, starts, ends, "read what was put back"
        ):
            headers = cast(Headers, message.headers() or ())
            recovery = find_header(headers, RECOVERY_ID)
            if recovery is not None and recovery in self.recoveries:
                offset = message.offset() or 0
                yield _Stamped(offset, recovery, place, message.key(), message.value(), headers)
