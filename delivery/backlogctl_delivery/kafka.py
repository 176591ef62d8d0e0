"""Kafka clients made from a mapping of client properties; confluent_kafka's errors become ours.

librdkafka's own log goes to the logger `backlogctl.kafka.client`, never to stderr.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from backlogctl_delivery.errors import (
    BacklogError,
    ClusterUnreachable,
    ConfigurationError,
    KafkaFailure,
)


class _Repeats(logging.Filter):
    """librdkafka writes a line with each attempt to connect, many a second: of the same ones, one
    each ten seconds is enough."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = _VARIES.sub("", record.getMessage()), time.monotonic()
        if now - self._told.get(text, -math.inf) < _REPEAT_SECONDS:
            return False
        if len(self._told) >= _MOST_TOLD:
            self._told.clear()
        self._told[text] = now
        return True


_REPEAT_SECONDS, _MOST_TOLD = 10.0, 1_000
_VARIES = re.compile(r"\[\w+#\w+-\d+\]|\bafter \d+ms\b|, \d+ identical error\(s\) suppressed")
CLIENT_LOG = logging.getLogger(__name__)
CLIENT_LOG.addFilter(_Repeats())
# Without a handler of its own Python would print librdkafka's warnings to stderr.
CLIENT_LOG.addHandler(logging.NullHandler())

Properties = Mapping[str, Any]
# Of readers that assign, and never commit.
READER_GROUP = "backlogctl-reader"

COMMON: Mapping[str, Any] = {
    "client.id": "backlogctl",
    "socket.connection.setup.timeout.ms": 10_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "log.connection.close": False,
    # 0 is "errors only" in syslog terms plus critical; 4 keeps warnings for the logger.
    "log_level": 4,
}
CONSUMER: Mapping[str, Any] = {
    # A consumer without a start offset must fail, not jump.
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    # The default of 1000 ms stalls a fast reader.
    "fetch.queue.backoff.ms": 5,
}
PRODUCER: Mapping[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    # A producer would ask the broker for a topic that is gone, by librdkafka's default: a deleted
    # ledger or target must stay deleted, and be noticed.
    "allow.auto.create.topics": False,
}
# librdkafka's own names of the partitioners that the configuration names.
PARTITIONERS: Mapping[str, str] = {"murmur2": "murmur2_random", "crc32": "consistent_random"}
_UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
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
_LOGIN_HINT = "check sasl.username, sasl.password and sasl.mechanism of the cluster"
_ISSUER_HINT = "check sasl.oauthbearer.* of the cluster, and whether its token endpoint answers"
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
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
_WAYS_OUT = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "there is no such topic: create it",
    KafkaError._UNKNOWN_TOPIC: "there is no such topic: create it",
    KafkaError.MSG_SIZE_TOO_LARGE: "send less, or raise message.max.bytes of the sender and "
    "max.message.bytes of the topic",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant the sender's user Write on the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant the sender's user IdempotentWrite on the "
    "cluster",
}


class AccessDenied(KafkaFailure):
    """The tool's principal may not do this."""

    code = "access_denied"


class LoginRefused(ClusterUnreachable):
    """The brokers answer, and do not let this user in.

    As one that is away: passwords are changed broker by broker, and work under way waits for that.
    """

    code = "login_refused"


class EncryptionRefused(ClusterUnreachable):
    """The brokers answer, and no connection is made: certificate, host name or protocol."""

    code = "encryption_refused"


class ConnectionReports:
    """Remembers a client's last connection error, which a mere "timed out" leaves out."""

    def __init__(self) -> None:
        self.last = ""
        # None where the last of them was about something else.
        self.refusal: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        # "All brokers down" says less than the broker's own report that came before it.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.last:
            self.last = error.str() or error.name()
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.refusal = error if is_refused_login(error) else None

    def clear(self) -> None:
        """A broker answered."""
        self.last, self.refusal = "", None


class GrouplessConsumer(Consumer):
    """A consumer that only assigns, and needs no right on any group.

    librdkafka wants a group.id all the same, and looks for that group's coordinator: where it may
    not, it says so among the messages. Nothing here needs one.
    """

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message or error, but for the coordinator's."""
        message = super().poll() if timeout is None else super().poll(timeout)
        return None if message is None or _is_of_group(message) else message

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """As `poll`, for several."""
        return [m for m in super().consume(num_messages, timeout) if not _is_of_group(m)]


