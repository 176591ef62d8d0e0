"""Lines about long work: one each ten seconds, from a thread that never fails the work."""

from __future__ import annotations

import threading

from backlogctl.formats import Ticker


class Clock:
    """Waits of a ticker: `ticks` of them pass at once, then it waits until it is stopped."""

    def __init__(self, ticks: int) -> None:
        self.left = ticks
        self.asked: list[float] = []
        self.over = threading.Event()

    def wait(self, stopped: threading.Event, seconds: float) -> bool:
        self.asked.append(seconds)
        if self.left:
            self.left -= 1
            return stopped.is_set()
        self.over.set()
        return stopped.wait(60)


def test_a_ticker_ticks_each_ten_seconds_and_its_thread_ends() -> None:
    clock, told = Clock(3), list[str]()
    with Ticker(lambda: told.append("tick"), wait=clock.wait):
        assert clock.over.wait(60)
        assert "progress" in {thread.name for thread in threading.enumerate()}
    assert told == ["tick"] * 3
    assert clock.asked == [10.0] * 4
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_a_tick_that_fails_is_dropped_and_the_next_one_comes() -> None:
    clock, told = Clock(3), list[int]()

    def tick() -> None:
        told.append(len(told))
        raise RuntimeError("nothing to tell")

    with Ticker(tick, wait=clock.wait):
        assert clock.over.wait(60)
    assert told == [0, 1, 2]


def test_nothing_is_told_of_what_takes_less() -> None:
    clock, told = Clock(0), list[str]()
    ticker = Ticker(lambda: told.append("tick"), wait=clock.wait)
    ticker.start()
    ticker.stop()
    ticker.stop()
    assert not told
