"""Gaps: ranges that a group will never read, disjoint, each with its state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, insert, not_, select, update
from sqlalchemy.engine import RowMapping

from backlogctl.errors import InvalidTransition, UsageError
from backlogctl.ledger.schema import (
    Manager,
    among,
    gaps,
    make_value,
    read_values,
    recoveries,
    take_id,
    transitions,
)
from backlogctl.values import Cause, Certainty, DatePiece, Gap, GapState, Sample, SequenceRange
from backlogctl_delivery.sequenced.sequence import RangeSet

# What later samples change of open gaps; one that a plan holds stays as it was planned.


def to_gap(row: RowMapping) -> Gap:
    sequences = None
    if row["producer"] is not None:
        numbers = (row[name] for name in ("epoch", "first_sequence", "last_sequence"))
        sequences = SequenceRange(row["producer"], *numbers)
    return make_value(row, Gap, sequences=sequences)


def get_range(gap: Gap) -> tuple[int, int]:
    """The start and end of a gap that has both."""
    assert gap.start is not None
    assert gap.end is not None
    return gap.start, gap.end


def change_gap(connection: Connection, gap: Gap, now: datetime, **changes: Any) -> Gap:
    """Writes fields of a gap, and returns it as it is then."""
    query = update(gaps).where(gaps.c.id == gap.id)
    connection.execute(query.values(**changes, changed_at=now))
    return replace(gap, **changes)


def confirm_bounded(
    connection: Connection, gap: Gap, known: Sequence[Gap], now: datetime
) -> list[Gap]:
    """The known gaps, with open bounded ones inside an exact gap of the same cause made exact; or,
    where the group has read none of that gap, no more bounded than by what it may be."""
    start, end = get_range(gap)
    checked = []
    for each in known:
        first, last = get_range(each)
        bounded = (each.state, each.certainty) == (GapState.OPEN, Certainty.BOUNDED)
        is_inside = each.cause is gap.cause and start <= first and last <= end
        is_known = gap.certainty is Certainty.EXACT or (gap.maybe_empty and not each.maybe_empty)
        if is_known and bounded and is_inside:
            since = "exact since" if gap.certainty is Certainty.EXACT else gap.reason
            reason = f"{each.reason}; {since}: the group is empty, its commit stands"
            each = change_gap(
                *(connection, each, now),
                certainty=gap.certainty,
                maybe_empty=gap.maybe_empty,
                reason=reason,
            )
        checked.append(each)
    return checked


def list_trimmed(
    connection: Connection, sample: Sample, read_to: Mapping[int, int]
) -> list[tuple[Gap, int]]:
    """Open bounded gaps of which the group has read the first part after all, and up to where."""
    query = select(gaps).where(
        gaps.c.stream == sample.stream,
        gaps.c.group == sample.group,
        gaps.c.topic_id == sample.topic_id,
        gaps.c.state == GapState.OPEN,
        gaps.c.cause == Cause.EXPIRED,
        gaps.c.certainty == Certainty.BOUNDED,
        gaps.c.maybe_empty.is_(False),
        gaps.c.partition.in_(read_to),
        gaps.c.end.is_not(None),
    )
    open_gaps = read_values(connection, query.with_for_update(), to_gap)
    ranged = [(gap, *get_range(gap)) for gap in open_gaps]
    return [
        (gap, read_to[gap.partition])
        for gap, start, end in ranged
        if start < read_to[gap.partition] < end
    ]


# How a detected loss becomes gaps: new pieces, grown ones, and what was known before.

# Who closes a gap that turned out to be none.
ITSELF = "backlogctl"
_OVER = (GapState.WAIVED, GapState.VERIFIED)


def record_gap(connection: Connection, gap: Gap, now: datetime, date: DatePiece | None) -> Gap:
    """See `Gaps.record`, which holds the lock."""
    query = (
        select(gaps)
        .where(
            gaps.c.stream == gap.stream,
            gaps.c.group == gap.group,
            gaps.c.topic_id == gap.topic_id,
            gaps.c.partition == gap.partition,
        )
        .order_by(gaps.c.start, gaps.c.id)
        .with_for_update()
    )
    known = read_values(connection, query, to_gap)
    if gap.sequences is not None:
        return _record_sequences(connection, gap, gap.sequences, known, now)
    if gap.end is None:
        return _record_unknown(connection, gap, known, now)
    if gap.certainty is not Certainty.POSSIBLE:
        known = tuple(_decide_possible(connection, gap, known, now))
    ranged = [each for each in known if each.end is not None and not _is_over(each, gap)]
    checked = confirm_bounded(connection, gap, ranged, now)
    return _record_range(connection, gap, checked, now, date)


def _decide_possible(
    connection: Connection, gap: Gap, known: Sequence[Gap], now: datetime
) -> Iterator[Gap]:
    """The known gaps without open ones that were only possible, and lie in what is known now."""
    start, end = get_range(gap)
    for each in known:
        possible = (each.state, each.certainty) == (GapState.OPEN, Certainty.POSSIBLE)
        if possible and start <= (each.start or 0) and (each.end or 0) <= end:
            move_gaps(connection, [each.id], GapState.WAIVED, now, None, "decided since", ITSELF)
        else:
            yield each


def _is_over(known: Gap, gap: Gap) -> bool:
    """Whether a known gap says nothing about what is detected now.

    What an earlier offload that was given up would have discarded is in the topic again, and may be
    lost there in any way. What an offload discards now is unread, though it was put back before:
    somebody set the group back before it.
    """
    own = gap.archive is not None and known.archive == gap.archive
    if own or known.state not in _OVER:
        return False
    by_itself = known.changed_by == ITSELF
    if by_itself and gap.cause is Cause.UNPROCESSED:
        return True  # it was handled once, or cut: what the consumer's table says now counts
    given_up = known.cause is Cause.DISCARDED and by_itself
    return given_up or gap.cause is Cause.DISCARDED


def _record_sequences(
    connection: Connection, gap: Gap, asked: SequenceRange, known: Sequence[Gap], now: datetime
) -> Gap:
    """Only numbers that no gap of the same producer and epoch has yet are new; those of a gap that
    is over stay so: the message is put back, or given up, and its number stays missing."""
    recorded, last = RangeSet(), None
    for each in known:
        has = each.sequences
        if has is not None and (has.producer, has.epoch) == (asked.producer, asked.epoch):
            recorded.add(has.first, has.last)
            if has.first <= asked.last <= has.last:
                last = each
    for first, end in recorded.list_gaps(asked.first, asked.last):
        piece = replace(gap, sequences=replace(asked, first=first, last=end))
        last = insert_gap(connection, piece, None, None, now)
    assert last is not None
    return last


def _record_unknown(connection: Connection, gap: Gap, known: Sequence[Gap], now: datetime) -> Gap:
    for each in known:
        same = (each.cause, each.start, each.end) == (gap.cause, gap.start, None)
        # What closed by itself says nothing about the next time.
        if same and not (each.state is GapState.WAIVED and each.changed_by == ITSELF):
            return each
    return insert_gap(connection, gap, gap.start, None, now)


def _record_range(
    connection: Connection, gap: Gap, known: Sequence[Gap], now: datetime, date: DatePiece | None
) -> Gap:
    cursor, end = get_range(gap)
    last: Gap | None = None
    for each in [*known, None]:
        # `known` is disjoint and sorted: what lies between two of them is new.
        first, until = (end, end) if each is None else get_range(each)
        if cursor < min(end, first):
            piece = _take_part(gap, cursor, min(end, first))
            if date is not None:
                times = date(cursor, min(end, first))
                piece = replace(piece, first_time=times.lower, last_time=times.upper)
            last = _add_piece(connection, piece, cursor, min(end, first), known, now)
            cursor = min(end, first)
        if each is not None and until > cursor:
            if first < end:
                last = _choose_live(each, known, end)
            cursor = max(cursor, min(end, until))
    assert last is not None
    return last


def _take_part(gap: Gap, start: int | None, end: int | None) -> Gap:
    """The part of a gap with this range, and its share of what is likely."""
    part = replace(gap, start=start, end=end)
    if gap.likely is None or not gap.count or part.count is None:
        return part
    return replace(part, likely=round(gap.likely * part.count / gap.count))


def _add_likely(*gaps: Gap) -> int | None:
    if all(gap.likely is None for gap in gaps):
        return None
    return sum((gap.count or 0) if gap.likely is None else gap.likely for gap in gaps)


def _choose_live(gap: Gap, known: Sequence[Gap], end: int) -> Gap:
    """The gap that has the end of a range: of a waived one and its rest, the rest."""
    rest = gap
    for each in known:
        start, until = get_range(each)
        if each.state is not GapState.WAIVED and get_range(gap)[0] <= start < end <= until:
            rest = each
    return rest


def _add_piece(
    connection: Connection, gap: Gap, start: int, end: int, known: Sequence[Gap], now: datetime
) -> Gap:
    same = (start, GapState.OPEN, gap.cause, gap.certainty, gap.archive, gap.maybe_empty)
    for each in known:
        # Each offload has gaps of its own.
        other = gap.cause is Cause.DISCARDED and each.reason != gap.reason
        theirs = (each.end, each.state, each.cause, each.certainty, each.archive, each.maybe_empty)
        if theirs == same and not other:
            # What is not known of one piece is not known of both.
            likely = _add_likely(each, gap)
            times = {"end": end, "last_time": gap.last_time}
            return change_gap(connection, each, now, **times, likely=likely)
    return insert_gap(connection, gap, start, end, now)


def insert_gap(
    connection: Connection, gap: Gap, start: int | None, end: int | None, now: datetime
) -> Gap:
    """Adds an open gap with the range given, and what `gap` says besides it."""
    made = replace(
        _take_part(gap, start, end),
        # By the time of recording: ids are in that order, whenever a loss was detected.
        id=take_id(connection, "g", now),
        state=GapState.OPEN,
        recovery_id=None,
        changed_by="",
    )
    row = {each.name: getattr(made, each.name) for each in fields(made)}
    if (numbers := row.pop("sequences")) is not None:
        row.update(producer=numbers.producer, epoch=numbers.epoch)
        row.update(first_sequence=numbers.first, last_sequence=numbers.last)
    connection.execute(insert(gaps).values(**row, changed_at=now))
    return made


_HELD = (GapState.PLANNED, GapState.STAGED, GapState.INJECTED)


class Gaps(Manager):
    def record(self, gap: Gap, date: DatePiece | None = None) -> Gap:
        """Writes down what was seen; seeing it again changes nothing.

        Only what no gap of the same stream, group, topic id and partition has yet is new: it grows
        the open gap of the same cause and certainty that ends there, or becomes a new gap. A gap
        that is planned or later is frozen, and its range is never opened again. One of unknown
        range is the same when its cause and start are; of sequences, those that no gap of their
        producer and epoch has are new. `gap.id` and `gap.state` are not used.

        What an offload discards is unread at that moment, whatever became of its offsets before:
        gaps that are over do not count then, but those of its own archive. Those of an offload that
        was given up never count again: its messages stayed in the topic.

        Args:
            date: dates a new piece, which may be younger than the range it was seen in; without it
                a piece has the times of `gap`.

        Returns:
            The gap that now has the end of the range.

        Raises:
            ValueError: an end without a start, or not after it.
        """
        return self.record_all([gap], date)[0]

    def record_all(self, lost: Sequence[Gap], date: DatePiece | None = None) -> tuple[Gap, ...]:
        """`record` of several gaps of one stream, all or none."""
        if not lost:
            return ()
        for gap in lost:
            if gap.end is not None and (gap.start is None or gap.end <= gap.start):
                raise ValueError(f"{gap.start}..{gap.end} is not a range")
        with self._database.write() as connection:
            self._database.lock_name(connection, f"gaps:{lost[0].stream}")
            now = self._database.now(connection)
            return tuple(record_gap(connection, gap, now, date) for gap in lost)

    def trim_read(self, sample: Sample, read_to: Mapping[int, int]) -> int:
        """Waives open bounded gaps that the group turned out to have read in part; what is left
        of each becomes a gap of its own. Both say so.

        Args:
            read_to: by partition, a commit below the log start that the group reached by reading.

        Returns:
            How many were changed.
        """
        with self._database.write() as connection:
            self._database.lock_name(connection, f"gaps:{sample.stream}")
            now = self._database.now(connection)
            trimmed = list_trimmed(connection, sample, read_to)
            for gap, reached in trimmed:
                rest = replace(gap, reason=f"{gap.reason}; the rest of {gap.id}".lstrip("; "))
                kept = insert_gap(connection, rest, reached, gap.end, now)
                text = f"read up to {reached} after all; {kept.id} has the rest"
                move_gaps(connection, [gap.id], GapState.WAIVED, now, None, text, ITSELF)
        return len(trimmed)

    def waive_from(self, gap: Gap, at: int, reason: str, actor: str) -> Gap:
        """Waives a gap from an offset inside it on; what lies before becomes an open gap.

        Raises:
            InvalidTransition: it cannot be waived.
        """
        with self._database.write() as connection:
            self._database.lock_name(connection, f"gaps:{gap.stream}")
            now = self._database.now(connection)
            text = f"{reason}; a gap of its own has what lies before {at}"
            move_gaps(connection, [gap.id], GapState.WAIVED, now, None, text, actor)
            kept = replace(gap, reason=f"{gap.reason}; the part of {gap.id} before {at}")
            return insert_gap(connection, kept, gap.start, at, now)

    def cut(self, gap: Gap, at: int) -> tuple[Gap, Gap]:
        """Makes two gaps of an open one, which is waived: what lies before an offset inside it, and
        the rest.

        Raises:
            InvalidTransition: it is not open any more, or does not hold the offset.
        """
        with self._database.write() as connection:
            self._database.lock_name(connection, f"gaps:{gap.stream}")
            now = self._database.now(connection)
            (known,) = _read_gaps(connection, [gap.id], lock=True)
            start, end = known.start, known.end
            is_inside = start is not None and end is not None and start < at < end
            if known.state is not GapState.OPEN or not is_inside:
                raise InvalidTransition(
                    f"it is {known.state} and cannot be cut at {at}", subject=f"gap {gap.id}"
                )
            text = f"cut at {at}: two gaps of their own have it"
            move_gaps(connection, [gap.id], GapState.WAIVED, now, None, text, ITSELF)
            return (
                insert_gap(connection, known, start, at, now),
                insert_gap(connection, known, at, end, now),
            )

    def answer(self, answers: Mapping[str, str]) -> None:
        """Waives gaps that turned out to be none, by id with the reason; only those still open."""
        if not answers:
            return
        with self._database.write() as connection:
            now = self._database.now(connection)
            for gap in _read_gaps(connection, list(answers), lock=True):
                if gap.state is GapState.OPEN:
                    why = answers[gap.id]
                    move_gaps(connection, [gap.id], GapState.WAIVED, now, None, why, ITSELF)

    def close_possible(self, sample: Sample, reason: str) -> None:
        """Waives the open gaps of the sample's group that were only possible."""
        found = [
            gap.id
            for gap in self.list(sample.stream, [GapState.OPEN])
            if gap.certainty is Certainty.POSSIBLE
            and (gap.group, gap.topic_id) == (sample.group, sample.topic_id)
        ]
        self.answer(dict.fromkeys(found, reason))

    def close_answered(self, sample: Sample) -> int:
        """Waives open gaps of unknown range that a commit of the sample answers.

        `never_committed`: the group has committed since. `commit_vanished`: it goes on from where
        it was, or from before; from further on it may have lost what lies between.

        Returns:
            How many were closed.
        """
        commits = {p.partition: p.committed for p in sample.partitions if p.committed is not None}
        query = select(gaps).where(
            gaps.c.stream == sample.stream,
            gaps.c.group == sample.group,
            gaps.c.topic_id == sample.topic_id,
            gaps.c.state == GapState.OPEN,
            gaps.c.end.is_(None),
        )
        reported = self._list(query, to_gap)
        answered = {gap.id: text for gap in reported if (text := _find_answer(gap, commits))}
        if not answered:
            return 0
        with self._database.write() as connection:
            now = self._database.now(connection)
            for gap_id, text in answered.items():
                move_gaps(connection, [gap_id], GapState.WAIVED, now, None, text, ITSELF)
        return len(answered)

    def list_waiting(self, stream: str | None = None) -> tuple[Gap, ...]:
        """Gaps whose messages lie in an archive, and that no recovery is about to put back."""
        waiting = (gaps.c.state == GapState.STAGED, gaps.c.recovery_id == gaps.c.archive)
        query = among(select(gaps).where(*waiting), gaps.c.stream, stream)
        return self._list(query.order_by(gaps.c.stream, gaps.c.partition, gaps.c.start), to_gap)

    def get(self, gap_id: str) -> Gap:
        """One gap.

        Raises:
            UsageError: there is no such gap.
        """
        with self._database.read() as connection:
            return _read_gaps(connection, [gap_id], lock=False)[0]

    def list(
        self,
        stream: str | Collection[str] | None = None,
        states: Iterable[GapState] | None = None,
    ) -> tuple[Gap, ...]:
        """Gaps by stream, partition and start; of one stream, of some, or of all."""
        query = among(select(gaps), gaps.c.stream, stream)
        if states is not None:
            query = query.where(gaps.c.state.in_(states))
        order = (gaps.c.stream, gaps.c.partition, gaps.c.start, gaps.c.id)
        return self._list(query.order_by(*order), to_gap)

    def list_lost(self, stream: str) -> tuple[Gap, ...]:
        """All gaps of a stream but those that turned out to be none: the group read them."""
        read = and_(gaps.c.state == GapState.WAIVED, gaps.c.changed_by == ITSELF)
        query = select(gaps).where(gaps.c.stream == stream, not_(read))
        query = query.order_by(gaps.c.partition, gaps.c.start, gaps.c.id)
        return self._list(query, to_gap)

    def advance(
        self,
        ids: Iterable[str],
        to: GapState,
        recovery_id: str | None = None,
        reason: str | None = None,
        actor: str = "",
    ) -> tuple[Gap, ...]:
        """Moves gaps to a state, all or none; one that is there already stays.

        Args:
            recovery_id: the recovery that does it; needed for `planned`, and it must be the one
                that has the gap for staged, injected and verified.
            reason: needed for `waived`; kept with the gap.
            actor: who did it.

        Raises:
            UsageError: there is no such gap, or a reason or recovery is missing.
            InvalidTransition: a gap is in another state, or another recovery has it.
        """
        if to is GapState.WAIVED and not (reason or "").strip():
            raise UsageError("a gap is waived with a reason", hint="say it with --reason")
        if to is GapState.PLANNED and not recovery_id:
            raise UsageError("a gap is planned by a recovery, and none was named")
        with self._database.write() as connection:
            now = self._database.now(connection)
            return move_gaps(connection, tuple(ids), to, now, recovery_id, reason, actor)


