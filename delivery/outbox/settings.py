"""How a sender works, and what it has done."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from backlog.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """How a sender works.

    Attributes:
        scan_every: between two looks for what is due.
        lease: for so long nobody else sends what was claimed; a crashed sender's rows wait it out.
        delivery_timeout: for so long Kafka has to take a message; shorter than the lease.
        most: keys in one claim, and messages without a key; fewer than twice as many rows.
        most_of_key: rows of one key in one claim.
        most_in_flight: rows that are claimed and not told.
        first_interval: before the second attempt; each later one is twice as long.
        longest_interval: between two attempts.
    """

    scan_every: timedelta = timedelta(seconds=1)
    lease: timedelta = timedelta(seconds=60)
    delivery_timeout: timedelta = timedelta(seconds=20)
    most: int = 500
    most_of_key: int = 100
    most_in_flight: int = 2_000
    first_interval: timedelta = timedelta(seconds=1)
    longest_interval: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        # 0 is librdkafka's word for "no limit".
        if self.delivery_timeout < timedelta(milliseconds=1):
            raise UsageError(
                f"a delivery timeout of {self.delivery_timeout.total_seconds():g} s is too short",
                subject="outbox",
                hint="give it, and the lease, some seconds",
            )
        if self.lease < 2 * self.delivery_timeout:
            raise UsageError(
                f"a lease of {self.lease.total_seconds():g} s is too short for a delivery timeout "
                f"of {self.delivery_timeout.total_seconds():g} s",
                subject="outbox",
                hint="make it twice as long: else two senders send the same",
            )


@dataclass(slots=True)
class Counts:
    """What a sender has done since it started."""

    delivered: int = 0
    refused: int = 0
    away: int = 0
    parked: int = 0
    # Acknowledged when another had claimed the row already: that one sends it once more.
    late: int = 0
