"""What came of the story of a backlog: figures, what they are held against, and how it is shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.table import Table

from replay.demo.expand.audit import Orders, Pace
from replay.telling.layout import Text

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
        """What has to be true."""
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
        """Figures, steps and checks."""
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
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    table.add_column(no_wrap=True)
    before, during, orders, checks = result.before, result.during, result.orders, result.checks

    def add(name: str, figure: str, how: str, check: str = "") -> None:
        mark = Text()
        if check:
            mark = Text("✔", "green") if checks[check] else Text("✘", "bold red")
        table.add_row(name, Text(figure, "bold"), how, mark)

    add(
        f"{before.consumers} consumers",
        f"{before.rate:,.0f}/s",
        f"over {before.ended - before.began:.0f} s in which all were at work",
    )
    add(
        f"{during.consumers} consumers",
        f"{during.rate:,.0f}/s",
        f"over {during.ended - during.began:.0f} s in which all were at work",
        "all_consumers_worked",
    )
    add(
        "ratio",
        f"{result.ratio:.1f} ×",
        f"target: at least {result.least_ratio:g} ×",
        "fast_enough",
    )
    add(
        "whole drain",
        f"{result.ratio_overall:.1f} ×",
        f"over the {during.last - during.first:.0f} s from first to last, canary and ramp too",
    )
    add("set-up", f"{result.set_up:.1f} s", f"from `run` until all {during.consumers} work")
    add(
        "restore",
        f"{result.restore:.1f} s",
        "from their last order until all is as it was",
    )
    add(
        "together",
        f"{result.set_up + result.restore:.1f} s",
        f"target: at most {result.most_seconds:g} s",
        "quick_enough",
    )
    add("handled", f"{orders.handled:,}", f"of {orders.published:,} orders", "nothing_missing")
    add("twice", f"{orders.twice:,}", "handled again; at least once is what is promised")
    add(
        "out of order",
        f"{orders.out_of_order:,}",
        f"in each of {orders.customers:,} customers' orders, over both hand-overs",
        "in_order",
    )
    add(
        "layout",
        "restored" if result.restored else "differs",
        "topics, settings, consumers, members of the group",
        "layout_restored",
    )
    return table


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
