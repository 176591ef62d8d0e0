"""What to know before a redrive is approved."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from backlogctl.clock import format_time
from backlogctl.config import Stream
from backlogctl.formats import format_count, format_moment, format_plural
from backlogctl.replay.engine.kind import Workspace
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
from backlogctl.replay.injection.archived import suggest_redrive
from backlogctl.replay.injection.kind import (
    describe_read_back,
    list_injected,
)
from backlogctl.replay.injection.plan import READ_BACK, To, format_staged, list_terms
from backlogctl.replay.injection.target import format_target
from backlogctl.replay.injection.unprocessed import WORD
from backlogctl.replay.kinds.redrive.plan import RedrivePlan
from backlogctl.replay.kinds.redrive.sources import Chosen, format_ranges
from backlogctl.spark_backfill.existing.request import Named, Origin, RedriveOutcome
from backlogctl.values import Recovery


def list_cautions(
    workspace: Workspace, stream: Stream, chosen: Chosen, outcome: RedriveOutcome, partitions: int
) -> list[str]:
    """One sentence each.

    Args:
        partitions: how many the source had when the messages were written.
    """
    counts, planned = outcome.counts, chosen.source.planned
    target, topic = chosen.target, chosen.snapshot.topic
    told = list(outcome.warnings)
    if target.planned is None:
        told += _name_waiting(workspace, planned.archive, {gap.id for gap in chosen.gaps})
    if target.planned is None and planned.origin is Origin.LOG:
        told.append(
            "the messages are still in the topic: who has read them gets them again, and so does "
            f"group {stream.group}"
        )
    if planned.origin is Origin.ARCHIVE and planned.topic_id != topic.topic_id:
        told.append(f"topic {planned.topic} was deleted and made again since it was archived")
    was = topic.partitions if planned.origin is Origin.DEAD_LETTERS else partitions
    if target.topic.partitions != was:
        told.append(
            f"topic {target.name} has {target.topic.partitions} partitions, and the messages "
            f"are of {was}: they go by their keys"
        )
    if counts.unreadable:
        told.append(
            f"{format_plural(counts.unreadable, 'dead letter')} came from topic {stream.topic}, "
            "and where from in it cannot be read from the headers: known by their place among the "
            "dead letters"
        )
    if counts.assumed:
        told.append(
            f"{format_plural(counts.assumed, 'dead letter')} without a topic: taken as of topic "
            f"{stream.topic}, as `--allow unnamed` says"
        )
    if counts.bare:
        told.append(
            f"{format_plural(counts.bare, 'dead letter')} of share groups are put back without the "
            "headers of their messages: the broker does not keep them"
        )
    if counts.corrected:
        told.append(
            f"{format_plural(counts.corrected, 'dead letter')} left out for a newer one of the "
            "same message, which has another value (`--offsets` chooses another)"
        )
    if counts.came_back:
        told.append(
            f"{format_plural(counts.came_back, 'dead letter')} came back after being put back "
            "before: is the cause mended?"
        )
    return told


def _name_waiting(workspace: Workspace, archive: str | None, taken: set[str]) -> list[str]:
    waiting = workspace.ledger.gaps.list_waiting()
    gaps = [gap for gap in waiting if gap.archive == archive and gap.id not in taken]
    if archive is None or not gaps:
        return []
    return [
        f"{format_plural(len(gaps), 'gap')} wait in this archive and stay so: "
        f"`{suggest_redrive(workspace.ledger, gaps[0])}` leaves out what this puts back, and "
        "closes them"
    ]


# A redrive's plan for people: which messages, from where to where, and what is left out.

# The words, the sign, and whether it is shown where it is zero.
_COUNTS = {
    "read": ("read", "", True),
    "filtered": ("match no --key or --where", "−", False),
    "elsewhere": ("dead letters of other topics", "−", False),
    "unnamed": ("dead letters that name no topic", "−", False),
    "empty": ("dead letters that hold no message, only its place", "−", False),
    "repeated": ("of a message that has a newer one here", "−", False),
    "put_back": ("put back by earlier recoveries", "−", False),
    "handled": ("handled since, as the consumer's own table says", "−", False),
    "replays": ("refused: put back too often already", "−", False),
    "quarantined": ("too large for the topic", "−", False),
    "staged": ("to be put back", "", True),
    "came_back": ("came back to the dead letters after being put back before", "", False),
    "unreadable": ("dead letters whose place in the topic cannot be read", "", False),
    "corrected": ("left out for a newer one with another value", "", False),
    "assumed": ("dead letters that name no topic, taken as the stream's", "", False),
    "bare": ("put back without the headers of their messages", "", False),
}
_SHOWN = 8
CHOSEN, PARTIAL = "chosen", "partial"


def describe_redrive_plan(plan: RedrivePlan, recovery: Recovery) -> Telling:
    counts, where = plan.outcome.counts, format_target(plan.target, plan.topic)
    messages = format_plural(counts.staged, "message")
    return Telling(
        verdict=format_redrive_verdict(plan),
        verdict_words=f"plan: {format_redrive_verdict(plan)}",
        request=f"Put {messages} of {plan.source} back into {plan.target_topic} ({recovery.id})",
        summary=f"Puts {messages} of {plan.source} back into {where}.",
        reasons=_list_reasons(plan),
        counts=tuple(
            PlanFigure(name, value, words, sign, strong=name == "staged")
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


def format_redrive_verdict(plan: RedrivePlan) -> str:
    """`chosen`; `partial` where some that were asked for are not put back."""
    counts = plan.outcome.counts
    left_out = plan.damaged or any(getattr(counts, name) for name in _LEFT_OUT)
    return PARTIAL if left_out else CHOSEN


def _list_reasons(plan: RedrivePlan) -> tuple[str, ...]:
    counts, told = plan.outcome.counts, []
    if plan.damaged:
        told.append(
            f"files of the archive are missing or changed: {format_ranges(plan.damaged)} (partition"
            ":offsets) cannot be read, and gaps with one of them stay open"
        )
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
    if counts.unnamed:
        told.append(
            f"{format_plural(counts.unnamed, 'dead letter')} without a topic: nobody knows whose "
            "(`redrive.dead_letters` names headers of your own; `--allow unnamed` takes them as "
            f"of topic {plan.topic})"
        )
    if counts.empty:
        told.append(
            f"{format_plural(counts.empty, 'dead letter')} without a message, only its place "
            "(share groups copy it only with `errors.deadletterqueue.copy.record.enable`): "
            "`--from log --offsets` puts it back while the log has it"
        )
    return tuple(told)


def _make_document(plan: RedrivePlan) -> dict[str, Any]:
    outcome = plan.outcome
    return {
        "verdict": format_redrive_verdict(plan),
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
        "hops": [asdict(one) for one in outcome.hops],
        "keys": plan.keys,
        "damaged": [asdict(item) for item in plan.damaged],
        "options": plan.options.model_dump(mode="json"),
        "fidelity": "original",
        "staging": f"{format_plural(outcome.chunks, 'chunk')}, "
        f"{format_plural(outcome.bytes, 'byte')}",
        "off_peak": None if plan.off_peak is None else plan.off_peak.model_dump(),
        "limits": plan.limits.model_dump(mode="json"),
        "disk": None if plan.disk is None else plan.disk.model_dump(),
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
    if outcome.hops:
        told = _say_names(outcome.hops)
        facts.append(
            Fact("failed again", f"{told}: known by the first in topic {plan.topic}", decides=True)
        )
    if outcome.stripped:
        facts.append(Fact("stripped", f"headers of retries: {_say_names(outcome.stripped)}"))
    staged = format_staged(outcome.chunks, outcome.bytes)
    facts.append(Fact("messages", f"original, byte for byte, staged in {staged}"))
    facts += list_terms(plan)
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
    if told and plan.source.origin is Origin.DEAD_LETTERS:
        told.append("by the letters' timestamps, not the originals'")
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
    elif plan.source.origin is Origin.PASSED:
        actions.append(Action("keeps", ("the files of what was passed as they are",)))
    return tuple(actions)


# What came of a redrive: how it was verified, and what was left out.

_LEFT_OUT = {
    "replays": "put back too often already",
    "quarantined": "too large for the topic",
    "unnamed": "dead letters that name no topic",
    "empty": "dead letters that hold no message",
}


def account_for_redrive(plan: RedrivePlan, record: RecoveryRecord) -> Account:
    """Of the plan, and of what the ledger has on its runs."""
    recovery, counts = record.recovery, plan.outcome.counts
    where, done = format_target(plan.target, plan.topic), recovery.injected
    read = record.find_last(READ_BACK)
    matched = read.detail.get("matched") if read else None
    cancelled = "It was cancelled before anything was put back."
    if done:
        cancelled = (
            f"It was cancelled. {format_plural(done, 'message')} put back before that stay in "
            "the topic, and a new plan takes them off."
            if plan.target is None or plan.target.topic_id is not None
            else "It was cancelled, and the rehearsal's topic is deleted."
        )
    verified = "All of them were read back: once each, with the bytes that were approved."
    if plan.delivers:
        verified = f"They are at the ends of their partitions for group {plan.group}. {verified}"
    if plan.source.origin is Origin.DEAD_LETTERS:
        verified += (
            f" The dead letters stay in topic {plan.source.topic}; the next plan leaves out those "
            "that are put back, and tells which came back."
        )
    return Account(
        aim=f"to put {format_plural(counts.staged, 'message')} of {plan.source} back into {where}",
        achieved=f"{format_plural(done, 'message')} of {plan.source} put back into {where}, each "
        "once",
        verified=verified,
        cancelled=cancelled,
        no_losses="It took no gap: what it put back was chosen, not found lost.",
        after_losses="",
        figures=(
            ("read", f"{counts.read:,}"),
            ("chosen", f"{counts.staged:,}"),
            ("put back", f"{done:,}"),
            *((("read back as staged", f"{matched:,}"),) if matched is not None else ()),
        ),
        verification=describe_read_back(
            record,
            ("partition", "chosen", "put back", "offsets"),
            tuple(_list_partitions(plan, record)),
        ),
        unexplained=_describe_rest(plan, record),
    )


def _list_partitions(plan: RedrivePlan, record: RecoveryRecord) -> list[tuple[object, ...]]:
    done = list_injected(record)
    return [
        (number, plan.outcome.slots.get(number, 0), *done.get(number, (0, "—")))
        for number in sorted({*plan.outcome.slots, *done})
    ]


def _describe_rest(plan: RedrivePlan, record: RecoveryRecord) -> Unexplained:
    counts, recovery = plan.outcome.counts, record.recovery
    items = [
        (name, value, words)
        for name, words in _LEFT_OUT.items()
        if (value := getattr(counts, name))
    ]
    if plan.damaged:
        damaged = sum(item.count for item in plan.damaged)
        items.append(("damaged", damaged, "offsets of files that are missing or changed"))
    left = counts.staged - recovery.injected - recovery.skipped
    told = "Nothing: every message that was chosen is put back."
    if items:
        told = "What was asked for and is not put back:"
    elif left:
        told = "Not all that was chosen is put back."
    if left:
        items.append(("not_put_back", left, "chosen, not put back"))
    return Unexplained(told, tuple(items))
