"""What an audit found lost, as the ledger takes it: a gap that a plan can put back."""

from __future__ import annotations

from datetime import UTC, datetime

from backlog.clock import utc_now
from backlog.config import Stream
from backlog.values import Cause, Certainty, Gap, GapState, OffsetRange, SequenceRange

TimesMs = tuple[int | None, int | None]
"""Between which times messages were made, in ms since 1970; None is unknown."""


def make_unprocessed(stream: Stream, topic_id: str, place: OffsetRange, times: TimesMs) -> Gap:
    """Committed, and never handled."""
    return _make(
        stream,
        topic_id,
        place.partition,
        Cause.UNPROCESSED,
        times,
        reason="committed, and the consumer's own table lacks them",
        offsets=place,
    )


def make_producer_gap(
    stream: Stream, topic_id: str, partition: int, named: SequenceRange, times: TimesMs
) -> Gap:
    """Numbered by their producer, and nowhere in the topic."""
    return _make(
        stream,
        topic_id,
        partition,
        Cause.PRODUCER_GAP,
        times,
        reason=f"sequence {named.first:,} to {named.last:,} of producer {named.producer}, epoch "
        f"{named.epoch}, never reached the topic",
        sequences=named,
    )


def _make(
    stream: Stream,
    topic_id: str,
    partition: int,
    cause: Cause,
    times: TimesMs,
    *,
    reason: str,
    offsets: OffsetRange | None = None,
    sequences: SequenceRange | None = None,
) -> Gap:
    first, last = (None if at is None else datetime.fromtimestamp(at / 1000, UTC) for at in times)
    return Gap(
        id="",
        stream=stream.name,
        cluster=stream.cluster,
        topic=stream.topic,
        group=stream.group,
        topic_id=topic_id,
        partition=partition,
        start=None if offsets is None else offsets.start,
        end=None if offsets is None else offsets.end,
        cause=cause,
        certainty=Certainty.EXACT,
        state=GapState.OPEN,
        first_time=first,
        last_time=last,
        detected_at=utc_now(),
        reason=reason,
        sequences=sequences,
    )
