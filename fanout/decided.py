"""Waits until no transaction is open on a topic, so that a read_committed reader sees all of it.

A commit is answered before its markers are written, and a hanging transaction holds back the last
stable offset of its partition: before that, "nothing unread" would be a guess.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from backlog.clock import Deadline
from backlog.errors import HangingTransaction
from backlog.kafka.admin import list_offsets
from backlog.kafka.calls import Connection

# Our relays' transactions time out after 15 s; the coordinator checks every 10 s by default.
DECIDED_SECONDS = 40.0
_POLL_SECONDS = 0.05


def find_undecided(connection: Connection, topic: str, partitions: int) -> dict[int, int]:
    """Partitions with an open transaction, and the last stable offset that it holds back."""
    numbers = range(partitions)
    stable = list_offsets(connection, topic, numbers, "latest", "read_committed")
    ends = list_offsets(connection, topic, numbers, "latest", "read_uncommitted")
    return {number: at for number, at in stable.items() if at < ends[number]}


def await_decided(
    connection: Connection,
    topic: str,
    partitions: int,
    look: Callable[[], None],
    *,
    within: float = DECIDED_SECONDS,
) -> None:
    """Waits until no transaction is open on the topic, which must have no writer.

    Raises:
        HangingTransaction: one stays open for too long.
    """
    limit = Deadline(within)
    while undecided := find_undecided(connection, topic, partitions):
        look()
        if limit.expired:
            places = ", ".join(f"{n} at offset {at}" for n, at in sorted(undecided.items()))
            raise HangingTransaction(
                f"a transaction is open for more than {within:g} s on partitions {places}: what "
                "lies behind it cannot be read",
                subject=f"topic {topic}",
                hint="find it with `kafka-transactions.sh find-hanging` and abort it, then run the "
                "recovery again",
            )
        time.sleep(_POLL_SECONDS)
