"""Observes streams: sample, judge, record. One observation, or a loop that survives outages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import Event
from typing import Protocol

from backlog.clock import Deadline, utc_now
from backlog.errors import BacklogError, ClusterUnreachable
from backlog.kafka.calls import Connection, connect
from backlog.kafka.clients import Admin
from backlog.values import Cause, Gap, PartitionSample, Sample
from monitoring.gaps import Finding, Suspicion, find_gaps
from monitoring.marks import Marks, advance_marks, make_marks, raise_marks
from monitoring.sampler import StreamLike, take_sample
from monitoring.timeline import bound_times

LOG = logging.getLogger("backlog.monitoring")

# What decides on the next sample lies within these: the longest settling time, and some.
RECENT = timedelta(hours=1)
PAUSE = 0.5
LOOKS_AT_MOVING_LOW = 3
OBSERVE_SECONDS = 30.0
THIN_EVERY = timedelta(minutes=10)


class MarkLike(Protocol):
    """What the ledger keeps of commits after their samples are gone."""

    @property
    def group(self) -> str: ...
    @property
    def topic_id(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def max_committed(self) -> int: ...
    @property
    def last_committed(self) -> int: ...


class SamplesLike(Protocol):
    """The ledger's verbs on samples that are used here."""

    def add(self, sample: Sample) -> None: ...
    def latest(self, stream: str) -> Sample | None: ...
    def history(self, stream: str, since: datetime | None = None) -> tuple[Sample, ...]: ...
    def committed_marks(self, stream: str) -> Sequence[MarkLike]: ...
    def thin(self, now: datetime, horizon: timedelta) -> int: ...


class GapsLike(Protocol):
    """The ledger's verbs on gaps that are used here."""

    def record(self, gap: Gap) -> Gap: ...


class LedgerLike(Protocol):
    """The part of the ledger that monitoring writes."""

    @property
    def samples(self) -> SamplesLike: ...
    @property
    def gaps(self) -> GapsLike: ...


class ClusterLike(Protocol):
    """A configured cluster."""

    def client_properties(self) -> dict[str, str]: ...


