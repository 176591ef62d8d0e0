"""Which of a stream's looks count: a change for the worse at once, one for the better twice."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from monitoring.sampler import StreamLike
from monitoring.status import GroupStatus
from monitoring.verdicts import Verdict

# A cluster that is away for a moment is no news; the page calls a stream stale after as many.
BLIND_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Seen:
    """A stream as it was seen, or could not be.

    Attributes:
        beside: what goes on beside messages that are lost already, which must not hide it; else
            `ok`.
        sentence: the verdict in words, or why the stream cannot be seen.
        status: None where it could not be seen.
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

    @property
    def rank(self) -> tuple[int, int]:
        """Grows with how bad it is; two of one rank are the same news."""
        return self.verdict.severity, self.beside.severity


def describe_status(status: GroupStatus) -> Seen:
    return Seen(
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


def describe_failure(stream: StreamLike, reason: str, at: datetime) -> Seen:
    """A stream that cannot be seen is `unknown`, as in `status`.

    Args:
        reason: why, without secrets.
    """
    return Seen(
        stream=stream.name,
        cluster=stream.cluster,
        topic=stream.topic,
        group=stream.group,
        at=at,
        verdict=Verdict.UNKNOWN,
        beside=Verdict.OK,
        sentence=reason,
    )


class Settling:
    """The looks at one stream, in their order."""

    def __init__(self) -> None:
        self._holds: Seen | None = None
        self._was_better = False
        self._failed = 0

    def note(self, seen: Seen) -> Seen | None:
        """The look itself where it counts, else None."""
        if seen.status is None:
            self._failed += 1
            if self._failed < BLIND_LOOKS:
                return None
        else:
            self._failed = 0
        is_better = self._holds is not None and seen.rank < self._holds.rank
        counts = not is_better or self._was_better
        self._was_better = is_better and not counts
        if counts:
            self._holds = seen
        return seen if counts else None
