"""Observes a stream once: sample, judge, record."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import count

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError
from backlogctl.kafka.clients import Admin, Connection, connect
from backlogctl.ledger import Ledger
from backlogctl.monitoring.offsets.bookmarks import Bookmarker
from backlogctl.monitoring.offsets.bulk_look import BulkLook, LedgerFacts, read_facts
from backlogctl.monitoring.offsets.certainty import find_doubts, limit_certainty
from backlogctl.monitoring.offsets.commits import CommitFeed
from backlogctl.monitoring.offsets.gaps import Judgement, OffsetFinding, Suspicion, find_gaps
from backlogctl.monitoring.offsets.history import StreamHistory
from backlogctl.monitoring.offsets.pasts import StreamPast, read_pasts
from backlogctl.monitoring.offsets.sampler import StreamLike, take_sample
from backlogctl.monitoring.offsets.timeline import WINDOW, Timeline, read_timeline
from backlogctl.values import Cause, Certainty, DatePiece, Gap, GapState, PartitionSample, Sample

PAUSE = 0.5
LOOKS_AT_MOVING_LOW = 3
OBSERVE_SECONDS = 30.0
READ_OUTSIDE = "the group is read from without joining, as its further commits show"


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at a stream.

    Attributes:
        sample: the newest.
        gaps: those that it showed, as the ledger has them.
        history: the past for the next look.
        facts: what the ledger knows, with these gaps.
        unmarked: why bookmarks could not be noted.
        by_log: each commit since the last look is known, else only where the samples saw it.
        unstored: samples that are to be stored yet, with whether the group is read from outside.
    """

    sample: Sample
    gaps: tuple[Gap, ...]
    findings: tuple[OffsetFinding, ...]
    history: StreamHistory
    facts: LedgerFacts
    unmarked: BacklogError | None = None
    by_log: bool = False
    unstored: tuple[tuple[Sample, bool], ...] = ()

    @property
    def undecided(self) -> dict[int, int]:
        """By partition how many offsets are gone that its reader may have read."""
        found: dict[int, int] = {}
        for one in self.findings:
            if one.count:
                found[one.partition] = found.get(one.partition, 0) + one.count
        return found


def find_past(
    ledger: Ledger, stream: StreamLike, bulk: BulkLook | None, window: timedelta = WINDOW
) -> StreamPast:
    """A stream's past for the sample that is taken next, or that the bulk look has taken."""
    if bulk is None or bulk.pasts is None:
        return read_pasts(ledger, [stream], window)[stream.name]
    return bulk.pasts.take(stream, window)


def observe_stream(
    ledger: Ledger,
    stream: StreamLike,
    connection: Connection,
    deadline: Deadline | None = None,
    *,
    history: StreamHistory | None = None,
    settle: bool = True,
    bookmarker: Bookmarker | None = None,
    feed: CommitFeed | None = None,
    bulk: BulkLook | None = None,
) -> Observation:
    """Samples a stream, records the gaps seen, stores the sample and bookmarks its commits.

    An expired range that is not on record yet is looked at again within the deadline: its log start
    may be moving, and both bounds are reported.

    Args:
        history: the past, as the last observation returned it; None reads the ledger.
        settle: False takes one sample only.
        bookmarker, feed: kept from the last look by those who look often.
        bulk: read for many streams at once: of one that it has, this is the only sample. The
            caller stores the samples of all.
    """
    admin, limit = connect(connection), deadline or Deadline(OBSERVE_SECONDS)
    facts = read_facts(ledger, [stream.name]) if bulk is None else bulk.facts
    past = find_past(ledger, stream, bulk).history if history is None else history
    past = replace(past, empty_tails=facts.list_empty(stream.name, past.topic_id))
    given = None if bulk is None else bulk.samples.get(stream.name)
    taken: list[Sample] = []
    recorded: dict[str, Gap] = {}
    unstored: list[tuple[Sample, bool]] = []
    changed = False
    for looks in count(1):
        sample = given or take_sample(stream, admin, limit, facts.skew)
        if given is None and feed is not None:
            feed.read(limit)
        taken.append(sample)
        # Read after the sample: its commits are in the log by then.
        commits = None if feed is None else feed.take(stream)
        judgement = find_gaps(past, sample, commits)
        past = judgement.history
        # Gaps before the sample: a crash in between finds them again, not the other way round.
        found, moving = _record(ledger, stream, admin, sample, judgement, limit)
        recorded |= {gap.id: gap for gap in found}
        changed = _close(ledger, sample, judgement, facts) or changed or bool(found)
        unstored.append((sample, past.commits_outside))
        if bulk is None:
            ledger.samples.add_all(unstored)
            unstored.clear()
        moving = moving and looks < LOOKS_AT_MOVING_LOW
        if given or not settle or not moving or limit.remaining() < 2 * PAUSE:
            break
        time.sleep(PAUSE)
    findings = (*judgement.findings, *_compare_lows(taken[0], sample, recorded.values()))
    # After the sample: nothing may come between its reads.
    unmarked = (bookmarker or Bookmarker(ledger)).note(stream, sample, admin, limit)
    if changed:
        gaps = {**facts.gaps, stream.name: ledger.gaps.list(stream.name)}
        facts = replace(facts, gaps=gaps)
    return Observation(
        *(sample, tuple(recorded.values()), findings, past, facts, unmarked),
        by_log=commits is not None,
        unstored=tuple(unstored),
    )