def is_waiting(gap: Gap) -> bool:
    """Whether its messages lie in an archive, and no recovery is about to put them back."""
    is_own = gap.archive is not None and gap.archive == gap.recovery_id
    return gap.state is GapState.STAGED and is_own


def move_gaps(
    connection: Connection,
    ids: Sequence[str],
    to: GapState,
    now: datetime,
    recovery_id: str | None = None,
    reason: str | None = None,
    actor: str = "",
) -> tuple[Gap, ...]:
    """`Gaps.advance` inside a transaction."""
    moved = []
    for gap in _read_gaps(connection, ids, lock=True):
        owner = gap.recovery_id
        # In the archive of the offload that has it, it is for whoever puts it back.
        taken = to is GapState.PLANNED and is_waiting(gap)
        foreign = recovery_id is not None and owner not in (None, recovery_id) and not taken
        if foreign or (gap.state is not to and not _is_allowed(connection, gap, to)):
            has = f", of recovery {owner}" if owner else ""
            raise InvalidTransition(
                f"it is {gap.state}{has} and cannot become {to}",
                subject=f"gap {gap.id}",
                hint="`backlogctl gaps` shows the states",
            )
        if gap.state is to:
            moved.append(gap)
            continue
        if to is GapState.OPEN:
            _refuse_claimed(connection, gap)
        changes: dict[str, Any] = {"state": to, "changed_by": actor}
        if to in (GapState.OPEN, GapState.WAIVED):
            changes["recovery_id"] = None
        elif recovery_id is not None:
            changes["recovery_id"] = recovery_id
        if reason is not None:
            changes["reason"] = reason.strip()
        moved.append(change_gap(connection, gap, now, **changes))
    return tuple(moved)


