"""The demo's last question: was every order handled, and none twice?"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Audit:
    """What the consumers' own logs say, and the disk before and after; bytes."""

    published: int
    handled: int
    twice: int
    missing: int
    archived: int
    used_before: int
    used_after: int

    def to_json(self) -> dict[str, Any]:
        """The figures, and whether all is well."""
        return {**asdict(self), "passed": self.passed}

    @property
    def passed(self) -> bool:
        """Every order was handled once, some by way of the archive, and space was freed."""
        whole = self.handled == self.published and not (self.twice or self.missing)
        return whole and bool(self.archived) and self.used_after < self.used_before

    def __str__(self) -> str:
        return (
            f"{self.handled:,} of {self.published:,} orders handled, "
            f"{self.twice:,} twice, {self.missing:,} missing"
        )


def count_handled(directory: Path) -> Counter[int]:
    """How often each order was handled, of the consumers' logs (`order_consumer`)."""
    found: Counter[int] = Counter()
    for path in directory.glob("*.log"):
        for line in path.read_bytes().splitlines():
            _, _, number = line.split()
            found[int(number)] += 1
    return found
