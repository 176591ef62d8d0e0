"""An offload's plan for people: what is unread, where it goes, what is deleted, what comes back."""

from __future__ import annotations

from typing import Any

from backlog.numbers import format_bytes, format_count, format_plural
from backlog.values import Recovery
from replay.kinds.offload.place import say_problem
from replay.kinds.offload.plan import OffloadPlan
from replay.telling.value import Count, Fact, Row, Table, Telling, Tone, make_actions

ARCHIVES, DISCARDS = "archives", "discards"
# Of the plan, and not said elsewhere in the document.
_NOT_IN_DOCUMENT = (
    *("version", "kind", "stream", "cluster", "topic", "group", "partitions", "warnings"),
    *("other_groups", "planned_by", "approval", "configuration", "options", "origin", "off_peak"),
    *("partition_count", "topic_id", "other_topics"),
)


def tell_offload(plan: OffloadPlan, recovery: Recovery) -> Telling:
    unread = format_plural(plan.unread, "message")
    verdict = ARCHIVES if plan.place else DISCARDS
    does = "Moves" if plan.place else "Discards"
    into = " into an archive" if plan.place else ", for good"
    return Telling(
        verdict=verdict,
        verdict_words="plan: archived first" if plan.place else "plan: deleted for good",
        request=f"{'Offload' if plan.place else 'Discard'} at most {unread} of {plan.stream} "
        f"({recovery.id})",
        summary=f"{does} at most {unread} of topic {plan.topic} that group {plan.group} has not "
        f"read{into}, and frees the brokers' disks.",
        counts=_list_counts(plan),
        tables=(_draw_unread(plan), *_draw_cut(plan)),
        facts=_list_facts(plan),
        actions=make_actions(
            (
                ("stops", plan.stopped),
                ("moves", plan.moved),
                ("frees", plan.freed),
                ("gives back", plan.given_back),
            )
        ),
        other_groups=plan.other_groups,
        others_unknown=plan.others_unknown,
        warnings=plan.warnings,
        size=plan.unread,
        document=_make_document(plan, verdict),
    )


def _make_document(plan: OffloadPlan, verdict: str) -> dict[str, Any]:
    dump = plan.dump()
    return {
        "verdict": verdict,
        "counts": {
            "unread": plan.unread,
            "bytes": plan.bytes,
            "frees": plan.freeing.most,
            "cut_groups": len(plan.cut_groups),
        },
        "partitions": dump["partitions"],
        **{name: value for name, value in dump.items() if name not in _NOT_IN_DOCUMENT},
    }


def _list_counts(plan: OffloadPlan) -> tuple[Count, ...]:
    counts = [
        Count("unread", plan.unread, "unread messages, at most", strong=True),
        Count("replicas", plan.replicas, "consumers that are stopped", in_facts=True),
    ]
    if plan.cut_groups:
        lost = sum(item.messages for item in plan.cut_groups)
        counts.append(Count("cut", lost, "messages that other groups lose, at most"))
    return tuple(counts)


def _draw_unread(plan: OffloadPlan) -> Table:
    rows = tuple(
        Row(
            (
                str(row.partition),
                format_count(row.unread),
                f"{row.committed:,}",
                f"{row.end:,}",
                "unknown" if row.bytes is None else format_bytes(row.bytes),
            ),
            row.unread,
        )
        for row in plan.partitions
        if row.unread
    )
    columns = ("partition", "unread", "committed", "last stable offset", "size")
    return Table("Partitions", columns, rows, unit="unread")


def _draw_cut(plan: OffloadPlan) -> tuple[Table, ...]:
    if not plan.cut_groups:
        return ()
    rows = tuple(
        Row((item.group, format_count(item.messages)), item.messages, "bad")
        for item in plan.cut_groups
    )
    title, columns = "Other groups that are cut", ("group", "loses at most")
    return (Table(title, columns, rows, unit="lost", noun="group"),)


def _list_facts(plan: OffloadPlan) -> tuple[Fact, ...]:
    size = "unknown" if plan.bytes is None else f"about {format_bytes(plan.bytes)}"
    facts = [
        Fact("size", f"{size}, one copy of what is unread", decides=True),
        Fact("disks", _say_disks(plan), _choose_full_tone(plan), decides=True),
        Fact("frees", plan.freeing.told),
    ]
    if plan.place is None:
        facts.append(Fact("archive", "none: it is deleted for good", "bad", decides=True))
    else:
        tone: Tone = "bad" if say_problem(plan.place) else ""
        told = f"{plan.place.location}; {plan.place.told}"
        facts.append(Fact("archive", told, tone, decides=True))
    return tuple(facts)


def _say_disks(plan: OffloadPlan) -> str:
    known = [b for b in plan.disks.brokers if b.usable is not None and b.total is not None]
    told = ", ".join(
        f"broker {b.broker}: {format_bytes(b.usable)} of {format_bytes(b.total)} free"
        for b in known
    )
    return f"{told}; {plan.disks.told}" if told else plan.disks.told


def _choose_full_tone(plan: OffloadPlan) -> Tone:
    return "" if plan.disks.seconds_to_full is None else "bad"
