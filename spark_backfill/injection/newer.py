"""Newer messages of what is staged: the state of a row must not follow a later state of it.

A plan reads the log, and hours later its messages are put back. Meanwhile rows change, and their
new messages are in the log first. So the log is followed from where the plan has read it: before
each wave, and by each transaction, from there to its own messages, before it commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backlogctl.errors import (
    KafkaFailure,
    PlanStale,
    VerificationFailed,
)
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import Connection, Properties, connect
from backlogctl.kafka.ranges import read_ranges
from backlogctl.manifests import Manifest
from backlogctl_delivery.stamps import MESSAGE_ID, RECOVERY_ID, Headers, find_header, find_value

_LAST = 2**63


class Overtaken(KafkaFailure):
    """A newer message came between the look at the log and a chunk's own messages: nothing of the
    chunk is committed."""

    code = "overtaken"
    retryable = True


@dataclass(frozen=True, slots=True)
class PlannedLog:
    """How far the plan has read the topic, and what says which messages are of one row.

    Attributes:
        ends: by partition.
        header: that identifies a message; None for the key.
        gone: identities whose rows are not in the table any more.
    """

    ends: Mapping[int, int]
    header: str | None
    gone: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class NewerMessages:
    """What a partition got since the plan has read it.

    Attributes:
        header: that identifies a message; None for the key.
        identities: of staged messages that are not sent: a newer message is there, or their row is
            gone.
        until: the partition was read up to this offset.
    """

    header: str | None
    identities: frozenset[bytes]
    until: int

    def find_rows(self, table: pa.Table) -> tuple[int, ...]:
        """The rows of a staged chunk that are left out."""
        named = enumerate(list_identities(table, self.header))
        return tuple(row for row, identity in named if identity in self.identities)


def drop_rows(table: pa.Table, rows: Sequence[int]) -> pa.Table:
    """The table without these rows, counted from 0."""
    if not rows:
        return table
    kept = np.ones(table.num_rows, dtype=bool)
    kept[list(rows)] = False
    return table.filter(pa.array(kept))


def list_identities(table: pa.Table, header: str | None) -> list[bytes | None]:
    """Of each message of a staged chunk what identifies it; None where nothing does."""
    if header is None:
        keys: list[bytes | None] = table["key"].to_pylist()
        return keys
    return [
        next((one["value"] for one in reversed(row) if one["name"] == header), None)
        for row in table["headers"].to_pylist()
    ]


@dataclass(frozen=True, slots=True)
class _Found:
    partition: int
    offset: int
    identity: bytes | None
    message_id: str | None
    recovery: str | None


def require_newest(
    properties: Properties,
    topic: str,
    slot: int,
    table: pa.Table,
    newer: NewerMessages,
    end: int,
) -> None:
    """Called within a transaction, whose messages end before `end`.

    What others have not committed yet counts as newer: it may be, below ours.

    Raises:
        Overtaken.
    """
    own = set(list_identities(table, newer.header))
    ends = {slot: end}
    found = {
        one.identity
        for one in _read(
            properties, topic, {slot: newer.until}, ends, newer.header, "read_uncommitted"
        )
        if one.message_id is None and one.identity is not None and one.identity in own
    }
    if found:
        raise Overtaken(
            f"{len(found)} of its messages got a newer one while they were written, or one in a "
            "transaction that is open: nothing of this chunk is committed",
            subject=f"topic {topic}[{slot}]",
            hint="run it again: what has a newer message is left out then",
        )


class LogFollower:
    """Follows the topic behind what the plan has read, on the driver."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        recovery_id: str,
        staged: Mapping[int, frozenset[bytes]],
        planned: PlannedLog,
    ) -> None:
        """
        Args:
            staged: identities by partition.
        """
        self._admin, self._topic, self._recovery_id = connect(connection), topic, recovery_id
        self._staged, self._header = staged, planned.header
        self._at = dict(planned.ends)
        self._left_out = {slot: known & planned.gone for slot, known in staged.items()}
        # The first newer message of each partition: across partitions there is no order.
        self._newer: dict[tuple[int, bytes], int] = {}
        self._wanted = frozenset[bytes]().union(*staged.values())
        self._overtaken: set[str] = set()

    def look(self) -> None:
        """Reads what is committed since the last look.

        Raises:
            PlanStale: retention has removed some of it unread.
            ClusterUnreachable, KafkaFailure.
        """
        slots = list(self._at)
        lows = list_offsets(self._admin, self._topic, slots, "earliest")
        ends = list_offsets(self._admin, self._topic, slots, "latest", "read_committed")
        if gone := [p for p, at in self._at.items() if lows[p] > at]:
            raise PlanStale(
                f"retention has removed messages that came after the plan, in partitions {gone}: "
                "whether they are newer than what is staged cannot be known; nothing more is sent",
                subject=f"topic {self._topic}",
                hint="cancel it, then plan again",
            )
        starts = {p: at for p, at in self._at.items() if ends[p] > at}
        properties = self._admin.properties
        for one in _read(properties, self._topic, starts, ends, self._header):
            if one.identity is None or one.identity not in self._wanted:
                continue
            place = one.partition, one.identity
            if one.message_id is None:
                self._newer.setdefault(place, one.offset)
            elif one.recovery == self._recovery_id and self._newer.get(place, _LAST) < one.offset:
                self._overtaken.add(one.message_id)
        self._at |= {p: ends[p] for p in starts}

    def require_order(self, subject: str) -> None:
        """No message of ours stands behind a newer one.

        Raises:
            VerificationFailed: names them.
        """
        if not self._overtaken:
            return
        shown = ", ".join(sorted(self._overtaken)[:10])
        raise VerificationFailed(
            f"{len(self._overtaken)} messages stand behind a newer one of the same identity, and "
            f"say an older state last: {shown}",
            subject=subject,
            hint="look these ids up by the header backlog-message-id, and send the newest state "
            "of their rows again",
        )

    def describe(self, slot: int) -> NewerMessages:
        """What is known of a partition."""
        newer = {identity for _, identity in self._newer}
        found = self._left_out[slot] | (self._staged[slot] & newer)
        return NewerMessages(self._header, frozenset(found), self._at[slot])


