"""What a question is, what an answer is, and who can ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from delivery.lookback.states import Outcome

MOST_BYTES = 64 * 1024  # of an answer, which needs thirty


@dataclass(frozen=True, slots=True)
class Question:
    """Which business transaction is meant."""

    biz_type: str
    biz_id: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question; `reason` never holds what the service sent."""

    outcome: Outcome
    reason: str = ""


class Checker(Protocol):
    """Asks one service. Raises nothing but what ends the program: all else is an answer."""

    async def ask(self, question: Question) -> Answer:
        """Asks once, within the service's time limit."""

    async def close(self) -> None:
        """Gives connections back."""


def read_status(status: object) -> Answer:
    """The answer to a `status` as services send it."""
    known = {one.value: one for one in (Outcome.COMMITTED, Outcome.ROLLED_BACK, Outcome.UNKNOWN)}
    if isinstance(status, str) and status in known:
        return Answer(known[status])
    return Answer(Outcome.FAILED, f"its status is none of {', '.join(known)}")
