"""Lag, loss and what time is left, as `status` prints it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from backlog.clock import Deadline
from backlog.errors import ClusterUnreachable
from backlog.kafka.clients import Properties, find_addresses, make_consumer
from backlog.kafka.errors import translate, unwrap
from backlog.values import Gap, GapState, PartitionSample, Sample
from monitoring.timeline import estimate_time

# A reader that commits after each message stays at most this far behind by control records.
TAIL_AT_MOST = 2
# Rates are taken over the samples of this window.
RATE_WINDOW = timedelta(minutes=15)


class Verdict(StrEnum):
    """One word for a stream, the worst that applies."""

    OK = "ok"
    LAGGING = "lagging"
    LOSING = "losing"  # retention comes before the consumer
    LOST = "lost"
    BEYOND_END = "beyond_end"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition's figures; None where they are not known, never a guess or NaN.

    `lag` and `lost` are offsets, so upper bounds on messages; times are in seconds.
    """

    partition: int
    log_start: int
    committed: int | None
    end: int
    lag: int | None
    lag_seconds: float | None
    lost: int | None

    def to_json(self) -> dict[str, Any]:
        """The partition as `status --json` prints it."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Rates:
    """Offsets a second over the rate window, all partitions together."""

    consumed: float | None
    produced: float | None


def find_end(part: PartitionSample, isolation: str) -> int:
    """Where the group's reading ends: the LSO if it reads committed, else the high watermark."""
    return part.lso if isolation == "read_committed" else part.high


def count_lag(part: PartitionSample, isolation: str) -> int | None:
    """Unread offsets that still exist; None without a commit. What expired is loss, not lag."""
    if part.committed is None:
        return None
    return max(0, find_end(part, isolation) - max(part.committed, part.low))


def measure_partition(
    part: PartitionSample,
    isolation: str,
    sample: Sample,
    history: Sequence[Sample] = (),
    gaps: Iterable[Gap] = (),
    tail_without_data: bool = False,
) -> PartitionLag:
    """The figures of one partition.

    Args:
        history: earlier samples, for `lag_seconds`.
        gaps: the ledger's gaps of the stream; those of this topic and group that are not verified
            or waived count as lost.
        tail_without_data: nothing but control records lies in the lag.
    """
    lag = 0 if tail_without_data else count_lag(part, isolation)
    return PartitionLag(
        partition=part.partition,
        log_start=part.low,
        committed=part.committed,
        end=find_end(part, isolation),
        lag=lag,
        lag_seconds=_measure_age(part, lag, sample, history),
        lost=_count_lost(part, sample, gaps),
    )


def build_status(
    sample: Sample,
    isolation: str,
    history: Sequence[Sample] = (),
    gaps: Iterable[Gap] = (),
    retention: timedelta | None = None,
    tails: Collection[int] = (),
) -> dict[str, Any]:
    """One stream's entry in `status --json`.

    Args:
        retention: the topic's `retention.ms`; None where it is unlimited or not known.
        tails: partitions whose lag holds no data (`read_tails`).
    """
    known = tuple(gaps)
    measured = [
        measure_partition(part, isolation, sample, history, known, part.partition in tails)
        for part in sample.partitions
    ]
    rates = measure_rates([*history, sample])
    to_drain = _estimate_drain(sample, measured, rates)
    to_loss = _estimate_loss(sample, measured, history, retention)
    return {
        "stream": sample.stream,
        "group": sample.group,
        "verdict": str(_judge(sample, measured, rates, to_drain, to_loss)),
        "partitions": [entry.to_json() for entry in measured],
        "lag": _total(sample, [entry.lag for entry in measured]),
        "lost": _total(sample, [entry.lost for entry in measured]),
        "seconds_to_drain": to_drain,
        "seconds_to_loss": to_loss,
        "topic": sample.topic,
        "cluster": sample.cluster,
        "group_state": sample.group_state,
        "consumed_per_second": rates.consumed,
        "produced_per_second": rates.produced,
    }


def measure_rates(samples: Sequence[Sample]) -> Rates:
    """How fast the group commits and the producers write, over the newest samples.

    Partitions without a commit at either end are left out of `consumed`.
    """
    if not samples:
        return Rates(None, None)
    last = samples[-1]
    window = [
        sample
        for sample in samples
        if sample.topic_id == last.topic_id and last.taken_at - sample.taken_at <= RATE_WINDOW
    ]
    first = window[0]
    seconds = (last.taken_at - first.taken_at).total_seconds()
    if seconds <= 0:
        return Rates(None, None)
    earlier = {part.partition: part for part in first.partitions}
    pairs = [(earlier[p.partition], p) for p in last.partitions if p.partition in earlier]
    # A group that began to commit within the window is measured from there on.
    began = next((s for s in window if any(p.committed is not None for p in s.partitions)), first)
    read_for = (last.taken_at - began.taken_at).total_seconds()
    commits = {part.partition: part.committed for part in began.partitions}
    read = [
        after.committed - at
        for after in last.partitions
        if after.committed is not None and (at := commits.get(after.partition)) is not None
    ]
    consumed = max(0, sum(read)) / read_for if read and read_for > 0 else None
    written = sum(after.high - before.high for before, after in pairs)
    return Rates(consumed, max(0, written) / seconds)


