"""confluent_kafka's errors about topics, groups and transactions become ours here."""

from __future__ import annotations

from confluent_kafka import KafkaError

from backlog.errors import BacklogError, KafkaFailure, ProducerFenced, Refused
from backlogctl_delivery import kafka
from backlogctl_delivery.kafka import describe, unwrap


class TopicMissing(KafkaFailure):
    """The topic, or one of its partitions, is not on the cluster."""

    code = "topic_missing"


class GroupMissing(KafkaFailure):
    """The cluster does not know the group."""

    code = "group_missing"


class GroupActive(Refused):
    """The group has members, so its offsets cannot be set from outside."""

    code = "group_active"
    retryable = True


_FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    }
)
_MISSING_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_ID,
    }
)
# A group with members answers a commit from outside with one of these.
GROUP_ACTIVE_CODES = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.NON_EMPTY_GROUP,
        KafkaError.GROUP_SUBSCRIBED_TO_TOPIC,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
    }
)


def is_abortable(error: KafkaError | BaseException) -> bool:
    """Whether the open transaction must be aborted and can then be tried again."""
    inner = unwrap(error)
    return inner is not None and bool(inner.txn_requires_abort())


def is_fenced(error: KafkaError | BaseException) -> bool:
    """Whether a newer producer took the transactional id over."""
    inner = unwrap(error)
    return inner is not None and inner.code() in _FENCED


def translate(
    error: KafkaError | BaseException,
    subject: str,
    doing: str,
    *,
    addresses: str = "",
    last_report: str = "",
    seconds: float | None = None,
) -> BacklogError:
    """Turns a client's error into ours; the caller raises it `from` the original.

    Args:
        error: KafkaError, KafkaException, or what a client call raised besides (ValueError,
            a future's TimeoutError).
        subject: what it was tried on: `topic orders`, `group order-service on topic orders`.
        doing: what was tried, to follow "could not": `read committed offsets`.
        addresses: `bootstrap.servers` tried.
        last_report: the client's own last connection report, if it made one.
        seconds: the time limit that was given.
    """
    inner = None if isinstance(error, BacklogError) else unwrap(error)
    code, text = (None, "") if inner is None else (inner.code(), describe(inner))
    if code in _FENCED:
        return ProducerFenced(
            f"could not {doing}: a newer producer has taken over ({text})",
            subject=subject,
            hint="another runner does this work now; this one wrote nothing after that",
        )
    if code in _MISSING_TOPIC:
        return TopicMissing(
            f"could not {doing}: the topic is not on the cluster {addresses}".rstrip(),
            subject=subject,
            hint="check `topic` and `cluster` of the stream; was it deleted?",
        )
    if code == KafkaError.GROUP_ID_NOT_FOUND:
        return GroupMissing(
            f"could not {doing}: the cluster does not know the group",
            subject=subject,
            hint="check `group` of the stream; it may have expired, or never committed",
        )
    if code in GROUP_ACTIVE_CODES:
        return GroupActive(
            f"could not {doing}: the group is active ({text})",
            subject=subject,
            hint="stop the group's members and try again",
        )
    return kafka.translate(
        error, subject, doing, addresses=addresses, last_report=last_report, seconds=seconds
    )
