"""Admin clients and readers made from a plain mapping of client properties.

Spark executors have only that mapping, so nothing here knows the configuration file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, ClusterUnreachable, KafkaFailure
from backlogctl.kafka.errors import explain_encryption, translate, try_addresses
from backlogctl_delivery.kafka import (
    CLIENT_LOG,
    COMMON,
    ConnectionReports,
    EncryptionRefused,
    LoginRefused,
    Properties,
    adapt_login,
    explain_creation_failure,
    find_addresses,
    is_unreachable,
    make_consumer,
    make_producer,
    refuse_encryption,
    refuse_login,
    unwrap,
)

__all__ = ["Properties", "find_addresses", "make_consumer", "make_producer"]  # beside those below

_PROBE_SECONDS = 2.0
# To ask for one topic is cheaper than for all; whether it is there does not matter.
_ANY_TOPIC = "__consumer_offsets"


# It asks the broker that it has a connection to and no other, for a minute, when that one hangs.
_LEAVES_SOON = {"socket.timeout.ms": 10_000}


class Admin(AdminClient):
    """An AdminClient that remembers the addresses it was given and its last connection error."""

    def __init__(self, properties: Properties) -> None:
        self.addresses = find_addresses(properties)
        self.reports = ConnectionReports()
        # To ask for a topic's metadata must not make the topic.
        settings = {
            **COMMON,
            "allow.auto.create.topics": False,
            # It asks a partition's leader by the epoch that it knows, and for 15 minutes does not
            # look again: a broker that was restarted refuses that (FENCED_LEADER_EPOCH, KIP-320),
            # and one that has died is waited for.
            "metadata.max.age.ms": 1_000,
            **_LEAVES_SOON,
            **properties,
            "error_cb": self.reports,
        }
        super().__init__(adapt_login(settings), logger=CLIENT_LOG)
        self._properties = dict(properties)
        # (group, topic) -> since when an answer about them is wrong, by the monotonic clock.
        self.behind_since: dict[tuple[str, str], float] = {}
        self.has_answered = False
        self._consumers: dict[tuple[tuple[str, Any], ...], Consumer] = {}

    def note_answer(self) -> None:
        """Brokers let it in: earlier refusals are over."""
        self.has_answered = True
        self.reports.clear()

    @property
    def properties(self) -> Properties:
        """What it was made with."""
        return self._properties

    def open_reader(self, group: str, require_stable: bool) -> Consumer:
        """A consumer that only asks for the group's commits; it never joins. Kept for next time."""
        # librdkafka asks for stable offsets exactly when it reads committed data.
        level = "read_committed" if require_stable else "read_uncommitted"
        return self.keep_consumer({"group.id": group, "isolation.level": level})

    def keep_consumer(self, settings: Mapping[str, Any]) -> Consumer:
        """A consumer with these settings, the same one each time; it is never closed."""
        key = tuple(sorted(settings.items()))
        if key not in self._consumers:
            self._consumers[key] = make_consumer(
                {**_LEAVES_SOON, **self._properties}, {**settings, "error_cb": self.reports}
            )
        return self._consumers[key]

    def translate(
        self,
        error: KafkaError | BaseException,
        subject: str,
        doing: str,
        seconds: float | None = None,
    ) -> BacklogError:
        """`translate` with this client's addresses and last connection error."""
        self.poll(0)  # connection errors and log lines are delivered by poll only
        inner = unwrap(error)
        is_late = isinstance(error, TimeoutError) or (inner is not None and is_unreachable(inner))
        if is_late and (refused := self._tell_refused_login(subject, doing)) is not None:
            return refused
        return translate(
            error,
            subject,
            doing,
            addresses=self.addresses,
            last_report=self.reports.last,
            seconds=seconds,
            has_answered=self.has_answered,
        )

    def find_refusal(self, subject: str, doing: str, addresses: str = "") -> BacklogError | None:
        """Why brokers that are there do not let this client in; None where that is not known.

        Takes some seconds where a broker hangs.

        Args:
            addresses: those that are looked at; else all.
        """
        self.poll(0)
        if (refused := self._tell_refused_login(subject, doing)) is not None:
            return refused
        if self.has_answered and not self.reports.last:
            return None  # only slow
        asked = addresses or self.addresses
        why = explain_encryption(self._properties, asked, _PROBE_SECONDS)
        return refuse_encryption(why, subject, doing, self.addresses) if why else None

    def look_around(self) -> None:
        """Learns anew which brokers there are. librdkafka sends many requests to the one that its
        last metadata calls the controller; where that has died it waits for minutes.

        Not while an error is handled: the client library never frees its own error, and so neither
        that one, nor its frames and their clients. They would log in on and on.
        """
        with suppress(KafkaException):
            self.list_topics(_ANY_TOPIC, timeout=_PROBE_SECONDS)
            self.has_answered = True

    def _tell_refused_login(self, subject: str, doing: str) -> BacklogError | None:
        if (refusal := self.reports.refusal) is None:
            return None
        login = _name_login(self._properties)
        return refuse_login(refusal, subject, doing, self.addresses, login)


