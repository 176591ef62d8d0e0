"""Clients and admin calls, without a broker."""

from __future__ import annotations

import pytest

from backlogctl.clock import Deadline
from backlogctl.errors import ClusterUnreachable, KafkaFailure
from backlogctl.kafka.admin import read_metadata
from backlogctl.kafka.clients import make_admin, make_producer, retry_transient
from backlogctl.kafka.errors import TopicMissing
from backlogctl.spark_backfill.injection.job import require_replicas
from backlogctl_delivery.kafka import PRODUCER

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
    answers = iter([TopicMissing("not yet"), ClusterUnreachable("no answer")])

    def ask() -> None:
        raise next(answers)

    with pytest.raises(told):
        retry_transient(make_admin(NOWHERE), Deadline(seconds), ask, lambda _: True)