def _is_of_group(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


class Silence:
    """Asks for a broker where a reader was told nothing for a while.

    librdkafka (tried: 2.11 to 2.16) forgets each broker that an answer to Metadata does not name.
    The last one of a cluster that is stopped in order names none: a client that asked it has no
    address left, reports no error, and did not come back within the minutes that were watched.

    Args:
        topic: what is asked for.
        seconds: of silence.
    """

    def __init__(self, topic: str, seconds: float = 10.0) -> None:
        self._topic, self._seconds = topic, seconds
        self._since = time.monotonic()

    def end(self) -> None:
        """Something came."""
        self._since = time.monotonic()

    def check(self, consumer: Consumer) -> None:
        """After nothing came.
        Raises KafkaException: no broker answers this client. A new one may find them.
        """
        if time.monotonic() - self._since >= self._seconds:
            consumer.list_topics(self._topic, _SILENCE_SECONDS)
            self.end()


_SILENCE_SECONDS = 5.0


def close_consumer(consumer: Consumer, seconds: float = 10.0) -> None:
    """Leaves the group, but waits no longer: what has lost its brokers would never come back."""
    closing = threading.Thread(target=consumer.close, name="close", daemon=True)
    closing.start()
    closing.join(seconds)


def find_addresses(properties: Properties) -> str:
    """`bootstrap.servers` of the properties, for error messages."""
    return str(properties.get("bootstrap.servers") or properties.get("metadata.broker.list") or "")


_MSK_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")


def sign_msk_token(properties: Properties) -> tuple[str, float]:
    """A token that this machine's AWS credentials sign; and when it expires, s since 1970.

    The region is that of the brokers' names, else `AWS_REGION`.

    Raises:
        ConfigurationError: the region is not known.
        LoginRefused: there are no credentials.
    """
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # type: ignore[import-untyped]

    addresses = find_addresses(properties)
    found = _MSK_HOST.search(addresses)
    region = found[1] if found else os.environ.get("AWS_REGION", "")
    if not region:
        raise ConfigurationError(
            "the AWS region is not known",
            subject=f"cluster {addresses}",
            hint="set AWS_REGION, or name the brokers as AWS does",
        )
    try:
        token, expires_ms = MSKAuthTokenProvider.generate_auth_token(region)
    except Exception as error:  # noqa: BLE001 - botocore's and the signer's own, of many kinds
        raise LoginRefused(
            f"could not sign a token with AWS credentials: {type(error).__name__}",
            subject=f"cluster {addresses}",
            hint="give credentials as every AWS client takes them: environment, profile, or role",
        ) from None
    return token, expires_ms / 1000


def uses_msk(properties: Properties) -> bool:
    return "AWS_MSK_IAM" in (properties.get("sasl.mechanism"), properties.get("sasl.mechanisms"))


TOKEN_COMMAND = "sasl.oauthbearer.token.command"  # noqa: S105
_COMMAND_SECONDS = 30.0
# Where nobody says how long a token lives.
_LIFE_SECONDS = 60.0


def run_token_command(properties: Properties) -> tuple[str, float]:
    """A token that the command prints; and when it expires, s since 1970.

    The command is a program with its arguments, no shell. It prints a token alone, or JSON as a
    token endpoint answers (RFC 6749, section 5.1).

    Raises:
        LoginRefused: it fails, or prints no token.
    """
    words: list[str] = []
    began = time.time()
    try:
        words = shlex.split(str(properties[TOKEN_COMMAND]))
        done = subprocess.run(
            words, capture_output=True, timeout=_COMMAND_SECONDS, check=True, text=True
        )
        told = done.stdout.strip()
        found = json.loads(told) if told.startswith("{") else {"access_token": told}
        token = str(found["access_token"])
        if not token or " " in token or "\n" in token:
            raise ValueError(token)
    except subprocess.CalledProcessError as error:
        raise _refuse_command(words, f"it ended with {error.returncode}") from None
    except subprocess.TimeoutExpired:
        raise _refuse_command(words, f"it had not ended after {_COMMAND_SECONDS:g} s") from None
    except OSError as error:
        raise _refuse_command(words, f"it cannot be run: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise _refuse_command(words, "it printed no token") from None
    return token, began + read_life(found, token)


def _refuse_command(words: list[str], why: str) -> LoginRefused:
    # What it printed, and its arguments, may hold secrets.
    return LoginRefused(
        f"could not get a token from the command: {why}",
        subject=f"command {words[0] if words else ''}".rstrip(),
        hint=f"run the command of {TOKEN_COMMAND} by hand: it must print a token, or JSON with "
        "`access_token`",
    )


def read_life(found: Mapping[str, Any], token: str) -> float:
    """Seconds that it lives: as the answer says, else as the token itself does (RFC 7519)."""
    if found.get("expires_in") is not None:
        return float(found["expires_in"])
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return float(claims["exp"]) - time.time()
    except (IndexError, ValueError, KeyError, TypeError):
        return _LIFE_SECONDS


def read_extensions(properties: Properties) -> dict[str, str]:
    """SASL extensions (RFC 7628, section 3.1; KIP-342)."""
    text = str(properties.get("sasl.oauthbearer.extensions", ""))
    parts = (one.partition("=") for one in text.split(",") if one)
    return {name.strip(): value.strip() for name, _, value in parts}


def adapt_login(settings: Mapping[str, Any]) -> dict[str, Any]:
    """As librdkafka takes them: what it has no login for is OAUTHBEARER with a token made here."""
    make: Callable[[Properties], tuple[str, float]]
    if uses_msk(settings):
        make, more = sign_msk_token, {}
    elif TOKEN_COMMAND in settings:
        make, more = run_token_command, read_extensions(settings)
    else:
        return dict(settings)
    left_out = ("sasl.mechanisms", TOKEN_COMMAND, "sasl.oauthbearer.extensions")
    rest = {name: value for name, value in settings.items() if name not in left_out}
    first = [make(settings)]  # librdkafka would wait ten seconds, and not say for what

    def renew(_: str) -> tuple[str, float, str, dict[str, str]]:
        token, expires = first.pop() if first else make(settings)
        return token, expires, "", more

    return {**rest, "sasl.mechanism": "OAUTHBEARER", "oauth_cb": renew}


def make_consumer(
    properties: Properties, overrides: Mapping[str, Any] | None = None, **settings: Any
) -> Consumer:
    """A consumer that reads committed data, commits nothing by itself and never resets.

    Args:
        properties: the cluster's client properties.
        overrides: properties by their Kafka name, over the defaults.
        settings: the same with `_` for `.`: `group_id="g"` is `group.id`.

    Raises:
        ConfigurationError: librdkafka does not take a property.
    """
    merged = {**COMMON, **CONSUMER, **properties, **(overrides or {}), **_dotted(settings)}
    made = Consumer if "group.id" in merged else GrouplessConsumer
    merged.setdefault("group.id", READER_GROUP)
    merged.setdefault("error_cb", ConnectionReports())
    try:
        return made(adapt_login(merged), logger=CLIENT_LOG)
    except (KafkaException, TypeError, ValueError) as error:
        raise explain_creation_failure(error, properties, "make a consumer") from error


def make_producer(
    properties: Properties, overrides: Mapping[str, Any] | None = None, **settings: Any
) -> Producer:
    """An idempotent producer; transactional when given `transactional_id`.

    Arguments and errors as of `make_consumer`.
    """
    merged = {**COMMON, **PRODUCER, **properties, **(overrides or {}), **_dotted(settings)}
    merged.setdefault("error_cb", ConnectionReports())
    try:
        return Producer(adapt_login(merged), logger=CLIENT_LOG)
    except (KafkaException, TypeError, ValueError) as error:
        raise explain_creation_failure(error, properties, "make a producer") from error


def _dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def explain_creation_failure(
    error: BaseException, properties: Properties, doing: str
) -> BacklogError:
    addresses = find_addresses(properties)
    return translate(error, f"cluster {addresses}", doing, addresses=addresses)


def unwrap(error: KafkaError | BaseException) -> KafkaError | None:
    """The KafkaError inside an exception; None where there is none."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, KafkaException) and error.args:
        inner = error.args[0]
        return inner if isinstance(inner, KafkaError) else None
    return None


def is_retriable(error: KafkaError | BaseException) -> bool:
    """Whether the same call may be made again as it is."""
    inner = unwrap(error)
    return inner is not None and (bool(inner.retriable()) or inner.code() in _TRANSIENT)


def is_unreachable(error: KafkaError) -> bool:
    return error.code() in _UNREACHABLE


def is_refusal(error: KafkaError) -> bool:
    """Whether Kafka will not take a message, however often it is sent. Else Kafka was away, or the
    client has ended: it may have the message."""
    has_ended = error.fatal() or error.code() == KafkaError._FATAL
    is_away = is_unreachable(error) or is_retriable(error) or error.code() in _PURGED
    return not (has_ended or is_away)


def explain_kafka(error: KafkaError) -> str:
    text = f"{error.name()}: {error.str()}"
    way_out = _WAYS_OUT.get(error.code())
    return text if way_out is None else f"{text}; {way_out}"


def translate(
    error: KafkaError | BaseException,
    subject: str,
    doing: str,
    *,
    addresses: str = "",
    last_report: str = "",
    seconds: float | None = None,
    has_answered: bool = False,
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
        has_answered: whether some broker has answered this client before.
    """
    if isinstance(error, BacklogError):
        return error
    inner = unwrap(error)
    away = partial(_unreachable, subject, doing, addresses, has_answered=has_answered)
    if inner is None:
        if isinstance(error, TimeoutError):
            return away(last_report or "timed out", seconds)
        return KafkaFailure(f"could not {doing}: {type(error).__name__}: {error}", subject=subject)
    code, text = inner.code(), describe_kafka_error(inner)
    if is_refused_login(inner):
        return refuse_login(inner, subject, doing, addresses)
    if code == KafkaError._SSL:
        return refuse_encryption(_AROUND.sub("", inner.str()), subject, doing, addresses)
    if code in _UNREACHABLE:
        return away(last_report or text, seconds)
    if code in _DENIED:
        return AccessDenied(
            f"could not {doing}: access denied ({text})",
            subject=subject,
            hint="grant the tool's principal this operation; `backlogctl acl` prints what each job "
            "needs",
        )
    if code in (KafkaError._INVALID_ARG, KafkaError._UNKNOWN_PROTOCOL, KafkaError.INVALID_CONFIG):
        return ConfigurationError(f"could not {doing}: {text}", subject=subject)
    return KafkaFailure(
        f"could not {doing}: {text}", subject=subject, retryable=is_retriable(inner)
    )


def is_refused_login(error: KafkaError) -> bool:
    return error.code() in _LOGIN


def refuse_login(
    error: KafkaError, subject: str, doing: str, addresses: str, login: str = ""
) -> LoginRefused:
    """A refused login. `login`: `user shop with SCRAM-SHA-512`, where it is known."""
    whose = f" of {login}" if login else ""
    place = addresses or "(none given)"
    return LoginRefused(
        f"could not {doing}: the cluster at {place} refused the login{whose}: "
        f"{_AROUND.sub('', error.str())}",
        subject=subject,
        hint=_ISSUER_HINT if "OAUTHBEARER" in login else _LOGIN_HINT,
    )


def refuse_encryption(why: str, subject: str, doing: str, addresses: str) -> EncryptionRefused:
    return EncryptionRefused(
        f"could not {doing}: there is no connection to {addresses or '(none given)'}: {why}",
        subject=subject,
        hint="check security.protocol, ssl.ca.location and the names in bootstrap.servers",
    )


def _unreachable(
    subject: str,
    doing: str,
    addresses: str,
    reason: str,
    seconds: float | None,
    *,
    has_answered: bool,
) -> ClusterUnreachable:
    within = "" if seconds is None else f" within {seconds:g} s"
    what, hint = f"no broker at {addresses} answered{within}", "check bootstrap.servers and"
    if has_answered or not addresses:
        what, hint = f"there was no answer{within}", "look whether all brokers are up, and at"
        if has_answered:
            what += f", though the cluster at {addresses} has answered before"
    return ClusterUnreachable(
        f"could not {doing}: {what}: {reason}",
        subject=subject,
        hint=f"{hint} the network, then try again",
    )


def describe_kafka_error(error: KafkaError) -> str:
    text = error.str()
    return f"{error.name()}: {text}" if text else error.name()
