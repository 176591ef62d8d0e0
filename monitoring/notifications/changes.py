"""Which changes of a stream a hook is told of, each once; of each stream only the latest waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from threading import Condition

from backlogctl.monitoring.offsets.sampler import StreamLike
from backlogctl.monitoring.verdict.status import GroupStatus, Verdict

# A cluster that is away for a moment is no news; the page calls a stream stale after as many.
BLIND_LOOKS = 3
# Below a hook's least verdict: too little is known to say that the trouble is over.
_SAYS_NOTHING = (Verdict.LAGGING, Verdict.UNKNOWN)
_News = tuple[int, int]
_QUIET: _News = (0, 0)


@dataclass(frozen=True, slots=True)
class StreamObservation:
    """A look at a stream.

    Attributes:
        beside: what goes on beside messages that are lost already, which must not hide it; else
            `ok`.
        sentence: the verdict in words, or why the look failed.
        status: None where the look failed.
    """

    stream: str
    cluster: str
    topic: str
    group: str
    at: datetime
    verdict: Verdict
    beside: Verdict
    sentence: str
    status: GroupStatus | None = None

    @classmethod
    def of_status(cls, status: GroupStatus) -> StreamObservation:
        return cls(
            stream=status.stream,
            cluster=status.cluster,
            topic=status.topic,
            group=status.group,
            at=status.taken_at,
            verdict=status.verdict,
            beside=status.course if status.verdict is Verdict.LOST else Verdict.OK,
            sentence=status.sentence,
            status=status,
        )

    @classmethod
    def of_failure(cls, stream: StreamLike, reason: str, at: datetime) -> StreamObservation:
        """A look that failed: the stream is `unknown`. `reason`: without secrets."""
        return cls(
            stream=stream.name,
            cluster=stream.cluster,
            topic=stream.topic,
            group=stream.group,
            at=at,
            verdict=Verdict.UNKNOWN,
            beside=Verdict.OK,
            sentence=reason,
        )

    @property
    def rank(self) -> _News:
        """Grows with how bad it is; two of one rank are the same news."""
        return self.verdict.severity, self.beside.severity


@dataclass(slots=True)
class Damper:
    """Which looks at one stream count: a change for the worse at once, one for the better twice."""

    _counted: StreamObservation | None = None
    _was_better: bool = False
    _failed: int = 0

    def count(self, look: StreamObservation) -> bool:
        self._failed = self._failed + 1 if look.status is None else 0
        if 0 < self._failed < BLIND_LOOKS:
            return False
        is_better = self._counted is not None and look.rank < self._counted.rank
        counts = not is_better or self._was_better
        self._was_better = is_better and not counts
        if counts:
            self._counted = look
        return counts


@dataclass(frozen=True, slots=True)
class Change:
    """A change to send. `before`: the verdict that the hook knows of; None where it knows none."""

    look: StreamObservation
    before: Verdict | None
    news: _News

    @property
    def is_resolved(self) -> bool:
        """The verdict is below the least that the hook is told of."""
        return self.news == _QUIET


@dataclass(slots=True)
class _Stream:
    """`known` is what the hook knows; None where that is nothing, or not known. `tried` was sent
    once and not taken, as a change from `tried_before`."""

    look: StreamObservation
    news: _News
    known: _News | None = None
    before: Verdict | None = None
    tried: _News | None = None
    tried_before: Verdict | None = None
    not_before: float = 0.0

    @property
    def waits(self) -> bool:
        return self.news != self.known


@dataclass(slots=True)
class Mailbox:
    """One hook's; thread-safe. A hook that was away gets what is true when it is back.

    Args:
        least: the least severe verdict that it is told of.
        resolves_first: whether a stream without trouble is told of too when it is first seen: an
            alert of an earlier process may be open.
        on_replaced: called when a message that was never sent has become untrue.
        clock: seconds that only count up.
    """

    least: Verdict
    resolves_first: bool
    on_replaced: Callable[[], None]
    clock: Callable[[], float] = time.monotonic
    _streams: dict[str, _Stream] = field(default_factory=dict)
    _changed: Condition = field(default_factory=Condition)

    def put(self, look: StreamObservation) -> None:
        """Notes how a stream is; a change waits to be sent."""
        is_loud = look.verdict.severity >= self.least.severity
        if not is_loud and look.verdict in _SAYS_NOTHING:
            return
        # What goes on beside a loss is news only where the hook is told of that verdict.
        beside = look.rank[1] if look.rank[1] >= self.least.severity else 0
        news = (look.rank[0], beside) if is_loud else _QUIET
        with self._changed:
            stream = self._streams.get(look.stream)
            if stream is None:
                is_known = news == _QUIET and not self.resolves_first
                stream = _Stream(look, news, known=_QUIET if is_known else None)
                self._streams[look.stream] = stream
            elif stream.waits and stream.news != news:
                if stream.tried != stream.news:
                    self.on_replaced()
                stream.tried = None
            stream.look, stream.news = look, news
            if news == _QUIET and not stream.waits:
                stream.before = look.verdict
            self._changed.notify_all()

    def take(self) -> Change | None:
        """The next one to send, which stays until its outcome is noted; None: nothing is due."""
        now = self.clock()
        with self._changed:
            for stream in self._streams.values():
                if not stream.waits or (stream.tried is not None and stream.not_before > now):
                    continue
                if stream.tried is None:
                    stream.tried, stream.tried_before = stream.news, stream.before
                return Change(stream.look, stream.tried_before, stream.news)
        return None

    def note_delivered(self, change: Change) -> None:
        with self._changed:
            stream = self._streams[change.look.stream]
            stream.known, stream.before, stream.tried = change.news, change.look.verdict, None

    def note_failed(self, change: Change, wait: float = 0.0) -> None:
        """It did not; perhaps it heard it all the same. Others have their turn first.
        `wait`: seconds until this one is due again.
        """
        name = change.look.stream
        with self._changed:
            stream = self._streams[name] = self._streams.pop(name)
            stream.known, stream.before = None, change.look.verdict
            stream.not_before = self.clock() + wait

    def has_tried(self) -> bool:
        """Whether something waits that the hook has not taken, though it was tried."""
        with self._changed:
            return any(one.waits and one.tried is not None for one in self._streams.values())

    def wait(self, seconds: float) -> None:
        """Until something changes, or the time is over."""
        with self._changed:
            self._changed.wait(seconds)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
