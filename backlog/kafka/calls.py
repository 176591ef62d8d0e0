"""How an admin call is made: one Deadline, errors translated, transient errors retried."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from backlog.clock import Deadline
from backlog.errors import ClusterUnreachable, KafkaFailure
from backlog.kafka.clients import Admin, Properties, make_admin

Connection = Admin | Properties
Result = TypeVar("Result")

_PAUSE = 0.05
_TOO_SHORT = 1.0  # seconds that are too few for an answer
_ABSENCE_PAUSE = 0.5
# After so many seconds without an answer it is looked whether the brokers let us in.
_REFUSAL = 2.0


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

    Raises:
        BacklogError: the client refused the call itself.
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
    has_looked = False
    while True:
        left = end - time.monotonic()
        try:
            result = future.result(timeout=max(0.0, left if has_looked else min(left, _REFUSAL)))
        except (KafkaException, TimeoutError) as error:
            if future.done() or time.monotonic() >= end:
                raise admin.translate(error, subject, doing, limit.seconds) from error
            # Nobody has answered for long: a wrong password would be tried until the end.
            has_looked = True
            if (refused := admin.find_refusal(subject, doing)) is not None:
                raise refused from error
            continue
        admin.has_answered = True
        admin.reports.clear()
        return result


def reach(admin: Admin, subject: str, doing: str, limit: Deadline) -> None:
    """Waits until a broker answers, once for a client; before calls that only block.

    Raises:
        LoginRefused, EncryptionRefused: within seconds.
        ClusterUnreachable: nobody answered in time.
    """
    if not admin.has_answered:
        future = ask(admin, admin.describe_cluster, subject, doing, limit)
        wait_for(admin, future, subject, doing, limit)


def retry_transient(
    admin: Admin,
    limit: Deadline,
    call: Callable[[], Result],
    is_transient: Callable[[KafkaFailure], bool] | None = None,
) -> Result:
    """Calls again while a leader or coordinator moves, until the deadline.

    `is_transient` names more errors that are transient here. An unreachable cluster is not
    retried: that call has used up the deadline already.
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
            if limit.expired or not (
                error.retryable or (is_transient is not None and is_transient(error))
            ):
                raise
            known = error
            admin.poll(min(_PAUSE, limit.remaining()))


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