class ConfigLike(Protocol):
    """The sections of the configuration that the loop reads."""

    @property
    def clusters(self) -> Mapping[str, ClusterLike]: ...
    @property
    def streams(self) -> Mapping[str, StreamLike]: ...


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at a stream: the newest sample, the gaps it showed as the ledger has them, and
    the rest. `marks` is the past for the next look.
    """

    sample: Sample
    gaps: tuple[Gap, ...]
    findings: tuple[Finding, ...]
    marks: Marks


def load_marks(ledger: LedgerLike, stream: StreamLike) -> Marks:
    """The past of a stream, as its samples and commit marks in the ledger tell it."""
    samples = ledger.samples.history(stream.name, utc_now() - RECENT)
    if not samples:
        latest = ledger.samples.latest(stream.name)
        samples = () if latest is None else (latest,)
    marks = make_marks(_of_stream(samples, stream))
    commits = {
        mark.partition: (mark.max_committed, mark.last_committed)
        for mark in ledger.samples.committed_marks(stream.name)
        if mark.group == stream.group and mark.topic_id == marks.topic_id
    }
    return raise_marks(marks, marks.topic_id, commits)


def observe_stream(
    ledger: LedgerLike,
    stream: StreamLike,
    connection: Connection,
    deadline: Deadline | None = None,
    *,
    marks: Marks | None = None,
    settle: bool = True,
) -> Observation:
    """Samples a stream, records the gaps seen, and stores the sample.

    A suspicion that a few seconds can decide is looked at again within the deadline; so is an
    expired range whose log start may be moving, so that both bounds are reported.

    Args:
        marks: the past, as the last observation returned it; None reads the ledger.
        settle: False takes one sample only.

    Raises:
        TopicMissing, ClusterUnreachable, KafkaFailure, LedgerError.
    """
    admin, limit = connect(connection), deadline or Deadline(OBSERVE_SECONDS)
    past = load_marks(ledger, stream) if marks is None else marks
    recorded: dict[str, Gap] = {}
    first: Sample | None = None
    looks = 0
    while True:
        sample = take_sample(stream, admin, limit)
        first = first or sample
        judgement = find_gaps(past, sample)
        # Gaps before the sample: a crash in between finds them again, not the other way round.
        for gap in _date_gaps(ledger, stream, sample, judgement.gaps):
            kept = ledger.gaps.record(gap)
            recorded[kept.id] = kept
        ledger.samples.add(sample)
        past = advance_marks(past, sample)
        looks += 1
        expired = any(gap.cause is Cause.EXPIRED for gap in judgement.gaps)
        moving = expired and looks < LOOKS_AT_MOVING_LOW
        if not settle or not (judgement.is_undecided or moving) or limit.remaining() < 2 * PAUSE:
            break
        time.sleep(PAUSE)
    findings = (*judgement.findings, *_compare_lows(first, sample, recorded.values()))
    return Observation(sample, tuple(recorded.values()), findings, past)


def watch_streams(
    config: ConfigLike,
    ledger: LedgerLike,
    interval: timedelta,
    stop_event: Event,
    on_observation: Callable[[Observation], None] | None = None,
    *,
    horizon: timedelta = timedelta(hours=24),
    on_error: Callable[[StreamLike, BacklogError], None] | None = None,
) -> None:
    """Observes every stream each `interval` until `stop_event` is set.

    A failure, of a cluster or one stream, is logged when it begins and when it ends; the others
    go on.
    """
    admins: dict[str, Admin] = {}
    pasts: dict[str, Marks] = {}
    failing: dict[str, str] = {}
    thin_at = utc_now()
    seconds = interval.total_seconds()
    while not stop_event.is_set():
        round_end = time.monotonic() + seconds
        unreachable: set[str] = set()
        for name, stream in config.streams.items():
            if stop_event.is_set():
                return
            if stream.cluster in unreachable:
                continue  # one time-out a round is enough for a cluster
            try:
                if stream.cluster not in admins:
                    properties = config.clusters[stream.cluster].client_properties()
                    admins[stream.cluster] = connect(properties)
                limit = Deadline(min(OBSERVE_SECONDS, max(seconds, 5.0)))
                seen = observe_stream(
                    ledger, stream, admins[stream.cluster], limit, marks=pasts.get(name)
                )
            except BacklogError as error:
                if isinstance(error, ClusterUnreachable):
                    unreachable.add(stream.cluster)
                    _log_outage(failing, f"cluster {stream.cluster}", error)
                else:
                    _log_outage(failing, f"stream {name}", error)
                if on_error is not None:
                    on_error(stream, error)
                continue
            _log_recovery(failing, f"cluster {stream.cluster}", f"stream {name}")
            pasts[name] = seen.marks
            if on_observation is not None:
                on_observation(seen)
        if utc_now() >= thin_at:
            thin_at = utc_now() + THIN_EVERY
            try:
                ledger.samples.thin(utc_now(), horizon)
            except BacklogError as error:
                _log_outage(failing, "thinning samples", error)
        stop_event.wait(max(0.0, round_end - time.monotonic()))


def _of_stream(samples: Iterable[Sample], stream: StreamLike) -> tuple[Sample, ...]:
    """Without samples from before the stream was pointed at another topic or group."""
    return tuple(
        sample
        for sample in samples
        if (sample.cluster, sample.topic, sample.group)
        == (stream.cluster, stream.topic, stream.group)
    )


def _date_gaps(
    ledger: LedgerLike, stream: StreamLike, sample: Sample, gaps: Sequence[Gap]
) -> tuple[Gap, ...]:
    if not any(gap.end is not None for gap in gaps):
        return tuple(gaps)
    timeline = (*_of_stream(ledger.samples.history(stream.name), stream), sample)
    dated: list[Gap] = []
    for gap in gaps:
        if gap.start is not None and gap.end is not None:
            bounds = bound_times(timeline, gap.partition, gap.start, gap.end, gap.topic_id)
            gap = replace(gap, first_time=bounds.lower, last_time=bounds.upper)
        dated.append(gap)
    return tuple(dated)


def _compare_lows(first: Sample, last: Sample, gaps: Iterable[Gap]) -> tuple[Finding, ...]:
    before: dict[int, PartitionSample] = {part.partition: part for part in first.partitions}
    hit = {gap.partition for gap in gaps if gap.cause is Cause.EXPIRED}
    return tuple(
        Finding(
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


def _log_outage(failing: dict[str, str], what: str, error: BacklogError) -> None:
    if what not in failing:
        LOG.warning("%s: %s", what, error)
    failing[what] = error.code


def _log_recovery(failing: dict[str, str], *names: str) -> None:
    for name in names:
        if failing.pop(name, None) is not None:
            LOG.warning("%s: answers again", name)
