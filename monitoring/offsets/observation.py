"""Observes a stream once: sample, judge, record."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import BacklogError
from backlogctl.kafka.clients import Connection, connect
from backlogctl.ledger import Ledger
from backlogctl.monitoring.offsets.bookmarks import Bookmarker
from backlogctl.monitoring.offsets.certainty import find_doubts, limit_certainty
from backlogctl.monitoring.offsets.commits import CommitFeed
from backlogctl.monitoring.offsets.gaps import OffsetFinding, Suspicion, find_gaps, make_history
from backlogctl.monitoring.offsets.history import StreamHistory, raise_marks
from backlogctl.monitoring.offsets.sampler import StreamLike, take_sample
from backlogctl.monitoring.offsets.timeline import Timeline
from backlogctl.values import Cause, DatePiece, Gap, PartitionSample, Sample

# What decides on the next sample lies within these: the settling times, and the group's pace.
RECENT = timedelta(hours=6)
PAUSE = 0.5
LOOKS_AT_MOVING_LOW = 3
OBSERVE_SECONDS = 30.0
CLOCK_NOISE = timedelta(seconds=1)
READ_OUTSIDE = "the group is read from without joining, as its further commits show"


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at a stream: the newest sample, the gaps it showed as the ledger has them, and
    the rest. `history` is the past for the next look; `unmarked` why bookmarks could not be noted.
    `by_log`: each commit since the last look is known, else only where the samples saw it.
    """

    sample: Sample
    gaps: tuple[Gap, ...]
    findings: tuple[OffsetFinding, ...]
    history: StreamHistory
    unmarked: BacklogError | None = None
    by_log: bool = False

    @property
    def undecided(self) -> dict[int, int]:
        """By partition how many offsets are gone that its reader may have read."""
        found: dict[int, int] = {}
        for one in self.findings:
            if one.count:
                found[one.partition] = found.get(one.partition, 0) + one.count
        return found


def load_history(ledger: Ledger, stream: StreamLike) -> StreamHistory:
    """The past of a stream, from its samples and commit marks in the ledger."""
    samples = ledger.samples.history(stream.name, utc_now() - RECENT)
    if not samples:
        latest = ledger.samples.latest(stream.name)
        samples = () if latest is None else (latest,)
    history = make_history(_of_stream(samples, stream))
    marks = [
        mark
        for mark in ledger.samples.committed_marks(stream.name)
        if mark.group == stream.group and mark.topic_id == history.topic_id
    ]
    return raise_marks(history, marks)


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
) -> Observation:
    """Samples a stream, records the gaps seen, stores the sample and bookmarks its commits.

    A suspicion that a few seconds can decide is looked at again within the deadline; so is an
    expired range whose log start may be moving, so that both bounds are reported.

    Args:
        history: the past, as the last observation returned it; None reads the ledger.
        settle: False takes one sample only.
        bookmarker, feed: kept from the last look by those who look often.

    Raises:
        TopicMissing, ClusterUnreachable, KafkaFailure, LedgerError.
    """
    admin, limit = connect(connection), deadline or Deadline(OBSERVE_SECONDS)
    past = load_history(ledger, stream) if history is None else history
    recorded: dict[str, Gap] = {}
    first: Sample | None = None
    looks = 0
    skew = measure_clock_skew(ledger)
    past = replace(past, empty_tails=ledger.empties.list(stream.name, past.topic_id))
    while True:
        sample = take_sample(stream, admin, limit, skew)
        first = first or sample
        # After the sample: its commits are in the log by now.
        commits = None if feed is None else feed.take(stream, limit)
        judgement = find_gaps(past, sample, commits)
        past = judgement.history
        if judgement.read_to:
            ledger.gaps.trim_read(sample, judgement.read_to)
        # Gaps before the sample: a crash in between finds them again, not the other way round.
        known = ledger.gaps.list(stream.name) if judgement.gaps else ()
        dated = list(_date_gaps(ledger, stream, sample, judgement.gaps, known))
        doubts = find_doubts(admin, stream.topic, [gap for gap, _ in dated], known, limit)
        for gap, date in dated:
            kept = ledger.gaps.record(limit_certainty(gap, doubts.get(gap.partition, "")), date)
            recorded[kept.id] = kept
        ledger.gaps.close_answered(sample)
        if judgement.reads_outside:
            ledger.gaps.close_possible(sample, READ_OUTSIDE)
        ledger.samples.add(sample, outside=past.commits_outside)
        looks += 1
        expired = any(gap.cause is Cause.EXPIRED for gap in judgement.gaps)
        moving = expired and looks < LOOKS_AT_MOVING_LOW
        if not settle or not (judgement.is_undecided or moving) or limit.remaining() < 2 * PAUSE:
            break
        time.sleep(PAUSE)
    findings = (*judgement.findings, *_compare_lows(first, sample, recorded.values()))
    # After the sample: nothing may come between its reads.
    unmarked = (bookmarker or Bookmarker(ledger)).note(stream, sample, admin, limit)
    by_log = commits is not None
    return Observation(sample, tuple(recorded.values()), findings, past, unmarked, by_log)


def measure_clock_skew(ledger: Ledger) -> timedelta:
    """How far the ledger's clock is ahead of this host's.

    Hosts whose clocks differ write samples of one stream: in the ledger's time they stay in order,
    and a commit does not seem to go back. A difference within the noise or the
    time of the call counts as none: a late answer is not a clock that is ahead.
    """
    before = utc_now()
    there = ledger.now()
    after = utc_now()
    if before - CLOCK_NOISE <= there <= after + CLOCK_NOISE:
        return timedelta(0)
    return there - (before + (after - before) / 2)


def _of_stream(samples: Iterable[Sample], stream: StreamLike) -> tuple[Sample, ...]:
    """Without samples from before the stream was pointed at another topic or group."""
    return tuple(
        sample
        for sample in samples
        if (sample.cluster, sample.topic, sample.group)
        == (stream.cluster, stream.topic, stream.group)
    )


def _date_gaps(
    ledger: Ledger,
    stream: StreamLike,
    sample: Sample,
    gaps: Sequence[Gap],
    known: Sequence[Gap],
) -> Iterator[tuple[Gap, DatePiece | None]]:
    """The gaps with their times, and what dates the pieces that the ledger makes of them."""
    if all(_is_recorded(gap, known) for gap in gaps):
        yield from ((gap, None) for gap in gaps)
        return
    timeline = Timeline(
        (*_of_stream(ledger.samples.history(stream.name), stream), sample), sample.topic_id
    )
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
