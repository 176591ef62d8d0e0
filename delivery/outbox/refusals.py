"""What a refusal says to people: the client's or the database's own words, and the way out."""

from __future__ import annotations

from confluent_kafka import KafkaError

_OF_KAFKA = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "there is no such topic: create it",
    KafkaError._UNKNOWN_TOPIC: "there is no such topic: create it",
    KafkaError.MSG_SIZE_TOO_LARGE: "send less, or raise message.max.bytes of the sender and "
    "max.message.bytes of the topic",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant the sender's user Write on the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant the sender's user IdempotentWrite on the "
    "cluster",
}
# PostgreSQL's class of rights; MySQL's and MariaDB's numbers: of a database, a table, a column.
_NO_RIGHT = frozenset({"42501", "1044", "1142", "1143"})
_NO_LOGIN = "1045"
RIGHTS = (
    "the application needs INSERT on backlog_outbox, a sender SELECT, UPDATE and DELETE; who makes "
    "the table must be allowed to create tables"
)


def explain_kafka(error: KafkaError) -> str:
    """Why Kafka did not take a message."""
    text = f"{error.name()}: {error.str()}"
    way_out = _OF_KAFKA.get(error.code())
    return text if way_out is None else f"{text}; {way_out}"


def find_hint(code: str, reason: str) -> str:
    """What to do about a database's error.

    Args:
        code: SQLSTATE, or the number of MySQL and MariaDB.
        reason: the first line of its text.
    """
    if code in _NO_RIGHT or "readonly database" in reason:
        return RIGHTS
    if code == _NO_LOGIN:
        return "correct user and password in the URL"
    return "check that it runs, and that the URL names the right one"
