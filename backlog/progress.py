"""Progress of long work as lines for people."""

from __future__ import annotations

import sys
from collections.abc import Callable

Say = Callable[[str], None]
"""Takes one line for people."""


def print_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")
