"""The stream's own consumers, groups of every type, and members that hang."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from backlogctl.config import Config, load_config
from backlogctl.errors import Refused, UsageError
from backlogctl.fanout.launchers import Role
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.bulk import BulkReader
from backlogctl.kafka.group_types import (
    explain_unsupported_group,
    read_group_type,
    read_share_offsets,
)
from backlogctl.kafka.readers import TopicReaders, list_topic_readers
from backlogctl.kafka.topics import list_offsets
from backlogctl.monitoring.offsets.sampler import take_sample
from backlogctl.replay.cli import main
from backlogctl.replay.consumers.fleet import fleet_of, launcher_of
from backlogctl.replay.consumers.members import describe_members, start_consumers, suggest_ways
from backlogctl.replay.engine.guards import refuse_group_type
from backlogctl.replay.kinds.offload.planning import find_cut_groups, warn_about_shares
from backlogctl.replay.observe.stream import describe_share_group
from backlogctl.replay.opening import open_workspace
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import RecoveryState
from tests.conftest import MakeTopic
from tests.fanout.launchers.fleets import no_stop
from tests.kit.java import join_streams_group, run_line, write_script
from tests.kit.kafka import join, properties_of, publish, set_offsets_raw, wait_until
from tests.kit.recoveries import open_desk, write_config
from tests.kit.shop import Shop, call_main

SERVICE = """\
import os, signal
from confluent_kafka import Consumer
ending = []
signal.signal(signal.SIGTERM, lambda *_: ending.append(1))
consumer = Consumer({
    "bootstrap.servers": os.environ["BACKLOG_BOOTSTRAP_SERVERS"],
    "group.id": os.environ["BACKLOG_GROUP"],
    "client.id": "order-service",
})
consumer.subscribe([os.environ["BACKLOG_TOPIC"]])
while not ending:
    consumer.poll(0.05)
