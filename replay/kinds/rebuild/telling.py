"""A rebuild's plan for people: what will be put back, and what that was computed from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from backlog.numbers import format_count, format_plural
from backlog.values import Certainty, Recovery
from replay.injection.plan import To
from replay.injection.target import say_target
from replay.injection.words import say_staged, say_when
from replay.kinds.rebuild.plan import RebuildPlan
from replay.telling.value import Action, Count, Fact, Row, Table, Telling

# The words, the sign, and whether it is shown where it is zero.
_COUNTS = {
    "expected": ("lost offsets (at most)", "", True),
    "candidates": ("rows read from the source", "", True),
    "surviving": ("still in the topic", "−", False),
    "consumed": ("handled by the consumer", "−", False),
    "already_injected": ("put back by earlier recoveries", "−", False),
    "outside": ("in no gap: the group has read them", "−", False),
    "rebuilt": ("rebuilt", "", True),
    "collapsed": ("collapsed (newer state of the same row)", "", False),
    "quarantined": ("quarantined", "", False),
    "surplus": ("surplus", "", False),
    "shortfall": ("shortfall", "", False),
}
_SHOWN_DIFFERENCES = 2
WITHIN = "within"
LOST_RANGES = "Lost ranges"


def tell_rebuild(plan: RebuildPlan, recovery: Recovery) -> Telling:
    outcome = plan.outcome
    rebuilt = outcome.counts.rebuilt
    return Telling(
        verdict=outcome.verdict,
        verdict_words=f"plan: {say_verdict(plan)}",
        request=_say_request(plan, recovery),
        summary=_say_summary(plan),
        reasons=outcome.reasons,
        counts=tuple(
            Count(name, value, words, sign, strong=name == "rebuilt")
            for name, (words, sign, always) in _COUNTS.items()
            if (value := getattr(outcome.counts, name)) or always
        ),
        tables=(_draw_partitions(plan), _draw_ranges(plan)),
        facts=_list_facts(plan),
        actions=_list_actions(plan),
        other_groups=plan.other_groups,
        others_unknown=plan.others_unknown,
        warnings=plan.warnings,
        size=rebuilt,
        document=_make_document(plan),
    )


def _say_request(plan: RebuildPlan, recovery: Recovery) -> str:
    count = format_plural(plan.message_count, "message")
    if plan.delivers:
        return f"Put {count} back into {plan.topic} ({recovery.id})"
    return f"Send {count} to {plan.target_topic} ({recovery.id})"


def _say_summary(plan: RebuildPlan) -> str:
    count = format_plural(plan.message_count, "lost message")
    if plan.delivers:
        return f"Puts {count} back into topic {plan.topic}."
    where = say_target(plan.target, plan.topic)
    return f"Sends {count} of topic {plan.topic} to {where}; the gaps stay as they are."


def _list_actions(plan: RebuildPlan) -> tuple[Action, ...]:
    if plan.target is not None and plan.target.to is To.REHEARSAL:
        stops = "nothing: consumers go on, and no message goes to the topic that they read"
        return (
            Action("stops", (stops,)),
            Action("creates", (say_target(plan.target, plan.topic),)),
        )
    end = "nothing: consumers go on, nothing is created or deleted, and messages are added at the "
    where = "topic's end" if plan.delivers else f"end of topic {plan.target_topic}"
    return (Action("stops", (f"{end}{where}, each once",)),)


def say_verdict(plan: RebuildPlan) -> str:
    """`exact`, `exact within 12 rows`, `covering`, ..."""
    outcome = plan.outcome
    if outcome.verdict == WITHIN:
        return f"exact within {format_plural(outcome.uncertain.count, 'row')}"
    return outcome.verdict


def _make_document(plan: RebuildPlan) -> dict[str, Any]:
    outcome = plan.outcome
    return {
        "verdict": outcome.verdict,
        "reasons": list(outcome.reasons),
        "counts": asdict(outcome.counts),
        "partitions": [asdict(row) for row in outcome.partitions],
        "proof": {**asdict(outcome.proof), "rate": outcome.proof.rate},
        "quarantine": asdict(outcome.quarantine),
        "evidence": outcome.evidence,
        "uncertain": asdict(outcome.uncertain),
        "displacement": outcome.displacement,
        "fidelity": outcome.fidelity,
        "staging": f"{format_plural(outcome.chunks, 'chunk')}, "
        f"{format_plural(outcome.bytes, 'byte')}",
        "gaps": [gap.model_dump() for gap in plan.gaps],
        "off_peak": None if plan.off_peak is None else plan.off_peak.model_dump(),
        "limits": plan.limits.model_dump(mode="json"),
    }


def _draw_partitions(plan: RebuildPlan) -> Table:
    rows = []
    for row in plan.outcome.partitions:
        difference = row.rebuilt - row.expected
        cells = (
            str(row.partition),
            format_count(row.expected),
            format_count(row.rebuilt),
            f"{difference:+,}" if difference else "=",
            row.evidence or "unknown",
            format_count(row.uncertain) if row.uncertain else "",
        )
        size = abs(difference) + row.uncertain
        rows.append(Row(cells, size, "warn" if size else "good"))
    columns = ("partition", "lost at most", "rebuilt", "difference", "known by", "uncertain")
    return Table("Partitions", columns, tuple(rows))


def _draw_ranges(plan: RebuildPlan) -> Table:
    rows = tuple(
        Row(
            (
                str(gap.partition),
                gap.place,
                format_count(gap.count),
                f"{gap.cause}, {gap.certainty}".replace("_", " "),
            ),
            gap.count,
        )
        for gap in plan.gaps
    )
    columns = ("partition", "offsets", "at most", "why")
    return Table(LOST_RANGES, columns, rows, unit="offsets", noun="range")


def _list_facts(plan: RebuildPlan) -> tuple[Fact, ...]:
    outcome = plan.outcome
    facts = [Fact("proof", _say_proof(plan), decides=True)]
    if outcome.evidence:
        facts.append(Fact("evidence", outcome.evidence))
    if outcome.uncertain.count:
        facts.append(Fact("uncertain", _say_uncertain(plan), "warn", decides=True))
    facts += [
        Fact("differs", f"{item.identity}: {item.what} {item.detail}", "warn", shows_rows=True)
        for item in outcome.proof.differences[:_SHOWN_DIFFERENCES]
    ]
    if reasons := outcome.quarantine.reasons:
        told = ", ".join(f"{format_count(n)} × {why}" for why, n in reasons.items())
        facts.append(Fact("quarantine", told, "warn"))
    facts.append(
        Fact(
            "messages",
            f"{outcome.fidelity}, staged in {say_staged(outcome.chunks, outcome.bytes)}",
        )
    )
    facts.append(Fact("put back", say_when(plan), decides=True))
    return tuple(facts)


def _say_proof(plan: RebuildPlan) -> str:
    """How the same rules did on messages that are still there."""
    proof = plan.outcome.proof
    if proof.rate is None:
        return "nothing survives to compare with"
    told = f"{proof.rate:.1%} of {format_count(proof.compared)} survivors rebuilt as they are"
    if proof.mutable and proof.equal_values != proof.compared:
        told += f" by key and partition, {format_count(proof.equal_values)} to the byte"
    return told.replace("100.0%", "100 %")


def _say_uncertain(plan: RebuildPlan) -> str:
    uncertain = plan.outcome.uncertain
    rows = format_plural(uncertain.count, "row")
    where = "at the edges of the gaps"
    if any(gap.certainty != Certainty.EXACT for gap in plan.gaps):
        where = "of gaps that the group may have read in part, or at their edges"
    return (
        f"{rows} {where}, {format_count(uncertain.taken)} of them put back "
        f"(`source.edge` decides); listed in {uncertain.path}"
    )
