"""What the page in Airflow keeps open, how many it serves at once, and the links of tasks."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backlog.config import Config, load_config
from backlog.errors import BacklogError, ConfigurationError
from backlogctl_airflow.page.cache import KEEP, KEEP_ERROR, PageCache
from backlogctl_airflow.page.mounting import MOST_AT_ONCE, LazyPage
from tests.replay.makers import write_config

ROOT = Path(__file__).parents[2]


def test_a_few_requests_at_once_so_that_airflow_keeps_its_threads() -> None:
    page = LazyPage()
    now = most = 0

    async def answer(*_: Any) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1

    async def receive() -> Any: ...

    async def ask() -> None:
        page._app = answer
        await asyncio.gather(*(page({}, receive, answer) for _ in range(50)))

    asyncio.run(ask())
    assert most == MOST_AT_ONCE


class Loader:
    """A configuration that is counted, and fails when told to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: Exception | None = None
        self.loaded = 0

    def __call__(self) -> Config:
        self.loaded += 1
        if self.error is not None:
            raise self.error
        return load_config(self.path)


def test_what_was_opened_is_kept_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(tmp_path)
    monkeypatch.setenv("BACKLOG_CONFIG", str(path))
    loader, now = Loader(path), 0.0
    cache = PageCache(loader, lambda: now)
    first = cache.open()
    assert cache.open() is first
    assert loader.loaded == 1
    now += KEEP
    assert cache.open() is first
    assert loader.loaded == 2
    write_config(tmp_path, watch={"interval": "11s"})
    second = cache.open()
    assert second is not first
    assert second.workspace.config.watch.interval.total_seconds() == 11

    loader.error = ConfigurationError("no connection", subject="shop")
    now += KEEP
    for _ in range(3):
        with pytest.raises(BacklogError, match="no connection"):
            cache.open()
    assert loader.loaded == 4
    loader.error = None
    now += KEEP_ERROR
    assert cache.open() is second

    loader.error = RuntimeError("a fault")
    now += KEEP
    for _ in range(2):
        with pytest.raises(RuntimeError):
            cache.open()
    loader.error = None
    assert cache.open() is second
    second.workspace.ledger.close()


def test_tasks_link_to_their_recovery_and_the_plugin_is_light(tmp_path: Path) -> None:
    write_config(tmp_path)
    env = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__API__BASE_URL": "https://ops.example/airflow/",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "BACKLOG_CONFIG": str(tmp_path / "backlog.yaml"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "dags")]),
    }
    told = subprocess.run(
        [sys.executable, "-m", "tests.dags.linked"],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout.splitlines()[-1])
    assert found["heavy"] == []
    for task in ("recover_backlog.rebuild.approve", "nightly_backfill.stream.put_back"):
        assert set(found["links"][task]) == {"Recovery", "Report"}
    assert len(found["links"]["nightly_backfill.stream.ask"]) == 3
    page = "https://ops.example/airflow/plugin/backlogctl/airflow/backlogctl"
    assert found["addresses"] == [
        [
            f"{page}/recoveries/r-20261121-0007",
            "https://ops.example/airflow/backlogctl/reports/r-20261121-0007",
        ],
        ["page", "report"],
        [f"{page}/runs/recover_backlog/manual__2026%2B00%3A00%2F1", ""],
    ]