consumer.close()
"""


def sleeping(**changes: Any) -> dict[str, Any]:
    stream = {"cluster": "main", "topic": "orders", "group": "service"}
    consumers = {"launcher": "process", "command": ["sleep", "600"], "replicas": 2}
    return {"streams": {"orders": {**stream, "consumers": {**consumers, **changes}}}}


@pytest.fixture
def service(empty_shop: Shop) -> Iterator[Shop]:
    """A shop whose order service is started by the tool."""
    program = empty_shop.directory / "service.py"
    program.write_text(SERVICE)
    path = empty_shop.directory / "backlog.yaml"
    document = json.loads(path.read_text())
    command = [sys.executable, str(program)]
    section = {"launcher": "process", "command": command, "replicas": 2, "stop_within": "60s"}
    document["streams"]["orders"]["consumers"] = section
    path.write_text(json.dumps(document))
    yield empty_shop
    empty_shop.call("consumers", "stop", "orders", "--json")


def test_started_seen_and_stopped(service: Shop) -> None:
    """They outlive the command; a member that is not ours is named."""
    started = service.run("consumers", "start", "orders", "--json").document
    assert (started["running"], started["replicas"], started["launcher"]) == (2, 2, "process")

    def see() -> dict[str, Any]:
        return service.call("--json", "consumers", "status", "orders").document

    wait_until(lambda: len(see()["members"]) == 2, 150, "both are members")
    seen = see()
    assert seen["running"] == 2
    assert {member["client_id"] for member in seen["members"]} == {"order-service"}
    pids = [consumer["pid"] for consumer in seen["consumers"]]
    again = service.call("consumers", "start", "orders", "--json").document
    assert [consumer["pid"] for consumer in again["consumers"]] == pids

    shown = service.call("consumers", "status", "orders").out
    assert "process" in shown
    assert str(pids[0]) in shown

    other = join(service.properties, service.group, service.topic, client_id="somebody-else")
    try:
        stopped = service.run("consumers", "stop", "orders", "--json")
    finally:
        other.close()
    assert stopped.document["running"] == 0
    assert [member["client_id"] for member in stopped.document["members"]] == ["somebody-else"]
    assert "the group still has 1 member: somebody-else at" in stopped.err
    quiet = service.call("consumers", "stop", "orders")
    assert "still has" not in quiet.err


def test_a_stream_without_the_section_says_so(tmp_path: Path) -> None:
    workspace = open_desk(tmp_path)
    with pytest.raises(UsageError, match="`consumers` section"):
        launcher_of(workspace, workspace.config.stream("orders"), print)


@pytest.mark.parametrize("state", ["approved", "running", "paused", "failed"])
def test_a_start_is_refused_while_an_expansion_has_stopped_them(
    tmp_path: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = open_desk(tmp_path, **sleeping())
    stream = workspace.config.stream("orders")

    class Found:
        id, kind, stops_consumers = "r-1", "expand", True

        def __init__(self) -> None:
            self.state = RecoveryState(state)

    def find(*, stream: str, states: tuple[RecoveryState, ...]) -> list[Found]:
        assert stream == "orders"
        return [found for found in [Found()] if found.state in states]

    monkeypatch.setattr(workspace.ledger.recoveries, "list", find)
    with pytest.raises(Refused, match=f"r-1 is {state}"):
        start_consumers(workspace, stream, print)
    assert not fleet_of(workspace, stream, Role.ORIGINAL).directory.exists()


def test_without_a_cluster_the_processes_are_started_and_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backlogctl.kafka.coordinator.DEFAULT_SECONDS", 1.0)
    workspace = open_desk(tmp_path, **sleeping())
    stream = workspace.config.stream("orders")
    try:
        told = start_consumers(workspace, stream, print)
    finally:
        fleet = fleet_of(workspace, stream, Role.ORIGINAL)
        launcher_of(workspace, stream, print).stop(fleet, no_stop)
    assert (told["running"], told["group_state"]) == (2, None)
    assert "127.0.0.1:1" in told["problem"]


def test_a_fleet_has_a_directory_of_its_own(tmp_path: Path) -> None:
    workspace = open_desk(tmp_path, **sleeping())
    stream = workspace.config.stream("orders")
    original = fleet_of(workspace, stream, Role.ORIGINAL)
    assert original.directory == tmp_path / "staging" / "consumers" / "orders" / "original"
    assert (original.topic, original.group) == ("orders", "service")
    assert original.bootstrap_servers == "127.0.0.1:1"
    other = fleet_of(
        workspace, stream, Role.RECOVERY, "r-1", topic="t.recovery", group="g.recovery"
    )
    assert other.directory == tmp_path / "staging" / "consumers" / "orders" / "r-1"
    assert (other.topic, other.group, other.recovery_id) == ("t.recovery", "g.recovery", "r-1")
    for role, recovery_id in ((Role.RECOVERY, ""), (Role.ORIGINAL, "r-1")):
        with pytest.raises(ValueError, match="recovery id"):
            fleet_of(workspace, stream, role, recovery_id)


@contextmanager
def run_share_consumer(directory: Path, bootstrap: str, topic: str) -> Iterator[None]:
    script = write_script(directory / "share-consumer.sh", "consumer.ConsoleShareConsumer")
    command = [str(script), "--bootstrap-server", bootstrap, "--topic", topic, "--group", "sharing"]
    with (directory / "share.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()  # it leaves the group, and gives back what it did not acknowledge
        process.wait()


def test_only_two_types_can_be_recovered() -> None:
    assert explain_unsupported_group("share")
    assert explain_unsupported_group("streams")
    assert [explain_unsupported_group(one) for one in ("classic", "consumer", "", None)] == [""] * 4


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A broker with groups of every type, and a topic."""
    more = {"group.coordinator.rebalance.protocols": "classic,consumer,share,streams"}
    with EmbeddedKafka.start(tmp_path_factory.mktemp("kafka"), properties=more) as kafka:
        typed = properties_of(kafka.bootstrap)
        create_topic(typed, "orders", partitions=2)
        publish(typed, "orders", {0: 3, 1: 3})
        set_offsets_raw(typed, "service", "orders", {0: 1})
        yield typed


def configure(directory: Path, typed: dict[str, str], group: str) -> Path:
    stream = {
        "cluster": "main",
        "topic": "orders",
        "group": group,
        "consumers": {"launcher": "manual", "replicas": 1},
    }
    return write_config(directory, clusters={"main": typed}, streams={"orders": stream})


