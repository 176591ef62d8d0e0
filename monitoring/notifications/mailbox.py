"""What one hook still has to be told: of each stream only the latest, so that it never grows.

A message that could not be sent waits here until the hook takes it, or until a later verdict takes
its place. So an outage of the hook ends with what is true then, and no recovery is forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition

from monitoring.notifications.settling import Seen
from monitoring.verdicts import Verdict

# Below a hook's least verdict: too little is known to say that the trouble is over.
_SAYS_NOTHING = (Verdict.LAGGING, Verdict.UNKNOWN)
_News = tuple[int, int]
_QUIET: _News = (0, 0)


@dataclass(frozen=True, slots=True)
class Notice:
    """A change to tell.

    Attributes:
        before: the verdict that the hook knows of; None where it knows none.
        is_resolved: the verdict is below the least that the hook is told of.
    """

    seen: Seen
    before: Verdict | None
    is_resolved: bool


@dataclass(slots=True)
class _Waiting:
    seen: Seen
    news: _News
    is_tried: bool = False
    before: Verdict | None = None
    not_before: float = 0.0


@dataclass(slots=True)
class _Stream:
    """What the hook knows of a stream; `told` is None where that is nothing, or not known."""

    told: _News | None = None
    before: Verdict | None = None
    waiting: _Waiting | None = None


@dataclass(slots=True)
class Mailbox:
    """One hook's; thread-safe.

    Args:
        least: the least severe verdict that it is told of.
        resolves_first: whether a stream without trouble is told of too when it is first seen: what
            an earlier process said of it may still stand.
        on_replaced: called when a message that was never sent has become untrue.
        clock: seconds that only count up.
    """

    least: Verdict
    resolves_first: bool
    on_replaced: Callable[[], None]
    clock: Callable[[], float] = time.monotonic
    _streams: dict[str, _Stream] = field(default_factory=dict)
    _changed: Condition = field(default_factory=Condition)

    def put(self, seen: Seen) -> None:
        """Notes how a stream is; a change waits to be sent."""
        is_loud = seen.verdict.severity >= self.least.severity
        if not is_loud and seen.verdict in _SAYS_NOTHING:
            return
        news = self._read_news(seen) if is_loud else _QUIET
        with self._changed:
            stream = self._streams.setdefault(seen.stream, _Stream())
            is_first = stream.told is None and stream.waiting is None and stream.before is None
            if news == _QUIET and is_first and not self.resolves_first:
                stream.told = _QUIET
            if news == stream.told:
                self._replace(stream, None)
                if news == _QUIET:
                    stream.before = seen.verdict
            elif stream.waiting is not None and stream.waiting.news == news:
                stream.waiting.seen = seen
            else:
                self._replace(stream, _Waiting(seen, news))
                self._changed.notify_all()

    def take(self) -> Notice | None:
        """The next one to send; it stays until it is said what came of it. None: nothing is due."""
        now = self.clock()
        with self._changed:
            for stream in self._streams.values():
                one = stream.waiting
                if one is None or one.not_before > now:
                    continue
                if not one.is_tried:
                    one.is_tried, one.before = True, stream.before
                return Notice(one.seen, one.before, one.news == _QUIET)
        return None

    def note_delivered(self, notice: Notice) -> None:
        """The hook took it."""
        with self._changed:
            stream = self._streams[notice.seen.stream]
            stream.told = _QUIET if notice.is_resolved else self._read_news(notice.seen)
            stream.before = notice.seen.verdict
            if stream.waiting is not None and stream.waiting.news == stream.told:
                stream.waiting = None

    def note_failed(self, notice: Notice, wait: float = 0.0) -> None:
        """It did not; perhaps it heard it all the same. Others have their turn first.

        Args:
            wait: seconds until this one is due again.
        """
        name = notice.seen.stream
        with self._changed:
            stream = self._streams.pop(name)
            self._streams[name] = stream
            stream.told, stream.before = None, notice.seen.verdict
            if stream.waiting is not None and stream.waiting.is_tried:
                stream.waiting.not_before = self.clock() + wait

    def has_tried(self) -> bool:
        """Whether something waits that the hook has not taken, though it was tried."""
        with self._changed:
            return any(s.waiting is not None and s.waiting.is_tried for s in self._streams.values())

    def wait(self, seconds: float) -> None:
        """Until something changes, or the time is over."""
        with self._changed:
            self._changed.wait(seconds)

    def wake(self) -> None:
        """Ends a `wait`."""
        with self._changed:
            self._changed.notify_all()

    def _read_news(self, seen: Seen) -> _News:
        """What is news to this hook: what goes on beside a loss only where that is told to it."""
        verdict, beside = seen.rank
        return verdict, beside if beside >= self.least.severity else 0

    def _replace(self, stream: _Stream, waiting: _Waiting | None) -> None:
        if stream.waiting is not None and not stream.waiting.is_tried:
            self.on_replaced()
        stream.waiting = waiting
