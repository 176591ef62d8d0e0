"""confluent_kafka's errors about topics, groups and transactions become ours here."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError

from backlogctl.errors import BacklogError, KafkaFailure, ProducerFenced, Refused
from backlogctl_delivery import kafka
from backlogctl_delivery.kafka import describe_kafka_error, unwrap


class TopicMissing(KafkaFailure):
    """The topic, or one of its partitions, is not on the cluster."""

    code = "topic_missing"


class TopicExists(KafkaFailure):
    """There is a topic of this name already."""

    code = "topic_exists"


class GroupMissing(KafkaFailure):
    """The cluster does not know the group."""

    code = "group_missing"


class RequestMissing(KafkaFailure):
    """The brokers do not take this request, as old ones and some managed ones do not."""

    code = "request_missing"

    def __init__(self, subject: str, doing: str, text: str) -> None:
        super().__init__(
            f"could not {doing}: these brokers do not take that request ({text})",
            subject=subject,
            hint="it stays unknown on this cluster, whoever asks",
        )


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
_MISSING_REQUEST = frozenset({KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION})
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
    """Whether the producer's epoch is over: by a newer one, or by a transaction that timed out."""
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
    has_answered: bool = False,
) -> BacklogError:
    """`translate` of `backlogctl_delivery.kafka`, and those that only the tool itself meets."""
    inner = None if isinstance(error, BacklogError) else unwrap(error)
    code, text = (None, "") if inner is None else (inner.code(), describe_kafka_error(inner))
    if code in _FENCED:
        return ProducerFenced(
            f"could not {doing}: a newer producer has taken over, or its transaction timed out "
            f"({text})",
            subject=subject,
            hint="`backlogctl show` says whether another runner does this work now; this one wrote "
            "nothing after that. Else run it again",
        )
    if code in _MISSING_TOPIC:
        return TopicMissing(
            f"could not {doing}: the topic is not on the cluster {addresses}".rstrip(),
            subject=subject,
            hint="check `topic` and `cluster` of the stream; was it deleted?",
        )
    if code == KafkaError.TOPIC_ALREADY_EXISTS:
        return TopicExists(f"could not {doing}: there is one already", subject=subject)
    if code == KafkaError.GROUP_ID_NOT_FOUND:
        return GroupMissing(
            f"could not {doing}: the cluster does not know the group",
            subject=subject,
            hint="check `group` of the stream; it may have expired, or never committed",
        )
    if code in _MISSING_REQUEST:
        return RequestMissing(subject, doing, text)
    if code in GROUP_ACTIVE_CODES:
        return GroupActive(
            f"could not {doing}: the group is active ({text})",
            subject=subject,
            hint="stop the group's members and try again",
        )
    return kafka.translate(
        *(error, subject, doing),
        addresses=addresses,
        last_report=last_report,
        seconds=seconds,
        has_answered=has_answered,
    )


# Why a connection is not encrypted as the properties want it: a handshake of our own tells.
#
# librdkafka says "verify failed" of every certificate, and nothing where a port hangs up.

_DEFAULT_PORT = 9092
_ADDRESS = re.compile(r"^(?:\w+://)?(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?$")


def try_addresses(addresses: str, seconds: float) -> dict[str, str]:
    """By address why no connection is made; "" where one is. All at once, and within the time: a
    name service that hangs is not waited for. `addresses`: as `bootstrap.servers`.
    """
    wanted = [one.strip() for one in addresses.split(",") if one.strip()]
    found: dict[str, str] = dict.fromkeys(wanted, f"no answer within {seconds:g} s")

    def look(address: str) -> None:
        found[address] = _try_address(address, seconds)

    threads = [threading.Thread(target=look, args=(one,), daemon=True) for one in wanted]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return dict(found)


def _try_address(address: str, seconds: float) -> str:
    if (parts := _ADDRESS.match(address)) is None:
        return "this is no address"
    place = (parts["six"] or parts["host"], int(parts["port"] or _DEFAULT_PORT))
    try:
        socket.create_connection(place, seconds).close()
    except ConnectionRefusedError:
        return "connection refused"
    except socket.gaierror:
        return "there is no such host"
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except OSError as error:
        return (error.strerror or type(error).__name__).lower()
    return ""


def explain_encryption(properties: Mapping[str, Any], addresses: str, seconds: float) -> str:
    """What is wrong between the properties and the first broker that can be reached; "" where
    nothing is, or nobody could be reached.

    Args:
        addresses: `bootstrap.servers`.
        seconds: the longest that one broker is waited for.
    """
    for address in addresses.split(","):
        found = _ADDRESS.match(address.strip())
        if found is None:
            continue
        host, port = found["six"] or found["host"], int(found["port"] or _DEFAULT_PORT)
        try:
            with socket.create_connection((host, port), seconds) as bare:
                bare.settimeout(seconds)
                return _compare(properties, bare, host, f"{host}:{port}")
        except OSError:
            continue
    return ""


def _compare(properties: Mapping[str, Any], bare: socket.socket, host: str, place: str) -> str:
    protocol = str(properties.get("security.protocol", "plaintext")).upper()
    wants_tls = protocol.endswith("SSL")
    try:
        context = _make_context(properties) if wants_tls else _make_open_context()
        with context.wrap_socket(bare, server_hostname=host):
            pass
    except ssl.SSLCertVerificationError as error:
        return (
            f"the certificate of {place} is not accepted: {error.verify_message.rstrip('.')} "
            f"({_name_trust(properties)})"
        )
    except (ssl.SSLError, ConnectionError, TimeoutError) as error:
        # Other parameters than certificates would be told by librdkafka itself.
        if wants_tls and _is_no_tls(error):
            return f"{place} does not speak TLS, and security.protocol is {protocol}"
        return ""
    except (OSError, ValueError):
        return ""  # a file of the properties: librdkafka names it
    if not wants_tls:
        return f"{place} speaks TLS, and security.protocol is {protocol}"
    return ""


def _make_context(properties: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    trusted, text = properties.get("ssl.ca.location"), properties.get("ssl.ca.pem")
    if trusted or text:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if text:
            context.load_verify_locations(cadata=str(text))
        elif Path(str(trusted)).is_dir():
            context.load_verify_locations(capath=str(trusted))
        else:
            context.load_verify_locations(cafile=str(trusted))
    if str(properties.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        context.check_hostname = False
    if str(properties.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _make_open_context() -> ssl.SSLContext:
    """For a look at whether somebody speaks TLS; nothing is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _is_no_tls(error: Exception) -> bool:
    """A plain Kafka port takes the handshake for a request of absurd size, and hangs up."""
    is_end = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionError)
    return is_end or getattr(error, "reason", "") == "WRONG_VERSION_NUMBER"


def _name_trust(properties: Mapping[str, Any]) -> str:
    if properties.get("ssl.ca.pem"):
        return "trusted is `ssl.ca.pem`"
    trusted = properties.get("ssl.ca.location")
    return f"trusted is {trusted}" if trusted else "trusted are this machine's authorities"
