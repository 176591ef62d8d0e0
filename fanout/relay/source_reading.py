"""Reads of one source partition (protocol P4.6, step 4)."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, Message

from backlog.kafka.errors import translate
from fanout.relay.interface import PositionExpired

READ_AT_ONCE = 5_000


@dataclass
class Batch:
    """Messages in order, the position after them, and whether nothing more is there now."""

    messages: list[Message]
    reached: int
    at_end: bool


def read_batch(consumer: Consumer, position: int, end: int | None, subject: str) -> Batch:
    """The next messages from `position` on, before `end`.

    Raises:
        PositionExpired: retention was faster.
    """
    found = Batch([], position, at_end=False)
    for message in consumer.consume(READ_AT_ONCE, 0.1):
        error = message.error()
        if error is None:
            offset = message.offset()
            if offset is None or (end is not None and offset >= end):
                found.reached, found.at_end = max(found.reached, end or 0), True
                break
            found.messages.append(message)
            found.reached = offset + 1
            found.at_end = False
        elif error.code() == KafkaError._PARTITION_EOF:
            # What lies before it and was not delivered are control and aborted records.
            at = message.offset() or 0
            found.reached = max(found.reached, at if end is None else min(at, end))
            found.at_end = True
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise PositionExpired(
                f"the messages at offset {position} are gone before they were relayed",
                subject=subject,
                hint="`backlogctl gaps` shows what is lost; the relay goes on behind it",
            )
        elif error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            raise translate(error, subject, "read the source")
    return found
