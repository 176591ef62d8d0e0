"""Groups that are neither classic nor of KIP-848: a real share group is refused by name."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backlog.config import load_config
from backlog.errors import Refused
from backlog.kafka.admin import create_topic
from backlog.kafka.group_types import read_group_type, say_why_not
from replay.around.members import describe_members
from replay.opening import open_workspace
from replay.recovery.guards import refuse_group_type
from sandbox.embedded import EmbeddedKafka
from tests.java_tools import write_script
from tests.kafka_tools import properties_of, publish, set_offsets_raw, wait_until
from tests.replay.calling import call_main
from tests.replay.makers import write_config


@contextmanager
def run_share_consumer(directory: Path, bootstrap: str, topic: str) -> Iterator[None]:
    script = write_script(directory / "share-consumer.sh", "consumer.ConsoleShareConsumer")
    command = [str(script), "--bootstrap-server", bootstrap, "--topic", topic, "--group", "sharing"]
    with (directory / "share.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_only_two_types_can_be_recovered() -> None:
    assert say_why_not("share")
    assert say_why_not("streams")
    assert [say_why_not(one) for one in ("classic", "consumer", "", None)] == [""] * 4


def test_a_share_group_is_refused_with_a_sentence(tmp_path: Path) -> None:
    more = {"group.coordinator.rebalance.protocols": "classic,consumer,share"}
    with EmbeddedKafka.start(tmp_path / "kafka", properties=more) as kafka:
        properties = properties_of(kafka.bootstrap)
        create_topic(properties, "orders", partitions=1)
        publish(properties, "orders", {0: 3})
        set_offsets_raw(properties, "service", "orders", {0: 1})
        stream = {
            "cluster": "main",
            "topic": "orders",
            "group": "sharing",
            "consumers": {"launcher": "manual", "replicas": 1},
        }
        path = write_config(tmp_path, clusters={"main": properties}, streams={"orders": stream})
        workspace = open_workspace(load_config(path))
        config = workspace.config.stream("orders")
        with run_share_consumer(tmp_path, kafka.bootstrap, "orders"):
            wait_until(lambda: read_group_type(properties, "sharing") == "share")
            assert read_group_type(properties, "service") in ("classic", "consumer")
            assert read_group_type(properties, "nobody") == ""
            with pytest.raises(Refused, match="share group"):
                refuse_group_type(workspace, config)
            members = describe_members(workspace, config)
            assert members["type"] == "share"
            assert "share group" in members["error"]["message"]
            code, out, _ = call_main(("status", "orders"), tmp_path, {})
            assert code == 0
            assert "share group" in out
            said = call_main(("plan", "expand", "orders"), tmp_path, {})
            assert said[0] == 5
            assert "share group" in said[2]
