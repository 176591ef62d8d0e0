"""Fixtures of the planning tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A SQLite database of the test's own: the quickest."""
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    return str(request.getfixturevalue("pg_url"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with few bytes."""
    place = tmp_path / "small"
    place.mkdir()
    mount: list[Any] = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", place]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield place
    finally:
        # Lazily: after a failed test a task of Spark may still have a file open there.
        subprocess.run(["umount", "-l", place], check=True)
