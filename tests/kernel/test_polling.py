"""What a database knows: asked once at a time, never waited for long, and not shown for long."""

from __future__ import annotations

import threading

from backlogctl.errors import LedgerError
from backlogctl_delivery.metrics import FRESH_SECONDS, KEPT_SECONDS, Poll
from tests.kafka_tools import wait_until

FIGURES = ("figures",)


class World:
    """A database that answers, fails or hangs, and a clock that is turned by hand."""

    def __init__(self, wait: float = 60.0) -> None:
        self.now = 0.0
        self.asked = 0
        self.error: Exception | None = None
        self.open = threading.Event()
        self.open.set()
        self.source = Poll("the ledger", self.collect, wait=wait, clock=lambda: self.now)

    def collect(self) -> tuple[str, ...]:
        self.asked += 1
        assert self.open.wait(120)
        if self.error is not None:
            raise self.error
        return FIGURES

    def hang(self) -> None:
        self.open.clear()


def test_it_is_asked_again_when_the_answer_is_not_fresh() -> None:
    world = World()
    for turned, asked in ((0.0, 1), (FRESH_SECONDS, 1), (0.1, 2)):
        world.now += turned
        assert world.source.read() is FIGURES
        assert world.asked == asked


def test_a_failure_is_kept_too() -> None:
    world = World()
    assert world.source.answers()
    world.now += FRESH_SECONDS + 0.1
    world.error = LedgerError("it is away", subject="ledger")
    assert [world.source.read() for _ in range(3)] == [None] * 3
    assert world.asked == 2
    world.error = RuntimeError("a bug")
    world.now += FRESH_SECONDS + 0.1
    assert not world.source.answers()
    world.error = None
    world.now += FRESH_SECONDS + 0.1
    assert world.source.answers()


def test_of_one_that_hangs_the_figures_are_shown_for_a_minute_and_it_is_asked_once() -> None:
    world = World(wait=0.01)
    wait_until(world.source.answers, 60)
    world.hang()
    for turned, shown in ((KEPT_SECONDS - 1, FIGURES), (2.0, None), (3600.0, None)):
        world.now += turned
        assert world.source.read() is shown
    # Who asks is a thread of its own, and may not have begun.
    wait_until(lambda: world.asked >= 2, 60)
    assert world.source.read() is None
    assert world.asked == 2
    world.open.set()
    wait_until(world.source.answers, 60)
    assert world.asked == 2
