"""How many consumers a stream wants now, for who scales them: KEDA, or an HPA.

The number comes from the verdict on the last look, never from how many run: a pace that is measured
over minutes is that of the number before, so whoever scales by it goes up and down for ever. What
is not known is an error, at which KEDA and the HPA keep what there is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any

from backlogctl.config import Stream
from backlogctl.errors import BacklogError, ConfigurationError, UsageError
from backlogctl.formats import format_count, format_duration, format_plural
from backlogctl.kafka.group_types import SHARE
from backlogctl.ledger import Ledger
from backlogctl.monitoring.offsets.history import MEMBERLESS, SIMPLE
from backlogctl.monitoring.verdict.status import GroupStatus, PartitionStatus, Verdict
from backlogctl.monitoring.watch.board import Board
from backlogctl.monitoring.watch.notes import find_stopping
from backlogctl.values import to_document

# A look may be missed twice before it counts as old, as on /readyz.
_INTERVALS = 3
_OLD_SECONDS = 15.0  # of shorter intervals nobody expects that they are kept
# More consumers read neither what stands still nor what lies behind an open transaction.
_NOT_HELPED = (Verdict.STALL, Verdict.BLOCKED)
_NOT_KEPT_UP = (Verdict.WARN, Verdict.LOSING)
_AS_FAST = 1.1


class ScalingUnknown(BacklogError):
    """How many consumers are wanted is not known: whoever scales keeps those that there are."""

    code = "scaling_unknown"
    retryable = True


class ScalingHeld(BacklogError):
    """A recovery has stopped the stream's consumers: nobody else may start or end any."""

    code = "scaling_held"
    retryable = True


@dataclass(frozen=True, slots=True)
class WantedConsumers:
    """How many consumers; `is_active`: something is unread, so one at least must run; `why` in
    words."""

    consumers: int
    is_active: bool
    why: str


def choose_consumers(
    status: GroupStatus, replicas: int, most: int | None, window: float
) -> WantedConsumers:
    """How many consumers the stream wants by its verdict.

    - 0 where nothing is unread, and nothing was written within the window.
    - `replicas` where what is unread is being read.
    - With a backlog as many as are of use. A backlog is what the group does not keep up with
      (`warn`, `losing`), and what has waited for longer than the window.

    Never more than partitions that have something to read, nor than `most`.

    Args:
        replicas: how many run in normal times.
        most: `consumers.max_consumers`; None without a cap.
        window: seconds that trends are judged over.

    Raises:
        ScalingUnknown: of a partition it is not known how much is unread. Not where nobody is in
            the group, whose first commit tells it, nor where there is a backlog besides.
    """
    placeless = _list_placeless(status)
    unread = [part for part in status.partitions if part.lag]
    busy = sum(bool(p.lag) or p in placeless or _was_written(p) for p in status.partitions)
    if not busy:
        over = format_duration(window)
        return WantedConsumers(0, False, f"nothing is unread, and nothing was written for {over}")
    helped = [part for part in unread if part.course not in _NOT_HELPED]
    waits = any(_waits(part, window) for part in helped)
    is_left = status.group_state in MEMBERLESS and status.group_state != SIMPLE
    if placeless and not waits and not is_left:
        raise ScalingUnknown(_describe_placeless(placeless), subject=f"stream {status.stream}")
    wanted, why = replicas, "as many as in normal times"
    if waits:
        of_use = busy if placeless else count_useful([part.lag or 0 for part in helped])
        if of_use > replicas:
            wanted, why = of_use, f"there is a backlog, and more than {of_use} do not help"
    caps = [(busy, f"only {format_plural(busy, 'partition')} to read")]
    if most is not None:
        caps.append((most, f"`consumers.max_consumers` is {most}"))
    cap, told = min(caps)
    if cap < wanted:
        wanted, why = cap, f"{why}; {told}"
    return WantedConsumers(wanted, bool(unread or placeless), why)


def count_useful(lags: Sequence[int]) -> int:
    """The fewest consumers that take at most a tenth longer than any number does, whichever of
    these partitions each of them gets: assignors spread partitions, not lag.

    A partition has one consumer, so the one with most is read to the end last: where that has 80 %
    of all, the others' consumers wait for it. All messages of a hot key lie in one partition, which
    has at least its share: a key needs no cap of its own.

    Args:
        lags: in offsets; those of 0 count for nothing.
    """
    largest = sorted((lag for lag in lags if lag), reverse=True)
    if not largest:
        return 0
    loads = accumulate(largest)
    together = sum(load <= _AS_FAST * largest[0] for load in loads)
    return math.ceil(len(largest) / together)


def _list_placeless(status: GroupStatus) -> list[PartitionStatus]:
    """The partitions in which the group has no position that holds: it never committed, its commit
    expired, or it lies beyond the end. In an empty log nothing is unread, whatever its clients'
    `auto.offset.reset` is.

    Raises:
        ScalingUnknown: for any other reason it is not known how much is unread.
    """
    if status.group_state == SHARE:
        raise ScalingUnknown(
            "it is read by a share group, which has no committed offsets",
            subject=f"stream {status.stream}",
        )
    unknown = [part for part in status.partitions if part.lag is None]
    for part in unknown:
        if part.committed is not None and part.course is not Verdict.BEYOND_END:
            raise ScalingUnknown(
                f"what is unread of partition {part.partition} is not known",
                subject=f"stream {status.stream}",
            )
    return [p for p in unknown if p.committed is not None or p.log_start < p.end]


def _describe_placeless(parts: Sequence[PartitionStatus]) -> str:
    first = parts[0]
    more = f", and of {format_plural(len(parts) - 1, 'more partition')}" if len(parts) > 1 else ""
    if first.committed is not None:
        why = f"its commit {first.committed:,} is beyond the end of the log"
    else:
        many = format_count(first.end - first.log_start)
        why = f"the group has no committed offset there: none to {many}, by `auto.offset.reset`"
    return f"what is unread of partition {first.partition}{more} is not known: {why}"


