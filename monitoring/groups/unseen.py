"""What a pass over all groups could not see, of the cluster and of each group."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from backlog.errors import BacklogError, KafkaFailure
from backlog.numbers import format_plural
from backlogctl_delivery.kafka import AccessDenied
from monitoring.status import GroupStatus
from monitoring.unseen import Unseen

_HINT = "`backlogctl acl see STREAM --principal P` prints what grants it"
_SHOWN = 3


def describe_cluster(
    cluster: str, sees_all: bool | None, denied: Mapping[str, BacklogError]
) -> tuple[Unseen, ...]:
    """What holds for the cluster.

    Args:
        sees_all: whether the brokers list every group; None where they do not tell.
        denied: topics whose tails may not be read, and why.
    """
    found: list[Unseen] = []
    subject = f"cluster {cluster}"
    if sees_all is False:
        reason = "may not list all groups (DESCRIBE on the cluster is missing)"
        found.append(Unseen("groups", AccessDenied(reason, subject=subject, hint=_HINT)))
    elif sees_all is None:
        reason = "the brokers do not tell whether it may list all groups"
        found.append(Unseen("groups", KafkaFailure(reason, subject=subject)))
    if denied:
        names = sorted(denied)
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        reason = f"may not read {format_plural(len(names), 'topic')} ({shown}): READ is missing"
        found.append(Unseen("tails", AccessDenied(reason, subject=subject, hint=_HINT)))
    return tuple(found)


def add_unseen(
    statuses: Iterable[GroupStatus],
    tails: Mapping[tuple[str, str], BacklogError],
    retentions: Collection[str],
) -> list[GroupStatus]:
    """The statuses, each with what could not be seen of it.

    Args:
        tails: by group and topic, why a small lag could not be looked into.
        retentions: the topics whose retention is known.
    """
    return [
        replace(status, unseen=found)
        if (found := tuple(_list_unseen(status, tails, retentions)))
        else status
        for status in statuses
    ]


def _list_unseen(
    status: GroupStatus,
    tails: Mapping[tuple[str, str], BacklogError],
    retentions: Collection[str],
) -> Iterable[Unseen]:
    if status.topic not in retentions:
        reason = "could not read its settings (is DESCRIBE_CONFIGS on it missing?)"
        error = KafkaFailure(reason, subject=f"topic {status.topic}", hint=_HINT)
        yield Unseen("retention", error)
    if error_of_tail := tails.get((status.group, status.topic)):
        yield Unseen("tails", error_of_tail)
