"""Looks at many streams of a cluster at once; what it lacks of a stream is asked for it alone.

500 streams, each asked alone, take the better part of a minute: most of it are round trips.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import ConfigurationError
from backlogctl.kafka.clients import Properties
from backlogctl.kafka.groups import Commit
from backlogctl.kafka.log_dirs import LogDirs, read_topics_log_dirs
from backlogctl.ledger import Hold, Ledger
from backlogctl.monitoring.offsets.lag import (
    FirstMessage,
    TopicOffset,
    count_lag,
    list_places,
    list_unread,
    read_firsts,
    read_size_limit,
)
from backlogctl.monitoring.offsets.pasts import PastReader
from backlogctl.monitoring.offsets.sampler import StreamLike, find_state, sample_partition
from backlogctl.values import LOG_START, Gap, PartitionSample, Recovery, RecoveryState, Sample

if TYPE_CHECKING:
    from backlogctl.kafka.bulk import BulkReader, ClusterLayout, Offsets

CLOCK_NOISE = timedelta(seconds=1)
# Fewer are as fast one by one.
LEAST_STREAMS = 3
PEEK_SECONDS = 10.0
# Of one question to all; streams whose brokers do not answer are asked alone.
ANSWER_SECONDS = 10.0
AT_WORK = (RecoveryState.RUNNING, RecoveryState.PAUSED, RecoveryState.FAILED)


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """What the ledger knows of some streams.

    Attributes:
        skew: how far its clock is ahead of this host's.
        gaps: by stream, all of them.
        empties: by stream and topic id, and by partition, the last range [first, end) that was
            read and held no data.
        holds: the open ones, of all streams.
        recoveries: by stream, those that were begun and are not over.
    """

    skew: timedelta
    gaps: Mapping[str, tuple[Gap, ...]]
    empties: Mapping[tuple[str, str], Mapping[int, tuple[int, int]]]
    holds: tuple[Hold, ...]
    recoveries: Mapping[str, tuple[Recovery, ...]]

    def list_empty(self, stream: str, topic_id: str) -> Mapping[int, tuple[int, int]]:
        return self.empties.get((stream, topic_id), {})

    def list_holds(self, sample: Sample) -> list[Hold]:
        """The open holds of the sample's topic, whoever holds it."""
        place = (sample.cluster, sample.topic, sample.topic_id)
        return [one for one in self.holds if (one.cluster, one.topic, one.topic_id) == place]


def read_facts(ledger: Ledger, streams: Collection[str]) -> LedgerFacts:
    """What it knows of these streams now."""
    gaps: defaultdict[str, list[Gap]] = defaultdict(list)
    for gap in ledger.gaps.list(streams):
        gaps[gap.stream].append(gap)
    recoveries: defaultdict[str, list[Recovery]] = defaultdict(list)
    for recovery in ledger.recoveries.list(streams, AT_WORK):
        recoveries[recovery.stream].append(recovery)
    return LedgerFacts(
        measure_clock_skew(ledger),
        {name: tuple(found) for name, found in gaps.items()},
        ledger.empties.list(streams),
        ledger.holds.list(),
        {name: tuple(found) for name, found in recoveries.items()},
    )


# Clocks that differ by more are told.
SKEW_SECONDS = 5.0


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


@dataclass(frozen=True, slots=True)
class BulkLook:
    """What was read at once.

    Attributes:
        samples: by stream.
        settings: by topic what its retention goes by, where that may be read.
        pasts: of those that have a sample.
        log_dirs: by topic that retention by size may delete from in front of a group, its sizes.
        firsts: by topic, partition and offset the first message that is read from there on, None
            where no data lies there; of readers of committed data, and of others.
    """

    facts: LedgerFacts
    samples: Mapping[str, Sample] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    firsts: Mapping[bool, Mapping[TopicOffset, FirstMessage | None]] = field(default_factory=dict)
    log_dirs: Mapping[str, LogDirs] = field(default_factory=dict)
    pasts: PastReader | None = None


_Place = tuple[bool, str, TopicOffset]  # committed data only, the topic's id, where it begins


