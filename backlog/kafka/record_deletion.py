"""Deleting a topic's oldest records (DeleteRecords); see `backlog.kafka.admin`."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import TopicPartition

from backlog.clock import Deadline
from backlog.errors import BacklogError, KafkaFailure
from backlog.kafka.calls import Connection, ask, connect, retry_transient, wait_for
from backlog.kafka.topics import DEFAULT_SECONDS, list_offsets


def delete_records(
    connection: Connection, topic: str, ends: Mapping[int, int], deadline: Deadline | None = None
) -> dict[int, int]:
    """Deletes what lies below an offset of each partition, for every group; doing it twice is fine.

    The caller knows that nobody needs it: brokers delete above the last stable offset, too, and an
    open transaction then loses its messages.

    Returns:
        The log starts that read back.

    Raises:
        KafkaFailure: a partition was refused (names all of them), or its log start reads back below
            its offset. Others may be deleted.
        ClusterUnreachable.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    subject, doing = f"topic {topic}", "delete records"
    wanted = [TopicPartition(topic, partition, at) for partition, at in sorted(ends.items())]
    if not wanted:
        return {}

    def call() -> None:
        futures = ask(admin, admin.delete_records, subject, doing, limit, wanted)
        refused: dict[int, BacklogError] = {}
        for place, future in futures.items():
            try:
                wait_for(admin, future, f"{subject}[{place.partition}]", doing, limit)
            except BacklogError as error:
                refused[place.partition] = error
        if not refused:
            return
        first = refused[min(refused)]
        if len(refused) > 1:
            numbers = ", ".join(map(str, sorted(refused)))
            first.message += f"; so were partitions {numbers} in all"
        raise first

    retry_transient(admin, limit, call)
    lows = list_offsets(admin, topic, ends, "earliest", deadline=limit)
    if short := {p: lows[p] for p, at in ends.items() if lows[p] < at}:
        raise KafkaFailure(
            f"deleted records, but the log starts read back as {short}",
            subject=subject,
            hint="try again; look at the brokers' logs where it stays so",
            retryable=True,
        )
    return lows
