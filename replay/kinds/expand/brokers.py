"""Brokers that are away are waited for, and it is said since when."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from backlog.clock import utc_now
from backlog.errors import KafkaFailure
from backlog.numbers import format_duration, format_moment
from backlog.progress import Say
from fanout.relay.patience import Patience
from fanout.relay.pool import PATIENCE_SECONDS

Answer = TypeVar("Answer")

_PAUSE_SECONDS = 0.5


class Brokers:
    """Asks again until they answer; `away` is for how many seconds they have not, in all.

    Nothing is decided meanwhile: an answer that is not there is not zero.
    """

    def __init__(self, tick: Callable[[], None], say: Say) -> None:
        """Args: `tick` is called while they are waited for; it may raise, and ends the waiting."""
        self._tick = tick
        self._say = say
        self.away = 0.0

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """What the brokers answer.

        Raises:
            KafkaFailure: an answer that another try does not change, or none for too long.
        """
        at, began, is_said = utc_now(), time.monotonic(), False
        patience = Patience(PATIENCE_SECONDS)
        while True:
            try:
                answer = question()
            except KafkaFailure as error:
                if not error.retryable or patience.is_over():
                    raise
                if not is_said:
                    is_said = True
                    self._say(
                        f"the brokers have not answered since {format_moment(at)}: "
                        f"{error.message}; waiting for them, nothing is decided meanwhile"
                    )
            else:
                if is_said:
                    seconds = time.monotonic() - began
                    self.away += seconds
                    self._say(f"the brokers answer again, after {format_duration(seconds)}")
                return answer
            self._tick()
            time.sleep(_PAUSE_SECONDS)
