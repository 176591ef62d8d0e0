"""A stream's open transactions, for people: listed with what lies behind each, and aborted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from backlogctl.clock import Deadline, utc_now
from backlogctl.config import Stream
from backlogctl.errors import BacklogError, UsageError
from backlogctl.formats import format_duration, format_plural
from backlogctl.kafka.admin import list_offsets, read_topic_id
from backlogctl.kafka.clients import connect
from backlogctl.kafka.raw_fetch import fetch_batches
from backlogctl.kafka.transactions import (
    OpenTransaction,
    TransactionFate,
    abort_transaction,
    read_open_transactions,
    refuse_abort,
)
from backlogctl.ledger.transactions import AbortedTransaction
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import find_identity
from backlogctl.replay.observe.rights import require_rights, select_rights
from backlogctl.values import OffsetRange, to_document

_SECONDS = 30.0
_COUNT_SECONDS = 10.0
# Who wrote so lately may be alive.
_LATELY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """One that is open; `behind`: offsets from its first message to the high watermark."""

    transaction: OpenTransaction
    behind: int

    @property
    def seconds_open(self) -> float | None:
        """At least; None where neither its coordinator nor its own messages tell."""
        began = self.transaction.started_at or self.transaction.last_written
        return None if began is None else max(0.0, (utc_now() - began).total_seconds())

    @property
    def is_writing(self) -> bool:
        """Whether its producer wrote within the last minute, by its own clock."""
        written = self.transaction.last_written
        return written is not None and utc_now() - written < _LATELY

    def to_json(self) -> dict[str, Any]:
        return {
            **to_document(self.transaction),
            "may_be_committed": self.transaction.may_be_committed,
            "behind": self.behind,
            "seconds_open": self.seconds_open,
            "is_writing": self.is_writing,
            "ends_by": to_document(self.transaction, "ends_by")["ends_by"],
        }


def list_open(workspace: Workspace, stream: Stream) -> tuple[ListedTransaction, ...]:
    """Those that are open on the stream's topic, by partition and offset.

    Raises:
        AccessDenied, TopicMissing, ClusterUnreachable, KafkaFailure.
    """
    properties, limit = workspace.properties(stream), Deadline(_SECONDS)
    admin = connect(properties)
    count = read_topic_id(admin, stream.topic, limit)[1]
    found = read_open_transactions(properties, stream.topic, range(count), limit)
    numbers = {one.partition for one in found}
    highs = list_offsets(admin, stream.topic, numbers, "latest", deadline=limit)
    return tuple(ListedTransaction(one, highs[one.partition] - one.start) for one in found)


def describe_open(
    workspace: Workspace, stream: Stream, listed: Sequence[ListedTransaction]
) -> dict[str, Any]:
    """The document of `transactions list`."""
    names_all = all(one.transaction.fate is not TransactionFate.UNKNOWN for one in listed)
    return {
        "stream": stream.name,
        "topic": stream.topic,
        "transactions": [one.to_json() for one in listed],
        "aborted": [to_document(one) for one in workspace.ledger.aborts.list(stream.name)],
        "warnings": []
        if names_all
        else [
            "the tool may not describe all transactional ids: whose some are, and whether anybody "
            f"will end them, is unknown; `backlogctl acl see {stream.name}` prints what is needed"
        ],
    }


def find_open(
    workspace: Workspace,
    stream: Stream,
    partition: int,
    start: int,
    *,
    even_if_committed: bool = False,
) -> ListedTransaction:
    """One that may be aborted.

    Raises:
        UsageError: no transaction that is open begins there.
        Refused: it must not be aborted.
    """
    subject = f"topic {stream.topic}[{partition}]"
    listed = list_open(workspace, stream)
    for one in listed:
        if (one.transaction.partition, one.transaction.start) == (partition, start):
            refuse_abort(*(one.transaction, one.transaction), even_if_committed=even_if_committed)
            return one
    raise UsageError(
        f"no open transaction begins at offset {start}",
        subject=subject,
        hint=f"`backlogctl transactions list {stream.name}` lists those that are open",
    )


def count_discarded(workspace: Workspace, stream: Stream, one: ListedTransaction) -> int | None:
    """How many messages it has written to its partition; None where that takes too long, or may
    not be read."""
    open_one = one.transaction
    place = OffsetRange(open_one.partition, open_one.start, open_one.start + one.behind)
    producer = (open_one.producer_id, open_one.producer_epoch)
    total = 0
    try:
        for batches in fetch_batches(
            *(workspace.properties(stream), stream.topic, [place]), limit=Deadline(_COUNT_SECONDS)
        ):
            total += sum(
                header.record_count
                for header in batches.headers
                if (header.producer_id, header.producer_epoch) == producer
                and header.is_transactional
                and not header.is_control
            )
    except BacklogError:
        return None
    return total


def describe_abort(one: ListedTransaction, discarded: int | None) -> list[str]:
    """What an abort does, in sentences, before anybody agrees to it."""
    open_one = one.transaction
    many = "the messages" if discarded is None else format_plural(discarded, "message")
    others = [p for p in open_one.partitions if p != (open_one.topic, open_one.partition)]
    lines = [
        f"this discards {many} that {open_one.producer} wrote to partition {open_one.partition} of "
        f"{open_one.topic} from offset {open_one.start} on: readers of committed data never get "
        "them",
    ]
    if others:
        shown = ", ".join(f"{topic}[{number}]" for topic, number in others[:5])
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        lines.append(f"the transaction ends everywhere: what it wrote to {shown}{more} goes too")
    if open_one.fate is TransactionFate.ONGOING:
        lines.append("its producer is fenced: if it still runs, it fails and must be started again")
        if one.is_writing and open_one.last_written is not None:
            ago = format_duration((utc_now() - open_one.last_written).total_seconds())
            lines.append(f"it may be alive: it last wrote {ago} ago, by its own clock")
    if open_one.fate is TransactionFate.HANGING:
        state = open_one.coordinator_state
        told = "no coordinator knows it" if state is None else f"its coordinator says {state}"
        lines.append(
            f"whether its producer committed it is not certain ({told}): Kafka 4.3 and 4.4 leave "
            "out markers of commits, too (KAFKA-20734); ask the owner of the producer first"
        )
    rest = one.behind - (discarded or 0)
    if discarded is not None and rest > 0:
        lines.append(f"{format_plural(rest, 'offset')} of others behind it can be read then")
    return lines


def choose_word(one: ListedTransaction) -> str:
    """What must be typed to abort it: its transactional id, else its topic."""
    return one.transaction.transactional_id or one.transaction.topic


def abort(
    workspace: Workspace,
    stream: Stream,
    one: ListedTransaction,
    discarded: int | None,
    *,
    even_if_committed: bool = False,
) -> AbortedTransaction:
    """Aborts it; who did is on record before, and what came of it after.

    Raises:
        Refused: a right is missing; or it is another one, or none, by now.
        ClusterUnreachable, KafkaFailure.
    """
    open_one, aborts = one.transaction, workspace.ledger.aborts
    if open_one.fate is TransactionFate.ONGOING:
        name = open_one.transactional_id or ""
        rights = select_rights("who fence", stream, id=name)
    else:
        rights = select_rights("who mark", stream)
    require_rights(workspace, stream, rights)
    record = aborts.begin(
        AbortedTransaction(
            id="",
            stream=stream.name,
            cluster=stream.cluster,
            topic=open_one.topic,
            partition=open_one.partition,
            start=open_one.start,
            producer_id=open_one.producer_id,
            producer_epoch=open_one.producer_epoch,
            transactional_id=open_one.transactional_id,
            discarded=discarded,
            held=one.behind,
            actor=str(find_identity()),
            at=utc_now(),
        )
    )
    try:
        how = abort_transaction(
            *(workspace.properties(stream), open_one, Deadline(_SECONDS)),
            even_if_committed=even_if_committed,
        )
    except BacklogError as error:
        aborts.end(record.id, failure=str(error))
        raise
    return aborts.end(record.id, how=how)


def list_next(document: Mapping[str, Any]) -> list[str]:
    """Of those that nobody will end, or whose producer is silent, how each is aborted; of none that
    may be committed."""
    stream = document["stream"]
    return [
        f"backlogctl transactions abort {stream} --partition {one['partition']} "
        f"--start-offset {one['start']}"
        for one in document["transactions"]
        if (one["fate"] == TransactionFate.HANGING and not one["may_be_committed"])
        or (one["fate"] == TransactionFate.ONGOING and not one["is_writing"])
    ]
