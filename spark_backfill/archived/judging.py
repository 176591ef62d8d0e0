"""The verdict on what comes from archives: their messages are counted, not guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from backlog.numbers import format_plural
from spark_backfill.archived.choosing import Chosen, Taken
from spark_backfill.request import Counts, PartitionOutcome
from spark_backfill.verdict import EXACT, SHORT, WITHIN, RebuildVerdict, Tally

FROM_ARCHIVE = "archive"


def add_again(tally: Tally, again: Mapping[int, int]) -> Tally:
    """With what was put back from an archive, and lost again, and is taken from there again."""
    rebuilt = dict(tally.rebuilt)
    for number, count in again.items():
        rebuilt[number] = rebuilt.get(number, 0) + count
    return replace(tally, rebuilt=rebuilt)


def add_archived(verdict: RebuildVerdict, chosen: Chosen) -> RebuildVerdict:
    """The verdict on the rows, with what comes from archives; `add_again` was called before."""
    rows = {row.partition: row for row in verdict.partitions}
    numbers = sorted({*rows, *chosen.taken, *chosen.uncertain})
    partitions = tuple(
        _add(
            rows.get(number) or PartitionOutcome(number, 0, 0, 0, 0, 0, 0, 0),
            chosen.taken.get(number),
            chosen.again.get(number, 0),
            chosen.uncertain.get(number, 0),
        )
        for number in numbers
    )
    reasons = list(verdict.reasons)
    if rejected := sum(item.quarantined for item in chosen.taken.values()):
        reasons.append(f"{format_plural(rejected, 'archived message')} cannot be sent, and are in "
                       "quarantine")  # fmt: skip
    if chosen.gone:
        reasons.append(
            f"{format_plural(chosen.gone, 'message')} that were put back before, and lost again, "
            "are in no archive and no row any more; where they came from (dead letters, the log) "
            "may have them still"
        )
    kind = verdict.kind
    if len(reasons) > len(verdict.reasons):
        kind = SHORT if kind in (EXACT, WITHIN) else kind
    elif chosen.uncertain and kind == EXACT:
        kind = WITHIN
    return RebuildVerdict(kind, partitions, tuple(reasons))


def count_archived(counts: Counts, chosen: Chosen) -> Counts:
    """The totals with what comes from archives."""
    taken = chosen.taken.values()
    again = sum(chosen.again.values())
    return replace(
        counts,
        archived=sum(item.messages for item in taken) + again,
        archived_holes=sum(item.holes for item in taken),
        from_archive=chosen.count,
        rebuilt=counts.rebuilt + chosen.count,
        already_injected=counts.already_injected + sum(item.put_back for item in taken),
        quarantined=counts.quarantined + sum(item.quarantined for item in taken),
    )


def _add(row: PartitionOutcome, taken: Taken | None, again: int, unsure: int) -> PartitionOutcome:
    item = taken or Taken()
    source = FROM_ARCHIVE if taken or again else ""
    return replace(
        row,
        # What is in the topic again is not missing.
        expected=row.expected + item.messages - item.put_back,
        rebuilt=row.rebuilt + item.staged,
        quarantined=row.quarantined + item.quarantined,
        shortfall=row.shortfall + item.quarantined,
        uncertain=row.uncertain + unsure,
        evidence=", ".join(filter(None, (row.evidence, source))),
        from_archive=item.staged + again,
    )
