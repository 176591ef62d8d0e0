"""When a detection starts a recovery again that it started before."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from backlog.clock import format_time, read_time

_FIRST_PAUSE = timedelta(minutes=10)
_LONGEST_PAUSE = timedelta(hours=6)
_AGAIN_AFTER = timedelta(days=1)


class Came(StrEnum):
    """What came of the run that was started last."""

    OPEN = "open"  # it is at work, or waits
    BROKEN = "broken"  # it failed by itself before there was a plan, or was never made
    ENDED = "ended"  # it came to an end, or a person ended it


@dataclass(frozen=True, slots=True)
class Started:
    """A run that a detection started; `tries` counts those for the same occasion."""

    occasion: str
    run_id: str
    at: datetime
    tries: int = 1

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "at": format_time(self.at)}

    @classmethod
    def read(cls, document: Any) -> Started | None:
        """Of `to_json`; None where it is something else."""
        try:
            return cls(**{**document, "at": read_time(document["at"])})
        except (TypeError, KeyError, ValueError):
            return None


def decide_start(
    stream: str, occasion: str, last: Started | None, came: Came, now: datetime
) -> Started | None:
    """The run to start now; None: not now.

    One at a time. For the same occasion another one after a day, and after a technical failure with
    a pause that doubles from ten minutes to six hours.

    Args:
        came: of `last`.
    """
    # By name and day: two detections at once start one.
    new = Started(occasion, f"detect__{stream}__{occasion}__{now:%Y%m%d}", now)
    if last is None:
        return new
    if came is Came.OPEN:
        return None
    if last.occasion != occasion:
        return new
    if came is Came.BROKEN:
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(last.tries - 1, 10))
        if now - last.at < pause:
            return None
        tries = last.tries + 1
        return replace(new, run_id=f"{new.run_id}__{tries}", tries=tries)
    return new if now - last.at >= _AGAIN_AFTER else None
