"""What came of a rebuild: how it was verified, and what stays unexplained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from backlog.numbers import format_plural
from replay.injection.accounting import READ_BACK, describe_read_back, list_injected
from replay.injection.plan import To
from replay.injection.target import say_target
from replay.kinds.rebuild.plan import RebuildPlan
from replay.telling.account import Account, RecoveryRecord, Unexplained

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
    done = format_plural(recovery.injected, "lost message")
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
        aim=f"to put {format_plural(counts.rebuilt, 'lost message')} of topic {plan.topic} back",
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
    counts, where = plan.outcome.counts, say_target(plan.target, plan.topic)
    rehearses = plan.target is not None and plan.target.to is To.REHEARSAL
    word = "a rehearsal" if rehearses else "nothing for the stream's own topic"
    sent = format_plural(record.recovery.injected, "message")
    read = record.find_last(READ_BACK)
    matched = read.detail.get("matched") if read else None
    gone = "the rehearsal's topic is deleted" if rehearses else f"{sent} stay where they were sent"
    return Account(
        aim=f"to send {format_plural(counts.rebuilt, 'lost message')} of topic {plan.topic} to "
        f"{where}: {word}",
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
    left = outcome.counts.rebuilt - recovery.injected - recovery.skipped
    if items or why:
        told = "What the plan could not account for, and what it says may be the reason:"
    elif left:
        told = "Every lost offset has its rebuilt message, and not all of them are put back."
    else:
        told = "Nothing: every lost offset has its rebuilt message."
    if left:
        items.append(("not_put_back", left, "rebuilt, not put back"))
    return Unexplained(told, tuple(items), tuple(why))
