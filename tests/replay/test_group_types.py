"""Groups that are neither classic nor of KIP-848: real ones are seen, and refused by name."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from backlogctl.config import load_config
from backlogctl.errors import Refused
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.group_types import (
    explain_unsupported_group,
    read_group_type,
    read_share_offsets,
)
from backlogctl.kafka.readers import TopicReaders, list_topic_readers
from backlogctl.kafka.topics import list_offsets
from backlogctl.monitoring.groups.reader import BulkReader
from backlogctl.monitoring.offsets.sampler import take_sample
from backlogctl.replay.consumers.members import describe_members
from backlogctl.replay.engine.guards import refuse_group_type
from backlogctl.replay.kinds.offload.planning import find_cut_groups, warn_about_shares
from backlogctl.replay.observe.stream import describe_share_group
from backlogctl.replay.opening import open_workspace
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.java_tools import run_line, write_script
from tests.kafka_tools import properties_of, publish, set_offsets_raw, wait_until
from tests.replay.calling import call_main
from tests.replay.makers import write_config
from tests.streams_group import join_streams_group


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
def properties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A broker with groups of every type, and a topic."""
    more = {"group.coordinator.rebalance.protocols": "classic,consumer,share,streams"}
    with EmbeddedKafka.start(tmp_path_factory.mktemp("kafka"), properties=more) as kafka:
        properties = properties_of(kafka.bootstrap)
        create_topic(properties, "orders", partitions=2)
        publish(properties, "orders", {0: 3, 1: 3})
        set_offsets_raw(properties, "service", "orders", {0: 1})
        yield properties


def configure(directory: Path, properties: dict[str, str], group: str) -> Path:
    stream = {
        "cluster": "main",
        "topic": "orders",
        "group": group,
        "consumers": {"launcher": "manual", "replicas": 1},
    }
    return write_config(directory, clusters={"main": properties}, streams={"orders": stream})


def test_a_share_group_tells_its_own_lag_and_is_refused_by_name(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    workspace = open_workspace(load_config(configure(tmp_path, properties, "sharing")))
    config = workspace.config.stream("orders")
    bootstrap = properties["bootstrap.servers"]

    def reads_on() -> bool:
        # It begins at the end of the log, as share groups do, at a moment that nobody is told.
        publish(properties, "orders", {0: 1, 1: 1})
        found = read_share_offsets(properties, "sharing")
        return len(found) == 2 and None not in {one.start for one in found}

    def has_read_all() -> bool:
        # The start offset may stay behind messages that are acknowledged already.
        return [one.lag for one in read_share_offsets(properties, "sharing")] == [0, 0]

    with run_share_consumer(tmp_path, bootstrap, "orders"):
        wait_until(lambda: read_group_type(properties, "sharing") == "share")
        assert read_group_type(properties, "service") in ("classic", "consumer")
        assert read_group_type(properties, "nobody") == ""
        with pytest.raises(Refused, match="share group"):
            refuse_group_type(workspace, config)
        members = describe_members(workspace, config)
        assert members["type"] == "share"
        assert "share group" in members["error"]["message"]
        wait_until(reads_on, what="it reads")
        wait_until(has_read_all, what="all are acknowledged")
    publish(properties, "orders", {0: 4, 1: 1})
    found = read_share_offsets(properties, "sharing")
    assert [one.lag for one in found] == [4, 1]
    ours = {(one.topic, one.partition): (one.start, one.lag) for one in found}
    assert ours == read_with_kafkas_tool(tmp_path, bootstrap)
    readers = list_topic_readers(properties, "orders")
    assert readers.list_others("service") == ("sharing",), "it would get messages again"
    ends = list_offsets(properties, "orders", (0, 1), "latest")
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


def test_how_far_a_share_group_is_may_be_unknown(properties: dict[str, str]) -> None:
    assert (
        "begun to read no partition"
        in (describe_share_group(properties, "stream", "orders", "nobody")["sentence"])
    )
    login = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER"}
    told = describe_share_group({**properties, **login}, "stream", "orders", "sharing")
    assert "how far the share group is is unknown" in told["warnings"][0]
    assert "share" not in told


def test_what_a_share_group_loses_is_unknown_where_it_cannot_be_asked() -> None:
    told = TopicReaders({}, shares_unknown="the types of groups cannot be asked for with X")
    assert "share groups lose unread messages is unknown" in warn_about_shares(told)[0]
    assert warn_about_shares(TopicReaders({})) == []


def test_a_streams_group_at_work_is_seen_and_refused(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    workspace = open_workspace(load_config(configure(tmp_path, properties, "app")))
    config = workspace.config.stream("orders")
    join_streams_group(properties, "app", "orders", {0: 1, 1: 2}, tmp_path)
    assert read_group_type(properties, "app") == "streams"
    sample = take_sample(config, properties)
    assert [part.committed for part in sample.partitions] == [1, 2]
    assert sample.group_state not in ("dead", "empty"), "it has a member"
    with closing(BulkReader(properties)) as reader:
        states = {group.name: group.state for group in reader.list_groups()}
        assert states["app"] not in ("dead", "empty")
        assert "sharing" not in states
        assert reader.read_commits(["app"])["app"]["orders"].tolist() == [1, 2]
    with pytest.raises(Refused, match="Kafka Streams"):
        refuse_group_type(workspace, config)
    said = call_main(("plan", "expand", "orders"), tmp_path, {})
    assert said[0] == 5
    assert "Kafka Streams" in said[2]