def _record(
    ledger: Ledger,
    stream: StreamLike,
    admin: Admin,
    sample: Sample,
    judgement: Judgement,
    limit: Deadline,
) -> tuple[list[Gap], bool]:
    """The gaps as they are on record now, and whether an expired one was longer than it was."""
    if judgement.read_to:
        ledger.gaps.trim_read(sample, judgement.read_to)
    if not judgement.gaps:
        return [], False
    known = ledger.gaps.list(stream.name)
    expired = [gap for gap in judgement.gaps if gap.cause is Cause.EXPIRED]
    longer = not all(_is_recorded(gap, known) for gap in expired)
    dated = list(_date_gaps(ledger, stream, sample, judgement.gaps, known))
    doubts = find_doubts(admin, stream.topic, [gap for gap, _ in dated], known, limit)
    recorded = [
        ledger.gaps.record(limit_certainty(gap, doubts.get(gap.partition, "")), date)
        for gap, date in dated
    ]
    return recorded, longer


def _close(ledger: Ledger, sample: Sample, judgement: Judgement, facts: LedgerFacts) -> bool:
    """Closes gaps that turned out to be none; whether there may be any."""
    known = [one for one in facts.gaps.get(sample.stream, ()) if one.state is GapState.OPEN]
    unbounded = any(one.end is None for one in known)
    if unbounded:
        ledger.gaps.close_answered(sample)
    possible = any(one.certainty is Certainty.POSSIBLE for one in known)
    if possible and judgement.reads_outside:
        ledger.gaps.close_possible(sample, READ_OUTSIDE)
    return unbounded or possible or bool(judgement.read_to)


def _date_gaps(
    ledger: Ledger, stream: StreamLike, sample: Sample, gaps: Sequence[Gap], known: Sequence[Gap]
) -> Iterator[tuple[Gap, DatePiece | None]]:
    """The gaps with their times, and what dates the pieces that the ledger makes of them."""
    if all(_is_recorded(gap, known) for gap in gaps):
        yield from ((gap, None) for gap in gaps)
        return
    timeline = Timeline((*read_timeline(ledger, stream), sample), sample.topic_id)
    for gap in gaps:
        if gap.start is None or gap.end is None:
            yield gap, None
            continue
        date = partial(timeline.bound, gap.partition)
        bounds = date(gap.start, gap.end)
        yield replace(gap, first_time=bounds.lower, last_time=bounds.upper), date


def _is_recorded(gap: Gap, known: Iterable[Gap]) -> bool:
    """Whether the ledger has all of its range, so that nothing of it is dated; true where it has
    no end."""
    if gap.start is None or gap.end is None:
        return True
    place = (gap.group, gap.topic_id, gap.partition)
    cursor = gap.start
    for item in sorted(
        (item.start, item.end)
        for item in known
        if (item.group, item.topic_id, item.partition) == place
        and item.start is not None
        and item.end is not None
    ):
        if item[0] <= cursor < item[1]:
            cursor = item[1]
    return cursor >= gap.end


def _compare_lows(first: Sample, last: Sample, gaps: Iterable[Gap]) -> tuple[OffsetFinding, ...]:
    before: dict[int, PartitionSample] = {part.partition: part for part in first.partitions}
    hit = {gap.partition for gap in gaps if gap.cause is Cause.EXPIRED}
    return tuple(
        OffsetFinding(
            Suspicion.LOW_MOVED,
            part.partition,
            before[part.partition].low,
            part.low,
            f"the log start moved from {before[part.partition].low} to {part.low} while it was "
            "looked at",
        )
        for part in last.partitions
        if part.partition in hit
        and part.partition in before
        and part.low != before[part.partition].low
        and first.topic_id == last.topic_id
    )
