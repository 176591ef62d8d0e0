"""What a refusal by Kafka says to people: the client's own words, and the way out."""

from __future__ import annotations

from confluent_kafka import KafkaError

_WAYS_OUT = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "there is no such topic: create it",
    KafkaError._UNKNOWN_TOPIC: "there is no such topic: create it",
    KafkaError.MSG_SIZE_TOO_LARGE: "send less, or raise message.max.bytes of the sender and "
    "max.message.bytes of the topic",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant the sender's user Write on the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant the sender's user IdempotentWrite on the "
    "cluster",
}


def explain_kafka(error: KafkaError) -> str:
    """Why Kafka did not take a message."""
    text = f"{error.name()}: {error.str()}"
    way_out = _WAYS_OUT.get(error.code())
    return text if way_out is None else f"{text}; {way_out}"