class BulkLooker:
    """Looks at streams of one cluster again and again. Not thread-safe."""

    def __init__(self, ledger: Ledger, properties: Properties) -> None:
        self._ledger = ledger
        self._properties = properties
        self._reader: BulkReader | None = None
        self._has_tried = False
        # The first message from an offset on stays the first, until it expires.
        self._known: dict[_Place, FirstMessage] = {}

    def look(
        self, streams: Sequence[StreamLike], limit: Deadline, *, in_full: bool = True
    ) -> BulkLook:
        """What can be had of them; a stream of which something cannot is left out of that.
        `in_full`: with what only a status needs.
        """
        facts = read_facts(self._ledger, [one.name for one in streams])
        reader = self._open_reader() if len(streams) >= LEAST_STREAMS else None
        if reader is None:
            return BulkLook(facts)
        samples = take_samples(reader, streams, facts.skew)
        pasts = PastReader(self._ledger, streams, samples)
        if not in_full:
            return BulkLook(facts, samples, pasts=pasts)
        settings = reader.read_retentions({one.topic for one in samples.values()})
        firsts = self._peek(streams, samples, facts, limit)
        sized = {
            one.topic
            for one in streams
            if (sample := samples.get(one.name)) is not None
            and read_size_limit(settings.get(one.topic, {})) is not None
            and any(count_lag(part, one.isolation) for part in sample.partitions)
        }
        within = Deadline(limit.remaining(PEEK_SECONDS))
        log_dirs = read_topics_log_dirs(self._properties, sized, within) if sized else {}
        return BulkLook(facts, samples, settings, firsts, log_dirs, pasts)

    def _open_reader(self) -> BulkReader | None:
        """None for a login that it cannot use: each stream is read alone."""
        if not self._has_tried:
            from backlogctl.kafka.bulk import BulkReader  # numpy takes a while

            self._has_tried = True
            with suppress(ConfigurationError):
                self._reader = BulkReader(self._properties, ANSWER_SECONDS)
        return self._reader

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _peek(
        self,
        streams: Sequence[StreamLike],
        samples: Mapping[str, Sample],
        facts: LedgerFacts,
        limit: Deadline,
    ) -> dict[bool, dict[TopicOffset, FirstMessage | None]]:
        wanted: dict[bool, dict[tuple[str, int], int]] = {True: {}, False: {}}
        ids = {one.topic: one.topic_id for one in samples.values()}
        for stream in streams:
            if (sample := samples.get(stream.name)) is None:
                continue
            known = facts.list_empty(stream.name, sample.topic_id)
            unread = list_unread(sample, stream.isolation, known)
            starts = wanted[stream.isolation != "read_uncommitted"]
            for topic, partition, start in list_places(sample.topic, unread):
                # Of two groups on a topic, one is asked alone.
                starts.setdefault((topic, partition), start)
        found: dict[bool, dict[TopicOffset, FirstMessage | None]] = {}
        kept: dict[_Place, FirstMessage] = {}
        for is_committed, starts in wanted.items():
            places = [(*place, at) for place, at in starts.items()]
            have = {
                place: first
                for place in places
                if (first := self._known.get((is_committed, ids[place[0]], place))) is not None
            }
            left = [place for place in places if place not in have]
            isolation = "read_committed" if is_committed else "read_uncommitted"
            within = Deadline(limit.remaining(PEEK_SECONDS))
            reading = read_firsts(self._properties, left, within, "the topics", isolation)
            read = {place: reading.found[place[:2]] for place in left if place[:2] in reading.found}
            found[is_committed] = {**have, **read}
            kept |= {
                (is_committed, ids[place[0]], place): first
                for place, first in found[is_committed].items()
                if first is not None
            }
        self._known = kept
        return found


def take_samples(
    reader: BulkReader, streams: Sequence[StreamLike], skew: timedelta
) -> dict[str, Sample]:
    """Samples of many streams of one cluster, in the order of `take_sample` (protocol P1).

    One of which anything could not be read, or that has to be looked at again, is left out.
    """
    topics, groups = {one.topic for one in streams}, sorted({one.group for one in streams})
    # Who is in the groups comes first: one that joins later cannot make it look deserted.
    states = {one.name: one for one in reader.list_groups()}
    layout = reader.read_layout(topics)
    lows = reader.read_log_starts(layout)
    commits = reader.read_whole_commits(groups)
    taken_at, started = utc_now() + skew, time.monotonic()
    stable = reader.read_ends(layout, stable=True)
    highs = reader.read_ends(layout, stable=False)
    took = time.monotonic() - started
    again = reader.read_layout(topics)
    found: dict[str, Sample] = {}
    for stream in streams:
        topic, state = layout.topics.get(stream.topic), states.get(stream.group)
        known = commits.get(stream.group)
        if topic is None or state is None or known is None:
            continue
        if not (topic.topic_id and state.state):
            continue  # brokers that are too old to tell it
        if not _is_same(layout, again, stream.topic):
            continue
        parts = _make_partitions(stream.topic, known, lows, stable, highs)
        if parts is None:
            continue
        found[stream.name] = Sample(
            stream=stream.name,
            cluster=stream.cluster,
            topic=stream.topic,
            group=stream.group,
            topic_id=topic.topic_id,
            taken_at=taken_at,
            partitions=parts,
            group_state=find_state(state.state, is_simple=state.is_simple),
            took=took,
        )
    return found


def _is_same(before: ClusterLayout, after: ClusterLayout, topic: str) -> bool:
    """Offsets of two topics must not meet in one sample."""
    then, now = before.topics.get(topic), after.topics.get(topic)
    return then is not None and now is not None and then.topic_id == now.topic_id


def _make_partitions(
    topic: str,
    commits: Mapping[tuple[str, int], Commit],
    lows: Mapping[str, Offsets],
    stable: Mapping[str, Offsets],
    highs: Mapping[str, Offsets],
) -> tuple[PartitionSample, ...] | None:
    """None where a leader did not answer, or ends before a commit: it may not have recovered its
    ends yet."""
    parts: list[PartitionSample] = []
    columns = (lows[topic].tolist(), stable[topic].tolist(), highs[topic].tolist())
    for number, (low, lso, high) in enumerate(zip(*columns, strict=True)):
        if min(low, lso, high) < 0:
            return None
        commit = commits.get((topic, number))
        if commit is not None and commit.offset < 0:
            commit = Commit(low, LOG_START)
        if commit is not None and commit.offset > high:
            return None
        parts.append(sample_partition(number, low, commit, lso, high))
    return tuple(parts)
