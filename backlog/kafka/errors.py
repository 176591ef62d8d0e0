"""confluent_kafka's errors become ours here and nowhere else."""

from __future__ import annotations

import re

from confluent_kafka import KafkaError, KafkaException

from backlog.errors import (
    BacklogError,
    ClusterUnreachable,
    ConfigurationError,
    KafkaFailure,
    ProducerFenced,
    Refused,
)


class TopicMissing(KafkaFailure):
    """The topic, or one of its partitions, is not on the cluster."""

    code = "topic_missing"


class GroupMissing(KafkaFailure):
    """The cluster does not know the group."""

    code = "group_missing"


class AccessDenied(KafkaFailure):
    """The tool's principal may not do this."""

    code = "access_denied"


class GroupActive(Refused):
    """The group has members, so its offsets cannot be set from outside."""

    code = "group_active"
    retryable = True


class LoginRefused(ClusterUnreachable):
    """The brokers answer, and do not let this user in.

    As one that is away: passwords are changed broker by broker, and work under way waits for that.
    """

    code = "login_refused"


class EncryptionRefused(ClusterUnreachable):
    """The brokers answer, and no connection is made: certificate, host name or protocol."""

    code = "encryption_refused"


_UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
    }
)
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
_DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_LOGIN = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
    }
)
# What librdkafka puts around a broker's words.
_AROUND = re.compile(r"^\w+://\S+: (?:SASL authentication error: )?| \(after \d+ms in state \w+\)$")
# librdkafka sets its own "retriable" mark on producer errors only; a broker's transient
# errors (a leader or coordinator moves, metadata of a new topic spreads) are listed here.
_TRANSIENT = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._QUEUE_FULL,
        KafkaError._NOENT,  # "no leaders found": they are being elected
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


def unwrap(error: KafkaError | BaseException) -> KafkaError | None:
    """The KafkaError inside an exception; None where there is none."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, KafkaException) and error.args:
        inner = error.args[0]
        return inner if isinstance(inner, KafkaError) else None
    return None


def is_abortable(error: KafkaError | BaseException) -> bool:
    """Whether the open transaction must be aborted and can then be tried again."""
    inner = unwrap(error)
    return inner is not None and bool(inner.txn_requires_abort())


def is_retriable(error: KafkaError | BaseException) -> bool:
    """Whether the same call may be made again as it is."""
    inner = unwrap(error)
    return inner is not None and (bool(inner.retriable()) or inner.code() in _TRANSIENT)


def is_unreachable(error: KafkaError) -> bool:
    """Whether nobody answered."""
    return error.code() in _UNREACHABLE


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
    if isinstance(error, BacklogError):
        return error
    inner = unwrap(error)
    if inner is None:
        if isinstance(error, TimeoutError):
            return _unreachable(subject, doing, addresses, last_report, seconds, "timed out")
        return KafkaFailure(f"could not {doing}: {type(error).__name__}: {error}", subject=subject)
    code, text = inner.code(), _describe(inner)
    if code in _FENCED:
        return ProducerFenced(
            f"could not {doing}: a newer producer has taken over ({text})",
            subject=subject,
            hint="another runner does this work now; this one wrote nothing after that",
        )
    if is_refused_login(inner):
        return refuse_login(inner, subject, doing, addresses)
    if code == KafkaError._SSL:
        return refuse_encryption(_AROUND.sub("", inner.str()), subject, doing, addresses)
    if code in _UNREACHABLE:
        return _unreachable(subject, doing, addresses, last_report, seconds, text)
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
    if code in _DENIED:
        return AccessDenied(
            f"could not {doing}: access denied ({text})",
            subject=subject,
            hint="grant the tool's principal this operation; `backlogctl acl` prints what each job "
            "needs",
        )
    if code in GROUP_ACTIVE_CODES:
        return GroupActive(
            f"could not {doing}: the group is active ({text})",
            subject=subject,
            hint="stop the group's members and try again",
        )
    if code in (KafkaError._INVALID_ARG, KafkaError._UNKNOWN_PROTOCOL, KafkaError.INVALID_CONFIG):
        return ConfigurationError(f"could not {doing}: {text}", subject=subject)
    return KafkaFailure(
        f"could not {doing}: {text}", subject=subject, retryable=is_retriable(inner)
    )


def is_refused_login(error: KafkaError) -> bool:
    """Whether the broker did not let the user in."""
    return error.code() in _LOGIN


def refuse_login(
    error: KafkaError, subject: str, doing: str, addresses: str, login: str = ""
) -> LoginRefused:
    """A refused login.

    Args:
        login: `user shop with SCRAM-SHA-512`, where it is known.
    """
    whose = f" of {login}" if login else ""
    place = addresses or "(none given)"
    return LoginRefused(
        f"could not {doing}: the cluster at {place} refused the login{whose}: "
        f"{_AROUND.sub('', error.str())}",
        subject=subject,
        hint="check sasl.username, sasl.password and sasl.mechanism of the cluster",
    )


def refuse_encryption(why: str, subject: str, doing: str, addresses: str) -> EncryptionRefused:
    """No connection, because of its encryption."""
    return EncryptionRefused(
        f"could not {doing}: there is no connection to {addresses or '(none given)'}: {why}",
        subject=subject,
        hint="check security.protocol, ssl.ca.location and the names in bootstrap.servers",
    )


def _unreachable(
    subject: str, doing: str, addresses: str, last_report: str, seconds: float | None, text: str
) -> ClusterUnreachable:
    within = "" if seconds is None else f" within {seconds:g} s"
    reason = last_report or text
    return ClusterUnreachable(
        f"could not {doing}: no broker at {addresses or '(none given)'} answered{within}: {reason}",
        subject=subject,
        hint="check bootstrap.servers and the network, then try again",
    )


def _describe(error: KafkaError) -> str:
    text = error.str()
    return f"{error.name()}: {text}" if text else error.name()
