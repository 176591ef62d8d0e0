"""What counts as a refusal by Kafka, and what it says: the client's own words, and the way out."""

from __future__ import annotations

from confluent_kafka import KafkaError

from backlog.kafka.errors import is_retriable, is_unreachable

_WAYS_OUT = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "there is no such topic: create it",
    KafkaError._UNKNOWN_TOPIC: "there is no such topic: create it",
    KafkaError.MSG_SIZE_TOO_LARGE: "send less, or raise message.max.bytes of the sender and "
    "max.message.bytes of the topic",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant the sender's user Write on the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant the sender's user IdempotentWrite on the "
    "cluster",
}


_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


def is_refusal(error: KafkaError) -> bool:
    """Whether Kafka will not take a message, however often it is sent. Else Kafka was away, or the
    client has ended: it may have the message."""
    has_ended = error.fatal() or error.code() == KafkaError._FATAL
    is_away = is_unreachable(error) or is_retriable(error) or error.code() in _PURGED
    return not (has_ended or is_away)


def explain_kafka(error: KafkaError) -> str:
    """Why Kafka did not take a message."""
    text = f"{error.name()}: {error.str()}"
    way_out = _WAYS_OUT.get(error.code())
    return text if way_out is None else f"{text}; {way_out}"
