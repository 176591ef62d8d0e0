"""Permissions as a broker with an authorizer tells them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]

from backlog.errors import Refused
from backlog.kafka.admin import create_topic
from backlog.kafka.clients import Admin
from fanout.permissions import find_missing, require_permissions
from tests.guarded import deny, start_guarded
from tests.kafka_tools import publish, set_offsets_raw, wait_until


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Admin]:
    with start_guarded(tmp_path) as admin:
        yield admin


def test_what_is_denied_is_named(guarded: Admin) -> None:
    properties = {"bootstrap.servers": guarded.addresses}
    create_topic(guarded, "orders", partitions=1)
    publish(properties, "orders", {0: 3})
    set_offsets_raw(properties, "order-service", "orders", {0: 0})
    require_permissions(guarded, topic="orders", group="order-service", hold=True)
    deny(guarded, ResourceType.TOPIC, "orders", AclOperation.ALTER_CONFIGS)
    deny(guarded, ResourceType.GROUP, "order-service", AclOperation.READ)
    every = ["ALTER_CONFIGS on topic orders", "READ on group order-service"]

    def missing() -> list[str]:
        return find_missing(
            guarded,
            topic="orders",
            group="order-service",
            topic_operations=("READ", "ALTER_CONFIGS"),
        )

    wait_until(lambda: missing() == every, what="the broker knows the rules")
    with pytest.raises(Refused, match="ALTER_CONFIGS on topic orders, READ on group"):
        require_permissions(guarded, topic="orders", group="order-service", hold=True)
    # Without a hold nothing of the topic is changed.
    assert find_missing(guarded, topic="orders", group="order-service") == every[1:]
