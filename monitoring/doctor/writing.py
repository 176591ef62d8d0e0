"""Whether what a recovery writes would be taken: sizes, flushes, transactions."""

from __future__ import annotations

from collections.abc import Iterator

from backlog.numbers import format_bytes, format_duration
from monitoring.doctor.facts import Brokers, Newest, Topic
from monitoring.doctor.finding import Finding, Level, Room

# Our headers and the batch around a single message (Kafka protocol, record batch: 61 bytes).
OVERHEAD_BYTES = 512
# What relay and injection ask for.
TRANSACTION_MS = 15_000
_FULL = 0.8
_OFTEN_MESSAGES = 1_000_000
_OFTEN_MS = 60_000


@Room.TOPIC.check(
    "message-size",
    "Largest message against `max.message.bytes`",
    "A message that is put back has a few headers more than the first time, and the topic "
    "must still take it.",
    "The newest 200 messages of each partition are looked at, before compression.",
)
def judge_message_size(topic: Topic, newest: Newest) -> Iterator[Finding]:
    """The largest message seen against what the topic takes."""
    limit = topic.read_number("max.message.bytes")
    if limit is None or newest.largest is None:
        return
    needed = newest.largest + OVERHEAD_BYTES
    if needed > _FULL * limit:
        yield Finding(
            "message-size",
            Level.STOPS if needed > limit else Level.WARNS,
            topic.subject,
            f"the largest of the newest messages has {format_bytes(newest.largest)}, "
            f"max.message.bytes is {format_bytes(limit)}",
            "",
            (topic.make_alteration("max.message.bytes", max(2 * needed, limit)),),
        )


@Room.TOPIC.check(
    "flush",
    "Flush settings",
    "Kafka acknowledges from memory and relies on other replicas: with one replica only a "
    "flush to disk survives a power cut, and with several a forced flush only costs speed.",
    "This is where old texts disagree: those that ask for `flush.messages=1` speak of a "
    "single replica, those that forbid it of replicated topics.",
)
def judge_flush(topic: Topic) -> Iterator[Finding]:
    """Whether acknowledged messages wait in memory, and whether that matters here."""
    messages, milliseconds = topic.read_number("flush.messages"), topic.read_number("flush.ms")
    if messages is None or milliseconds is None:
        return
    often = messages < _OFTEN_MESSAGES or milliseconds < _OFTEN_MS
    if topic.replication_factor == 1 and messages > 1:
        yield Finding(
            *("flush", Level.LOSES, topic.subject),
            f"one replica, and {_say_flush(messages, milliseconds)}: a power cut loses what was "
            "acknowledged last",
            "three replicas; with a single broker",
            (topic.make_alteration("flush.messages", 1),),
        )
    elif topic.replication_factor > 1 and often:
        yield Finding(
            *("flush", Level.WARNS, topic.subject),
            f"{topic.replication_factor} replicas, and {_say_flush(messages, milliseconds)}: "
            "replication keeps them already",
            "",
            (topic.make_removal("flush.messages", "flush.ms"),),
        )


@Room.TOPIC.check(
    "transactions",
    "Transactions of the cluster",
    "Messages are put back and relayed in transactions: where the cluster cannot begin one, a "
    "recovery stops at its first message.",
)
def judge_transactions(brokers: Brokers) -> Iterator[Finding]:
    """Whether a transaction can begin, and live as long as ours."""
    subject, there = "the cluster", len(brokers.racks)
    longest = brokers.read_numbers("transaction.max.timeout.ms")
    if longest and longest[0] < TRANSACTION_MS:
        yield Finding(
            *("transactions", Level.STOPS, subject),
            f"transaction.max.timeout.ms is {longest[0]}, and a recovery asks for {TRANSACTION_MS}",
            f"set transaction.max.timeout.ms on every broker to at least {TRANSACTION_MS}",
        )
    factors = brokers.read_numbers("transaction.state.log.replication.factor")
    leasts = brokers.read_numbers("transaction.state.log.min.isr")
    if factors and factors[-1] > there:
        yield Finding(
            *("transactions", Level.STOPS, subject),
            f"transaction.state.log.replication.factor is {factors[-1]} with {there} broker"
            f"{'' if there == 1 else 's'}: where __transaction_state does not exist yet, no "
            "transaction can begin",
            "set transaction.state.log.replication.factor on every broker to at most their number",
        )
    elif factors and leasts and leasts[-1] > factors[0]:
        yield Finding(
            *("transactions", Level.STOPS, subject),
            f"transaction.state.log.min.isr is {leasts[-1]} with {factors[0]} replicas: no "
            "transaction can be written",
            f"set transaction.state.log.min.isr on every broker to {max(1, factors[0] - 1)}",
        )
    elif factors and leasts and there > 1 and leasts[-1] == factors[0]:
        yield Finding(
            *("transactions", Level.STOPS, subject),
            f"transaction.state.log.min.isr is {leasts[-1]} with as many replicas: one broker that "
            "restarts stops every transaction",
            f"set transaction.state.log.min.isr on every broker to {max(1, factors[0] - 1)}",
        )


def _say_flush(messages: int, milliseconds: int) -> str:
    parts = []
    if messages < 2**62:
        parts.append(f"flush.messages {messages}")
    if milliseconds < 2**62:
        parts.append(f"flush.ms {milliseconds} ({format_duration(milliseconds / 1000)})")
    return " and ".join(parts) if parts else "no flush is forced"
