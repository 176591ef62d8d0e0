"""The canary: the first, small chunks are read back before the rest goes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, TopicPartition

from backlog.clock import Deadline
from backlog.errors import ClusterUnreachable, Paused, VerificationFailed
from backlog.kafka.admin import committed_offsets, list_offsets, read_group_state
from backlog.kafka.clients import Properties, make_admin, make_consumer
from backlog.kafka.errors import translate
from backlog.manifest import read_chunk
from backlog.stamps import MESSAGE_ID, RECOVERY_ID, find_header
from backlog.values import Chunk

_READ_SECONDS = 60.0

Message = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def read_canary_back(
    properties: Properties,
    topic: str,
    recovery_id: str,
    directory: Path,
    chunks: Sequence[Chunk],
    start: int,
) -> int:
    """Compares the canary in the topic, as a read_committed reader sees it, with the staged one.

    Args:
        chunks: of one slot, all committed.
        start: an offset of the slot's partition at or before the first of them.

    Returns:
        The offset after the last message of the canary.

    Raises:
        VerificationFailed: a message is missing, doubled or different.
    """
    slot = chunks[0].slot
    staged: dict[str, Message] = {}
    for chunk in chunks:
        staged.update(_list_staged(read_chunk(directory, chunk)))
    seen, end = _read_messages(properties, topic, slot, recovery_id, staged, start)
    wrong = {
        "missing": [name for name in staged if not seen.get(name)],
        "twice": [name for name, found in seen.items() if sum(found.values()) > 1],
        "different": [name for name, found in seen.items() if set(found) != {staged[name]}],
    }
    if any(wrong.values()):
        what = "; ".join(f"{len(ids)} {how}: {ids[:5]}" for how, ids in wrong.items() if ids)
        raise VerificationFailed(
            f"the canary of {len(staged)} messages reads back wrong ({what}); the rest was not "
            "sent",
            subject=f"topic {topic}[{slot}]",
            hint="look at these messages in the topic; cancel this recovery and plan again",
        )
    return end


def await_group_past(
    properties: Properties,
    group: str,
    topic: str,
    slot: int,
    offset: int,
    seconds: float,
    look: Callable[[], None],
) -> None:
    """Waits until the group has committed past the canary; at once where it has no members.

    Args:
        look: called while waiting; may raise Paused.

    Raises:
        Paused: the group did not get there in `seconds`.
    """
    admin = make_admin(properties)
    limit = Deadline(seconds)
    while read_group_state(admin, group).is_active:
        committed = committed_offsets(admin, group, topic, [slot])[slot]
        if committed is not None and committed >= offset:
            return
        if limit.expired:
            raise Paused(
                f"the group has not committed past the canary within {seconds:g} s: it is at "
                f"{committed}, the canary ends at {offset}",
                subject=f"group {group} on topic {topic}[{slot}]",
                hint="if it only lags, run it again when it has caught up; if it is stuck, look at "
                "the canary's messages in its log",
            )
        look()
        threading.Event().wait(limit.remaining(0.3))


def _list_staged(table: pa.Table) -> dict[str, Message]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return {
        row["message_id"]: (
            row["key"],
            row["value"],
            tuple((header["name"], header["value"]) for header in row["headers"]),
        )
        for row in rows
    }


def _read_messages(
    properties: Properties,
    topic: str,
    partition: int,
    recovery_id: str,
    wanted: Mapping[str, Message],
    start: int,
) -> tuple[dict[str, Counter[Message]], int]:
    admin = make_admin(properties)
    low = list_offsets(admin, topic, [partition], "earliest")[partition]
    stop = list_offsets(admin, topic, [partition], "latest", "read_committed")[partition]
    begin = max(start, low)
    seen: dict[str, Counter[Message]] = {}
    end = begin
    if begin >= stop:
        return seen, end
    consumer = make_consumer(
        properties,
        {
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 20,
        },
    )
    try:
        consumer.assign([TopicPartition(topic, partition, begin)])
        limit = Deadline(_READ_SECONDS)
        at = begin
        while at < stop:
            message = consumer.poll(limit.remaining(1.0))
            if message is None:
                if limit.expired:
                    raise ClusterUnreachable(
                        f"the canary could not be read back: no message for {_READ_SECONDS:g} s",
                        subject=f"topic {topic}[{partition}]",
                        hint="check the brokers, then run again",
                    )
                continue
            limit = Deadline(_READ_SECONDS)
            error, offset = message.error(), message.offset()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                at = max(at, offset or 0)
                continue
            if error is not None:
                raise translate(error, f"topic {topic}[{partition}]", "read the canary back")
            at = (offset or 0) + 1
            headers: Any = message.headers() or []
            name = find_header(headers, MESSAGE_ID)
            if (
                name is not None
                and name in wanted
                and find_header(headers, RECOVERY_ID) == recovery_id
            ):
                content: Message = (message.key(), message.value(), tuple(headers))
                seen.setdefault(name, Counter())[content] += 1
                end = at
    finally:
        consumer.close()
    return seen, end
