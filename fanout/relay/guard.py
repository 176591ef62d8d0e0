"""The guard: one member in the original group, so that nobody else can commit (protocol P4.5).

While a group has a member, the broker refuses commits from outside it, and a commit that carries
an old generation. The guard's membership is pinned when all partitions are assigned to it; the
relays commit with it. Whoever joins makes a new generation, and every commit of the relays fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.fanout.relay.interface import ConsumerCameBack, GuardLost
from backlogctl.kafka.admin import Member, describe_group_state
from backlogctl.kafka.clients import make_admin, make_consumer
from backlogctl.kafka.errors import translate

CLIENT_ID = "backlogctl-guard"
SESSION_TIMEOUT_MS = 6_000
JOIN_SECONDS = 60.0
_SETTINGS: Mapping[str, object] = {
    "group.protocol": "classic",
    "session.timeout.ms": SESSION_TIMEOUT_MS,
    "heartbeat.interval.ms": 1_000,
    # Where the group waits for its members to join again, it waits this long for one that is dead.
    "max.poll.interval.ms": SESSION_TIMEOUT_MS,
    "partition.assignment.strategy": "range,roundrobin",
}


class GroupGuard:
    """A member of the group that reads nothing. Used from one thread; a second one polls."""

    def __init__(
        self, properties: Mapping[str, str], group: str, topic: str, partitions: int, name: str
    ) -> None:
        """Args: `name` distinguishes this guard from others: the recovery's id."""
        self._properties = properties
        self._group = group
        self._topic = topic
        self._wanted = set(range(partitions))
        self._client_id = f"{CLIENT_ID}-{name}"
        self._consumer: Consumer | None = None
        self._thread: threading.Thread | None = None
        self._leaving = threading.Event()
        self._changed = threading.Condition()
        self._metadata: bytes | None = None
        self._lost = ""

    def join(self, look: Callable[[], None], seconds: float = JOIN_SECONDS) -> bytes:
        """Joins, waits until every partition is the guard's, and returns the pinned membership.

        Raises:
            ConsumerCameBack: others are in the group; names them.
            GuardLost: it did not get every partition in time.
        """
        settings = {**_SETTINGS, "group.id": self._group, "client.id": self._client_id}
        self._consumer = make_consumer(self._properties, settings)
        self._consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_gone, on_lost=self._on_gone
        )
        self._thread = threading.Thread(target=self._poll, name="guard", daemon=True)
        self._thread.start()
        limit = Deadline(seconds)
        next_look = time.monotonic() + 2.0
        while True:
            with self._changed:
                if self._metadata is None and not self._lost:
                    self._changed.wait(0.1)
                if self._metadata is not None:
                    return self._metadata
            look()
            if self._lost or limit.expired or time.monotonic() > next_look:
                self._refuse_others()
                next_look = time.monotonic() + 2.0
            if self._lost or limit.expired:
                why = self._lost or f"not every partition became the guard's in {seconds:g} s"
                raise GuardLost(why, subject=f"group {self._group}")

    def check(self) -> None:
        """Whether the membership still holds.

        Raises:
            ConsumerCameBack: somebody else joined; names them.
            GuardLost: it was lost, and nobody else is there.
        """
        if not self._lost:
            return
        self._refuse_others()
        raise GuardLost(f"the guard lost its membership: {self._lost}", subject=self._subject)

    def leave(self) -> None:
        """Leaves the group cleanly, so that the next members need not wait for a timeout."""
        self._leaving.set()
        if self._thread is not None:
            self._thread.join(30.0)
        self._thread = None
        self._consumer = None

    @property
    def _subject(self) -> str:
        return f"group {self._group}"

    def _poll(self) -> None:
        consumer = self._consumer
        assert consumer is not None
        try:
            while not self._leaving.is_set():
                message = consumer.poll(0.1)
                error = message.error() if message is not None else None
                if error is not None and (error.fatal() or not _is_passing(error)):
                    self._note_lost(str(translate(error, self._subject, "stay in it").message))
        except (KafkaException, RuntimeError) as error:
            self._note_lost(f"{type(error).__name__}: {error}")
        finally:
            consumer.close()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # The client would start to fetch when the callback is over: it must not read a message.
        consumer.assign(partitions)
        consumer.pause(partitions)
        numbers = {item.partition for item in partitions if item.topic == self._topic}
        with self._changed:
            if self._metadata is not None:
                self._lost = self._lost or "the group was rebalanced"
            elif numbers == self._wanted:
                self._metadata = bytes(consumer.consumer_group_metadata())
            self._changed.notify_all()

    def _on_gone(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if not self._leaving.is_set() and self._metadata is not None:
            self._note_lost("the group was rebalanced")

    def _note_lost(self, why: str) -> None:
        with self._changed:
            self._lost = self._lost or why
            self._changed.notify_all()

    def _refuse_others(self) -> None:
        """Raises where others are in the group; unknown while the coordinator does not answer."""
        try:
            others = find_others(self._properties, self._group, Deadline(10.0))
        except KafkaFailure:
            return
        if others:
            raise refuse_others(self._group, others)


def find_others(properties: Mapping[str, str], group: str, limit: Deadline) -> tuple[Member, ...]:
    """The members of a group that are not a guard of ours, of either group protocol."""
    admin = make_admin(properties)
    state = describe_group_state(admin, group, limit)
    return tuple(member for member in state.members if not is_guard(member))


def is_guard(member: Member) -> bool:
    """Whether a member of a group is a guard of ours, of any recovery."""
    return member.client_id.startswith(f"{CLIENT_ID}-")


def refuse_others(group: str, others: tuple[Member, ...]) -> BacklogError:
    """The error that names who is in the group."""
    names = ", ".join(str(member) for member in others)
    return ConsumerCameBack(
        f"a consumer came back while its backlog is relayed: {names}; the relay stopped before "
        "anything was committed against it",
        subject=f"group {group}",
        hint="stop it for good (a supervisor may restart it), then run the recovery again, or "
        "cancel it",
    )


def _is_passing(error: KafkaError) -> bool:
    """Errors of a paused reader that say nothing about its membership."""
    return error.code() in (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._PARTITION_EOF,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    )
