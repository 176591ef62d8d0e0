"""Admin verbs: topics, settings, deleted records and disks, on a real broker and without one."""

from __future__ import annotations

import logging
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from backlogctl.clock import Deadline
from backlogctl.errors import (
    BacklogError,
    ClusterUnreachable,
    ConfigurationError,
    KafkaFailure,
    Refused,
)
from backlogctl.kafka import admin as verbs
from backlogctl.kafka import coordinator
from backlogctl.kafka.admin import TopicSetting, delete_records, list_offsets, read_metadata
from backlogctl.kafka.clients import (
    Admin,
    make_admin,
    make_consumer,
    make_producer,
    retry_transient,
)
from backlogctl.kafka.errors import GroupActive, TopicExists, TopicMissing
from backlogctl.kafka.groups import list_consumer_groups
from backlogctl.kafka.log_dirs import _to_log_dirs, read_log_dirs
from backlogctl.kafka.raw_client import _silenced, translate_properties
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.injection.job import require_replicas
from backlogctl_delivery.kafka import PRODUCER
from tests.conftest import MakeTopic
from tests.kit.kafka import commit, delete_topic, join, properties_of, publish, wait_until


def test_a_topic_is_described_with_its_id_and_settings(
    properties: dict[str, str], topic: MakeTopic
) -> None:
    name = topic(partitions=3, config={"retention.ms": "12345", "cleanup.policy": "compact"})
    info = verbs.describe_topic(properties, name)
    assert (info.name, info.partitions, info.replication) == (name, 3, 1)
    assert len(info.topic_id) == 22
    assert info.config["retention.ms"] == "12345"
    assert info.config["cleanup.policy"] == "compact"
    assert {"max.message.bytes", "message.timestamp.type"} <= set(info.config)


def test_a_topic_is_created_once(properties: dict[str, str], unique: str) -> None:
    admin = make_admin(properties)
    made = verbs.create_topic(admin, f"made-{unique}", partitions=2, config={"segment.ms": "60000"})
    again = verbs.create_topic(admin, f"made-{unique}", partitions=2, exist_ok=True)
    assert made == again
    with pytest.raises(TopicExists, match="there is one already"):
        verbs.create_topic(admin, f"made-{unique}", partitions=2)


def test_a_missing_topic_is_a_clear_error(kafka: EmbeddedKafka, unique: str) -> None:
    with pytest.raises(TopicMissing, match=f"nothing-{unique}.*{kafka.bootstrap}"):
        verbs.read_topic_id(properties_of(kafka.bootstrap), f"nothing-{unique}")


def test_a_broker_that_was_restarted_is_asked_with_its_new_leader_epochs(tmp_path: Path) -> None:
    """librdkafka asks with those that it knows, and is refused for as long as it keeps them."""
    with EmbeddedKafka.start(tmp_path, heap="256m") as kafka:
        admin = make_admin(properties_of(kafka.bootstrap))
        verbs.create_topic(admin, "orders", partitions=2)
        for _ in range(2):
            assert list_offsets(admin, "orders", range(2), "latest") == {0: 0, 1: 0}
            kafka.kill()
            kafka.restart()
        assert delete_records(admin, "orders", {0: 0, 1: 0}) == {0: 0, 1: 0}


