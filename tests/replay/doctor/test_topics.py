"""Topics and brokers that are set wrong, for real."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import make_producer
from backlogctl.kafka.topics import read_metadata
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel
from backlogctl.replay.doctor import stream
from backlogctl.replay.engine.kind import Workspace
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.kit.kafka import properties_of, publish, set_offsets_raw, wait_until
from tests.replay.doctor.world import examine, list_levels, make_workspace

DAY = 86_400_000
GOOD = {"min.insync.replicas": "2"}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """As a cluster should be."""
    with EmbeddedKafka.start(tmp_path_factory.mktemp("three") / "kafka", brokers=3) as kafka:
        yield kafka


@pytest.fixture
def look(three: EmbeddedKafka, tmp_path: Path) -> Callable[..., dict[str, CheckFinding]]:
    """Makes a topic that its group has read, and examines it."""

    def make(*, replication: int = 3, **config: str) -> dict[str, CheckFinding]:
        name = f"topic-{uuid.uuid4().hex[:8]}"
        properties = properties_of(three.bootstrap)
        settings = {**GOOD, **{key.replace("_", "."): value for key, value in config.items()}}
        create_topic(properties, name, partitions=2, replication=replication, config=settings)
        if int(settings["min.insync.replicas"]) <= replication:
            publish(properties, name, {0: 5, 1: 5})
            set_offsets_raw(properties, "service", name, {0: 5, 1: 5})
        return examine(make_workspace(tmp_path, properties, name))

    return make


def test_nothing_is_found_where_all_is_well(look: Callable[..., dict[str, CheckFinding]]) -> None:
    assert look() == {}


@pytest.mark.parametrize(
    ("replication", "config", "expected"),
    [
        (1, {"min_insync_replicas": "1"}, {"replication-factor": "loses", "flush": "loses"}),
        (
            1,
            {"min_insync_replicas": "1", "flush_messages": "1"},
            {"replication-factor": "loses"},
        ),
        (
            1,
            {"min_insync_replicas": "2", "flush_messages": "1"},
            {
                "replication-factor": "loses",
                "min-insync-replicas": "stops",
                "under-replicated": None,
            },
        ),
        (
            2,
            {"min_insync_replicas": "1"},
            {"replication-factor": "warns", "min-insync-replicas": "loses"},
        ),
        (2, {}, {"replication-factor": "warns", "min-insync-replicas": "stops"}),
        (3, {"min_insync_replicas": "1"}, {"min-insync-replicas": "loses"}),
        (3, {"min_insync_replicas": "3"}, {"min-insync-replicas": "stops"}),
        (
            3,
            {"unclean_leader_election_enable": "true"},
            {"unclean-leader-election": "loses"},
        ),
        (3, {"flush_messages": "1"}, {"flush": "warns"}),
        (3, {"flush_ms": "1000"}, {"flush": "warns"}),
        (
            3,
            {"retention_ms": "3600000", "segment_ms": "600000"},
            {"retention": "loses"},
        ),
        (3, {"retention_ms": str(2 * DAY), "segment_ms": str(DAY)}, {"retention": "warns"}),
        (3, {"retention_ms": str(4 * DAY)}, {"segments": "warns"}),
        (3, {"retention_ms": str(8 * DAY)}, {"offsets-retention": "warns"}),
        (3, {"retention_ms": "-1"}, {"offsets-retention": "warns"}),
        (3, {"cleanup_policy": "compact"}, {"compaction": "loses"}),
        (3, {"max_message_bytes": "600"}, {"message-size": "warns"}),
        (3, {"max_message_bytes": "500"}, {"message-size": "stops"}),
    ],
)
def test_each_misconfiguration_is_found(
    look: Callable[..., dict[str, CheckFinding]],
    replication: int,
    config: dict[str, str],
    expected: dict[str, str | None],
) -> None:
    """And nothing else is."""
    found = list_levels(look(replication=replication, **config))
    found.pop("under-replicated", None)
    assert found == {name: level for name, level in expected.items() if level}


def test_a_finding_says_what_was_read_and_what_mends_it(
    look: Callable[..., dict[str, CheckFinding]], three: EmbeddedKafka
) -> None:
    (finding,) = look(unclean_leader_election_enable="true").values()
    assert finding.found == "unclean.leader.election.enable is true"
    assert finding.commands == (
        f"kafka-configs.sh --bootstrap-server {three.bootstrap} --alter --entity-type topics "
        f"--entity-name {finding.subject.removeprefix('topic ')} --add-config "
        "unclean.leader.election.enable=false",
    )
    assert finding.to_json()["page"] == "docs/doctor.md#unclean-leader-election"


def test_messages_from_the_future(three: EmbeddedKafka, tmp_path: Path) -> None:
    properties = properties_of(three.bootstrap)
    name = f"topic-{uuid.uuid4().hex[:8]}"
    config = {**GOOD, "message.timestamp.after.max.ms": str(365 * DAY)}
    create_topic(properties, name, partitions=1, replication=3, config=config)
    producer = make_producer(properties)
    producer.produce(name, b"later", timestamp=int(time.time() * 1000) + DAY)
    assert producer.flush(30) == 0
    set_offsets_raw(properties, "service", name, {0: 1})
    finding = examine(make_workspace(tmp_path, properties, name))["future-timestamps"]
    assert finding.level is CheckLevel.WARNS
    assert "ahead of this host's clock" in finding.found


def test_brokers_that_go_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One, then so many that writes are refused, then the leader."""
    monkeypatch.setattr(stream, "_SECONDS", 8.0)  # reads of those that are gone
    with EmbeddedKafka.start(tmp_path / "kafka", brokers=3) as kafka:
        properties = properties_of(kafka.bootstrap)
        create_topic(properties, "orders", partitions=1, replication=3, config=GOOD)
        create_topic(properties, "loose", partitions=1, replication=2)
        (leader, *others) = read_metadata(properties, "orders").topics["orders"].partitions[0].isrs
        # The first broker holds the controller.
        victims = [number for number in (3, 2) if number in (leader, *others)]
        workspace = make_workspace(tmp_path, properties)
        kafka.kill(victims[0])
        finding = await_under_replicated(workspace, CheckLevel.WARNS)
        assert "fewer replicas" in finding.found
        kafka.kill(victims[1])
        finding = await_under_replicated(workspace, CheckLevel.STOPS)
        assert "writes with acks=all are refused" in finding.found