def read_tails(
    properties: Properties,
    sample: Sample,
    isolation: str,
    deadline: Deadline | None = None,
) -> frozenset[int]:
    """Partitions whose small lag (at most 2) holds no data, only control or aborted records.

    Raises:
        ClusterUnreachable, KafkaFailure.
    """
    limit = deadline or Deadline(10.0)
    starts: dict[int, int] = {}
    for part in sample.partitions:
        lag = count_lag(part, isolation)
        if part.committed is not None and lag and lag <= TAIL_AT_MOST:
            starts[part.partition] = max(part.committed, part.low)
    if not starts:
        return frozenset()
    consumer = make_consumer(
        properties,
        {
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
        },
    )
    subject = f"topic {sample.topic}"
    try:
        consumer.assign([TopicPartition(sample.topic, p, at) for p, at in starts.items()])
        undecided: set[int | None] = set(starts)
        without_data: set[int] = set()
        while undecided:
            if limit.expired:
                raise ClusterUnreachable(
                    f"could not read the tail within {limit.seconds:g} s",
                    subject=subject,
                    hint=f"check the brokers at {find_addresses(properties)}",
                )
            message = consumer.poll(limit.remaining(0.5))
            if message is None:
                continue
            error = message.error()
            if error is None:
                undecided.discard(message.partition())
            elif error.code() == KafkaError._PARTITION_EOF:
                partition = message.partition()
                if partition is not None and partition in undecided:
                    undecided.discard(partition)
                    without_data.add(partition)
            elif error.fatal() or error.code() not in (
                KafkaError._ALL_BROKERS_DOWN,
                KafkaError._TRANSPORT,
            ):
                raise translate(error, subject, "read the tail")
        return frozenset(without_data)
    except KafkaException as error:
        raise translate(unwrap(error) or error, subject, "read the tail") from error
    finally:
        consumer.close()


def read_retention(config: Mapping[str, str]) -> timedelta | None:
    """`retention.ms` of a topic's settings; None where time deletes nothing."""
    text = config.get("retention.ms", "-1")
    if "delete" not in config.get("cleanup.policy", "delete") or int(text) < 0:
        return None
    # "For ever" is often written as the largest long, which no timedelta holds.
    return timedelta(milliseconds=min(int(text), 10**14))


def _measure_age(
    part: PartitionSample, lag: int | None, sample: Sample, history: Sequence[Sample]
) -> float | None:
    if lag is None or part.committed is None:
        return None
    if lag == 0:
        return 0.0
    at = _oldest_unread(part, sample, history)
    return None if at is None else max(0.0, (sample.taken_at - at).total_seconds())


def _oldest_unread(
    part: PartitionSample, sample: Sample, history: Sequence[Sample]
) -> datetime | None:
    if part.committed is None:
        return None
    samples = [*history, sample]
    return estimate_time(samples, part.partition, max(part.committed, part.low), sample.topic_id)


def _count_lost(part: PartitionSample, sample: Sample, gaps: Iterable[Gap]) -> int | None:
    place = (sample.group, sample.topic_id, part.partition)
    ours = [gap for gap in gaps if (gap.group, gap.topic_id, gap.partition) == place]
    settled = (GapState.VERIFIED, GapState.WAIVED)
    recorded = sum(gap.count or 0 for gap in ours if gap.state not in settled)
    if part.committed is None:
        # Without a commit nobody knows; what the ledger has is known to be lost at least.
        return recorded or None
    # What expired below the commit and is in no gap yet.
    cursor, fresh = part.committed, 0
    ranges = [(g.start, g.end) for g in ours if g.start is not None and g.end is not None]
    for start, end in sorted(ranges):
        if start >= part.low:
            break
        fresh += max(0, start - cursor)
        cursor = max(cursor, end)
    return recorded + fresh + max(0, part.low - cursor)


def _total(sample: Sample, values: Sequence[int | None]) -> int | None:
    """The sum of what is known; None where nothing is, or where zero would be only a part.

    With an unknown partition a sum above zero is "at least" that.
    """
    known = [value for value in values if value is not None]
    unknown = any(
        value is None and part.high > 0
        for part, value in zip(sample.partitions, values, strict=True)
    )
    return sum(known) if known and (sum(known) or not unknown) else None


def _estimate_drain(sample: Sample, measured: Sequence[PartitionLag], rates: Rates) -> float | None:
    lag = _total(sample, [entry.lag for entry in measured])
    if lag is None or lag == 0:
        return None if lag is None else 0.0
    if rates.consumed is None or rates.produced is None or rates.consumed <= rates.produced:
        return None
    return lag / (rates.consumed - rates.produced)


def _estimate_loss(
    sample: Sample,
    measured: Sequence[PartitionLag],
    history: Sequence[Sample],
    retention: timedelta | None,
) -> float | None:
    """Until the oldest unread message is old enough to be deleted: at least that long."""
    if retention is None:
        return None
    left: list[float] = []
    for part, entry in zip(sample.partitions, measured, strict=True):
        if not entry.lag:
            continue
        at = _oldest_unread(part, sample, history)
        if at is not None:
            left.append(max(0.0, (at + retention - sample.taken_at).total_seconds()))
    return min(left, default=None)


def _judge(
    sample: Sample,
    measured: Sequence[PartitionLag],
    rates: Rates,
    to_drain: float | None,
    to_loss: float | None,
) -> Verdict:
    if any(p.committed is not None and p.committed > p.high for p in sample.partitions):
        return Verdict.BEYOND_END
    if any(entry.lost for entry in measured):
        return Verdict.LOST
    # A partition that was never written needs no commit.
    written = [p for p in sample.partitions if p.high > 0]
    if any(p.committed is None for p in written):
        return Verdict.UNKNOWN
    if not any(entry.lag for entry in measured):
        return Verdict.OK
    # How fast it reads must be known: without that nobody can say who comes first.
    too_slow = rates.consumed is not None and (to_drain is None or to_drain >= (to_loss or 0.0))
    if to_loss is not None and too_slow:
        return Verdict.LOSING
    return Verdict.LAGGING
