"""The canary: the first, small chunks are read back before the rest goes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from confluent_kafka import KafkaError, TopicPartition

from backlog.clock import Deadline
from backlog.errors import ClusterUnreachable, Paused, VerificationFailed
from backlog.kafka.admin import committed_offsets, list_offsets, read_group_state
from backlog.kafka.calls import outlast
from backlog.kafka.clients import Properties, assign_partitions, make_admin, make_consumer
from backlog.kafka.errors import translate
from backlog.manifest import read_chunk
from backlog.values import Chunk
from backlogctl_delivery.stamps import MESSAGE_ID, find_header
from spark_backfill.injection.targets import HIDDEN_SECONDS, PATIENCE, await_visible

_READ_SECONDS = 60.0

Message = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def read_canary_back(
    properties: Properties,
    topic: str,
    directory: Path,
    chunks: Sequence[Chunk],
    *,
    start: int,
    end: int | None = None,
    wait: float = HIDDEN_SECONDS,
    patience: float = PATIENCE,
    look: Callable[[], None] | None = None,
) -> int:
    """Compares the canary in the topic, as a read_committed reader sees it, with the staged one.

    Copies count whichever recovery sent them.

    Args:
        chunks: of one slot, all committed.
        start: an offset of the slot's partition at or before the first of them.
        end: the offset after the last of them; where it is not known it is read until each
            message was seen once.
        wait: seconds to wait for open transactions that hide it.
        patience: seconds to wait for brokers that are away.
        look: called while waiting; may raise.

    Returns:
        The offset after the last message of the canary.

    Raises:
        VerificationFailed: a message is missing, doubled or different, or retention removed it.
        Paused: somebody's open transaction hides it.
    """
    slot = chunks[0].slot
    admin = make_admin(properties)

    def ask(spec: Literal["earliest", "latest"]) -> int:
        return outlast(Deadline(patience), lambda: list_offsets(admin, topic, [slot], spec)[slot])

    stop = ask("latest") if end is None else end
    await_visible(admin, topic, {slot: stop}, wait, patience=patience, look=look)
    staged: dict[str, Message] = {}
    for chunk in chunks:
        staged.update(_list_staged(read_chunk(directory, chunk)))
    low = ask("earliest")
    begin = max(start, low)
    seen, reached = outlast(
        Deadline(patience),
        lambda: _read_messages(
            properties, topic, slot, staged, begin, stop, until_seen=end is None
        ),
    )
    if low > start and any(name not in seen for name in staged):
        raise VerificationFailed(
            f"retention has removed the offsets {start} to {low}, and with them what may be a part "
            "of the canary, before it was read back; the rest was not sent",
            subject=f"topic {topic}[{slot}]",
            hint="cancel this recovery and plan again: what was injected is not sent twice",
        )
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
    return reached


def await_group_past(
    properties: Properties,
    group: str,
    topic: str,
    slot: int,
    offset: int,
    seconds: float,
    look: Callable[[], None],
    *,
    patience: float = PATIENCE,
) -> None:
    """Waits until the group has committed past the canary; at once where it has no members.

    Args:
        look: called while waiting; may raise Paused.
        patience: seconds to wait for brokers that are away.

    Raises:
        Paused: the group did not get there in `seconds`.
    """
    admin = make_admin(properties)
    limit = Deadline(seconds)

    def read() -> tuple[bool, int | None]:
        state = read_group_state(admin, group)
        return state.is_active, committed_offsets(admin, group, topic, [slot])[slot]

    while True:
        is_active, committed = outlast(Deadline(patience), read)
        if not is_active or (committed is not None and committed >= offset):
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
    wanted: Mapping[str, Message],
    begin: int,
    stop: int,
    *,
    until_seen: bool,
) -> tuple[dict[str, Counter[Message]], int]:
    """What was found of `wanted` in `[begin, stop)`, and the offset after the last of it."""
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
        assign_partitions(consumer, [TopicPartition(topic, partition, begin)])
        limit = Deadline(_READ_SECONDS)
        at = begin
        while at < stop and not (until_seen and len(seen) == len(wanted)):
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
            if name is not None and name in wanted:
                content: Message = (message.key(), message.value(), tuple(headers))
                seen.setdefault(name, Counter())[content] += 1
                end = at
    finally:
        consumer.close()
    return seen, end
