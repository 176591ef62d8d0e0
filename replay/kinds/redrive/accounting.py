"""What came of a redrive: how it was verified, and what was left out."""

from __future__ import annotations

from backlog.numbers import format_plural
from replay.injection.accounting import READ_BACK, describe_read_back, list_injected
from replay.injection.target import say_target
from replay.kinds.redrive.plan import RedrivePlan
from replay.telling.account import Account, RecoveryRecord, Unexplained
from spark_backfill.redrive.request import Origin

_LEFT_OUT = {
    "replays": "put back too often already",
    "quarantined": "too large for the topic",
}


def account_for_redrive(plan: RedrivePlan, record: RecoveryRecord) -> Account:
    """Of the plan, and of what the ledger has on its runs."""
    recovery, counts = record.recovery, plan.outcome.counts
    where, done = say_target(plan.target, plan.topic), recovery.injected
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
    left = counts.staged - recovery.injected - recovery.skipped
    told = "Nothing: every message that was chosen is put back."
    if items:
        told = "What was asked for and is not put back:"
    elif left:
        told = "Not all that was chosen is put back."
    if left:
        items.append(("not_put_back", left, "chosen, not put back"))
    return Unexplained(told, tuple(items))
