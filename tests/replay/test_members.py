"""A group that hangs: who is in it, what each member has, and where to look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from backlogctl.config import Config, load_config
from backlogctl.replay.cli import main
from backlogctl.replay.consumers.members import describe_members, suggest_ways
from backlogctl.replay.opening import open_workspace
from tests.conftest import MakeTopic
from tests.kafka_tools import publish, set_offsets_raw, wait_until
from tests.replay.calling import call_main
from tests.replay.makers import write_config


@pytest.fixture
def config(properties: dict[str, str], topic: MakeTopic, group: str, tmp_path: Path) -> Config:
    """A stream of two partitions that is behind."""
    name = topic(partitions=2)
    publish(properties, name, {0: 5, 1: 5})
    set_offsets_raw(properties, group, name, {0: 1, 1: 1})
    stream = {"cluster": "main", "topic": name, "group": group}
    path = write_config(tmp_path, clusters={"main": properties}, streams={"orders": stream})
    return load_config(path)


def join(config: Config) -> Consumer:
    """A member that has both partitions, and never commits."""
    stream = config.stream("orders")
    consumer = Consumer(
        {
            **config.clusters["main"].client_properties(),
            "group.id": stream.group,
            "client.id": "hanging-service",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([stream.topic])
    wait_until(lambda: consumer.poll(0.1) or consumer.assignment(), what="it has partitions")
    return consumer


def test_a_hanging_member_is_named_with_its_partitions(config: Config, tmp_path: Path) -> None:
    consumer = join(config)
    try:
        document = call_main(("status", "orders", "--json"), tmp_path, {})
        assert document[0] == 0
        stream, workspace = config.stream("orders"), open_workspace(config)
        members = describe_members(workspace, stream)
        (one,) = members["members"]
        assert (one["client_id"], one["partitions"]) == ("hanging-service", [0, 1])
        assert members["unassigned"] == []
        assert one["last_commit"] is None
        (way,) = suggest_ways(stream, "stall", members)
        assert way.startswith(f"look at the log of hanging-service at {one['host']}")
        assert "partitions 0, 1, and no sample saw it commit" in way
        said = call_main(("status", "orders"), tmp_path, {})[1]
        assert "hanging-service" in said
    finally:
        consumer.close()


def test_a_group_without_members_says_so(config: Config, tmp_path: Path) -> None:
    stream, workspace = config.stream("orders"), open_workspace(config)
    members = describe_members(workspace, stream)
    assert members["members"] == []
    (way,) = suggest_ways(stream, "stop", members)
    assert "start its consumers" in way
    assert "members: none" in call_main(("status", "orders"), tmp_path, {})[1]


def test_check_has_an_exit_code_for_scripts(config: Config, tmp_path: Path) -> None:
    code, out, _ = call_main(("status", "--check", "--json"), tmp_path, {})
    assert code == 0, "it lags, and was watched for a moment only"
    assert '"schema_version": 1' in out
    stream = config.stream("orders")
    properties = config.clusters["main"].client_properties()
    set_offsets_raw(properties, stream.group, stream.topic, {0: 9, 1: 1})
    assert call_main(("status", "--check"), tmp_path, {})[0] == 1


def test_the_version_is_printed(capsys: pytest.CaptureFixture[Any]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("backlogctl ")