def test_a_share_group_tells_its_own_lag_and_is_refused_by_name(
    tmp_path: Path, typed: dict[str, str]
) -> None:
    workspace = open_workspace(load_config(configure(tmp_path, typed, "sharing")))
    config = workspace.config.stream("orders")
    bootstrap = typed["bootstrap.servers"]

    def reads_on() -> bool:
        # It begins at the end of the log, as share groups do, at a moment that nobody is told.
        publish(typed, "orders", {0: 1, 1: 1})
        found = read_share_offsets(typed, "sharing")
        return len(found) == 2 and None not in {one.start for one in found}

    def has_read_all() -> bool:
        # The start offset may stay behind messages that are acknowledged already.
        return [one.lag for one in read_share_offsets(typed, "sharing")] == [0, 0]

    with run_share_consumer(tmp_path, bootstrap, "orders"):
        wait_until(lambda: read_group_type(typed, "sharing") == "share")
        assert read_group_type(typed, "service") in ("classic", "consumer")
        assert read_group_type(typed, "nobody") == ""
        with pytest.raises(Refused, match="share group"):
            refuse_group_type(workspace, config)
        members = describe_members(workspace, config)
        assert members["type"] == "share"
        assert "share group" in members["error"]["message"]
        wait_until(reads_on, what="it reads")
        wait_until(has_read_all, what="all are acknowledged")
    publish(typed, "orders", {0: 4, 1: 1})
    found = read_share_offsets(typed, "sharing")
    assert [one.lag for one in found] == [4, 1]
    ours = {(one.topic, one.partition): (one.start, one.lag) for one in found}
    assert ours == read_with_kafkas_tool(tmp_path, bootstrap)
    readers = list_topic_readers(typed, "orders")
    assert readers.list_others("service") == ("sharing",), "it would get messages again"
    ends = list_offsets(typed, "orders", (0, 1), "latest")
    (cut,) = find_cut_groups(readers, "service", {0: 0, 1: 0}, ends)
    assert (cut.group, cut.messages, cut.partitions) == ("sharing", 5, {0: 4, 1: 1})

    code, out, err = call_main(
        ("status", "--bootstrap", bootstrap, "--group", "sharing", "--json"), tmp_path, {}
    )
    assert code == 0, err
    (entry,) = json.loads(out)["streams"]
    assert entry["share"] == {
        "partitions": [
            {"partition": 0, "start": found[0].start, "lag": 4},
            {"partition": 1, "start": found[1].start, "lag": 1},
        ],
        "lag": 5,
    }
    assert (entry["verdict"], entry["lag"], entry["lost"]) == ("unknown", None, None)
    assert entry["warnings"] == [], "it is there, and misses no commit"
    code, out, _ = call_main(("status", "orders"), tmp_path, {})
    assert code == 0
    assert "share group; at most 5 messages are not acknowledged yet" in out
    assert not workspace.ledger.gaps.list(), "what has no commits has no gaps by them"
    said = call_main(("plan", "expand", "orders"), tmp_path, {})
    assert said[0] == 5
    assert "share group" in said[2]


def read_with_kafkas_tool(directory: Path, bootstrap: str) -> dict[tuple[str, int], Any]:
    write_script(directory / "kafka-share-groups.sh", "consumer.group.ShareGroupCommand")
    line = f"kafka-share-groups.sh --bootstrap-server {bootstrap} --describe --group sharing"
    rows = (text.split() for text in run_line(line, directory).splitlines())
    return {
        (row[1], int(row[2])): (int(row[3]), int(row[4]))
        for row in rows
        if row[:1] == ["sharing"] and len(row) == 5
    }


def test_how_far_a_share_group_is_may_be_unknown(typed: dict[str, str]) -> None:
    assert (
        "begun to read no partition"
        in (describe_share_group(typed, "stream", "orders", "nobody")["sentence"])
    )
    login = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER"}
    told = describe_share_group({**typed, **login}, "stream", "orders", "sharing")
    assert "how far the share group is is unknown" in told["warnings"][0]
    assert "share" not in told


def test_what_a_share_group_loses_is_unknown_where_it_cannot_be_asked() -> None:
    told = TopicReaders({}, shares_unknown="the types of groups cannot be asked for with X")
    assert "share groups lose unread messages is unknown" in warn_about_shares(told)[0]
    assert warn_about_shares(TopicReaders({})) == []


def test_a_streams_group_at_work_is_seen_and_refused(tmp_path: Path, typed: dict[str, str]) -> None:
    workspace = open_workspace(load_config(configure(tmp_path, typed, "app")))
    config = workspace.config.stream("orders")
    join_streams_group(typed, "app", "orders", {0: 1, 1: 2}, tmp_path)
    assert read_group_type(typed, "app") == "streams"
    sample = take_sample(config, typed)
    assert [part.committed for part in sample.partitions] == [1, 2]
    assert sample.group_state not in ("dead", "empty"), "it has a member"
    with closing(BulkReader(typed)) as reader:
        states = {group.name: group.state for group in reader.list_groups()}
        assert states["app"] not in ("dead", "empty")
        assert "sharing" not in states
        assert reader.read_commits(["app"])["app"]["orders"].tolist() == [1, 2]
    with pytest.raises(Refused, match="Kafka Streams"):
        refuse_group_type(workspace, config)
    said = call_main(("plan", "expand", "orders"), tmp_path, {})
    assert said[0] == 5
    assert "Kafka Streams" in said[2]


@pytest.fixture
def config(properties: dict[str, str], topic: MakeTopic, group: str, tmp_path: Path) -> Config:
    """A stream of two partitions that is behind."""
    name = topic(partitions=2)
    publish(properties, name, {0: 5, 1: 5})
    set_offsets_raw(properties, group, name, {0: 1, 1: 1})
    stream = {"cluster": "main", "topic": name, "group": group}
    path = write_config(tmp_path, clusters={"main": properties}, streams={"orders": stream})
    return load_config(path)


def join_hanging(config: Config) -> Consumer:
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
    consumer = join_hanging(config)
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
