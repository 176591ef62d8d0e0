"""What came of it: how it was verified, and what stays unexplained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backlog.ledger.chunks import ChunkRecord
from backlog.numbers import format_plural
from backlog.values import ChunkState, RecoveryState
from replay.expand_topics import COUNTERS_LOST
from replay.report.material import Material


def describe_verification(material: Material) -> dict[str, Any]:
    """What was checked, with which result, by partition.

    `result` is passed, failed, or pending where nothing was verified yet.
    """
    if material.is_expansion:
        return _verify_expansion(material)
    return _verify_rebuild(material)


def _verify_rebuild(material: Material) -> dict[str, Any]:
    event = material.find_last("read back")
    detail: Mapping[str, Any] = (
        event.detail if event else material.recovery.detail.get("verified", {})
    )
    result = "pending"
    if detail:
        result = "passed" if detail.get("exact") else "failed"
    checks = []
    if detail:
        checks = [
            {"told": told, "value": detail[name]}
            for name, told in _CHECKED.items()
            if detail.get(name) is not None
        ]
    return {
        "result": result,
        "told": "The topic was read back as a read_committed consumer sees it. Each staged message "
        "was looked for by its id; key, value, headers and partition were compared to the byte."
        if detail
        else "Nothing was read back yet.",
        "checks": checks,
        "columns": ["partition", "lost at most", "rebuilt", "put back", "offsets"],
        "partitions": list(_list_rebuilt(material)),
    }


_CHECKED = {
    "staged": "messages staged",
    "matched": "read back once, as staged, in their partition",
    "missing": "missing",
    "doubled": "there more than once",
    "different": "different from what was staged",
    "unexpected": "under this recovery's id, but not staged",
}


def _list_rebuilt(material: Material) -> Iterator[list[Any]]:
    injected: dict[int, list[ChunkRecord]] = defaultdict(list)
    for record in material.chunks:
        if record.state is ChunkState.INJECTED:
            injected[record.chunk.slot].append(record)
    for row in material.recovery.plan["outcome"]["partitions"]:
        done = injected[row["partition"]]
        first = [record.first_offset for record in done if record.first_offset is not None]
        last = [record.last_offset for record in done if record.last_offset is not None]
        yield [
            row["partition"],
            row["expected"],
            row["rebuilt"],
            sum(record.chunk.count for record in done),
            f"{min(first):,}–{max(last):,}" if first and last else "—",
        ]


def _verify_expansion(material: Material) -> dict[str, Any]:
    step = next((s for s in material.steps if s.step == "verify" and s.is_complete), None)
    detail: Mapping[str, Any] = (
        step.detail if step else material.recovery.detail.get("verified", {})
    )
    result = "passed" if "relayed" in detail else "pending"
    failure = material.recovery.detail if material.recovery.state is RecoveryState.FAILED else {}
    skipped = material.find_last("cancelled without verification")
    if result == "pending" and (failure.get("code") == "verification_failed" or skipped):
        result = "failed"
    checks = []
    if result == "passed":
        checks = [
            {
                "told": "relayed, by the counters in the relay's own commits",
                "value": detail["relayed"],
            },
            {
                "told": "written, counted by reading the temporary topic",
                "value": detail.get("written"),
            },
        ]
    relayed: Mapping[str, int] = detail.get("partitions", {})
    return {
        "result": result,
        "told": "The temporary topic was read to its end as a read_committed consumer sees it and "
        "held against what the relay counted, partition by partition; nothing in it was unread. "
        "Then the original group was watched until it moved, or had nothing left to read."
        if result == "passed"
        else "Nothing was verified yet."
        if result == "pending"
        else "The temporary topic is not what was relayed, and is kept.",
        "checks": checks,
        "columns": ["partition", "unread when planned", "relayed"],
        "partitions": [
            [row["partition"], row["lag"], relayed.get(str(row["partition"]))]
            for row in material.recovery.plan["partitions"]
        ],
    }


def describe_rest(material: Material) -> dict[str, Any]:
    """What is not explained, as far as the ledger knows, and what may explain it."""
    return _rest_of_expansion(material) if material.is_expansion else _rest_of_rebuild(material)


_REST = {
    "shortfall": "lost offsets without a rebuilt message",
    "surplus": "rebuilt messages more than were lost",
    "quarantined": "rows that cannot be built",
    "unrecoverable": "unrecoverable: the row is gone",
    "collapsed": "of the shortfall, possibly one row for several messages",
}


def _rest_of_rebuild(material: Material) -> dict[str, Any]:
    outcome = material.recovery.plan["outcome"]
    counts = outcome["counts"]
    items = [
        {"name": name, "value": counts[name], "told": told}
        for name, told in _REST.items()
        if counts.get(name)
    ]
    why = [str(reason) for reason in outcome["reasons"]]
    why += [
        f"in quarantine: {count:,} × {reason}"
        for reason, count in outcome.get("quarantine", {}).get("reasons", {}).items()
    ]
    recovery = material.recovery
    left = counts["rebuilt"] - recovery.injected - recovery.skipped
    if items or why:
        told = "What the plan could not account for, and what it says may be the reason:"
    elif left:
        told = "Every lost offset has its rebuilt message, and not all of them are put back."
    else:
        told = "Nothing: every lost offset has its rebuilt message."
    if left:
        items.append({"name": "not_put_back", "value": left, "told": "rebuilt, not put back"})
    return {"told": told, "items": items, "reasons": why}


def _rest_of_expansion(material: Material) -> dict[str, Any]:
    verified = describe_verification(material)
    reasons = [
        "What is relayed is not what was unread when planned: the group read on until it was "
        "stopped, and new messages came until the relay ended.",
        "Aborted messages are not relayed: no read_committed consumer would have read them.",
        "Handled more than once is allowed: where consumers stop and others go on, what was "
        "handled and not committed is handled again, as after any rebalance.",
    ]
    if any(event.action == COUNTERS_LOST for event in material.events):
        reasons.append(
            "The relay's counters were lost on the way: what was written is what was counted."
        )
    if verified["result"] == "passed":
        told = _compare_drained(material, verified["checks"])
    elif material.burndown:
        last = material.burndown[-1]
        told = (
            f"Not known yet. When last looked at, {format_plural(last.relayed, 'message')} were "
            f"relayed and {last.handled:,} handled; {last.source_lag:,} were left in the topic and "
            f"{last.temporary_lag:,} in the temporary topic."
        )
    else:
        told = "Nothing was relayed."
        reasons = []
    return {"told": told, "items": [], "reasons": reasons}


def _compare_drained(material: Material, checks: Sequence[Mapping[str, Any]]) -> str:
    """Whether what was relayed, written and handled are one number."""
    found = {
        "relayed": checks[0]["value"],
        "written": checks[1]["value"],
        # Not the burn-down's: its last sample is a moment before the end.
        "handled": (material.recovery.detail.get("counts") or {}).get("handled"),
    }
    known = {name: value for name, value in found.items() if value is not None}
    if len(set(known.values())) == 1:
        total = format_plural(found["relayed"], "message")
        return f"Nothing: {' = '.join(known)}, {total}."
    told = ", ".join(f"{value:,} {name}" for name, value in known.items())
    return f"Not the same: {told}."