def _name_login(properties: Properties) -> str:
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI"
    user = properties.get("sasl.username")
    return f"user {user} with {mechanism}" if user else f"this client with {mechanism}"


def make_admin(properties: Properties) -> Admin:
    """An admin client; it connects on first use.
    Raises ConfigurationError: librdkafka does not take a property.
    """
    try:
        return Admin(properties)
    except (KafkaException, TypeError, ValueError) as error:
        raise explain_creation_failure(error, properties, "make an admin client") from error


def assign_partitions(
    consumer: Consumer, starts: Sequence[TopicPartition], seconds: float = 30.0
) -> None:
    """Assigns partitions of one topic, of which the leaders are asked for first.

    Without a leader librdkafka waits for half a second before it looks again (tried, 2.16.1).

    Raises:
        KafkaFailure, ClusterUnreachable: nobody answered.
    """
    try:
        consumer.list_topics(starts[0].topic, seconds)
        consumer.assign(list(starts))
    except KafkaException as error:
        subject = f"topic {starts[0].topic}"
        raise translate(error, subject, "find its leaders", seconds=seconds) from error


# How an admin call is made: one Deadline, errors translated, transient errors retried.

Connection = Admin | Properties
Result = TypeVar("Result")

_PAUSE = 0.05
_TOO_SHORT = 1.0  # seconds that are too few for an answer
_ABSENCE_PAUSE = 0.5
# After so many seconds without an answer it is looked whether the brokers let us in.
_REFUSAL = 2.0
# How often it is looked who the controller is now, and what the first turn of a question takes.
_LOOK = 0.5
_FIRST_TURN = 3.0


def connect(connection: Connection) -> Admin:
    """The admin client itself, or a new one from properties."""
    return connection if isinstance(connection, Admin) else make_admin(connection)


def seconds_left(limit: Deadline) -> float:
    """What is left of the deadline, as librdkafka takes it (0 would mean "no limit given")."""
    return max(0.01, limit.remaining())


def ask(
    admin: Admin,
    call: Callable[..., Any],
    subject: str,
    doing: str,
    limit: Deadline,
    *arguments: Any,
    **settings: Any,
) -> Any:
    """Starts an admin call; its futures are read with `wait_for`.
    Raises BacklogError: the client refused the call itself.
    """
    try:
        return call(*arguments, request_timeout=seconds_left(limit), **settings)
    except KafkaException as error:
        raise admin.translate(error, subject, doing, limit.seconds) from error


