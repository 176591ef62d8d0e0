"""What is on its way to Kafka: of each key one message at a time (P8.3).

A message is handed to the client when the one before it was acknowledged, never earlier: whatever
fails then, no message of a key arrives before an older one of the same key did. One thread only:
the client calls back from its `poll`.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from backlogctl_delivery.crashpoints import reach
from backlogctl_delivery.kafka import explain_kafka, is_refusal, unwrap
from backlogctl_delivery.outbox.claims import Acknowledged, Failure
from backlogctl_delivery.outbox.messages import Message


@dataclass(slots=True)
class DeliveryResults:
    """What came of messages since it was last asked."""

    delivered: list[Acknowledged] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    # Not tried: one before them failed, or their lease is about to end.
    given_up: list[Message] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.delivered) + len(self.failed) + len(self.given_up)

    def add(self, later: DeliveryResults) -> None:
        """Takes in what came after it."""
        self.delivered += later.delivered
        self.failed += later.failed
        self.given_up += later.given_up


class InFlight:
    """Messages on their way.

    Kafka refuses a whole batch for one message in it. So what was refused once goes alone from then
    on, by a producer whose batches hold one message: the others of its batch get through.

    Args:
        producer: for first attempts.
        make_alone: makes the other one, when it is needed.
        clock: seconds, by which the ends of leases are judged.
    """

    def __init__(
        self,
        producer: Producer,
        make_alone: Callable[[], Producer],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._producer, self._make_alone, self._clock = producer, make_alone, clock
        self._alone: Producer | None = None
        self._in_flight: dict[int, Message] = {}
        self._numbers = itertools.count()
        self._waiting = 0
        # Where the offsets of a batch were not told: how far the client has counted on in it.
        self._untold: dict[tuple[str, int | None, bool], int] = {}
        self.results = DeliveryResults()
        # After a fatal error the client takes no more.
        self.is_broken = False

    def __len__(self) -> int:
        """How many are not told yet, those that wait for another one of their key included."""
        return len(self._in_flight) + self._waiting

    def start(self, claimed: Iterable[Message], lease_end: float) -> None:
        """Sends what was claimed.

        Args:
            claimed: in the order of ids; of a key all that was claimed.
            lease_end: after it nothing more of them is handed to the client.
        """
        runs: dict[int, deque[Message]] = {}
        for message in claimed:
            if message.ordering_key is None:
                self._waiting += 1
                self._go_on(deque((message,)), lease_end)
            else:
                runs.setdefault(message.ordering_key, deque()).append(message)
        for run in runs.values():
            self._waiting += len(run)
            self._go_on(run, lease_end)

    def poll(self, seconds: float) -> None:
        """Serves what Kafka has told, and waits so long for it."""
        if self._alone is not None:
            self._alone.poll(0)
        self._producer.poll(seconds)

    def take_results(self) -> DeliveryResults:
        """What came of messages since the last call."""
        results, self.results = self.results, DeliveryResults()
        return results

    def give_up(self) -> None:
        """Forgets what Kafka has not told of; their leases end by themselves."""
        self._in_flight.clear()
        self._waiting = 0
        for producer in filter(None, (self._producer, self._alone)):
            producer.purge()
            producer.flush(1)

    def _choose(self, message: Message) -> Producer:
        if not message.attempts:
            return self._producer
        if self._alone is None:
            self._alone = self._make_alone()
        return self._alone

    def _go_on(self, run: deque[Message], lease_end: float) -> None:
        if not run:
            return
        if self._clock() >= lease_end:
            self._drop(run)
            return
        self._waiting -= 1
        self._produce(run.popleft(), run, lease_end)

    def _drop(self, run: deque[Message]) -> None:
        self._waiting -= len(run)
        self.results.given_up += run
        run.clear()

    def _produce(self, message: Message, run: deque[Message], lease_end: float) -> None:
        def report(error: KafkaError | None, sent: Any) -> None:
            # Of each report: what it says of offsets depends on those before it.
            acknowledged = self._find_place(message, sent) if error is None else None
            # By its flight: the same row may be claimed again before this is told.
            if self._in_flight.pop(flight, None) is None:
                return
            if error is not None:
                self._fail(message, run, error)
                return
            assert acknowledged is not None
            reach("p8.3.acknowledged")
            self.results.delivered.append(acknowledged)
            self._go_on(run, lease_end)

        flight = next(self._numbers)
        self._in_flight[flight] = message
        try:
            self._choose(message).produce(
                message.topic,
                value=message.value,
                key=message.key,
                headers=message.stamped,  # type: ignore[arg-type] # a value may be None
                on_delivery=report,
            )
        except BufferError:
            # Its own queue is full: the row is due again at once.
            del self._in_flight[flight]
            self.results.given_up.append(message)
            self._drop(run)
        except (KafkaException, TypeError, ValueError) as error:
            del self._in_flight[flight]
            self._fail(message, run, error)
        reach("p8.3.produced")

    def _find_place(self, message: Message, sent: Any) -> Acknowledged:
        """Where Kafka has it. Of a batch that it had already it may not say the offset: the client
        counts on from -1 then, and reports 0, 1, ... for the second message and those after it."""
        partition, offset = sent.partition(), sent.offset()
        # By client, as each reports its own batches in their order.
        place = (message.topic, partition, message.attempts > 0)
        said = -1 if offset is None else max(-1, offset)
        # What is told after such a batch lies further on: the batch took as many offsets itself.
        if said == -1 or said - 1 == self._untold.get(place):
            self._untold[place] = said
            return Acknowledged(message, partition, None)
        self._untold.pop(place, None)
        return Acknowledged(message, partition, offset)

    def _fail(
        self, message: Message, run: deque[Message], error: KafkaError | BaseException
    ) -> None:
        inner = unwrap(error)
        if inner is None:
            reason, refused = f"{type(error).__name__}: {error}", True
        else:
            reason = explain_kafka(inner)
            self.is_broken |= inner.fatal() or inner.code() == KafkaError._FATAL
            refused = is_refusal(inner) and not self.is_broken
            if not refused:
                reason += "; Kafka may have it"
        self.results.failed.append(Failure(message, reason, refused))
        self._drop(run)
