"""The examples' consumer on a real broker: at least once, and each key in order."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from backlogctl.config import Consumers
from backlogctl.fanout.launchers import Fleet, ProcessLauncher, Role
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.clients import make_producer
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kafka_tools import properties_of, wait_until

PROGRAM = Path(__file__).parents[1] / "examples" / "order_consumer.py"
KEYS, EACH = 40, 100


def publish_orders(properties: dict[str, str], topic: str, numbers: range) -> None:
    producer = make_producer(properties)
    for number in numbers:
        for key in range(KEYS):
            value = json.dumps({"number": number}).encode()
            producer.produce(topic, value, f"order-{key}".encode(), key % 6)
    assert producer.flush(90) == 0


def read_log(log: Path) -> dict[str, list[int]]:
    """The numbers of each key, in the order in which they were first handled."""
    found: dict[str, list[int]] = defaultdict(list)
    lines = [
        line.split(" ") for path in log.glob("*.log") for line in path.read_text().splitlines()
    ]
    for _, key, number in sorted(lines, key=lambda line: int(line[0])):
        if int(number) not in found[key]:
            found[key].append(int(number))
    return found


def test_orders_are_handled_at_least_once_and_in_order_while_members_come_and_go(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    properties, name, log = properties_of(kafka.bootstrap), topic(partitions=6), tmp_path / "log"
    fleet = Fleet("orders", Role.ORIGINAL, name, group, kafka.bootstrap, tmp_path / "fleet")
    document: dict[str, Any] = {
        "launcher": "process",
        "command": [sys.executable, str(PROGRAM)],
        "environment": {"ORDER_LOG": str(log), "ORDER_RATE": "400"},
        "stop_within": "90s",
    }
    launcher = ProcessLauncher(Consumers.model_validate(document))

    def is_read() -> bool:
        ends = verbs.list_offsets(properties, name, range(6), "latest")
        return verbs.committed_offsets(properties, group, name, range(6)) == ends

    publish_orders(properties, name, range(EACH // 2))
    try:
        launcher.scale(fleet, 2, lambda: None)
        wait_until(log.exists)
        launcher.scale(fleet, 6, lambda: None)
        publish_orders(properties, name, range(EACH // 2, EACH))
        launcher.scale(fleet, 3, lambda: None)
        wait_until(is_read, what="all is committed")
    finally:
        launcher.stop(fleet, lambda: None)
    exits = [consumer.exit_code for consumer in launcher.list_consumers(fleet)]
    assert not [code for code in exits if code]
    # They left the group by themselves: no session had to end.
    assert verbs.describe_group_state(properties, group).members == ()
    assert read_log(log) == {f"order-{key}": list(range(EACH)) for key in range(KEYS)}
