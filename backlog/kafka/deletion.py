"""Deleting a topic that is known by its id; see `backlog.kafka.admin`."""

from __future__ import annotations

import time

from backlog.clock import Deadline
from backlog.errors import KafkaFailure, Refused
from backlog.kafka.calls import Connection, ask, connect, retry_transient, wait_for
from backlog.kafka.clients import Admin
from backlog.kafka.errors import TopicMissing
from backlog.kafka.topics import DEFAULT_SECONDS, read_topic_id

_PAUSE = 0.1


def delete_topic(
    connection: Connection, topic: str, topic_id: str, deadline: Deadline | None = None
) -> None:
    """Deletes the topic of this name and id, and waits until it is gone.

    One that is gone already is fine.

    Raises:
        Refused: the topic of this name has another id; it is left alone.
        KafkaFailure: the cluster refused, or the topic is still there at the deadline.
        ClusterUnreachable.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    subject, doing = f"topic {topic}", "delete it"
    found = _find_id(admin, topic, limit)
    if found is None:
        return
    if found != topic_id:
        raise Refused(
            f"it was not deleted: its id is {found}, not {topic_id}",
            subject=subject,
            hint="somebody made another topic of this name; it is theirs",
        )

    def call() -> None:
        try:
            futures = ask(admin, admin.delete_topics, subject, doing, limit, [topic])
            wait_for(admin, futures[topic], subject, doing, limit)
        except TopicMissing:
            return

    retry_transient(admin, limit, call)
    while _find_id(admin, topic, limit) == topic_id:
        if limit.expired:
            raise KafkaFailure(
                f"it is still there {limit.seconds:g} s after it was to be deleted",
                subject=subject,
                hint="look at the brokers; `delete.topic.enable` must be on",
                retryable=True,
            )
        time.sleep(limit.remaining(_PAUSE))


def _find_id(admin: Admin, topic: str, limit: Deadline) -> str | None:
    try:
        return read_topic_id(admin, topic, limit)[0]
    except TopicMissing:
        return None
