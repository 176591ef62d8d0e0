"""What each of several pytest processes runs: shares of the tests, the longest first.

A file is a share. Tests that need what takes long to start are one share, whatever their file: one
process has it. Where they are too many for one, their files are spread over several.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import NodeManager

from tests.durations import add_up, read_durations

# Seconds that an interrupted process has before it is killed: it stops its services.
NodeManager.EXIT_TIMEOUT = 20

# By their marks. A test of both waits for Airflow.
_NEEDS = ("airflow", "spark", "kubernetes")
# In how many processes it is started; else they would wait for one in the end.
_STARTS = {"airflow": 1, "spark": 3, "kubernetes": 1}


def list_needs(items: Iterable[pytest.Item]) -> dict[str, str]:
    """By test what it needs, where that takes long to start."""
    found = {}
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if need := next((need for need in _NEEDS if need in marks), None):
            found[item.nodeid] = need
    return found


def write_needs(place: Path, process: str, items: Iterable[pytest.Item]) -> None:
    """For the process that shares: it collects no tests itself."""
    (place / f"{process}.needs").write_text(json.dumps(list_needs(items)))


def spread(needs: Mapping[str, str], durations: Mapping[str, float]) -> dict[str, str]:
    """By test its share: files that need the same, as evenly as their durations allow."""
    files: dict[tuple[str, str], list[str]] = {}
    for test, need in sorted(needs.items()):
        files.setdefault((need, test.partition("::")[0]), []).append(test)
    took = {place: add_up(tests, durations) for place, tests in files.items()}
    filled: dict[str, list[float]] = {need: [0.0] * count for need, count in _STARTS.items()}
    shares: dict[str, str] = {}
    for place in sorted(files, key=lambda one: (-took[one], one)):
        bins = filled[place[0]]
        number = bins.index(min(bins))
        bins[number] += took[place]
        shares |= dict.fromkeys(files[place], f"{place[0]} {number}")
    return shares


class Shares(LoadFileScheduling):  # type: ignore[misc]
    """xdist's way by file, with these shares in this order."""

    def __init__(self, config: pytest.Config, log: Any, place: Path) -> None:
        super().__init__(config, log)
        self._place = place
        self._needs: dict[str, str] = {}
        self._durations = read_durations()

    def schedule(self) -> None:
        for told in self._place.glob("*.needs"):
            self._needs |= json.loads(told.read_text())
        self._needs = spread(self._needs, self._durations)
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        """Tests of one share are run by one process, in their order."""
        return self._needs.get(nodeid) or nodeid.partition("::")[0]

    def _assign_work_unit(self, node: Any) -> None:
        longest = max(
            self.workqueue, key=lambda share: add_up(self.workqueue[share], self._durations)
        )
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)