def await_under_replicated(workspace: Workspace, level: CheckLevel) -> CheckFinding:
    """The controller notices after a session time-out; until then reads may fail."""
    found: list[CheckFinding] = []

    def is_so() -> bool:
        finding = examine(workspace).get("under-replicated")
        found[:] = [finding] if finding is not None else []
        return bool(found) and found[0].level is level

    wait_until(is_so, 180, what=f"it {level}")
    return found[0]


def test_brokers_that_are_set_wrong(tmp_path: Path) -> None:
    wrong = {
        "transaction.max.timeout.ms": "10000",
        "transaction.state.log.replication.factor": "3",
        "offsets.retention.minutes": "60",
        "offsets.topic.replication.factor": "1",
        "group.consumer.migration.policy": "disabled",
        "broker.rack": "cellar",
    }
    with EmbeddedKafka.start(tmp_path / "kafka", brokers=2, properties=wrong) as kafka:
        properties = properties_of(kafka.bootstrap)
        create_topic(properties, "orders", partitions=1, replication=2)
        found = examine(make_workspace(tmp_path, properties))
        assert list_levels(found) == {
            "min-insync-replicas": CheckLevel.LOSES,
            "offsets-retention": CheckLevel.LOSES,
            "transactions": CheckLevel.STOPS,
            "replication-factor": CheckLevel.WARNS,
            "brokers": CheckLevel.WARNS,
            "racks": CheckLevel.WARNS,
            "commit-log": CheckLevel.LOSES,
        }
