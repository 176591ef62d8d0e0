"""What `make test` leaves out, and what `make test-quick` does: whole stories told once more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.durations import read_durations

# What runs beside Kafka and PostgreSQL.
_LEFT_OUT = {"airflow", "browser", "kubernetes", "prometheus", "spark"}
_LONG = 5.0  # seconds; what took longer has many processes, or waits for real time
# Whole stories, however fast they are.
_STORIES = (
    *("tests/clients/", "tests/crash/", "tests/replay/offload/", "tests/replay/expand/"),
    *("tests/spark_backfill/test_cluster.py", "tests/delivery/test_idempotent_killed.py"),
)


class Quick:
    """Leaves out what a change needs not wait for at each save."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """The last to look at them: every mark is there."""
        durations = read_durations()
        kept: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        for item in items:
            marks = {mark.name for mark in item.iter_markers()}
            is_story = "kafka" in marks and item.nodeid.startswith(_STORIES)
            is_long = marks & _LEFT_OUT or durations.get(item.nodeid, 0.0) > _LONG
            (left_out if is_story or is_long else kept).append(item)
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


class Long:
    """Leaves out the tests of `long.txt`: each has a shorter one of the same mechanism beside it.

    `make test-all` runs them too.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """`test_structure.py` knows a name that is no test: here an error would have no text."""
        listed = set(Path(__file__).with_name("long.txt").read_text().splitlines())
        left_out = [item for item in items if item.nodeid in listed]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid not in listed]