def _was_written(part: PartitionStatus) -> bool:
    """Within the window; where that is not known yet, it was."""
    return part.produced_per_second is None or part.produced_per_second > 0


def _waits(part: PartitionStatus, window: float) -> bool:
    """Whether it does not go away with the next commits; where its age is not known, it waits."""
    if part.course in _NOT_KEPT_UP:
        return True
    return not part.keeps_up and (part.lag_seconds is None or part.lag_seconds > window)


# What is answered: from the last look of `watch`, and from who has stopped the consumers now.


@dataclass(frozen=True, slots=True)
class ReadableLag:
    """One partition's lag: offsets that are unread and still exist. None where that is not known;
    then it is `at_most` so many."""

    partition: int
    lag: int | None
    at_most: int


@dataclass(frozen=True, slots=True)
class ScalerAnswer:
    """What who scales a stream is told.

    Attributes:
        consumers: how many it wants.
        active: whether something is unread; where not, none need run.
        why: in words.
        lag: of all partitions; None where it is not known of one.
        consumers_to_win: with how many as fast as those of the window nothing would be lost.
        taken_at: when this was read, by the ledger's clock.
    """

    stream: str
    consumers: int
    active: bool
    why: str
    verdict: Verdict
    lag: int | None
    partitions: tuple[ReadableLag, ...]
    consumers_to_win: int | None
    taken_at: datetime

    def to_json(self) -> dict[str, Any]:
        return to_document(self)


class Scaler:
    """Answers from any thread.

    Args:
        board: has the last looks.
        interval: between two looks.
        window: that trends are judged over.
    """

    def __init__(
        self,
        board: Board,
        ledger: Ledger,
        streams: Mapping[str, Stream],
        interval: timedelta,
        window: timedelta,
    ) -> None:
        self._board, self._ledger, self._streams = board, ledger, streams
        self._old = max(_INTERVALS * interval.total_seconds(), _OLD_SECONDS)
        self._window = window.total_seconds()

    def find(self, name: str) -> Stream:
        """A stream that can be scaled.

        Raises:
            UsageError: there is none of this name.
            ConfigurationError: it has no `consumers`.
        """
        stream = self._streams.get(name)
        if stream is None:
            raise UsageError(
                "there is no such stream",
                subject=f"stream {name}",
                hint="name one of backlog.yaml: `stream: NAME` in the trigger's metadata",
            )
        if stream.consumers is None:
            raise ConfigurationError(
                "it has no `consumers`, so how many run in normal times is not known",
                subject=f"stream {name}",
                hint=f"write `streams.{name}.consumers` with `launcher` and `replicas`",
            )
        return stream

    def answer(self, name: str) -> ScalerAnswer:
        """How many consumers the stream wants.

        Raises:
            UsageError, ConfigurationError: it cannot be scaled.
            ScalingHeld: a recovery has stopped its consumers.
            ScalingUnknown: nobody knows, since something does not answer, or the look is old.
        """
        stream = self.find(name)
        self._refuse_held(stream)
        status = self._find_status(stream)
        consumers = stream.consumers
        assert consumers is not None
        wanted = choose_consumers(status, consumers.replicas, consumers.max_consumers, self._window)
        parts = tuple(_describe_part(part) for part in status.partitions)
        lags = [part.lag for part in parts]
        return ScalerAnswer(
            stream=name,
            consumers=wanted.consumers,
            active=wanted.is_active,
            why=wanted.why,
            verdict=status.verdict,
            lag=None if None in lags else sum(lag or 0 for lag in lags),
            partitions=parts,
            consumers_to_win=status.consumers_to_win,
            taken_at=status.taken_at,
        )

    def _refuse_held(self, stream: Stream) -> None:
        """The ledger is asked each time: a look of before would start consumers anew. That of while
        they were stopped says nothing of what those have to read which were given back."""
        seen = self._board.seen.streams.get(stream.name)
        try:
            now = find_stopping(self._ledger, stream.name, stream.topic, stream.group)
        except BacklogError as error:
            raise ScalingUnknown(
                f"whether a recovery has stopped its consumers is not known: {error}",
                subject=f"stream {stream.name}",
            ) from error
        held_by = "" if seen is None else seen.stopped_by
        if now is not None or held_by:
            told = held_by if now is None else f"{now.kind} {now.id}"
            raise ScalingHeld(
                f"its consumers are stopped by {told}: start and end none",
                subject=f"stream {stream.name}",
            )

    def _find_status(self, stream: Stream) -> GroupStatus:
        """The last look.

        Raises:
            ScalingUnknown: there is none, it failed, or it is old.
        """
        seen, key = self._board.seen, (stream.cluster, stream.name)
        subject = f"stream {stream.name}"
        if key in seen.failing:
            raise ScalingUnknown(f"the last look failed: {seen.failing[key]}", subject=subject)
        status = seen.streams.get(stream.name)
        if status is None:
            raise ScalingUnknown("it was not looked at yet", subject=subject)
        age = self._board.clock() - seen.looked_at[key]
        if age > self._old:
            told = f"the last look was {format_duration(age)} ago"
            raise ScalingUnknown(told, subject=subject)
        return status


def _describe_part(part: PartitionStatus) -> ReadableLag:
    """Of a log in which nothing is left, none is unread by whichever position."""
    is_beyond = part.lag is None and part.committed is not None
    kept = max(0, part.end - part.log_start)
    lag = 0 if part.lag is None and not is_beyond and not kept else part.lag
    return ReadableLag(part.partition, lag, kept if lag is None else lag)
