"""An expansion's plan for people: what is behind, how long it takes, what is done to whom."""

from __future__ import annotations

from typing import Any

from backlog.numbers import (
    format_count,
    format_duration,
    format_moment,
    format_plural,
    format_rate,
)
from backlog.values import Recovery
from replay.kinds.expand.plan import ExpandPlan, PlannedPartition
from replay.telling.value import Count, Fact, Row, Table, Telling, Tone, make_actions

ORDER_WORDS = {
    "key": "messages of a key stay in order",
    "round_robin": "spread evenly, in no order",
}
_VERDICT_WORDS = {
    "wins": "plan: before retention",
    "loses": "plan: retention is faster",
    "no_deadline": "plan: no loss in sight",
}
_WORTH_SAYING = 1.5
# Of the plan, and not said elsewhere in the document.
_NOT_IN_DOCUMENT = (
    *("version", "kind", "stream", "cluster", "topic", "group", "partitions", "warnings"),
    *("other_groups", "planned_by", "approval", "configuration", "options", "origin", "off_peak"),
    *("partition_count", "topic_id", "transactional_prefix", "partitioner", "isolation"),
    "other_topics",
)


def tell_expansion(plan: ExpandPlan, recovery: Recovery) -> Telling:
    unread = format_plural(plan.lag, "message")
    consumers = format_plural(plan.consumers, "consumer")
    verdict = name_verdict(plan)
    return Telling(
        verdict=verdict,
        verdict_words=_VERDICT_WORDS[verdict],
        request=f"Drain {unread} of {plan.stream} with {consumers} ({recovery.id})",
        summary=f"Drains {unread} of topic {plan.topic} that group {plan.group} has not read.",
        counts=_list_counts(plan),
        tables=(_draw_behind(plan),),
        facts=_list_facts(plan),
        actions=make_actions(
            (
                ("stops", plan.stopped),
                ("raises", plan.raised),
                ("creates", plan.created),
                ("gives back", plan.given_back),
            )
        ),
        other_groups=plan.other_groups,
        others_unknown=plan.others_unknown,
        warnings=plan.warnings,
        size=plan.lag,
        document=_make_document(plan, verdict),
    )


def name_verdict(plan: ExpandPlan) -> str:
    """`wins` or `loses` the race against retention; `no_deadline` where none is in sight."""
    return "no_deadline" if plan.wins is None else ("wins" if plan.wins else "loses")


def _make_document(plan: ExpandPlan, verdict: str) -> dict[str, Any]:
    dump = plan.dump()
    return {
        "verdict": verdict,
        "counts": {
            "lag": plan.lag,
            "lost": plan.lost,
            "canary": plan.canary.messages,
            "consumers": plan.consumers,
            "temporary_partitions": plan.temporary.partitions,
        },
        "partitions": dump["partitions"],
        **{name: value for name, value in dump.items() if name not in _NOT_IN_DOCUMENT},
    }


def _list_counts(plan: ExpandPlan) -> tuple[Count, ...]:
    counts = [
        Count("lag", plan.lag, "unread messages", strong=True, in_facts=True),
        Count("replicas", plan.replicas, "consumers in normal times", in_facts=True),
        Count("consumers", plan.consumers, "consumers while expanded", in_facts=True),
        Count(
            "temporary_partitions",
            plan.temporary.partitions,
            "partitions of the temporary topic",
            in_facts=True,
        ),
    ]
    if plan.lost:
        counts.append(Count("lost", plan.lost, "messages lost before, at most"))
    return tuple(counts)


def _draw_behind(plan: ExpandPlan) -> Table:
    """The partitions that are behind; without the last column where nothing was lost."""
    behind = [row for row in plan.partitions if row.lag]
    several = any(row.lost for row in behind)
    rows = []
    for row in behind:
        start = f"{row.start:,}" + ("" if row.committed is not None else " (no commit)")
        at = row.oldest_unread_at
        cells = [
            str(row.partition),
            format_count(row.lag),
            start,
            "unknown" if at is None else format_moment(at),
        ]
        if several:
            cells.append(format_count(row.lost))
        tone, toned = _choose_row_tone(row)
        rows.append(Row(tuple(cells), row.lag, tone, toned))
    columns = ("partition", "behind", "relay from", "oldest unread", *(["lost"] if several else []))
    return Table("Partitions", tuple(columns), tuple(rows), unit="behind")


def _choose_row_tone(row: PlannedPartition) -> tuple[Tone, int]:
    """What was lost is seen first, then that the group has no commit; and in which column."""
    if row.lost:
        return "bad", -1
    return ("", -1) if row.committed is not None else ("warn", 2)


def _list_facts(plan: ExpandPlan) -> tuple[Fact, ...]:
    now, expanded = plan.seconds_to_drain_now, plan.seconds_to_drain_expanded
    faster = ""
    if now and expanded and now / expanded >= _WORTH_SAYING:
        faster = f": {now / expanded:.0f} times as fast"
    consumers = format_plural(plan.consumers, "consumer")
    return (
        Fact(
            "as it is",
            f"{_say_drained(now)}, by {format_plural(plan.replicas, 'consumer')}",
            decides=True,
        ),
        Fact(
            "expanded",
            f"{_say_drained(expanded)}, by {consumers}{faster}",
            "bad" if expanded is None else "good",
            decides=True,
        ),
        Fact(
            "retention",
            _say_retention(plan),
            "bad" if plan.wins is False else "",
            decides=True,
        ),
        Fact("speed", _say_speed(plan)),
        Fact(
            "spread",
            f"{plan.factor} × the partitions, {plan.temporary.partitions:,} in all; "
            f"{ORDER_WORDS.get(plan.order, plan.order)}",
        ),
        Fact("relays into", f"topic {plan.temporary.topic}, read by {plan.recovery_group}"),
        Fact("disk", plan.disk.told or "room enough", _choose_disk_tone(plan)),
        *([Fact("tried", plan.tried)] if plan.tried else []),
    )


def _choose_disk_tone(plan: ExpandPlan) -> Tone:
    return "bad" if plan.disk.enough is False else ""


def _say_drained(seconds: float | None) -> str:
    return "never drained" if seconds is None else f"drained in {format_duration(seconds)}"


def _say_retention(plan: ExpandPlan) -> str:
    held = plan.hold.needed
    if plan.seconds_to_loss is not None:
        told = f"deletes the oldest unread message in {format_duration(plan.seconds_to_loss)}"
        told += f" (by {plan.loss_by})"
    elif held:
        told = "is limited, and when it deletes what is unread is not known"
    else:
        told = "deletes nothing in sight"
    return f"{told}; it is raised meanwhile" if held and plan.raised else told


def _say_speed(plan: ExpandPlan) -> str:
    told = f"{format_rate(plan.rate_per_consumer)} by each consumer ({plan.rate_source})"
    written = plan.produced_per_second
    if written is None:
        return told
    return f"{told}, {format_rate(written) if written else 'nothing'} written meanwhile"