def follow_log(
    connection: Connection,
    topic: str,
    manifest: Manifest,
    directory: Path,
    planned: PlannedLog | None,
) -> LogFollower | None:
    """Of what is staged as its row was; None where a message is what it was for ever."""
    if planned is None:
        return None
    staged = list_staged(directory, manifest, planned.header)
    return LogFollower(connection, topic, manifest.recovery_id, staged, planned)


def list_staged(
    directory: Path, manifest: Manifest, header: str | None
) -> dict[int, frozenset[bytes]]:
    """The identities of all staged messages, by partition; a message without a key has none.

    Raises:
        PlanStale: some lack the header that identifies them.
    """
    found: dict[int, set[bytes]] = {}
    columns = ["key"] if header is None else ["headers"]
    for chunk in manifest.chunks:
        table = pq.read_table(directory / chunk.path, columns=columns)
        known, here = found.setdefault(chunk.slot, set()), list_identities(table, header)
        if header is not None and None in here:
            raise PlanStale(
                f"staged messages have no header {header!r}, which identifies them: whether the "
                "topic has newer ones cannot be known; nothing was sent",
                subject=f"recovery {manifest.recovery_id}",
                hint=f"name {header!r} in the stream's `message.headers`, cancel this recovery, "
                "and plan again",
            )
        known.update(one for one in here if one is not None)
    return {slot: frozenset(known) for slot, known in found.items()}


def _read(
    properties: Properties,
    topic: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    header: str | None,
    isolation: str = "read_committed",
) -> Iterator[_Found]:
    for message in read_ranges(
        properties, topic, starts, ends, "read what came after the plan", isolation=isolation
    ):
        headers = cast(Headers, message.headers() or ())
        identity = message.key() if header is None else find_value(headers, header)
        place = cast(tuple[int, int], (message.partition(), message.offset()))
        ids = (find_header(headers, name) for name in (MESSAGE_ID, RECOVERY_ID))
        yield _Found(*place, identity, *ids)
