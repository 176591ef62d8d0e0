"""When a job comes by: the rhythm of its visits, as the samples of some days show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from statistics import median_high

from pydantic import TypeAdapter, ValidationError

from backlogctl.ledger import Ledger
from backlogctl.monitoring.offsets.history import is_memberless
from backlogctl.monitoring.offsets.lag import TAIL_AT_MOST, find_partition_end
from backlogctl.monitoring.offsets.sampler import StreamLike
from backlogctl.values import Sample

# A shorter time without it is a pause of one visit.
ABSENCE = timedelta(minutes=10)
# So many times from one visit to the next are a rhythm, if none is much longer than the others.
LEAST_TIMES, MOST_TIMES = 3, 12
REGULAR = 1.5
# Older samples are an hour apart: of a job that comes more often they show nothing.
LEARN_DAYS = timedelta(days=8)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often a job came that read all there was each time.

    Attributes:
        times: how many times from the beginning of a visit to that of the next were seen.
        every_at_least, every_at_most: the shortest and the longest of them, in seconds.
        due: if it comes as it did, it has read what is unread now by then.
    """

    times: int
    every_at_least: float
    every_at_most: float
    due: datetime


@dataclass(frozen=True, slots=True)
class _Visit:
    """`before`: the last sample without it; from `begun` to `ended` each sample shows it."""

    before: Sample
    begun: Sample
    ended: Sample


def learn_rhythm(samples: Sequence[Sample], isolation: str) -> Rhythm | None:
    """The rhythm of a group that is not there at the newest sample; None where it has none, or it
    should have come by now.

    Args:
        samples: of one group, oldest first; those of earlier lives of its topic are left out.
    """
    if not samples or not is_memberless(samples[-1]):
        return None
    now, topic_id = samples[-1].taken_at, samples[-1].topic_id
    # The first of those that are known may have begun earlier.
    ours = [one for one in samples if one.topic_id == topic_id]
    visits = list(_list_visits(ours))[1:][-MOST_TIMES - 1 :]
    times = [after.begun.taken_at - before.begun.taken_at for before, after in pairwise(visits)]
    if len(times) < LEAST_TIMES or max(times) > REGULAR * median_high(times):
        return None
    if not all(_reads_all(visit, isolation) for visit in visits[-LEAST_TIMES:]):
        return None
    last = visits[-1]
    # Each was seen to begin up to a sample too late, and takes a while.
    late = max(visit.begun.taken_at - visit.before.taken_at for visit in visits)
    takes = max(visit.ended.taken_at - visit.begun.taken_at for visit in visits)
    due = last.begun.taken_at + max(times) + late + takes
    if due <= now:
        return None
    return Rhythm(len(times), min(times).total_seconds(), max(times).total_seconds(), due)


def _list_visits(samples: Sequence[Sample]) -> Iterator[_Visit]:
    """The group was away for long before and after each; after the last one it may be for less."""
    away, begun, ended = samples[0], None, samples[0]
    for before, after in pairwise(samples):
        if _is_there(before, after):
            if begun is None:
                away, begun = before, after
            ended = after
        elif begun is not None and after.taken_at - ended.taken_at >= ABSENCE:
            yield _Visit(away, begun, ended)
            begun = None
    if begun is not None:
        yield _Visit(away, begun, ended)


def _is_there(before: Sample, after: Sample) -> bool:
    """Whether somebody is in the group, or was between the two: commits moved."""
    if not is_memberless(after):
        return True
    earlier = {part.partition: part.committed for part in before.partitions}
    return any(part.committed != earlier.get(part.partition) for part in after.partitions)


def _reads_all(visit: _Visit, isolation: str) -> bool:
    """Whether it went away with all read that was there when it came, but for control records."""
    reached = {part.partition: part.committed for part in visit.ended.partitions}
    return all(
        (reached.get(part.partition) or 0) + TAIL_AT_MOST >= find_partition_end(part, isolation)
        for part in visit.before.partitions
    )


# Cluster, topic and group; the topic's id; by partition the commit.
_Place = tuple[tuple[str, str, str], str, tuple[int | None, ...]]
_Known = tuple[_Place, Rhythm | None]


@cache
def _adapt() -> TypeAdapter[_Known]:
    return TypeAdapter(_Known)


class RhythmBook:
    """Rhythms of streams, learned anew where a commit moved or a job is late."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[str, _Known] = {}

    def dump(self, stream: str) -> str:
        """What is known of a stream as JSON, for `recall`; "" where nothing is."""
        known = self._known.get(stream)
        return "" if known is None else _adapt().dump_json(known).decode()

    def recall(self, stream: str, text: str) -> None:
        """Of another book; left where another version of the tool wrote it in another form."""
        if text:
            with suppress(ValidationError):
                self._known[stream] = _adapt().validate_json(text)

    def find(
        self, stream: StreamLike, sample: Sample, history: Sequence[Sample] = ()
    ) -> Rhythm | None:
        """The rhythm of a group that is away, and is behind.
        `history`: the stream's last samples, none between them is missing; the ledger has more.
        """
        behind = any(
            part.committed is not None and part.committed < part.high for part in sample.partitions
        )
        if not behind or not is_memberless(sample):
            return None
        place = (sample.cluster, sample.topic, sample.group)
        commits = tuple(part.committed for part in sample.partitions)
        key = (place, sample.topic_id, commits)
        known = self._known.get(stream.name)
        if known is None or known[0] != key:
            since = sample.taken_at - LEARN_DAYS
            before = history[0].taken_at if history else sample.taken_at
            samples = [
                one
                for one in (*self._ledger.samples.history(stream.name, since, before), *history)
                if (one.cluster, one.topic, one.group) == place and one.taken_at < sample.taken_at
            ]
            known = key, learn_rhythm([*samples, sample], stream.isolation)
            self._known[stream.name] = known
        rhythm = known[1]
        return None if rhythm is None or rhythm.due <= sample.taken_at else rhythm