def wait_for(admin: Admin, future: Future[Any], subject: str, doing: str, limit: Deadline) -> Any:
    """The result of one future of an admin call.

    Raises:
        LoginRefused, EncryptionRefused: within seconds; the deadline is not waited for.
        BacklogError: what the cluster answered, or that it did not answer in time.
    """
    # librdkafka ends the call itself; one second more for its thread to deliver that.
    end = time.monotonic() + seconds_left(limit) + 1.0
    look_at = time.monotonic() + _REFUSAL
    while True:
        try:
            result = future.result(timeout=max(0.0, min(end - time.monotonic(), _LOOK)))
        except (KafkaException, TimeoutError) as error:
            if future.done() or time.monotonic() >= end:
                raise admin.translate(error, subject, doing, limit.seconds) from error
            late = error
        else:
            # ListConsumerGroups succeeds where nobody answered, too.
            if not getattr(result, "errors", None):
                admin.note_answer()
            return result
        admin.look_around()
        # Nobody has answered for long: a wrong password would be tried until the end.
        if time.monotonic() >= look_at:
            look_at = end
            if (refused := admin.find_refusal(subject, doing)) is not None:
                raise refused from late


def wait_for_broker(admin: Admin, subject: str, doing: str, limit: Deadline) -> None:
    """Waits until a broker answers, once for a client; before calls that only block.

    Raises:
        LoginRefused, EncryptionRefused: within seconds.
        ClusterUnreachable: nobody answered in time.
    """
    if not admin.has_answered:
        _ask_any_broker(admin, subject, doing, limit)


def _ask_any_broker(admin: Admin, subject: str, doing: str, limit: Deadline) -> Any:
    """The metadata that any broker has. Not DescribeCluster: librdkafka asks the controller for
    that, or whom brokers call so, and waits for one that hangs while others answer."""
    has_looked = False
    while True:
        try:
            answer = admin.list_topics(_ANY_TOPIC, timeout=max(0.01, limit.remaining(_REFUSAL)))
        except KafkaException as error:
            inner = unwrap(error)
            if limit.expired or inner is None or not is_unreachable(inner):
                raise admin.translate(error, subject, doing, limit.seconds) from error
            late = error
        else:
            admin.note_answer()
            return answer
        if not has_looked and (refused := admin.find_refusal(subject, doing)) is not None:
            raise refused from late
        has_looked = True


def read_addresses(admin: Admin, limit: Deadline) -> dict[int, str]:
    """By number, `kafka-1:9092` of each broker that the cluster names: those that it knows to be
    there. Raises BacklogError: nobody answered in time.
    """
    subject, doing = f"cluster {admin.addresses}", "list the brokers"
    nodes = _ask_any_broker(admin, subject, doing, limit).brokers.values()
    return {node.id: f"{node.host}:{node.port}" for node in nodes}


# Who waits at a terminal is told within ten seconds, with what takes before and after.
REACH_SECONDS = 6.0


def reach_cluster(connection: Connection, subject: str) -> dict[str, str]:
    """Waits until a broker answers, for some seconds, and looks which brokers can be connected to.

    Returns:
        By broker, `2 at kafka-2:9092`, why it cannot be; none where all can.

    Raises:
        LoginRefused, EncryptionRefused.
        ClusterUnreachable: nobody answered, or no broker is where the cluster says; it names every
            address and what came of it. Or an answer names no broker.
    """
    admin, doing, limit = connect(connection), "connect", Deadline(REACH_SECONDS)
    try:
        nodes = _await_answer(admin, subject, doing, limit).brokers.values()
    except KafkaException as error:
        told = admin.translate(error, subject, doing, limit.seconds)
        if type(told) is not ClusterUnreachable:
            raise told from error
        raise _describe_silence(admin.addresses, subject) from error
    if not nodes:
        raise ClusterUnreachable(
            f"could not {doing}: {admin.addresses} answered, and names no broker; which are there "
            "is unknown",
            subject=subject,
            hint="a broker that has just started may not know them: try again, or read its log",
        )
    admin.has_answered = True
    admin.reports.clear()
    places = {f"{node.host}:{node.port}": f"{node.id} at {node.host}:{node.port}" for node in nodes}
    tried = try_addresses(",".join(places), _PROBE_SECONDS)
    away = {places[place]: why for place, why in tried.items() if why}
    if away and len(away) == len(places):
        raise ClusterUnreachable(
            f"could not {doing}: {admin.addresses} answered, and names brokers that cannot be "
            f"reached: {join_reasons(away)}",
            subject=subject,
            hint="`advertised.listeners` of the brokers must be addresses that this host reaches",
        )
    return away


