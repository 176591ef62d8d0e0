"""Records are deleted up to an offset; every partition's own answer is read."""

from __future__ import annotations

import pytest

from backlogctl.errors import BacklogError
from backlogctl.kafka.admin import delete_records, list_offsets
from backlogctl.kafka.clients import Admin
from tests.conftest import MakeTopic
from tests.kafka_tools import publish


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
