"""A rebuild's plan for people: what will be put back, and what that was computed from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from backlogctl.formats import format_count, format_plural
from backlogctl.replay.engine.values import (
    Account,
    Action,
    Fact,
    PlanFigure,
    RecoveryRecord,
    Row,
    Table,
    Telling,
    Unexplained,
)
from backlogctl.replay.injection.kind import (
    LEFT_OUT,
    describe_read_back,
    list_injected,
)
from backlogctl.replay.injection.plan import READ_BACK, To, format_staged, list_terms
from backlogctl.replay.injection.target import format_target
from backlogctl.replay.kinds.rebuild.plan import RebuildPlan
from backlogctl.spark_backfill.comparison import advise_ignoring, describe_ignored
from backlogctl.values import Certainty, Recovery

# The words, the sign, and whether it is shown where it is zero.
_COUNTS = {
    "expected": ("lost offsets (at most)", "", True),
    "candidates": ("rows read from the source", "", True),
    "surviving": ("still in the topic", "−", False),
    "consumed": ("handled by the consumer", "−", False),
    "already_injected": ("put back by earlier recoveries", "−", False),
    "outside": ("in no gap: taken as read, or never sent", "−", False),
    "rebuilt": ("rebuilt", "", True),
    "collapsed": ("collapsed (newer state of the same row)", "", False),
    "quarantined": ("quarantined", "", False),
    "surplus": ("surplus", "", False),
    "shortfall": ("shortfall", "", False),
}
_SHOWN_DIFFERENCES = 2
EXACT, WITHIN, COVERING = "exact", "within", "covering"
LOST_RANGES = "Lost ranges"


def describe_rebuild_plan(plan: RebuildPlan, recovery: Recovery) -> Telling:
    outcome = plan.outcome
    rebuilt = outcome.counts.rebuilt
    return Telling(
        verdict=outcome.verdict,
        verdict_words=f"plan: {format_rebuild_verdict(plan)}",
        request=_say_request(plan, recovery),
        summary=_say_summary(plan),
        reasons=outcome.reasons,
        counts=tuple(
            PlanFigure(name, value, words, sign, strong=name == "rebuilt")
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
    count, more = _count_messages(plan), _say_more(plan)
    if plan.delivers:
        return f"Puts {count} back into topic {plan.topic}{more}."
    where = format_target(plan.target, plan.topic)
    return f"Sends {count} of topic {plan.topic} to {where}{more}; the gaps stay as they are."


def _count_messages(plan: RebuildPlan) -> str:
    """They are lost ones where nothing else can be among them."""
    is_sure = plan.outcome.verdict == EXACT
    return format_plural(plan.message_count, "lost message" if is_sure else "message")


def _say_more(plan: RebuildPlan) -> str:
    """How many were lost at most, where others may be among them."""
    outcome = plan.outcome
    if outcome.verdict == EXACT:
        return ""
    lost = f"; at most {format_count(outcome.counts.expected)} were lost"
    if outcome.verdict == COVERING:
        return f"{lost}, and one that was not says its row's newest state again"
    if taken := outcome.uncertain.taken:
        lost += f", and {format_count(taken)} of these may have been read"
    return lost


def _list_actions(plan: RebuildPlan) -> tuple[Action, ...]:
    if plan.target is not None and plan.target.to is To.REHEARSAL:
        stops = "nothing: consumers go on, and no message goes to the topic that they read"
        return (
            Action("stops", (stops,)),
            Action("creates", (format_target(plan.target, plan.topic),)),
        )
    end = "nothing: consumers go on, nothing is created or deleted, and messages are added at the "
    where = "topic's end" if plan.delivers else f"end of topic {plan.target_topic}"
    return (Action("stops", (f"{end}{where}, each once",)),)


def format_rebuild_verdict(plan: RebuildPlan) -> str:
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
        "schemas": list(outcome.schemas),
        "uncertain": asdict(outcome.uncertain),
        "displacement": outcome.displacement,
        "fidelity": outcome.fidelity,
        "staging": f"{format_plural(outcome.chunks, 'chunk')}, "
        f"{format_plural(outcome.bytes, 'byte')}",
        "gaps": [gap.model_dump() for gap in plan.gaps],
        "off_peak": None if plan.off_peak is None else plan.off_peak.model_dump(),
        "limits": plan.limits.model_dump(mode="json"),
        "disk": None if plan.disk is None else plan.disk.model_dump(),
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
                f"{gap.cause}, {gap.certainty}".replace("_", " ")
                + (", may be aborted messages or markers" if gap.maybe_empty else ""),
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
    if ignored := describe_ignored(outcome.proof):
        facts.append(Fact("ignored", ignored, decides=True))
    if outcome.evidence:
        facts.append(Fact("evidence", outcome.evidence))
    if outcome.uncertain.count:
        facts.append(Fact("uncertain", _say_uncertain(plan), "warn", decides=True))
    facts += [
        Fact("differs", f"{item.identity}: {item.what} {item.detail}", "warn", shows_rows=True)
        for item in outcome.proof.differences[:_SHOWN_DIFFERENCES]
    ]
    if advice := advise_ignoring(outcome.proof):
        facts.append(Fact("differs", advice, "warn", shows_rows=True))
    if reasons := outcome.quarantine.reasons:
        told = ", ".join(f"{format_count(n)} × {why}" for why, n in reasons.items())
        facts.append(Fact("quarantine", told, "warn"))
    facts.append(
        Fact(
            "messages",
            f"{outcome.fidelity}, staged in {format_staged(outcome.chunks, outcome.bytes)}",
        )
    )
    facts += [Fact("schema", told, decides=True) for told in outcome.schemas]
    facts += list_terms(plan)
    return tuple(facts)


def _say_proof(plan: RebuildPlan) -> str:
    """How the same rules did on messages that are still there."""
    proof = plan.outcome.proof
    if proof.rate is None:
        return "nothing survives to compare with"
    told = f"{proof.rate:.1%} of {format_count(proof.compared)} survivors rebuilt as they are"
    if proof.mutable and proof.equal_values != proof.compared:
        told += f" by key and partition, {format_count(proof.equal_values)} to the byte"
    if any(item.ignored for item in proof.variations):
        told += ", but for what is ignored"
    return told.replace("100.0%", "100 %")


def _say_uncertain(plan: RebuildPlan) -> str:
    uncertain = plan.outcome.uncertain
    rows = format_plural(uncertain.count, "row")
    where = "at the edges of the gaps"
    if any(gap.certainty != Certainty.EXACT and not gap.maybe_empty for gap in plan.gaps):
        where = "of gaps that the group may have read in part, or at their edges"
    return (
        f"{rows} {where}, {format_count(uncertain.taken)} of them put back "
        f"(`source.edge` decides); listed in {uncertain.path}"
    )


# What came of a rebuild: how it was verified, and what stays unexplained.

_REST = {
    "shortfall": "lost offsets without a rebuilt message",
    "surplus": "rebuilt messages more than were lost",
    "quarantined": "rows that cannot be built",
    "collapsed": "of the shortfall, possibly one row for several messages",
}


def account_for_rebuild(plan: RebuildPlan, record: RecoveryRecord) -> Account:
    """Of the plan, and of what the ledger has on its runs."""
    recovery, counts = record.recovery, plan.outcome.counts
    if not plan.delivers:
        return _account_elsewhere(plan, record)
    word = "lost message" if plan.outcome.verdict == EXACT else "message"
    done = format_plural(recovery.injected, word)
    cancelled = "It was cancelled before anything was put back. The gaps are open again."
    if recovery.injected:
        cancelled = (
            f"It was cancelled. {format_plural(recovery.injected, 'message')} put back before "
            "that stay in the topic; the gaps are open again, and a new plan takes off what was "
            "put back."
        )
    read = record.find_last(READ_BACK)
    matched = read.detail.get("matched") if read else None
    return Account(
        aim=f"to put {_count_messages(plan)} of topic {plan.topic} back",
        achieved=f"{done} of topic {plan.topic} put back, each once",
        verified=f"They are at the ends of their partitions for group {plan.group}. All of them "
        "were read back: once each, with the bytes that were approved.",
        cancelled=cancelled,
        no_losses="This recovery has no gaps on record.",
        after_losses="",
        figures=(
            ("lost at most", f"{counts.expected:,}"),
            ("rebuilt", f"{counts.rebuilt:,}"),
            ("put back", f"{recovery.injected:,}"),
            *((("read back as staged", f"{matched:,}"),) if matched is not None else ()),
        ),
        verification=describe_read_back(
            record,
            ("partition", "lost at most", "rebuilt", "put back", "offsets"),
            tuple(_list_partitions(plan, record)),
        ),
        unexplained=_describe_rest(plan, record),
    )


def _account_elsewhere(plan: RebuildPlan, record: RecoveryRecord) -> Account:
    """Of a rehearsal, or of what went to another topic: the gaps are as they were."""
    counts, where = plan.outcome.counts, format_target(plan.target, plan.topic)
    rehearses = plan.target is not None and plan.target.to is To.REHEARSAL
    word = "a rehearsal" if rehearses else "nothing for the stream's own topic"
    sent = format_plural(record.recovery.injected, "message")
    read = record.find_last(READ_BACK)
    matched = read.detail.get("matched") if read else None
    gone = "the rehearsal's topic is deleted" if rehearses else f"{sent} stay where they were sent"
    return Account(
        aim=f"to send {_count_messages(plan)} of topic {plan.topic} to {where}: {word}",
        achieved=f"{sent} of topic {plan.topic} sent to {where}, each once: {word}",
        verified="All of them were read back there: once each, with the bytes that were approved. "
        f"Nothing was put back for group {plan.group}: the gaps are as they were.",
        cancelled=f"It was cancelled, and {gone}. The gaps are as they were.",
        no_losses="It took no gap: what was lost is for a rebuild to the stream's own topic.",
        after_losses="",
        figures=(
            ("lost at most", f"{counts.expected:,}"),
            ("rebuilt", f"{counts.rebuilt:,}"),
            ("sent", f"{record.recovery.injected:,}"),
            *((("read back as staged", f"{matched:,}"),) if matched is not None else ()),
        ),
        verification=describe_read_back(
            record,
            ("partition", "lost at most", "rebuilt", "sent", "offsets"),
            tuple(_list_partitions(plan, record)),
        ),
        unexplained=_describe_rest(plan, record),
    )


def _list_partitions(plan: RebuildPlan, record: RecoveryRecord) -> Iterator[tuple[Any, ...]]:
    injected = list_injected(record)
    lost = {row.partition: row for row in plan.outcome.partitions}
    # Where the topic got partitions since, others get the messages than lost them.
    for number in sorted({*lost, *injected}):
        row, (done, offsets) = lost.get(number), injected.get(number, (0, "—"))
        yield (number, row.expected if row else 0, row.rebuilt if row else 0, done, offsets)


def _describe_rest(plan: RebuildPlan, record: RecoveryRecord) -> Unexplained:
    outcome, recovery = plan.outcome, record.recovery
    items = [
        (name, value, words)
        for name, words in _REST.items()
        if (value := getattr(outcome.counts, name))
    ]
    why = [*outcome.reasons]
    why += [f"in quarantine: {n:,} × {told}" for told, n in outcome.quarantine.reasons.items()]
    left_out = sum(chunk.left_out for chunk in record.chunks)
    left = outcome.counts.rebuilt - recovery.injected - recovery.skipped - left_out
    if left_out:
        items.append(("left_out", left_out, f"left out: {LEFT_OUT}"))
    if items or why:
        told = "What the plan could not account for, and what it says may be the reason:"
    elif left:
        told = "Every lost offset has its rebuilt message, and not all of them are put back."
    else:
        told = "Nothing: every lost offset has its rebuilt message."
    if left:
        items.append(("not_put_back", left, "rebuilt, not put back"))
    return Unexplained(told, tuple(items), tuple(why))