def test_offsets_of_many_partitions_come_in_one_call(
    properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    name, admin = topic(partitions=300), make_admin(properties)
    assert verbs.list_offsets(admin, name, range(300), "latest") == dict.fromkeys(range(300), 0)
    nothing = verbs.committed_offsets(admin, group, name, range(300))
    assert nothing == dict.fromkeys(range(300))


@pytest.fixture(params=["kafka-python", "librdkafka"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By which client coordinators are asked: librdkafka where the other one cannot log in."""
    if request.param == "librdkafka":
        monkeypatch.setattr(coordinator, "translate_properties", lambda _: (None, "with GSSAPI"))


@pytest.mark.usefixtures("by")
def test_every_group_that_commits_is_listed(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(partitions=2)
    publish(properties, name, {0: 5, 1: 5})
    commit(properties, f"{group}-classic", name, {0: 3})
    newer = join(properties, f"{group}-newer", name, group_protocol="consumer")
    newer.commit(offsets=[TopicPartition(name, 1, 2)], asynchronous=False)
    simple = make_consumer(properties, {"group.id": f"{group}-assigned"})
    simple.assign([TopicPartition(name, 0, 0)])
    simple.commit(offsets=[TopicPartition(name, 0, 4)], asynchronous=False)
    other = topic(partitions=1)
    verbs.set_group_offsets(properties, f"{group}-other", other, {0: 0})

    assert verbs.list_topic_readers(properties, name).known == {
        f"{group}-assigned": {0: 4},
        f"{group}-classic": {0: 3},
        f"{group}-newer": {1: 2},
    }
    newer.close()
    simple.close()


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_that_reads_and_has_not_committed_is_listed(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str, protocol: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(partitions=1)
    member = join(properties, group, name, group_protocol=protocol)
    other = join(properties, f"{group}-elsewhere", topic(partitions=1), group_protocol=protocol)
    assert verbs.list_topic_readers(properties, name).known == {group: {}}
    member.close()
    other.close()


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_fault_25_offsets_of_an_active_group_are_refused_by_member(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str, protocol: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(partitions=1)
    member = join(properties, group, name, group_protocol=protocol, client_id="order-service-7")
    with pytest.raises(GroupActive, match=r"order-service-7 at 127\.0\.0\.1"):
        verbs.set_group_offsets(properties, group, name, {0: 0})
    state = verbs.describe_group_state(properties, group)
    assert state.is_active
    assert [(one.client_id, one.topics) for one in state.members] == [
        ("order-service-7", frozenset({name}))
    ]
    assert state.type == protocol
    member.close()
    verbs.set_group_offsets(properties, group, name, {0: 0})
    assert verbs.committed_offsets(properties, group, name, [0]) == {0: 0}
    for _ in range(2):
        verbs.delete_group(properties, group)
    assert verbs.describe_group_state(properties, group) == verbs.GroupState("dead", ())


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\1\0\0\0\1", b"an assignment of our own"])
def test_an_assignment_that_cannot_be_read_hides_no_member(data: bytes) -> None:
    assert coordinator._read_assignment("consumer", data) == {}


def test_offsets_of_a_partition_that_is_not_there_are_refused(
    properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    with pytest.raises(TopicMissing, match=r"\[7\] do not exist"):
        verbs.set_group_offsets(properties, group, topic(), {0: 0, 7: 0})


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:9092"])
def test_fault_28_an_unreachable_cluster_is_named_within_the_limit(address: str) -> None:
    started = time.monotonic()
    with pytest.raises(ClusterUnreachable, match=rf"{address} answered within 1\.5 s") as caught:
        verbs.describe_topic(properties_of(address), "orders", Deadline(1.5))
    assert time.monotonic() - started < 15  # without its own limit 30
    assert caught.value.retryable


def test_fault_28_nothing_is_printed_on_stderr() -> None:
    code = (
        "from backlogctl.clock import Deadline\n"
        "from backlogctl.errors import ClusterUnreachable\n"
        "from backlogctl.kafka.admin import read_topic_id\n"
        "try:\n"
        "    read_topic_id({'bootstrap.servers': '127.0.0.1:1'}, 't', Deadline(1))\n"
        "except ClusterUnreachable as error:\n"
        "    print(error.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("unreachable\n", "")


def test_a_property_that_is_not_one_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="bogus"):
        make_admin({"bootstrap.servers": "localhost:1", "bogus": "1"})


def test_single_settings_are_set_and_unset(properties: dict[str, str], topic: MakeTopic) -> None:
    admin = make_admin(properties)
    name = topic(config={"retention.ms": "12345", "segment.ms": "60000"})
    names = ["retention.ms", "retention.bytes"]
    assert verbs.read_topic_overrides(admin, name, names) == {
        "retention.ms": "12345",
        "retention.bytes": None,
    }
    verbs.alter_topic_config(admin, name, {"retention.ms": "-1", "retention.bytes": "-1"})
    # -1 is the broker's value too, and yet the topic's own from here on.
    assert verbs.read_topic_overrides(admin, name, names) == dict.fromkeys(names, "-1")
    verbs.alter_topic_config(admin, name, {"retention.ms": "12345", "retention.bytes": None})
    assert verbs.read_topic_settings(admin, name, [*names, "segment.ms"]) == {
        "retention.ms": TopicSetting("12345", "12345"),
        "retention.bytes": TopicSetting("-1", None),
        "segment.ms": TopicSetting("60000", "60000"),
    }
    verbs.alter_topic_config(admin, name, {})


def test_setting_that_is_refused_is_an_error(properties: dict[str, str], topic: MakeTopic) -> None:
    admin, name = make_admin(properties), topic()
    with pytest.raises(BacklogError, match="could not change its settings"):
        verbs.alter_topic_config(admin, name, {"retention.ms": "long"})
    with pytest.raises(KafkaFailure, match=r"no setting retention\.s"):
        verbs.read_topic_overrides(admin, name, ["retention.s"])
    with pytest.raises(BacklogError):
        verbs.alter_topic_config(admin, f"{name}-not", {"retention.ms": "1"}, Deadline(3))


def test_fault_15_only_the_topic_of_that_id_is_deleted(
    properties: dict[str, str], unique: str
) -> None:
    admin, name = make_admin(properties), f"gone-{unique}"
    first = verbs.create_topic(admin, name, partitions=2)
    verbs.delete_topic(admin, name, first)
    with pytest.raises(TopicMissing):
        verbs.read_topic_id(admin, name)
    verbs.delete_topic(admin, name, first)
    second = verbs.create_topic(admin, name, partitions=2)
    with pytest.raises(Refused, match=re.escape(f"its id is {second}, not {first}")):
        verbs.delete_topic(admin, name, first)
    assert verbs.read_topic_id(admin, name) == (second, 2)
    delete_topic(properties, name)


def test_fault_17_offsets_wait_for_a_topic_made_a_moment_ago(
    kafka: EmbeddedKafka, group: str, unique: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), f"late-{unique}"
    admin = make_admin(properties)

    def make_it_late() -> None:
        time.sleep(0.7)
        verbs.create_topic(properties, name, partitions=2)

    thread = threading.Thread(target=make_it_late)
    thread.start()
    limit = Deadline(90.0)
    verbs.set_group_offsets(admin, group, name, {0: 0, 1: 0}, limit, new_topic=True)
    thread.join()
    assert verbs.committed_offsets(properties, group, name, [0, 1]) == {0: 0, 1: 0}
    delete_topic(properties, name)
    started = time.monotonic()
    with pytest.raises(TopicMissing):
        verbs.set_group_offsets(admin, group, f"no-{name}", {0: 0})
    with pytest.raises(TopicMissing):
        verbs.set_group_offsets(admin, group, f"no-{name}", {0: 0}, Deadline(2.0), new_topic=True)
    assert time.monotonic() - started < 25  # the usual limit is 30


def test_log_starts_move_and_doing_it_twice_is_fine(
    properties: dict[str, str], admin: Admin, topic: MakeTopic
) -> None:
    name = topic(3)
    publish(properties, name, {0: 20, 1: 20, 2: 5})
    assert delete_records(admin, name, {0: 12, 1: 20}) == {0: 12, 1: 20}
    assert delete_records(admin, name, {0: 3, 1: 20}) == {0: 12, 1: 20}, "never back"
    assert list_offsets(admin, name, range(3), "earliest") == {0: 12, 1: 20, 2: 0}
    assert delete_records(admin, name, {}) == {}


def test_one_partition_that_is_refused_is_no_success(
    properties: dict[str, str], admin: Admin, topic: MakeTopic
) -> None:
    name = topic(2)
    publish(properties, name, {0: 20, 1: 20})
    with pytest.raises(BacklogError, match=r"(?i)out.of.range") as caught:
        delete_records(admin, name, {0: 10, 1: 4000})
    assert f"{name}[1]" in caught.value.subject
    assert list_offsets(admin, name, range(2), "earliest")[1] == 0


def test_compacted_topics_refuse_it(
    properties: dict[str, str], admin: Admin, topic: MakeTopic
) -> None:
    name = topic(2, {"cleanup.policy": "compact"})
    publish(properties, name, {0: 5, 1: 5})
    with pytest.raises(BacklogError, match=r"partitions 0, 1 in all|partition"):
        delete_records(admin, name, {0: 3, 1: 3})


NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


def test_a_producer_never_has_a_topic_made() -> None:
    assert PRODUCER["allow.auto.create.topics"] is False
    make_producer(NOWHERE)


@pytest.mark.parametrize("topic", [None, "orders"])
def test_fault_28_metadata_of_an_unreachable_cluster_is_a_clear_error(topic: str | None) -> None:
    with pytest.raises(ClusterUnreachable, match=r"127\.0\.0\.1:1"):
        read_metadata(NOWHERE, topic, Deadline(0.5))


def test_fault_28_replicas_of_an_unreachable_cluster_are_a_clear_error() -> None:
    with pytest.raises(ClusterUnreachable):
        require_replicas(NOWHERE, ["orders"], Deadline(0.5))


@pytest.mark.parametrize(("seconds", "told"), [(0.3, TopicMissing), (90.0, ClusterUnreachable)])
def test_the_last_answer_is_told_where_the_last_try_had_no_time_for_one(
    seconds: float, told: type[KafkaFailure]
) -> None:
    answers = iter([TopicMissing("not yet", retryable=True), ClusterUnreachable("no answer")])

    def ask() -> None:
        raise next(answers)

    with pytest.raises(told):
        retry_transient(make_admin(NOWHERE), Deadline(seconds), ask)


SASL = {
    "bootstrap.servers": "a:1, b:2",
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "scram-sha-512",
    "sasl.username": "ada",
    "sasl.password": "hunter2-of-the-broker",
    "ssl.ca.location": "/ca.pem",
    "ssl.certificate.location": "/cert.pem",
    "ssl.key.location": "/key.pem",
    "ssl.key.password": "hunter3",
}


def test_disks_of_a_real_broker(properties: dict[str, str], topic: MakeTopic) -> None:
    name = topic(partitions=2)
    publish(properties, name, {0: 200}, value=random.randbytes(1000))
    level = logging.getLogger("kafka").level
    seen = read_log_dirs(properties, name, Deadline(90.0))
    assert seen.reason == ""
    assert seen.brokers is not None
    (broker,) = seen.brokers
    disk = shutil.disk_usage("/")
    assert broker.total_bytes is not None
    assert broker.usable_bytes is not None
    assert 0 < broker.usable_bytes <= broker.total_bytes
    assert broker.total_bytes <= 2 * disk.total
    assert set(broker.partitions) == {0, 1}
    assert 1000 < (seen.partition_bytes(0) or 0) < 300_000
    assert (seen.partition_bytes(1), seen.partition_bytes(7)) == (0, None)
    assert logging.getLogger("kafka").level == level


def test_fault_28_disks_that_nobody_tells_are_unknown_within_the_limit(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    before = set(threading.enumerate())
    started = time.monotonic()
    seen = read_log_dirs(properties_of("127.0.0.1:1"), "orders", Deadline(2.0))
    assert time.monotonic() - started < 14  # without its own limit 15
    assert seen.brokers is None
    assert seen.reason.startswith("the disks cannot be read: KafkaTimeoutError: Unable to")
    assert [record for record in caplog.records if record.name.startswith("kafka")] == []
    assert capfd.readouterr().err == ""
    wait_until(
        lambda: not any("kafka-io" in one.name for one in set(threading.enumerate()) - before)
    )


def test_the_log_is_quiet_until_the_last_of_several_has_asked() -> None:
    log = logging.getLogger("kafka")
    level, first, second = log.level, _silenced(), _silenced()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not log.isEnabledFor(logging.CRITICAL)
    second.__exit__(None, None, None)
    assert log.level == level


def test_properties_are_translated() -> None:
    assert translate_properties(SASL) == (
        {
            "bootstrap_servers": ["a:1", "b:2"],
            "security_protocol": "SASL_SSL",
            "client_id": "backlogctl",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "ada",
            "sasl_plain_password": "hunter2-of-the-broker",
            "ssl_check_hostname": True,
            "ssl_cafile": "/ca.pem",
            "ssl_certfile": "/cert.pem",
            "ssl_keyfile": "/key.pem",
            "ssl_password": "hunter3",
        },
        "",
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"sasl.mechanism": "OAUTHBEARER"},
        {"sasl.mechanism": "GSSAPI"},
        {"sasl.mechanism": ""},
        {"ssl.key.pem": "-----BEGIN hunter4"},
        {"enable.ssl.certificate.verification": "false"},
    ],
)
def test_properties_that_cannot_be_translated_are_unknown(changes: dict[str, str]) -> None:
    seen = read_log_dirs({**SASL, **changes}, "orders")
    assert seen.brokers is None
    assert "cannot be asked for" in seen.reason
    assert "hunter" not in seen.reason


def test_fault_59_no_secret_is_in_the_reason() -> None:
    for changes in ({}, {"security.protocol": "SASL_PLAINTEXT"}, {"security.protocol": "hunter3"}):
        seen = read_log_dirs(
            {**SASL, "bootstrap.servers": "127.0.0.1:1", **changes}, "orders", Deadline(1.5)
        )
        assert seen.brokers is None
        assert "hunter2" not in seen.reason


def directory(total: int, usable: int, size: int = 0, error: int = 0) -> dict[str, Any]:
    part = {"partition_index": 0, "partition_size": size, "offset_lag": 0, "is_future_key": False}
    return {
        "error_code": error,
        "log_dir": "/data",
        "topics": [{"name": "orders", "partitions": [part]}, {"name": "x", "partitions": []}],
        "total_bytes": total,
        "usable_bytes": usable,
    }


def test_two_directories_on_one_disk_count_once() -> None:
    dirs = [directory(100 << 30, 50 << 30, 7), directory(100 << 30, (50 << 30) - 5)]
    seen = _to_log_dirs([{"broker": 1, "log_dirs": [*dirs, directory(7, 5 << 20)]}], "orders")
    assert seen.brokers is not None
    assert seen.brokers[0].usable_bytes == (50 << 30) + (5 << 20)
    assert seen.brokers[0].partitions == {0: 7}
    # What lies where: a disk that is full stops its own partitions.
    assert [(one.usable_bytes, one.partitions) for one in seen.brokers[0].disks] == [
        (50 << 30, frozenset({0})),
        (5 << 20, frozenset({0})),
    ]


def test_old_broker_and_denied_access_are_unknown() -> None:
    old = _to_log_dirs([{"broker": 1, "log_dirs": [directory(-1, -1, 9)]}], "orders")
    assert old.brokers is not None
    assert (old.brokers[0].usable_bytes, old.partition_bytes(0)) == (None, 9)
    denied = _to_log_dirs([{"broker": 1, "log_dirs": []}], "orders")
    assert denied.brokers is None
    assert "Describe" in denied.reason
    some = _to_log_dirs(
        [{"broker": 1, "log_dirs": []}, {"broker": 2, "log_dirs": [directory(9, 5)]}], "orders"
    )
    assert (some.silent, [one.broker for one in some.brokers or ()]) == ((1,), [2])


def test_a_broker_that_died_is_not_waited_for(tmp_path: Path) -> None:
    """librdkafka asks it until its metadata is minutes old, and tells -1001 for its offsets."""
    with EmbeddedKafka.start(tmp_path, brokers=2, heap="384m") as kafka:
        properties = properties_of(kafka.bootstrap)
        verbs.create_topic(properties, "orders", partitions=2, replication=2)
        admins: dict[int, Admin] = {}
        while admins.keys() != {1, 2}:  # each broker calls a broker of its choice the controller
            admin = make_admin(properties)
            verbs.read_topic_id(admin, "orders")
            admins.setdefault(read_metadata(admin).controller_id, admin)
        kafka.kill(2)
        with pytest.raises(ClusterUnreachable, match="no answer within 1 s, though the cluster"):
            list_offsets(admins[2], "orders", range(2), "latest", deadline=Deadline(1))
        with pytest.raises(KafkaFailure) as away:
            list_consumer_groups(admins[2], "groups", "list them", Deadline(1))
        assert format_exception(away.value), "a KafkaError as its cause has no traceback"
        assert verbs.read_topic_id(admins[2], "orders", Deadline(20))[1] == 2
        wait_until(
            lambda: all(
                p.leader == 1
                for p in read_metadata(properties, "orders").topics["orders"].partitions.values()
            ),
            what="the other one leads",
        )
        assert list_offsets(admins[2], "orders", range(2), "latest") == {0: 0, 1: 0}
