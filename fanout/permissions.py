"""Whether the tool's principal may do what an expansion does (protocol P4.1)."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from backlog.clock import Deadline
from backlog.errors import Refused
from backlog.kafka.calls import ask, seconds_left, wait_for
from backlog.kafka.clients import Admin

TOPIC_OPERATIONS = ("READ", "DESCRIBE")
HOLD_OPERATIONS = ("ALTER_CONFIGS", "DESCRIBE_CONFIGS")
GROUP_OPERATIONS = ("READ", "DESCRIBE")


def find_missing(
    admin: Admin,
    *,
    topic: str,
    group: str,
    topic_operations: Iterable[str] = TOPIC_OPERATIONS,
    group_operations: Iterable[str] = GROUP_OPERATIONS,
    limit: Deadline | None = None,
) -> list[str]:
    """Operations that the brokers report as not allowed, such as `READ on group order-service`.

    Nothing is missing where a broker reports no operations. Those on the temporary topic, its group
    and the transactional ids cannot be asked for before these exist.

    Raises:
        ClusterUnreachable, KafkaFailure.
    """
    deadline = limit or Deadline(30.0)
    doing = "read what is allowed on it"
    futures = ask(
        admin,
        admin.describe_topics,
        f"topic {topic}",
        doing,
        deadline,
        TopicCollection([topic]),
        include_authorized_operations=True,
    )
    described = wait_for(admin, futures[topic], f"topic {topic}", doing, deadline)
    missing = _compare(described.authorized_operations, topic_operations, f"topic {topic}")
    futures = ask(
        admin,
        admin.describe_consumer_groups,
        f"group {group}",
        doing,
        deadline,
        [group],
        include_authorized_operations=True,
    )
    try:
        found = futures[group].result(timeout=seconds_left(deadline) + 1.0)
    except KafkaException:
        return missing  # a group that does not exist has no operations
    return missing + _compare(found.authorized_operations, group_operations, f"group {group}")


def require_permissions(admin: Admin, *, topic: str, group: str, hold: bool) -> None:
    """Refuses a run that would stop in the middle for want of a permission.

    Raises:
        Refused: names what is missing.
    """
    wanted = (*TOPIC_OPERATIONS, *(HOLD_OPERATIONS if hold else ()))
    missing = find_missing(admin, topic=topic, group=group, topic_operations=wanted)
    if missing:
        raise Refused(
            f"the tool's principal may not {', '.join(missing)}",
            subject=f"topic {topic}",
            hint="grant it these operations; docs/runbook-expand.md lists all that are needed",
        )


def _compare(allowed: list[AclOperation] | None, wanted: Iterable[str], subject: str) -> list[str]:
    if not allowed:
        return []
    names = {operation.name for operation in allowed}
    if "ALL" in names:
        return []
    return [f"{name} on {subject}" for name in wanted if name not in names]