def _await_answer(admin: Admin, subject: str, doing: str, limit: Deadline) -> Any:
    with suppress(KafkaException):
        return admin.list_topics(_ANY_TOPIC, timeout=_REFUSAL)
    tried = try_addresses(admin.addresses, _PROBE_SECONDS)
    if there := ",".join(place for place, why in tried.items() if not why):
        refused = admin.find_refusal(subject, doing, there)
        if refused is not None:
            raise refused
    return admin.list_topics(_ANY_TOPIC, timeout=seconds_left(limit))


def _describe_silence(addresses: str, subject: str) -> ClusterUnreachable:
    tried = {
        place: why or "takes connections"
        for place, why in try_addresses(addresses, _PROBE_SECONDS).items()
    }
    return ClusterUnreachable(
        f"could not connect: no broker answered within {REACH_SECONDS:g} s; tried were "
        f"{join_reasons(tried)}",
        subject=subject,
        hint="check bootstrap.servers and the network, then try again",
    )


def join_reasons(found: Mapping[str, str]) -> str:
    """`a:9092 (connection refused), b:9092 (there is no such host)`."""
    return ", ".join(f"{place} ({why})" for place, why in found.items()) or "(no address given)"


def retry_transient(
    admin: Admin,
    limit: Deadline,
    call: Callable[[], Result],
) -> Result:
    """Calls again while a leader or coordinator moves, until the deadline.

    An unreachable cluster is not asked again: that call has used up the deadline already.
    """
    known: KafkaFailure | None = None
    while True:
        left = limit.remaining()
        try:
            return call()
        except ClusterUnreachable:
            # The last try had no time for an answer; the error before it says more.
            if known is not None and left < _TOO_SHORT:
                raise known from None
            raise
        except KafkaFailure as error:
            if limit.expired or not error.retryable:
                raise
            known = error
            admin.poll(min(_PAUSE, limit.remaining()))


def ask_in_turns(limit: Deadline, call: Callable[[Deadline], Result]) -> Result:
    """Asks for what may be done twice, again and again within the limit, and longer and longer: a
    broker that is silent is not waited for when another has taken its place, and a slow one is.

    Raises:
        LoginRefused, EncryptionRefused: at once.
    """
    first = min(_FIRST_TURN, limit.remaining() / 4)
    known: KafkaFailure | None = None
    for turn in count():
        left = limit.remaining()
        try:
            return call(limit.part(first * 2 ** (turn // 2)))
        except KafkaFailure as error:
            if known is not None and left < _TOO_SHORT and isinstance(error, ClusterUnreachable):
                raise known from None  # as `retry_transient` does
            is_final = not error.retryable or isinstance(error, LoginRefused | EncryptionRefused)
            if is_final or limit.expired:
                raise
            known = error
        time.sleep(limit.remaining(_ABSENCE_PAUSE))
    raise AssertionError("unreachable")


def retry_in_turns(admin: Admin, limit: Deadline, call: Callable[[Deadline], Result]) -> Result:
    """`retry_transient` in turns."""
    return ask_in_turns(limit, lambda turn: retry_transient(admin, turn, lambda: call(turn)))


def ask_for_one(
    admin: Admin, call: Callable[..., Any], subject: str, doing: str, limit: Deadline, request: Any
) -> Any:
    """The answer about one thing, asked for in turns.
    `request`: names the one thing, as the admin call takes several.
    """

    def ask_once(turn: Deadline) -> Any:
        (future,) = ask(admin, call, subject, doing, turn, request).values()
        return wait_for(admin, future, subject, doing, turn)

    return retry_in_turns(admin, limit, ask_once)


def outlast(limit: Deadline, call: Callable[[], Result]) -> Result:
    """Calls again while brokers are away, until the deadline; for work that is under way.

    The call keeps its own time limits.
    """
    while True:
        try:
            return call()
        except KafkaFailure as error:
            if not error.retryable or limit.expired:
                raise
        time.sleep(limit.remaining(_ABSENCE_PAUSE))
