"""What came of a rebuild: how it was verified, and what stays unexplained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from backlog.ledger.chunks import ChunkRecord
from backlog.numbers import format_plural
from backlog.values import ChunkState
from replay.kinds.rebuild.plan import RebuildPlan
from replay.telling.account import Account, Checked, RecoveryRecord, Unexplained, Verification

READ_BACK = "read back"
_CHECKED = {
    "staged": "messages staged",
    "matched": "read back once, as staged, in their partition",
    "missing": "missing",
    "doubled": "there more than once",
    "different": "different from what was staged",
    "unexpected": "under this recovery's id, but not staged",
}
_REST = {
    "shortfall": "lost offsets without a rebuilt message",
    "surplus": "rebuilt messages more than were lost",
    "quarantined": "rows that cannot be built",
    "collapsed": "of the shortfall, possibly one row for several messages",
}


def account_for_rebuild(plan: RebuildPlan, record: RecoveryRecord) -> Account:
    """Of the plan, and of what the ledger has on its runs."""
    recovery, counts = record.recovery, plan.outcome.counts
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
        verification=_describe_verification(plan, record),
        unexplained=_describe_rest(plan, record),
    )


def _describe_verification(plan: RebuildPlan, record: RecoveryRecord) -> Verification:
    event = record.find_last(READ_BACK)
    detail: Mapping[str, Any] = (
        event.detail if event else record.recovery.detail.get("verified", {})
    )
    told = "Nothing was read back yet."
    if detail:
        told = (
            "The topic was read back as a read_committed consumer sees it. Each staged message "
            "was looked for by its id; key, value, headers and partition were compared to the byte."
        )
    return Verification(
        result=("passed" if detail.get("exact") else "failed") if detail else "pending",
        told=told,
        checks=tuple(
            Checked(words, detail[name])
            for name, words in _CHECKED.items()
            if detail.get(name) is not None
        ),
        columns=("partition", "lost at most", "rebuilt", "put back", "offsets"),
        partitions=tuple(_list_partitions(plan, record)),
    )


def _list_partitions(plan: RebuildPlan, record: RecoveryRecord) -> Iterator[tuple[Any, ...]]:
    injected: dict[int, list[ChunkRecord]] = defaultdict(list)
    for chunk in record.chunks:
        if chunk.state is ChunkState.INJECTED:
            injected[chunk.chunk.slot].append(chunk)
    lost = {row.partition: row for row in plan.outcome.partitions}
    # Where the topic got partitions since, others get the messages than lost them.
    for number in sorted({*lost, *injected}):
        done, row = injected[number], lost.get(number)
        first = [chunk.first_offset for chunk in done if chunk.first_offset is not None]
        last = [chunk.last_offset for chunk in done if chunk.last_offset is not None]
        yield (
            number,
            row.expected if row else 0,
            row.rebuilt if row else 0,
            sum(chunk.chunk.count for chunk in done),
            f"{min(first):,}–{max(last):,}" if first and last else "—",
        )


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
