"""Time for which brokers take nothing from a client, as a quota of the cluster says (KIP-219).

They answer at once, and say for how long they will not read that connection; whoever goes on
writing waits. What a quota allows is set on the cluster: no setting of ours makes it faster.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from backlogctl.errors import BacklogError

RAISE_QUOTAS = (
    "raise the client quotas of its user or client.id (kafka-configs.sh --describe --entity-type "
    "users, clients)"
)
# Of a record in a request beside its key, value and headers, with its part of batch and request: at
# most. What quotas count.
RECORD_BYTES = 100
# Below these it is no real part of the time.
_LEAST_SECONDS, _LEAST_PART = 1.0, 0.1


@dataclass(frozen=True, slots=True)
class Throttling:
    """Of the `seconds` that transactions took, those in which brokers took nothing."""

    throttled: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Throttling) -> Throttling:
        return Throttling(self.throttled + other.throttled, self.seconds + other.seconds)

    def describe(self, who: str) -> str:
        """A sentence about `who`, what writes; empty where it is no real part of the time."""
        if self.throttled < max(_LEAST_SECONDS, _LEAST_PART * self.seconds):
            return ""
        return (
            f"brokers throttled {who} for {self.throttled:.0f} s of the {self.seconds:.0f} s that "
            f"transactions took: the limit is a quota of the cluster; {RAISE_QUOTAS}"
        )


class ThrottleClock:
    """Adds up what brokers say. Where several say it at once, each moment counts once."""

    def __init__(self) -> None:
        self._told = self._until = 0.0
        self._lock = threading.Lock()

    def note(self, seconds: float) -> None:
        """A broker takes nothing for so long from now on. In any thread."""
        with self._lock:
            now = time.monotonic()
            until = max(self._until, now + seconds)
            self._told += until - max(self._until, now)
            self._until = until

    @property
    def told(self) -> float:
        """Seconds, with those that are still to come."""
        return self._told

    @property
    def passed(self) -> float:
        """Seconds, without those that are still to come."""
        with self._lock:
            return self._told - max(0.0, self._until - time.monotonic())


def mention_quota(
    failure: BacklogError, told: float, timeout_ms: int, holds: str = ""
) -> BacklogError:
    """Says so in the failure of a transaction that lost a second or more to a quota.

    Args:
        told: seconds for which brokers said that they take nothing, in this transaction.
        holds: what it holds: " of 1.2 MB".
    """
    if told >= _LEAST_SECONDS:
        failure.message += (
            f"; brokers throttled this client for {told:.1f} s in a transaction{holds}, which may "
            f"take {timeout_ms / 1000:g} s"
        )
        failure.hint = f"{RAISE_QUOTAS}; {failure.hint}".removesuffix("; ")
    return failure
