"""What the consumers' own logs say: how fast they were, in which order, and whether all came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from replay.demo.expand.shop import TOPIC, count_expected

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast one fleet was. Moments are seconds of the clock, rates messages a second.

    Attributes:
        consumers: how many of it handled anything.
        began, ended: when all of them were at work: from the first order of the one that began
            last, to the last order of the one that was first through with its backlog.
        handled: by all of them in that time.
        first, last: the first order of the backlog that any of them handled, and the last.
        backlog: orders of the backlog that it handled in all.
    """

    consumers: int
    began: float
    ended: float
    handled: int
    first: float
    last: float
    backlog: int

    @property
    def rate(self) -> float:
        """While all of them were at work."""
        return _rate(self.handled, self.ended - self.began)

    @property
    def rate_overall(self) -> float:
        """From its first order to its last, ramp and canary included."""
        return _rate(self.backlog, self.last - self.first)


@dataclass(frozen=True, slots=True)
class Orders:
    """Whether every order was handled, and each customer's in their order."""

    published: int
    handled: int
    twice: int
    missing: int
    out_of_order: int
    customers: int


@dataclass
class _Consumer:
    """One process: (time, customer, number) of what it handled, in its order."""

    topic: str
    lines: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Handled:
    """All logs: the usual consumers before the expansion, its own, and the usual ones after."""

    before: tuple[_Consumer, ...]
    during: tuple[_Consumer, ...]
    after: tuple[_Consumer, ...]

    def measure(self, fleet: str, backlog: int) -> Pace:
        """The pace of `before` or `during`; `backlog` is how many orders each customer had."""
        return _measure(getattr(self, fleet), backlog)

    def audit(self, published: int, customers: int) -> Orders:
        """Looks at each customer's orders over both hand-overs."""
        lines = [
            line
            for each in (self.before, self.during, self.after)
            for c in each
            for line in c.lines
        ]
        lines.sort(key=lambda line: line[0])  # stable: lines of one batch stay in order
        last: dict[int, int] = {}
        wrong = twice = 0
        seen: set[tuple[int, int]] = set()
        for _, customer, number in lines:
            if (customer, number) in seen:
                twice += 1
                continue
            seen.add((customer, number))
            wrong += number != last.get(customer, 0) + 1
            last[customer] = max(number, last.get(customer, 0))
        expected = count_expected(published, customers)
        missing = sum(
            (customer, number) not in seen
            for customer, count in expected.items()
            for number in range(1, count + 1)
        )
        return Orders(published, len(seen), twice, missing, wrong, customers)

    @property
    def last_of_expansion(self) -> float:
        """When its consumers handled their last message."""
        return max(c.lines[-1][0] for c in self.during) / _NS

    @property
    def all_back(self) -> float | None:
        """When the last of the usual consumers was at work again; None where none was."""
        return max((c.lines[0][0] for c in self.after), default=0) / _NS or None


def read_logs(directory: Path) -> Handled:
    """Reads what the consumers wrote."""
    consumers = [_read(path) for path in sorted(directory.glob("*.log"))]
    working = [consumer for consumer in consumers if consumer.lines]
    during = tuple(c for c in working if c.topic != TOPIC)
    turn = min((c.lines[0][0] for c in during), default=0)
    usual = [c for c in working if c.topic == TOPIC]
    return Handled(
        before=tuple(c for c in usual if not turn or c.lines[0][0] < turn),
        during=during,
        after=tuple(c for c in usual if turn and c.lines[0][0] >= turn),
    )


def _read(path: Path) -> _Consumer:
    topic, _, _ = path.name.removesuffix(".log").rpartition(".")
    consumer = _Consumer(topic)
    for line in path.read_bytes().splitlines():
        at, customer, number = line.split()
        consumer.lines.append((int(at), int(customer[2:]), int(number)))
    return consumer


def _measure(consumers: Sequence[_Consumer], backlog: int) -> Pace:
    """Orders that came later than the backlog count for the rate, but do not make it longer."""
    works = [[at for at, _, number in c.lines if number <= backlog] for c in consumers]
    works = [times for times in works if times]
    if not works:
        return Pace(0, 0.0, 0.0, 0, 0.0, 0.0, 0)
    began = max(times[0] for times in works)
    ended = min(times[-1] for times in works)
    handled = sum(began < at <= ended for c in consumers for at, _, _ in c.lines)
    return Pace(
        consumers=len(works),
        began=began / _NS,
        ended=ended / _NS,
        handled=handled,
        first=min(times[0] for times in works) / _NS,
        last=max(times[-1] for times in works) / _NS,
        backlog=sum(len(times) for times in works),
    )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