def release_gaps(connection: Connection, recovery_id: str, now: datetime, actor: str) -> None:
    """Opens the gaps of a recovery that will never run again; verified ones stay so.

    One whose messages lie in an archive waits there again; one that waits in the recovery's own
    archive goes on waiting.
    """
    query = select(gaps).where(gaps.c.recovery_id == recovery_id, gaps.c.state.in_(_HELD))
    held = [gap for gap in read_values(connection, query, to_gap) if not is_waiting(gap)]
    open_again = [gap.id for gap in held if gap.archive in (None, recovery_id)]
    move_gaps(connection, open_again, GapState.OPEN, now, recovery_id, None, actor)
    for gap in held:
        if gap.id not in open_again:
            move_gaps(connection, [gap.id], GapState.STAGED, now, None, None, actor)
            change_gap(connection, gap, now, recovery_id=gap.archive)


def _read_gaps(connection: Connection, ids: Sequence[str], *, lock: bool) -> tuple[Gap, ...]:
    wanted = sorted(set(ids))
    known: tuple[Gap, ...] = ()
    for begin in range(0, len(wanted), 500):
        query = select(gaps).where(gaps.c.id.in_(wanted[begin : begin + 500])).order_by(gaps.c.id)
        # Locked in the order of ids, so that two who take the same gaps do not deadlock.
        known += read_values(connection, query.with_for_update() if lock else query, to_gap)
    missing = set(wanted) - {gap.id for gap in known}
    if missing:
        raise UsageError(
            "there is no such gap",
            subject=f"gap {min(missing)}",
            hint="`backlogctl gaps` lists them",
        )
    return known


