"""Topic settings, and deleting a topic by its id, on a real broker."""

from __future__ import annotations

import re
import threading
import time

import pytest

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure, Refused
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.admin import TopicSetting
from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.errors import TopicMissing
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kafka_tools import delete_topic, properties_of


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
