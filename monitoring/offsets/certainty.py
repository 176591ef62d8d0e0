"""Whether what expired were messages: transactions leave offsets that are none.

Commit markers, abort markers and aborted messages use offsets, and once they are gone nobody can
tell them from messages. What is known when a range has expired: docs/decisions/0036.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import BacklogError
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import Admin
from backlogctl.kafka.raw_fetch import fetch_batches
from backlogctl.kafka.transactions import find_transactional
from backlogctl.values import Cause, Certainty, Gap, GapState, OffsetRange

MAYBE_EMPTY = "may be aborted messages or transaction markers"
# Leaders remember a producer for a day by default (`producer.id.expiration.ms`).
_REMEMBERED = timedelta(hours=12)
_ASK_SECONDS = 5.0
_READ_SECONDS = 3.0


def limit_certainty(gap: Gap, doubt: str) -> Gap:
    """An expired range is exact only where its offsets are known to be messages.
    `doubt`: why they may be none; "" where they are messages.
    """
    if not doubt or not _is_exact(gap):
        return gap
    reason = "; ".join(filter(None, (gap.reason, f"{MAYBE_EMPTY}: {doubt}")))
    return replace(gap, certainty=Certainty.BOUNDED, maybe_empty=True, reason=reason)


def find_doubts(
    admin: Admin, topic: str, gaps: Iterable[Gap], known: Sequence[Gap], limit: Deadline
) -> dict[int, str]:
    """By partition why what has expired there may be no messages, of exact gaps that are new.

    Args:
        gaps: those of one sample, with their times.
        known: the stream's recorded gaps: what they say of the same range is kept.
    """
    asked: dict[int, Gap] = {}
    doubts: dict[int, str] = {}
    for gap in filter(_is_exact, gaps):
        same = [one for one in known if _overlaps(one, gap)]
        unsure = [one for one in same if one.certainty is Certainty.BOUNDED]
        if not _covers(same, gap) or any(not one.maybe_empty for one in unsure):
            asked[gap.partition] = gap
        elif unsure:
            doubts[gap.partition] = "as it is on record"
    ends = {number: gap.end or 0 for number, gap in asked.items()}
    written = {number: gap.first_time for number, gap in asked.items()}
    return doubts | ask_doubts(admin, topic, ends, written, limit)


def ask_doubts(
    admin: Admin,
    topic: str,
    ends: Mapping[int, int],
    written: Mapping[int, datetime | None],
    limit: Deadline,
) -> dict[int, str]:
    """By partition why what has expired there may be no messages; those that are, are left out.

    Args:
        ends: where what has expired ends.
        written: a time before which nothing of it was written; None where that is unknown.
    """
    if not ends:
        return {}
    within = Deadline(limit.remaining(_ASK_SECONDS))
    try:
        remembered = find_transactional(admin.properties, topic, ends, within)
    except BacklogError as error:
        return dict.fromkeys(ends, f"whether they are is unknown: {error.message}")
    doubts = dict.fromkeys(ends.keys() - remembered.keys(), "its leader is unknown")
    doubts |= {p: "it is written in transactions" for p, is_so in remembered.items() if is_so}
    # Its leader may have forgotten who wrote long ago: what survives tells.
    older = {
        number: end
        for number, end in ends.items()
        if number not in doubts and not _is_recent(written.get(number))
    }
    for number, is_transactional in _read_survivors(admin, topic, older, limit).items():
        if is_transactional is None:
            doubts[number] = "nothing survives that would show how it is written"
        elif is_transactional:
            doubts[number] = "it is written in transactions"
    return doubts


def _is_exact(gap: Gap) -> bool:
    is_range = gap.start is not None and gap.end is not None
    return gap.cause is Cause.EXPIRED and gap.certainty is Certainty.EXACT and is_range


def _is_recent(written: datetime | None) -> bool:
    """Whether all of it was written so lately that its leader remembers by whom."""
    return written is not None and utc_now() - written < _REMEMBERED


def _overlaps(one: Gap, gap: Gap) -> bool:
    same = (one.group, one.topic_id, one.partition) == (gap.group, gap.topic_id, gap.partition)
    live = one.state is not GapState.WAIVED
    return same and live and (one.start or 0) < (gap.end or 0) and (one.end or 0) > (gap.start or 0)


def _covers(same: Iterable[Gap], gap: Gap) -> bool:
    cursor = gap.start or 0
    for start, end in sorted((one.start or 0, one.end or 0) for one in same):
        if start <= cursor:
            cursor = max(cursor, end)
    return cursor >= (gap.end or 0)


def _read_survivors(
    admin: Admin, topic: str, ends: Mapping[int, int], limit: Deadline
) -> dict[int, bool | None]:
    """By partition whether the batches from there on, a few megabytes, have a transactional one;
    None where none could be read."""
    found: dict[int, bool | None] = dict.fromkeys(ends)
    if not ends or limit.expired:
        return found
    within = Deadline(limit.remaining(_READ_SECONDS))
    try:
        highs = list_offsets(admin, topic, ends, "latest", deadline=within)
        ranges = [
            OffsetRange(number, end, highs[number])
            for number, end in ends.items()
            if end < highs[number]
        ]
        waiting = {one.partition for one in ranges}
        for batches in fetch_batches(admin.properties, topic, ranges, limit=within):
            if batches.headers:
                found[batches.partition] = any(
                    one.is_transactional or one.is_control for one in batches.headers
                )
                waiting.discard(batches.partition)
            if not waiting:
                break
    except BacklogError:
        pass  # what was not read is not known
    return found