def _is_allowed(connection: Connection, gap: Gap, after: GapState) -> bool:
    before = gap.state
    if before is GapState.STAGED and after is GapState.WAIVED and not is_waiting(gap):
        return False
    query = select(transitions.c.subject).where(
        and_(
            transitions.c.subject == "gap",
            transitions.c.from_state == before.value,
            transitions.c.to_state == after.value,
        )
    )
    return connection.execute(query).first() is not None


def _refuse_claimed(connection: Connection, gap: Gap) -> None:
    owner = gap.recovery_id
    query = select(recoveries.c.state).where(recoveries.c.id == owner)
    state = connection.execute(query).scalar_one_or_none()
    if state not in (None, "rejected", "cancelled"):
        raise InvalidTransition(
            f"it is {gap.state} and belongs to recovery {owner}, which is {state}",
            subject=f"gap {gap.id}",
            hint=f"reject or cancel {owner} first",
        )


def _find_answer(gap: Gap, commits: Mapping[int, int]) -> str:
    """Why a gap of unknown range is none any more; empty where it still is."""
    committed = commits.get(gap.partition)
    if committed is None:
        return ""
    if gap.cause is Cause.NEVER_COMMITTED:
        return f"the group has committed since, {committed}"
    if gap.cause is Cause.COMMIT_VANISHED and gap.start is not None and committed <= gap.start:
        return f"the group has a commit again, {committed}, not above the one that vanished"
    return ""
