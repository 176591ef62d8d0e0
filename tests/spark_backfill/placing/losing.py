"""Orders of which a real broker lost some, for the tests of placing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.request import RebuildRequest
from backlogctl.values import Bookmark, Gap
from backlogctl_delivery.stamps import hash_identity
from tests.spark_backfill import world

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


def lose(
    kafka: EmbeddedKafka, topic: str, shop: str, rows: list[dict[str, Any]], **sent: Any
) -> tuple[Gap, ...]:
    """All were sent (`sent`: as `publish_orders` takes it); the first 300 were handled, the next
    300 are lost."""
    world.fill_table(shop, world.ORDERS, rows)
    world.publish_orders(kafka.bootstrap, topic, rows, **sent)
    handled, gone = count(rows[:HANDLED]), count(rows[:LOST])
    world.delete_below(kafka.bootstrap, topic, dict(enumerate(gone)))
    first, last = (rows[at]["updated_at"] for at in (HANDLED, LOST - 1))
    return tuple(
        # The samples knew no better than two minutes.
        world.make_gap(topic, p, handled[p], gone[p], first - timedelta(minutes=2), last)
        for p in range(PARTITIONS)
    )


def open_request(
    kafka: EmbeddedKafka, topic: str, shop: str, tmp_path: Path, gaps: tuple[Gap, ...],
    **changes: Any,
) -> RebuildRequest:  # fmt: skip
    source = changes.pop("source", {})
    stream = world.make_stream(topic, mutable=False, **source)
    return world.make_request(kafka.bootstrap, stream, shop, gaps, tmp_path / "staging", **changes)


def lost_keys(
    rows: Sequence[dict[str, Any]], partitions: Sequence[int] = range(PARTITIONS)
) -> list[int]:
    return [row["order_id"] for row in rows[HANDLED:LOST] if place(row) in partitions]
