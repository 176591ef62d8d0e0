"""How messages that were sent were verified, for every kind that sends some."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from backlog.ledger.chunks import ChunkRecord
from backlog.values import ChunkState
from replay.telling.account import Checked, RecoveryRecord, Verification

READ_BACK = "read back"
_CHECKED = {
    "staged": "messages staged",
    "matched": "read back once, as staged, in their partition",
    "missing": "missing",
    "doubled": "there more than once",
    "different": "different from what was staged",
    "unexpected": "under this recovery's id, but not staged",
}


def describe_read_back(
    record: RecoveryRecord, columns: tuple[str, ...], partitions: tuple[tuple[Any, ...], ...]
) -> Verification:
    """What the step `verify` found, with a table of the kind's own."""
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
        columns=columns,
        partitions=partitions,
    )


def list_injected(record: RecoveryRecord) -> dict[int, tuple[int, str]]:
    """Of each partition that got messages: how many, and their offsets in words."""
    injected: dict[int, list[ChunkRecord]] = defaultdict(list)
    for chunk in record.chunks:
        if chunk.state is ChunkState.INJECTED:
            injected[chunk.chunk.slot].append(chunk)
    return {
        number: (sum(c.chunk.count for c in done), say_offsets(done))
        for number, done in injected.items()
    }


def say_offsets(done: list[ChunkRecord]) -> str:
    """`1,000–1,999`; a dash where they are not known."""
    first = [chunk.first_offset for chunk in done if chunk.first_offset is not None]
    last = [chunk.last_offset for chunk in done if chunk.last_offset is not None]
    return f"{min(first):,}–{max(last):,}" if first and last else "—"
