"""What traffic can be like, each scenario one trouble for whoever counts rows; and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

BEGIN = datetime(2026, 3, 2, 6, 0, tzinfo=UTC)
MESSAGES = 43_200
PER_SECOND = 3.0
PARTITIONS = 12


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of traffic. Shares are of all messages.

    Attributes:
        late: sent `LATE` after their row, behind messages of younger rows.
        long: rows of long transactions: as old as their begin, sent at their end.
        unsent: rows whose message was never sent.
        deleted: messages whose row is gone from the table.
        keyless: messages without a key, spread round robin.
        transaction: messages of one Kafka transaction; 0, the producer has none.
        one_partition: only one partition lost something; all others are handled.
        mutable: rows are orders that change; a message restates one.
    """

    name: str
    late: float = 0.0
    long: float = 0.0
    unsent: float = 0.0
    deleted: float = 0.0
    keyless: float = 0.0
    transaction: int = 0
    one_partition: bool = False
    mutable: bool = False


LATE = timedelta(seconds=50)

SCENARIOS = {
    item.name: item
    for item in (
        Scenario("tight"),
        Scenario("loose", late=0.01),
        Scenario("long", long=0.02),
        # Four messages a partition and a control record: 20 % of the offsets.
        Scenario("control", transaction=48),
        Scenario("unsent", unsent=0.005),
        Scenario("deleted", deleted=0.005),
        Scenario("keyless", keyless=0.11),
        Scenario("one", one_partition=True),
        Scenario("restate", mutable=True),
    )
}


@dataclass(frozen=True, slots=True)
class Shape:
    """How long the story is, from the number of its messages: four hours at the full number.

    The consumers fall behind for the first quarter, and stop. Retention keeps one half.
    """

    messages: int = MESSAGES

    @property
    def duration(self) -> timedelta:
        return timedelta(seconds=self.messages / PER_SECOND)

    @property
    def stop(self) -> timedelta:
        """When the consumers stop, after the beginning."""
        return self.duration / 4

    @property
    def retention(self) -> timedelta:
        return self.duration / 2

    @property
    def lags(self) -> tuple[timedelta, timedelta]:
        """How far behind the least and the most unlucky partition are when the consumers stop."""
        return self.duration / 48, self.duration / 6

    @property
    def segment(self) -> timedelta:
        """Retention deletes whole segments: so much is kept longer at most."""
        return self.duration / 24

    @property
    def longest(self) -> timedelta:
        """The longest database transaction: two minutes."""
        return self.duration / 120

    @property
    def ten_minutes(self) -> timedelta:
        return self.duration / 24

    @property
    def hour(self) -> timedelta:
        """How much too early the operator's `--since` is."""
        return self.duration / 4

    @property
    def margin(self) -> timedelta:
        """The stream's `margin`: its default at the full length."""
        return max(2 * LATE, self.duration / 24)

    @property
    def lost_from_one(self) -> int:
        """Messages that the one partition loses: 1,123 of the full number."""
        return round(self.messages * 1_123 / MESSAGES)
