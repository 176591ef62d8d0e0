"""How messages ended, counted beside the work: nothing that is counted changes what is done."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, get_args

from delivery.once.errors import InProgress, LeaseLost, MarksAway, NoMessageId, PayloadConflict
from delivery.once.turn import Turn

Outcome = Literal[
    "first",  # its work was done, and is marked
    "repeat",  # it had been handled
    "without_id",  # it has no id, and its work was done without a mark, as `without_id` allows
    "unmarked",  # Redis was away, and its work was done without a mark, as `when_away` allows
    "failed",  # the block raised, or the database did
    "refused",  # it has no id that can be kept
    "in_progress",  # another worker still had its turn
    "conflict",  # its id came before, with another payload
    "lease_lost",  # its work was done twice
    "away",  # Redis was away, and nothing goes on
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
_RAISED: Mapping[type[BaseException], Outcome] = {
    NoMessageId: "refused",
    InProgress: "in_progress",
    PayloadConflict: "conflict",
    LeaseLost: "lease_lost",
    MarksAway: "away",
}


class Counts:
    """What came of the messages of one consumer, since it started; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[Outcome, int] = dict.fromkeys(OUTCOMES, 0)

    def add(self, outcome: Outcome) -> None:
        """One more."""
        with self._lock:
            self._numbers[outcome] += 1

    def read(self) -> Mapping[Outcome, int]:
        """All of them, also those that are 0."""
        with self._lock:
            return dict(self._numbers)

    @contextmanager
    def around(self, block: AbstractContextManager[Turn]) -> Iterator[Turn]:
        """The block as it is, counted once, when it ends."""
        outcome: Outcome = "failed"
        is_working = False
        try:
            with block as turn:
                is_working = True
                yield turn
                is_working = False
            outcome = _name_end(turn)
        except BaseException as error:
            # The work may raise the same, about another message.
            if not is_working:
                outcome = _RAISED.get(type(error), "failed")
            raise
        finally:
            self.add(outcome)


def _name_end(turn: Turn) -> Outcome:
    if not turn._is_first:
        return "repeat"
    if turn.is_marked:
        return "first"
    return "without_id" if turn.message_id is None else "unmarked"
