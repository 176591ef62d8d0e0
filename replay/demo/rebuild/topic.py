"""The demo's topic, and the retention that really deletes from it."""

from __future__ import annotations

import time

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from backlog.errors import KafkaFailure
from backlog.kafka.admin import create_topic, list_offsets
from backlog.kafka.clients import Properties
from replay.demo.rebuild.shop import PARTITIONS, RETENTION, TOPIC

_EXPIRED_WITHIN = 30.0


def make_topic(client: Properties) -> None:
    """Three partitions that keep everything for now; a segment holds an hour."""
    config = {"retention.ms": "-1", "segment.ms": "3600000"}
    create_topic(client, TOPIC, partitions=PARTITIONS, replication=1, config=config)


def read_ends(client: Properties) -> dict[int, int]:
    """Where each partition ends."""
    return list_offsets(client, TOPIC, range(PARTITIONS), "latest")


def expire_old(client: Properties, expected: dict[int, int]) -> None:
    """Sets the retention, and waits until the broker has deleted up to the `expected` offsets.

    Raises:
        KafkaFailure: it did not, within half a minute.
    """
    value = str(int(RETENTION.total_seconds() * 1000))
    entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    admin = AdminClient({**client, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(30)
    end = time.monotonic() + _EXPIRED_WITHIN
    starts: dict[int, int] = {}
    while time.monotonic() < end:
        starts = list_offsets(client, TOPIC, range(PARTITIONS), "earliest")
        if starts == expected:
            return
        time.sleep(0.1)
    raise KafkaFailure(
        f"retention did not delete as expected: log starts {starts}, expected {expected}",
        subject=f"topic {TOPIC}",
    )
