"""The demo's last question: was every order handled, and none twice?"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from backlog.kafka.clients import Properties
from backlogctl_delivery.stamps import MESSAGE_ID, find_header
from replay.demo.reading import read_topic
from replay.demo.rebuild.shop import PARTITIONS, TOPIC, read_table


@dataclass(frozen=True, slots=True)
class Audit:
    """What the comparison of source, topic and consumer's table found."""

    total: int
    handled: int
    twice: int
    missing: int
    processed: int
    in_topic: int
    injected: int
    topic_twice: int
    different: int

    def to_json(self) -> dict[str, Any]:
        """The figures, and whether all is well."""
        return {**asdict(self), "passed": self.passed}

    @property
    def passed(self) -> bool:
        """Every order handled once, and what is in the topic is what is in the table."""
        wrong = self.twice + self.missing + self.topic_twice + self.different
        return self.handled == self.total and wrong == 0

    def __str__(self) -> str:
        return (
            f"{self.handled:,} of {self.total:,} orders handled, "
            f"{self.twice:,} twice, {self.missing:,} missing"
        )


def audit_shop(client: Properties, source: Path, warehouse: Path) -> Audit:
    """Compares the source with a read_committed reader of the topic and the consumer's table."""
    orders = {order.order_id: order.value for order in read_table(source)}
    with closing(sqlite3.connect(warehouse)) as table:
        processed = Counter(
            row[0] for row in table.execute("SELECT order_id FROM processed_orders")
        )
    seen: Counter[str] = Counter()
    injected = different = 0
    for message in read_topic(client, TOPIC, PARTITIONS):
        key, headers = (message.key() or b"").decode(), message.headers()
        seen[key] += 1
        injected += find_header(headers, MESSAGE_ID) is not None  # type: ignore[arg-type]
        different += orders.get(key) != message.value()
    return Audit(
        total=len(orders),
        handled=sum(1 for order_id in orders if processed[order_id]),
        twice=sum(1 for count in processed.values() if count > 1),
        missing=sum(1 for order_id in orders if not processed[order_id]),
        processed=processed.total(),
        in_topic=seen.total(),
        injected=injected,
        topic_twice=sum(1 for count in seen.values() if count > 1),
        different=different,
    )
