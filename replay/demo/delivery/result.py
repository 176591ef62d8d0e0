"""What the story came to, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from replay.demo.delivery.audit import Audit
from replay.telling.layout import Text


@dataclass(frozen=True, slots=True)
class Result:
    """The audit of each half, by what it counts; and what was done to it: kills by process."""

    audits: Mapping[str, Audit]
    kills: Mapping[str, int]
    restarts: int

    @property
    def passed(self) -> bool:
        """All is handled once, and everything was killed meanwhile."""
        return all(audit.passed for audit in self.audits.values()) and all(self.kills.values())

    def to_json(self) -> dict[str, Any]:
        """The figures, and whether all is well."""
        return {
            **{name: audit.to_json() for name, audit in self.audits.items()},
            "kills": dict(self.kills),
            "broker_restarts": self.restarts,
            "passed": self.passed,
        }

    def __str__(self) -> str:
        told = "; ".join(audit.tell(rows) for rows, audit in self.audits.items())
        return f"{told}; {sum(self.kills.values())} kills"


def draw_audit(audit: Audit, rows: str) -> Table:
    """Each figure, and whether it is what it should be.

    Args:
        rows: what is counted, such as `orders`.
    """
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    table.add_column(no_wrap=True)

    def add(name: str, figure: int, how: str, is_right: bool | None = None) -> None:
        mark = Text() if is_right is None else Text("✘", "bold red")
        if is_right:
            mark = Text("✔", "green")
        table.add_row(name, Text(f"{figure:,}", "bold"), how, mark)

    add(f"{rows} in the table", audit.committed, "committed", audit.committed > 0)
    add("handled", audit.handled, "of these", audit.handled == audit.committed)
    add("missing", len(audit.missing), "not sent, or not handled", not audit.missing)
    add("twice", len(audit.twice), "whose work was done again", not audit.twice)
    add(
        "rolled back, and seen",
        len(audit.not_committed),
        f"of {audit.rolled_back:,} rolled back, on purpose or by a kill",
        not audit.not_committed,
    )
    add("out of order", len(audit.out_of_order), "keys, by first arrival", not audit.out_of_order)
    add("other id", len(audit.other_id), "whose repeats bear another id", not audit.other_id)
    add("repeats in Kafka", audit.repeats, "sent again after a kill, with the same id")
    add("dropped", audit.dropped, "messages that handle_once knew already")
    return table
