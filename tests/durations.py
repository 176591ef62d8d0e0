"""How long each test took last time: the longest are begun first.

`make test ARGS=--record-durations` writes `durations.json` anew; do it where nothing else runs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("durations.json")
_KEPT = 0.5  # seconds; what took less is not worth a line
_SHORT = 0.05  # seconds of a test without a line


def read_durations(file: Path = FILE) -> dict[str, float]:
    """Seconds by test, of those that took long."""
    kept: dict[str, float] = json.loads(file.read_text())
    return kept


def add_up(tests: Iterable[str], durations: Mapping[str, float]) -> float:
    """Seconds that these tests took; of a new one nobody knows."""
    return sum(durations.get(test, _SHORT) for test in tests)


class Durations:
    """Adds up what a run tells of each test: its own time, and that of its fixtures."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of several processes, the one that leads has the reports of all."""
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Tests that did not run keep what they had, as long as their file is there."""
        kept = {
            test: took
            for test, took in read_durations(self._file).items()
            if Path(test.partition("::")[0]).exists() and test not in self._seconds
        }
        kept |= {test: round(took, 1) for test, took in self._seconds.items() if took > _KEPT}
        self._file.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")
