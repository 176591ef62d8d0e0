"""Who moved a group's offsets: by the brokers' own log of commits, where that may be read.

While a group has members the brokers take commits from nobody else (but in transactions), so a
commit that was written while it had some is a reader's. So is one with a leader epoch: tools never
write one (KIP-320). Of any other nobody can say whether somebody has read so far.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from backlogctl.clock import Deadline
from backlogctl.kafka.clients import Connection
from backlogctl.kafka.commit_log import CommitLog, LogCondition, LogRecord
from backlogctl.kafka.commit_records import CommitRecord, MembersRecord

# An open transaction of any group hides what follows it in the log; most are over within this.
HISTORY_SECONDS = 20.0
_PAUSE_SECONDS = 0.2
_READ_SECONDS = 15.0


class LoggedCommit(NamedTuple):
    """One commit of a partition; `had_members`: whether the group had some then, None: unknown."""

    offset: int
    had_members: bool | None
    has_epoch: bool
    metadata: str = ""

    @property
    def is_readers(self) -> bool:
        """Whether somebody who reads made it, for certain."""
        return bool(self.had_members) or self.has_epoch


class Advance(NamedTuple):
    """Offsets `[start, end)` that a commit passed over; `is_read`: by a reader; None: unknown."""

    start: int
    end: int
    is_read: bool | None


History = Mapping[int, Sequence[LoggedCommit]]


def read_commit_history(
    connection: Connection,
    group: str,
    topic: str,
    since: datetime,
    now: Mapping[int, int | None],
    *,
    is_new: bool = False,
    had_members: bool | None = None,
    limit: Deadline | None = None,
) -> History | None:
    """The group's commits on a topic since then, by partition, in the order they were taken.

    Args:
        now: the group's stable commits, which the log must show.
        is_new: the group was not there before.
        had_members: whether it had members at some time shortly after `since`; None: unknown.

    Returns:
        None where not all of them are known: the log may not be read, or was cleaned since.
    """
    deadline = limit or Deadline(HISTORY_SECONDS)
    records: list[LogRecord] = []
    with CommitLog(connection, {group}, since) as log:
        while True:
            records += log.read(Deadline(deadline.remaining(_READ_SECONDS)))
            state = log.state[group]
            found = _sort(records, topic, is_new=is_new, had_members=had_members)
            if state.condition is LogCondition.FOLLOWED:
                break
            # What an open transaction hides is none of these where the last ones are there.
            is_held = state.condition is LogCondition.HELD
            if is_held and all(_has(found.get(p, ()), at) for p, at in now.items()):
                break
            if state.condition is LogCondition.DENIED or deadline.expired:
                return None
            time.sleep(_PAUSE_SECONDS)
    return None if state.complete_since > since else found


def _has(made: Sequence[LoggedCommit], at: int | None) -> bool:
    """Whether the last that is seen is where the group stands; an earlier one proves nothing."""
    return at is None or (bool(made) and made[-1].offset == at)


def _sort(
    records: Sequence[LogRecord], topic: str, *, is_new: bool, had_members: bool | None
) -> History:
    found: defaultdict[int, list[LoggedCommit]] = defaultdict(list)
    changed = any(isinstance(record, MembersRecord) for record in records)
    # Where they changed, nobody knows whether it was before that time or after it.
    members = False if is_new else None if changed else had_members
    # All records of a group are in one partition of the log. What the brokers tell of its members
    # has the place of the last record, and says nothing of that one.
    for record in sorted(
        records, key=lambda one: (one.place[1], not isinstance(one, CommitRecord))
    ):
        if not isinstance(record, CommitRecord):
            members = None if record.members is None else record.members > 0
        elif record.topic == topic and record.offset is not None and record.offset >= 0:
            made = LoggedCommit(record.offset, members, record.epoch is not None, record.metadata)
            found[record.partition].append(made)
    return found


def trace_moves(start: int, end: int, made: Iterable[LoggedCommit] | None) -> tuple[Advance, ...]:
    """How a partition's group came from `start` to `end`, by its commits in between.

    A commit that goes back, and is no reader's for certain, makes whoever comes read again from it,
    so what was passed over behind it before does not count.

    Args:
        made: None where they are unknown; some of before may be among them.
    """
    moves: list[Advance] = []
    high = start
    for one in made or ():
        if one.offset > high:
            is_read = True if one.is_readers else one.had_members
            moves.append(Advance(high, one.offset, is_read))
            high = one.offset
        elif one.offset < high and not one.is_readers:
            # Where nobody knows who was there, it may be of before the start.
            high = one.offset if one.had_members is False else max(start, one.offset)
            moves = [Advance(m.start, min(m.end, high), m.is_read) for m in moves if m.start < high]
    if high < end:
        moves.append(Advance(high, end, None))
    merged: list[Advance] = []
    for move in moves:
        if merged and merged[-1].end == move.start and merged[-1].is_read is move.is_read:
            merged[-1] = Advance(merged[-1].start, move.end, move.is_read)
        else:
            merged.append(move)
    return tuple(move._replace(end=min(move.end, end)) for move in merged if move.start < end)
