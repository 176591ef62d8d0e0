"""A topic whose older part is in a remote storage alone: Kafka's own one for its tests (KIP-405).

All that anybody says of it goes by what is kept, and of the brokers' disks by what lies on them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backlogctl.clock import Deadline
from backlogctl.fanout.disk import PartitionBacklog, estimate_hold, find_local_part, measure_share
from backlogctl.jars import ensure_jars
from backlogctl.kafka.admin import create_topic, describe_topic, list_offsets
from backlogctl.kafka.clients import make_producer
from backlogctl.kafka.log_dirs import LogDirs, read_log_dirs
from backlogctl.monitoring.doctor.facts import Topic
from backlogctl.monitoring.doctor.topic import judge_tiered
from backlogctl.monitoring.offsets.lag import read_log_sizes
from backlogctl.monitoring.offsets.sampler import take_sample
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.kit.kafka import StreamStub, leave_at, move_log_start, properties_of, wait_until
from tests.kit.processes import ROOT
from tests.kit.shop import call_main

MANY, EACH = 5_000, 1_000
ALL = MANY * EACH
READ = 100


@pytest.fixture(scope="module")
def properties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A broker that moves each ended segment there within a second, and a topic that it did so to.
    A group has read a hundred messages of it."""
    place = tmp_path_factory.mktemp("tiered")
    (jar,) = ensure_jars(ROOT / "tests/kit/tiered.jars")
    storage = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    own = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": storage,
        "remote.log.storage.manager.class.path": str(jar),
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "rsm.config.dir": str(place / "remote"),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "remote.log.manager.task.interval.ms": "500",
    }
    config = {
        "remote.storage.enable": "true",
        "local.retention.bytes": "1",
        "segment.bytes": str(2**20),
        "retention.bytes": str(ALL * 2),
    }
    with EmbeddedKafka.start(place / "kafka", properties=own) as running:
        found = properties_of(running.bootstrap)
        create_topic(found, "orders", partitions=1, config=config)
        producer = make_producer(found, {"compression.type": "none"})
        for _ in range(MANY):
            producer.produce("orders", secrets.token_bytes(EACH), partition=0)
            producer.poll(0)
        assert producer.flush(90) == 0
        leave_at(found, "service", "orders", {0: READ})
        wait_until(lambda: 0 < read_local(found) < ALL / 2, 90, "the older part is moved")
        yield found


def read_local(properties: dict[str, str]) -> int:
    return read_log_dirs(properties, "orders", Deadline(30.0)).partition_bytes(0) or 0


def find_disks(properties: dict[str, str]) -> LogDirs:
    limit = Deadline(30.0)
    log_dirs = read_log_dirs(properties, "orders", limit)
    return find_local_part(log_dirs, properties, describe_topic(properties, "orders"), limit)


def call(properties: dict[str, str], directory: Path, *words: str) -> Any:
    consumers = {"launcher": "manual", "replicas": 1}
    stream = {"cluster": "main", "topic": "orders", "group": "service", "consumers": consumers}
    document = {
        "ledger": f"sqlite:///{directory}/ledger.db",
        "clusters": {"main": properties},
        "streams": {"orders": stream},
    }
    (directory / "backlog.yaml").write_text(json.dumps(document))
    code, out, err = call_main((*words, "--json"), directory, {})
    assert code in (0, 1), out + err
    return json.loads(out)


def test_fault_93_a_tiered_topic_goes_by_all_of_its_bytes(properties: dict[str, str]) -> None:
    """Brokers tell those of their own disks, and their limit is on all."""
    assert list_offsets(properties, "orders", [0], "earliest") == {0: 0}
    sample = take_sample(StreamStub("orders", "service"), properties)
    log_dirs = read_log_dirs(properties, "orders", Deadline(30.0))
    config = describe_topic(properties, "orders").config
    sizes = read_log_sizes(properties, sample, config, log_dirs, Deadline(30.0))
    assert sizes[0] == pytest.approx(ALL, rel=0.1)


def test_fault_93_a_copy_of_it_takes_all_and_a_deletion_frees_what_is_local(
    properties: dict[str, str], tmp_path: Path
) -> None:
    local = read_local(properties)
    allowed = ("--allow", "disk", "--allow", "frees-nothing")
    plan = call(properties, tmp_path, "plan", "offload", "orders", *allowed)
    assert plan["partitions"][0]["bytes"] == pytest.approx(ALL - READ * EACH, rel=0.1)
    assert 0 < plan["freeing"]["most"] <= local
    assert "only the remote storage has of the topic takes no room there" in plan["freeing"]["told"]
    expand = call(properties, tmp_path, "plan", "expand", "orders", "--rate", "5")
    assert expand["disk"]["needed"] > ALL
    # Where the brokers do not tell where their own part begins, nothing is guessed.
    unknown = replace(find_disks(properties), local_starts={})
    assert measure_share(unknown, PartitionBacklog(0, 9, 0, MANY)) is None


def test_a_hold_keeps_on_the_disks_what_local_retention_lets_it(properties: dict[str, str]) -> None:
    found, day = find_disks(properties), timedelta(days=1)

    def estimate(config: dict[str, str], log_dirs: LogDirs = found) -> int | None:
        check = estimate_hold(log_dirs, 1000.0, day, replication=1, factor=1.0, config=config)
        return check.needed_bytes

    assert estimate({"local.retention.ms": "-2", "local.retention.bytes": "-2"}) == 86_400_000
    assert estimate({"local.retention.ms": "60000"}) == 60_000
    assert estimate({"local.retention.bytes": "4096"}) == 4096
    assert estimate({}) == 86_400_000, "unknown is no limit"
    untiered = replace(found, local_starts=None)
    assert estimate({"local.retention.ms": "60000"}, untiered) == 86_400_000


def test_the_doctor_says_what_the_two_retentions_mean(
    properties: dict[str, str], tmp_path: Path
) -> None:
    document = call(properties, tmp_path, "doctor", "orders")
    found = [
        one
        for examination in document["examinations"]
        for one in examination["findings"]
        if one["check"] == "tiered"
    ]
    assert [one["level"] for one in found] == ["warns"]
    assert "brokers keep on their own disks up to 1 B of each partition" in found[0]["found"]
    hidden = Topic("orders", "", {}, {"remote.storage.enable": "true", "retention.ms": "5"})
    (told,) = judge_tiered(hidden)
    assert (told.level, "is unknown" in told.found) == ("unknown", True)
    same = dict.fromkeys(("local.retention.ms", "local.retention.bytes"), "-2")
    assert not [*judge_tiered(replace(hidden, settings={**hidden.settings, **same}))]


def test_what_the_brokers_moved_away_is_not_lost_and_what_is_deleted_is(
    properties: dict[str, str], tmp_path: Path
) -> None:
    """The group stands far below what lies on the brokers' own disks."""
    start = (find_disks(properties).local_starts or {})[0]
    assert start > READ
    (before,) = call(properties, tmp_path, "status", "orders")["streams"]
    assert (before["lost"], before["lag"]) == (0, MANY - READ)
    assert call(properties, tmp_path, "gaps")["gaps"] == []
    move_log_start(properties, "orders", {0: READ + 50})
    (after,) = call(properties, tmp_path, "status", "orders")["streams"]
    assert (after["lost"], after["lag"]) == (50, MANY - READ - 50)
