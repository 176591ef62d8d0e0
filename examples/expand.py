"""What the consumers' own logs say: how fast they were, in which order, and whether all came."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from backlogctl.errors import VerificationFailed
from backlogctl.kafka.admin import describe_group_state, describe_topic
from backlogctl.kafka.clients import make_admin
from backlogctl.ledger import open_ledger
from backlogctl.replay.present.layout import Text
from backlogctl.sandbox.embedded import EmbeddedKafka
from examples.shop import (
    CONFIG,
    GROUP,
    HANDLED,
    TOPIC,
    NewOrders,
    Size,
    await_commits,
    count_expected,
    ending_consumers,
    list_fleets,
    make_backlog,
    make_launcher,
    names_of,
    render_configuration,
)
from examples.stage import (
    Stage,
    await_handled,
    draw_checks,
    find_recovery,
    tell_whole,
    write_report,
)

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


# What came of the story of a backlog: figures, what they are held against, and how it is shown.

_SPEEDS = ("fast_enough", "quick_enough")


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds and rates of the expansion.

    Attributes:
        set_up: from `run` until all consumers were at work, canary and ramp included.
        restore: from the last message that they handled until the command was through and the
            usual consumers were at work.
        restored: topics, settings, consumers and members are what they were.
        consumers: how many had to be at work.
    """

    before: Pace
    during: Pace
    orders: Orders
    set_up: float
    restore: float
    restored: bool
    consumers: int
    least_ratio: float
    most_seconds: float
    steps: tuple[tuple[str, float], ...]

    @property
    def ratio(self) -> float:
        """Both rates taken while all consumers were at work."""
        return self.during.rate / self.before.rate if self.before.rate else 0.0

    @property
    def ratio_overall(self) -> float:
        """The expansion's from its first order to its last, ramp and canary included."""
        return self.during.rate_overall / self.before.rate if self.before.rate else 0.0

    @property
    def checks(self) -> dict[str, bool]:
        return {
            "all_consumers_worked": self.during.consumers == self.consumers,
            "fast_enough": self.ratio >= self.least_ratio,
            "quick_enough": self.set_up + self.restore <= self.most_seconds,
            "nothing_missing": self.orders.missing == 0,
            "in_order": self.orders.out_of_order == 0,
            "layout_restored": self.restored,
        }

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong; how fast it was depends on what else the machine does."""
        return all(held for name, held in self.checks.items() if name not in _SPEEDS)

    def to_json(self) -> dict[str, Any]:
        return {
            "before": {**asdict(self.before), "rate": round(self.before.rate, 1)},
            "during": {
                **asdict(self.during),
                "rate": round(self.during.rate, 1),
                "rate_overall": round(self.during.rate_overall, 1),
            },
            "ratio": round(self.ratio, 2),
            "ratio_overall": round(self.ratio_overall, 2),
            "set_up_seconds": round(self.set_up, 1),
            "restore_seconds": round(self.restore, 1),
            "steps": {name: round(seconds, 1) for name, seconds in self.steps},
            "orders": asdict(self.orders),
            "checks": self.checks,
            "passed": self.passed,
        }

    def __str__(self) -> str:
        orders = self.orders
        return (
            f"drained {self.ratio:.1f} times as fast; {orders.handled:,} of {orders.published:,} "
            f"orders handled, {orders.out_of_order:,} out of order"
        )


def draw_result(result: Result) -> Table:
    """Each figure, and whether it is what it should be."""
    before, during, orders, checks = result.before, result.during, result.orders, result.checks
    lines: list[tuple[str, str, str, str]] = [
        (
            f"{pace.consumers} consumers",
            f"{pace.rate:,.0f}/s",
            f"over {pace.ended - pace.began:.0f} s in which all were at work",
            check,
        )
        for pace, check in ((before, ""), (during, "all_consumers_worked"))
    ]
    target = f"target: at least {result.least_ratio:g} ×"
    over = f"over the {during.last - during.first:.0f} s from first to last, canary and ramp too"
    most = f"target: at most {result.most_seconds:g} s"
    customers = f"in each of {orders.customers:,} customers' orders, over both hand-overs"
    layout = "restored" if result.restored else "differs"
    lines += [
        ("ratio", f"{result.ratio:.1f} ×", target, "fast_enough"),
        ("whole drain", f"{result.ratio_overall:.1f} ×", over, ""),
        ("set-up", f"{result.set_up:.1f} s", f"from `run` until all {during.consumers} work", ""),
        ("restore", f"{result.restore:.1f} s", "from their last order until all is as it was", ""),
        ("together", f"{result.set_up + result.restore:.1f} s", most, "quick_enough"),
        ("handled", f"{orders.handled:,}", f"of {orders.published:,} orders", "nothing_missing"),
        ("twice", f"{orders.twice:,}", "handled again; at least once is what is promised", ""),
        ("out of order", f"{orders.out_of_order:,}", customers, "in_order"),
        ("layout", layout, "topics, settings, consumers, members of the group", "layout_restored"),
    ]
    return draw_checks((*line, checks[check] if check else None) for *line, check in lines)  # type: ignore[misc]


def draw_steps(result: Result) -> Table:
    """Where the time went."""
    table = Table(box=box.SIMPLE, padding=(0, 1), show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_column(justify="right")
    cells = [(name.replace("_", " "), f"{seconds:.1f} s") for name, seconds in result.steps]
    half = (len(cells) + 1) // 2
    for left, right in zip(cells[:half], [*cells[half:], ("", "")], strict=False):
        table.add_row(*left, *right)
    return table


# The story of a backlog: three consumers are too slow for it, thirty drain it, and then there are
# three again. Every `backlogctl` command is shown and really run.


@dataclass(frozen=True, slots=True)
class Layout:
    """What must be again as it was."""

    topics: tuple[str, ...]
    partitions: int
    config: Mapping[str, str]
    consumers: tuple[int, ...]  # processes by fleet, the usual one first; without those of none
    members: int


@dataclass(frozen=True, slots=True)
class Times:
    """Moments of the expansion, by the clock: `run` was typed, and it ended."""

    began: float
    ended: float
    steps: tuple[tuple[str, float], ...]


def tell_story(console: Console, size: Size | None = None, report: Path | None = None) -> Result:
    """Plays the whole story in a temporary directory that is gone at the end, as is every process.
    `report`: where the incident report is kept.
    """
    wanted = size or Size()

    def play(directory: Path, kafka: EmbeddedKafka) -> Result:
        with ending_consumers(directory, kafka.bootstrap):
            stage = Stage(console, directory, {"SHOP_KAFKA": kafka.bootstrap})
            result = _play(stage, directory, kafka.bootstrap, wanted)
            write_report(stage, find_recovery(directory), report)
            return result

    return tell_whole(
        console,
        "demo expand",
        "A consumer group is far behind, and its topic has too few partitions for more consumers. "
        "[bold]backlogctl[/] relays the backlog into a temporary topic with ten times as many, "
        "drains it with ten times the consumers, and restores the layout. All of it is real.",
        "Now yours: docs/runbook-expand.md goes through it step by step, and "
        "examples/02-drain-a-backlog is such a shop.",
        play,
    )


def _play(stage: Stage, directory: Path, bootstrap: str, size: Size) -> Result:
    _fall_behind(stage, directory, bootstrap, size)
    with NewOrders(bootstrap, size, published=size.orders) as orders:
        _watch_usual(stage, bootstrap, size)
        before = _look(directory, bootstrap)
        recovery_id = _plan(stage, directory)
        times = _expand(stage, directory, recovery_id)
        time.sleep(1.0)  # some more orders, for the usual consumers alone
    await_handled({"bootstrap.servers": bootstrap}, size.topic, size.group, size.partitions)
    stage.run("consumers", "status", TOPIC)
    after = _look(directory, bootstrap)
    handled = read_logs(directory / HANDLED)
    return show_result(stage, size, times, orders.published, handled, restored=before == after)


def _fall_behind(stage: Stage, directory: Path, bootstrap: str, size: Size) -> None:
    stage.open_chapter(f"A backlog of {size.orders:,} orders")
    (directory / CONFIG).write_text(render_configuration(size))
    make_backlog(bootstrap, size)
    stage.tell(
        f"The topic [bold]{TOPIC}[/] has {size.partitions} partitions, so {size.partitions} "
        f"consumers at most, and each handles {size.rate:,} orders a second. "
        f"{size.arriving:,} new orders a second keep coming all the while."
    )


def _watch_usual(stage: Stage, bootstrap: str, size: Size) -> None:
    stage.run("consumers", "start", TOPIC, quiet=True)  # they are not in the group yet
    await_commits(bootstrap, size)
    stage.run("status")
    time.sleep(size.measured)


def _plan(stage: Stage, directory: Path) -> str:
    stage.open_chapter("Plan: how fast would it be, and what would be done?")
    stage.tell("Nothing is changed yet. What one consumer handles was measured while it worked.")
    stage.run("plan", "expand", TOPIC)
    return find_recovery(directory)


def _expand(stage: Stage, directory: Path, recovery_id: str) -> Times:
    stage.open_chapter("Approve, and run: stop, relay, drain, cut over, restore")
    stage.run("approve", recovery_id, "--by", "demo")
    began = time.time()
    stage.run("run", recovery_id)
    return read_times(directory, recovery_id, began, time.time())


def read_times(directory: Path, recovery_id: str, began: float, ended: float) -> Times:
    """How long each step took, by the ledger."""
    with open_ledger(f"sqlite:///{directory / 'ledger.db'}") as ledger:
        steps = ledger.steps.list(recovery_id)
    times = [
        (step.step, (step.completed_at - step.first_started_at).total_seconds())
        for step in steps
        if step.completed_at is not None
    ]
    start = steps[0].first_started_at.timestamp() - began
    return Times(began, ended, (("start of the command", start), *times))


def show_result(
    stage: Stage, size: Size, times: Times, published: int, handled: Handled, *, restored: bool
) -> Result:
    """The last chapter: each figure, and the steps."""
    stage.open_chapter("What the consumers' own logs say")
    if not handled.during or handled.all_back is None:
        raise VerificationFailed(
            "the consumers' logs do not show both hand-overs", subject="demo", hint="run it again"
        )
    backlog = size.orders // size.customers
    during = handled.measure("during", backlog)
    # Back to normal when both are true: the command is through, and the usual ones work.
    end = max(times.ended, handled.all_back)
    result = Result(
        before=handled.measure("before", backlog),
        during=during,
        orders=handled.audit(published, size.customers),
        set_up=during.began - times.began,
        restore=end - handled.last_of_expansion,
        restored=restored,
        consumers=size.consumers,
        least_ratio=size.least_ratio,
        most_seconds=size.most_seconds,
        steps=times.steps,
    )
    stage.show(Padding(draw_result(result), (0, 0, 0, 2)))
    stage.show(Text())
    stage.tell("The steps, from [bold]run[/] on:")
    stage.show(Padding(draw_steps(result), (0, 0, 0, 2)))
    return result


def _look(directory: Path, bootstrap: str) -> Layout:
    """Topics, settings, consumers and members now."""
    admin = make_admin({"bootstrap.servers": bootstrap})
    launcher = make_launcher(directory, bootstrap)
    topic = describe_topic(admin, TOPIC)
    counts = [launcher.count_running(fleet) or 0 for fleet in list_fleets(directory)]
    return Layout(
        topics=tuple(names_of(admin.list_topics(timeout=30).topics)),
        partitions=topic.partitions,
        config=dict(topic.config),
        consumers=tuple(count for count in counts if count),
        members=len(describe_group_state(admin, GROUP).members),
    )
