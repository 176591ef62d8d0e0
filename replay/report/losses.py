"""What was lost: the gaps, in figures and words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backlog.clock import format_time
from backlog.numbers import format_plural
from backlog.values import Gap
from replay.telling.account import Account, RecoveryRecord

_CAUSES = {
    "expired": "retention deleted them unread",
    "skipped": "the group's commit jumped over them",
    "discarded": "an offload took them off the brokers",
    "producer_gap": "their producer numbered them, and they never reached the topic",
    "unprocessed": "they were committed, and the consumer's own table lacks them",
    "topic_recreated": "the topic was deleted and made anew",
    "commit_vanished": "the group's commit vanished",
    "never_committed": "the group never committed",
}
_CERTAINTIES = {
    "exact": "exact offsets",
    "bounded": "at most this range",
    "reported": "reported; its range is not known",
}


def describe_losses(record: RecoveryRecord, account: Account) -> dict[str, Any]:
    """The gaps of the recovery, and one sentence about them."""
    gaps = record.gaps
    return {
        "gaps": [_describe_gap(gap) for gap in gaps],
        "count": sum(gap.count or 0 for gap in gaps),
        "unknown": sum(gap.count is None for gap in gaps),
        "partitions": len({gap.partition for gap in gaps}),
        "sentence": _describe_all(record, account),
    }


def _describe_all(record: RecoveryRecord, account: Account) -> str:
    gaps, recovery = record.gaps, record.recovery
    if not gaps:
        return account.no_losses
    topic, group = f"topic {recovery.topic}", f"group {recovery.group}"
    sorts: dict[str, list[Gap]] = {}
    for gap in gaps:
        sorts.setdefault("archived" if gap.archive is not None else str(gap.cause), []).append(gap)
    archived = sorts.pop("archived", [])
    unsent, unhandled = sorts.pop("producer_gap", []), sorts.pop("unprocessed", [])
    lost = [gap for sort in sorts.values() for gap in sort]
    told = [
        f"At most {_count(some)} {what}, in {_place(some)}."
        for some, what in (
            (lost, f"of {topic} were lost to {group} unread"),
            (unsent, f"that their producer had numbered never reached {topic}"),
            (unhandled, f"of {topic} were committed by {group} and not handled"),
            (archived, f"of {topic} that {group} had not read are in an archive"),
        )
        if some
    ]
    if any(gap.count is None for gap in gaps):
        told.append("For some the range is not known.")
    return " ".join(told) + account.after_losses


def _count(gaps: Sequence[Gap]) -> str:
    return format_plural(sum(gap.count or 0 for gap in gaps), "message")


def _place(gaps: Sequence[Gap]) -> str:
    places = format_plural(len({gap.partition for gap in gaps}), "partition")
    return f"{format_plural(len(gaps), 'gap')} of {places}"


def _describe_gap(gap: Gap) -> dict[str, Any]:
    return {
        "id": gap.id,
        "partition": gap.partition,
        "start": gap.start,
        "end": gap.end,
        "count": gap.count,
        "cause": str(gap.cause),
        "cause_told": _CAUSES.get(str(gap.cause), str(gap.cause)),
        "certainty": str(gap.certainty),
        "certainty_told": _CERTAINTIES.get(str(gap.certainty), str(gap.certainty)),
        "state": str(gap.state),
        "reason": gap.reason,
        "first_time": None if gap.first_time is None else format_time(gap.first_time),
        "last_time": None if gap.last_time is None else format_time(gap.last_time),
        "detected_at": format_time(gap.detected_at),
    }
