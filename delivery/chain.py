"""The numbers of one partition, and which of them came to nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from backlog.sequence import (
    MAX_SKIPPED_BYTES,
    MAX_SKIPPED_RANGES,
    Range,
    RangeSet,
    write_skipped,
)
from delivery.clients import Report

# Of a client that never reports what it delivered (`delivery.report.only.error`).
_MOST_CARRIERS = 1_000


class Chain:
    """What one epoch of a producer sends to one partition.

    `order` is held while a message is handed to the client, which may wait for its own thread. That
    thread reports failures, so these have a lock of their own.
    """

    __slots__ = (
        "_notes",
        "_start",
        "carriers",
        "has_skipped",
        "next",
        "order",
        "prefix",
        "report",
        "skipped",
        "stays",
    )

    def __init__(self, prefix: str, on_delivery: Report | None) -> None:
        self.order = threading.Lock()
        self.next = 0
        # What a stamp has before the number.
        self.prefix = prefix
        # For messages without a callback of their own.
        self.report = make_report(self, on_delivery)
        self._notes = threading.Lock()
        # Not delivered, and not yet told to consumers. Asked for each message, whether there are.
        self.skipped = RangeSet()
        self.has_skipped = False
        # Number of the message that tells -> what it tells, until that message is safe.
        self.carriers: dict[int, tuple[Range, ...]] = {}
        # Where the open transaction began.
        self._start = 0
        # Within a transaction a delivered message is not safe yet.
        self.stays = False

    def take_skipped(self, carrier: int) -> bytes:
        """What that message is to tell, as much as fits into its header."""
        with self._notes:
            taken: list[Range] = []
            size = 0
            while len(self.skipped) and len(taken) < MAX_SKIPPED_RANGES:
                size += len(write_skipped([next(iter(self.skipped))])) + 1
                if size > MAX_SKIPPED_BYTES:
                    break
                taken.append(self.skipped.pop_first())
            if len(self.carriers) >= _MOST_CARRIERS:
                del self.carriers[next(iter(self.carriers))]
            self.carriers[carrier] = tuple(taken)
            self.has_skipped = len(self.skipped) > 0
            return write_skipped(taken)

    def give_back(self, carrier: int) -> None:
        """That message was not sent, and its number will be taken again."""
        with self._notes:
            self._add(self.carriers.pop(carrier, ()))

    def note_failure(self, sequence: int) -> None:
        """That message was not delivered, nor was what it told."""
        with self._notes:
            self._add(((sequence, sequence), *self.carriers.pop(sequence, ())))

    def note_delivery(self, sequence: int) -> None:
        """That message was delivered, and consumers will see what it told."""
        with self._notes:
            if not self.stays:
                self.carriers.pop(sequence, None)

    def begin(self) -> None:
        """A transaction begins."""
        with self._notes:
            self._start, self.stays = self.next, True

    def commit(self) -> None:
        """It was committed: all of its messages are safe."""
        with self._notes:
            self._start, self.stays = self.next, False
            self.carriers.clear()

    def abort(self) -> None:
        """It was aborted: consumers see none of its messages."""
        with self._notes:
            if self._start < self.next:
                self._add([(self._start, self.next - 1)])
            for ranges in self.carriers.values():
                self._add(ranges)
            self.carriers.clear()
            self._start, self.stays = self.next, False

    def _add(self, ranges: Iterable[Range]) -> None:
        for first, last in ranges:
            self.skipped.add(first, last)
            self.has_skipped = True


class NumberReport(int):
    """What the client calls when it knows how the message of that number went.

    A number with nothing else in it, since Python's garbage collector would walk over whatever
    refers to something, for each message that waits: that takes longer than all else here.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        """Also of number 0: a client may ask whether there is a callback."""
        return True

    def __call__(self, error: Any, message: Any) -> None:
        """Each chain has a class of its own, which knows the chain."""
        raise NotImplementedError


def make_report(chain: Chain, on_delivery: Report | None) -> type[NumberReport]:
    """The reports of a chain, that call the application's `on_delivery`."""

    def report(number: NumberReport, error: Any, message: Any) -> None:
        if error is not None:
            chain.note_failure(int(number))
        elif chain.carriers:
            chain.note_delivery(int(number))
        if on_delivery is not None:
            on_delivery(error, message)

    return type("ChainReport", (NumberReport,), {"__slots__": (), "__call__": report})


class DeliveryReport:
    """The same for a message with an `on_delivery` of its own."""

    __slots__ = ("chain", "on_delivery", "sequence")

    def __init__(self, chain: Chain, sequence: int, on_delivery: Report) -> None:
        self.chain = chain
        self.sequence = sequence
        self.on_delivery = on_delivery

    def __call__(self, error: Any, message: Any) -> None:
        if error is not None:
            self.chain.note_failure(self.sequence)
        elif self.chain.carriers:
            self.chain.note_delivery(self.sequence)
        self.on_delivery(error, message)
