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

    __slots__ = ("_notes", "_start", "carriers", "next", "order", "skipped", "stays")

    def __init__(self) -> None:
        self.order = threading.Lock()
        self.next = 0
        self._notes = threading.Lock()
        # Not delivered, and not yet told to consumers.
        self.skipped = RangeSet()
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
                self.skipped.add(self._start, self.next - 1)
            for ranges in self.carriers.values():
                self._add(ranges)
            self.carriers.clear()
            self._start, self.stays = self.next, False

    def _add(self, ranges: Iterable[Range]) -> None:
        for first, last in ranges:
            self.skipped.add(first, last)


class DeliveryReport:
    """What the client calls when it knows how one message went. Made for each: so it is small."""

    __slots__ = ("chain", "on_delivery", "sequence")

    def __init__(self, chain: Chain, sequence: int, on_delivery: Report | None) -> None:
        self.chain = chain
        self.sequence = sequence
        self.on_delivery = on_delivery

    def __call__(self, error: Any, message: Any) -> None:
        if error is not None:
            self.chain.note_failure(self.sequence)
        elif self.chain.carriers:
            self.chain.note_delivery(self.sequence)
        if self.on_delivery is not None:
            self.on_delivery(error, message)
