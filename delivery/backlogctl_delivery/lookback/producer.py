"""What an application calls: prepare, do the work, then commit or roll back.

    look_back = LookBackProducer(Producer({...}), service="payments")
    look_back.prepare("payment", payment_id, topic="payments", key=key, value=value)
    ...  # the business transaction
    look_back.commit("payment", payment_id)

Call `roll_back` only where the business transaction is known not to have committed: an error of the
database's COMMIT itself says neither. When in doubt call nothing: the application is asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from backlogctl_delivery.crashpoints import reach
from backlogctl_delivery.errors import KafkaFailure, UsageError
from backlogctl_delivery.lookback.messages import Decided, Event, Prepared, write_envelope
from backlogctl_delivery.sequenced.clients import ConfluentClient, adapt

_POLL_SECONDS = 0.05


class LookBackProducer:
    """Sends what look-back needs to know. Of any number of threads.

    Each call waits until the brokers have the record. They are keyed by the business id.

    Args:
        producer: a `confluent_kafka.Producer` or a kafka-python `KafkaProducer`, with `acks=all`.
        service: the name under `look_back.services` of whom is asked about these messages.
        topic: the look-back topic.
        timeout: seconds that a call waits for the brokers.
    """

    def __init__(
        self, producer: Any, service: str, *, topic: str = "look_back_msg", timeout: float = 30.0
    ) -> None:
        self._client = adapt(producer)
        self._service, self._topic, self._timeout = service, topic, timeout

    def prepare(
        self,
        biz_type: str,
        biz_id: str,
        *,
        topic: str,
        key: bytes | str | None = None,
        value: bytes | str | None,
        headers: Mapping[str, bytes | str | None]
        | Iterable[tuple[str, bytes | str | None]]
        | None = None,
    ) -> None:
        """Hands over the message, before the business transaction begins or commits.

        Args:
            biz_type: with `biz_id` what the transaction is known by; 1 to 255 characters each. A
                pair is one message, for ever.
            topic: where the message goes if the transaction commits.

        Raises:
            UsageError: a name is empty, too long or none that Kafka takes.
            KafkaFailure: the brokers did not take it: do not go on with the transaction.
        """
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        made = tuple((name, _as_bytes(item)) for name, item in pairs)
        try:
            envelope = Prepared(
                biz_type, biz_id, self._service, topic, _as_bytes(key), _as_bytes(value), made
            )
        except ValueError as error:
            raise _refuse(error) from None
        self._send(envelope, "do not go on with the transaction")
        reach("p8.prepared.after")

    def commit(self, biz_type: str, biz_id: str) -> None:
        """Says that the transaction has committed: the message is forwarded.

        Raises:
            UsageError: as `prepare`.
            KafkaFailure: the brokers did not take it. Nothing is lost: the service is asked later.
        """
        self._decide(Event.COMMITTED, biz_type, biz_id)

    def roll_back(self, biz_type: str, biz_id: str) -> None:
        """Says that the transaction was rolled back: it is never sent. Raises as `commit`."""
        self._decide(Event.ROLLED_BACK, biz_type, biz_id)

    def _decide(self, event: Event, biz_type: str, biz_id: str) -> None:
        try:
            envelope = Decided(event, biz_type, biz_id)
        except ValueError as error:
            raise _refuse(error) from None
        reach("p8.decided.before")
        self._send(envelope, "nothing is lost: the service is asked what became of it")
        reach("p8.decided.after")

    def _send(self, envelope: Prepared | Decided, hint: str) -> None:
        done = threading.Event()
        failed: list[Any] = []

        def note(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)
            done.set()

        value, key = write_envelope(envelope), envelope.biz_id.encode()
        partition: Any = -1 if isinstance(self._client, ConfluentClient) else None
        try:
            sent = self._client.produce(self._topic, value, key, partition, note, None, 0, [])
        except Exception as error:
            raise self._tell(str(error), hint) from error
        if sent is not None:
            self._client.attach(sent, note)
        end = time.monotonic() + self._timeout
        while not done.is_set():
            if time.monotonic() > end:
                why = (
                    f"no answer within {self._timeout:g} s; do the brokers run, is the topic there?"
                )
                raise self._tell(why, hint)
            # kafka-python's thread calls back by itself, and its poll returns at once.
            if not self._client.poll(_POLL_SECONDS):
                done.wait(_POLL_SECONDS / 5)
        if failed:
            raise self._tell(_describe(failed[0]), hint)

    def _tell(self, why: str, hint: str) -> KafkaFailure:
        return KafkaFailure(
            f"the record could not be sent: {why}",
            subject=f"topic {self._topic}",
            hint=hint,
            retryable=True,
        )


def _describe(error: Any) -> str:
    """Either client's error."""
    if not hasattr(error, "code"):
        return f"{type(error).__name__}: {error}"
    # It imports confluent_kafka, which an application with the other client need not have.
    from backlogctl_delivery.kafka import explain_kafka

    return explain_kafka(error)


def _as_bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _refuse(error: ValueError) -> UsageError:
    return UsageError(
        "a business type, business id, service or topic cannot be taken: "
        f"{str(error).splitlines()[-1].strip()}",
        subject="LookBackProducer",
        hint="names have 1 to 255 characters; topics as Kafka takes them",
    )
