"""A redrive's plan for people: which messages, from where to where, and what is left out."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from backlog.clock import format_time
from backlog.numbers import format_count, format_moment, format_plural
from backlog.values import Recovery
from replay.injection.plan import To
from replay.injection.target import say_target
from replay.injection.unprocessed import WORD
from replay.injection.words import say_staged, say_when
from replay.kinds.redrive.plan import RedrivePlan
from replay.telling.value import Action, Count, Fact, Row, Table, Telling
from spark_backfill.redrive.request import Named, Origin

# The words, the sign, and whether it is shown where it is zero.
_COUNTS = {
    "read": ("read", "", True),
    "filtered": ("match no --key or --where", "−", False),
    "elsewhere": ("dead letters of other topics", "−", False),
    "repeated": ("of a message that has a newer one here", "−", False),
    "put_back": ("put back by earlier recoveries", "−", False),
    "handled": ("handled since, as the consumer's own table says", "−", False),
    "replays": ("refused: put back too often already", "−", False),
    "quarantined": ("too large for the topic", "−", False),
    "staged": ("to be put back", "", True),
    "came_back": ("came back to the dead letters after being put back before", "", False),
    "unreadable": ("dead letters whose place in the topic cannot be read", "", False),
    "unnamed": ("dead letters that name no topic", "", False),
}
_SHOWN = 8
CHOSEN, PARTIAL = "chosen", "partial"


def tell_redrive(plan: RedrivePlan, recovery: Recovery) -> Telling:
    counts, where = plan.outcome.counts, say_target(plan.target, plan.topic)
    messages = format_plural(counts.staged, "message")
    return Telling(
        verdict=say_verdict(plan),
        verdict_words=f"plan: {say_verdict(plan)}",
        request=f"Put {messages} of {plan.source} back into {plan.target_topic} ({recovery.id})",
        summary=f"Puts {messages} of {plan.source} back into {where}.",
        reasons=_list_reasons(plan),
        counts=tuple(
            Count(name, value, words, sign, strong=name == "staged")
            for name, (words, sign, always) in _COUNTS.items()
            if (value := getattr(counts, name)) or always
        ),
        tables=(_draw_partitions(plan),),
        facts=_list_facts(plan),
        actions=_list_actions(plan),
        other_groups=plan.other_groups,
        others_unknown=plan.others_unknown,
        warnings=plan.warnings,
        size=counts.staged,
        document=_make_document(plan),
    )


def say_verdict(plan: RedrivePlan) -> str:
    """`chosen`; `partial` where some that were asked for are not put back."""
    counts = plan.outcome.counts
    return PARTIAL if counts.replays or counts.quarantined else CHOSEN


def _list_reasons(plan: RedrivePlan) -> tuple[str, ...]:
    counts, told = plan.outcome.counts, []
    if counts.replays:
        told.append(
            f"{format_plural(counts.replays, 'message')} were put back too often already "
            "(`redrive.max_replays`); `--allow replays` takes them"
        )
    if counts.quarantined:
        told.append(
            f"{format_plural(counts.quarantined, 'message')} are larger than topic "
            f"{plan.target_topic} allows (`max.message.bytes`)"
        )
    return tuple(told)


def _make_document(plan: RedrivePlan) -> dict[str, Any]:
    outcome = plan.outcome
    return {
        "verdict": say_verdict(plan),
        "reasons": list(_list_reasons(plan)),
        "counts": asdict(outcome.counts),
        "source": plan.source.model_dump(mode="json"),
        "target": None if plan.target is None else plan.target.model_dump(mode="json"),
        "ranges": [asdict(item) for item in plan.ranges],
        "partitions": [asdict(row) for row in outcome.partitions],
        "slots": {str(slot): count for slot, count in sorted(outcome.slots.items())},
        "errors": [asdict(one) for one in outcome.errors],
        "elsewhere": [one.model_dump() for one in plan.elsewhere],
        "stripped": [asdict(one) for one in outcome.stripped],
        "keys": plan.keys,
        "options": plan.options.model_dump(mode="json"),
        "fidelity": "original",
        "staging": f"{format_plural(outcome.chunks, 'chunk')}, "
        f"{format_plural(outcome.bytes, 'byte')}",
        "off_peak": None if plan.off_peak is None else plan.off_peak.model_dump(),
        "limits": plan.limits.model_dump(mode="json"),
    }


def _draw_partitions(plan: RedrivePlan) -> Table:
    rows = tuple(
        Row(
            (
                str(row.partition),
                f"{row.start:,}–{row.end - 1:,}",
                format_count(row.matched),
                format_count(row.staged),
                format_moment(row.first_time) if row.first_time else "—",
                format_moment(row.last_time) if row.last_time else "—",
            ),
            row.staged,
        )
        for row in plan.outcome.partitions
    )
    columns = ("partition", "offsets", "chosen", "put back", "first", "last")
    return Table("Partitions", columns, rows, unit="messages")


def _list_facts(plan: RedrivePlan) -> tuple[Fact, ...]:
    outcome, facts = plan.outcome, [Fact("from", str(plan.source))]
    if chosen := _say_chosen(plan):
        facts.append(Fact("chosen", chosen, decides=True))
    if outcome.errors:
        facts.append(Fact("errors", _say_names(outcome.errors), decides=True))
    if plan.elsewhere:
        told = ", ".join(
            f"{format_count(one.count)} of {one.topic}"
            + {True: "", False: " (which is gone)", None: ""}[one.exists]
            for one in plan.elsewhere
        )
        facts.append(Fact("elsewhere", f"left out: {told}", "warn"))
    if outcome.stripped:
        facts.append(Fact("stripped", f"headers of retries: {_say_names(outcome.stripped)}"))
    staged = say_staged(outcome.chunks, outcome.bytes)
    facts.append(Fact("messages", f"original, byte for byte, staged in {staged}"))
    facts.append(Fact("put back", say_when(plan), decides=True))
    return tuple(facts)


def _say_chosen(plan: RedrivePlan) -> str:
    """What bounds and filters were said."""
    options, told = plan.options, []
    if options.source == WORD:
        told.append("what was committed and never handled, as `audit consumed` found it")
    if options.since:
        told.append(f"from {format_moment(format_time(options.since))}")
    if options.until:
        told.append(f"before {format_moment(format_time(options.until))}")
    if plan.keys:
        words = [word for word in options.key if not word.startswith("@")]
        named = len(words) == plan.keys
        keys = f"key {', '.join(words)}" if named else format_plural(plan.keys, "key")
        told.append(keys)
    if options.where:
        told.append(f"where {options.where}")
    if options.everything and not told and not options.offsets:
        told.append("everything that is there")
    return ", ".join(told)


def _say_names(names: tuple[Named, ...]) -> str:
    told = ", ".join(f"{format_count(one.count)} × {one.name}" for one in names[:_SHOWN])
    left = len(names) - _SHOWN
    return f"{told} and {left} more" if left > 0 else told


def _list_actions(plan: RedrivePlan) -> tuple[Action, ...]:
    nothing = (
        "nothing: consumers go on, nothing is deleted, and messages are added at the topic's end, "
        "each once"
    )
    actions = [Action("stops", (nothing,))]
    if plan.target is not None and plan.target.to is To.REHEARSAL:
        actions.append(Action("creates", (f"the rehearsal topic {plan.target.topic}",)))
    if plan.source.origin is Origin.DEAD_LETTERS:
        kept = f"the dead letters in {plan.source.topic} as they are; the next plan leaves out "
        actions.append(Action("keeps", (f"{kept}those that are put back",)))
    elif plan.source.origin is Origin.ARCHIVE:
        actions.append(Action("keeps", (f"archive {plan.source.archive} as it is",)))
    return tuple(actions)
