"""Orders of which a real broker lost some, for the tests of placing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backlogctl.spark_backfill.request import RebuildOutcome, RebuildRequest
from backlogctl.values import Bookmark, Gap
from backlogctl_delivery.stamps import hash_identity
from tests.spark_backfill import world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 3
ROWS = 900
HANDLED, LOST = 300, 600  # rows handled, and rows whose message is gone


def place(row: dict[str, Any], partitions: int = PARTITIONS) -> int:
    return world.place_key(str(row["order_id"]).encode(), partitions)


def count(rows: Sequence[dict[str, Any]], partitions: int = PARTITIONS) -> list[int]:
    """Rows by partition."""
    return [sum(place(row, partitions) == p for row in rows) for p in range(partitions)]


def mark(rows: Sequence[dict[str, Any]], partition: int, offset: int) -> Bookmark:
    """What `watch` notes of a committed offset where every offset is a message."""
    own = [row for row in rows if place(row) == partition]
    identity = str(own[offset]["order_id"]).encode()
    return Bookmark(partition, offset, offset, hash_identity("topic-id", identity))


def mark_all(rows: Sequence[dict[str, Any]], gaps: Sequence[Gap]) -> tuple[Bookmark, ...]:
    """One where each gap begins."""
    return tuple(mark(rows, gap.partition, gap.start or 0) for gap in gaps)


def make_orders(last: int = ROWS) -> list[dict[str, Any]]:
    """Orders from 1 on, one a second."""
    return [world.make_order(number) for number in range(1, last + 1)]


@dataclass(frozen=True)
class Losing:
    """A topic of three partitions that loses orders, their table, and plans of that."""

    spark: SparkSession
    bootstrap: str
    topic: str
    shop: str
    directory: Path

    def lose(self, rows: list[dict[str, Any]], **sent: Any) -> tuple[Gap, ...]:
        """All were sent (`sent`: as `publish_orders` takes it); the first 300 were handled, the
        next 300 are lost."""
        world.fill_table(self.shop, world.ORDERS, rows)
        self.publish(rows, **sent)
        return self.expire(rows)

    def publish(self, rows: list[dict[str, Any]], partitions: int = 3, **sent: Any) -> None:
        world.publish_orders(self.bootstrap, self.topic, rows, partitions, **sent)

    def expire(self, rows: list[dict[str, Any]]) -> tuple[Gap, ...]:
        """The messages of the first 600; the group had read 300."""
        handled, gone = count(rows[:HANDLED]), count(rows[:LOST])
        self.delete_below(dict(enumerate(gone)))
        first, last = (rows[at]["updated_at"] for at in (HANDLED, LOST - 1))
        return tuple(
            # The samples knew no better than two minutes.
            self.make_gap(p, handled[p], gone[p], first - timedelta(minutes=2), last)
            for p in range(PARTITIONS)
        )

    def delete_below(self, offsets: dict[int, int]) -> None:
        world.delete_below(self.bootstrap, self.topic, offsets)

    def make_gap(self, *place: Any) -> Gap:
        """As `world.make_gap` takes it."""
        return world.make_gap(self.topic, *place)

    def open(self, gaps: tuple[Gap, ...], **changes: Any) -> RebuildRequest:
        """The request of a plan; `changes`: those of its stream's source, and its own."""
        source = changes.pop("source", {})
        stream = world.make_stream(self.topic, mutable=False, **source)
        staging = self.directory / "staging"
        return world.make_request(self.bootstrap, stream, self.shop, gaps, staging, **changes)

    def plan(self, request: RebuildRequest, **more: Any) -> RebuildOutcome:
        return world.plan(self.spark, request, **more)


def lost_keys(
    rows: Sequence[dict[str, Any]], partitions: Sequence[int] = range(PARTITIONS)
) -> list[int]:
    return [row["order_id"] for row in rows[HANDLED:LOST] if place(row) in partitions]
