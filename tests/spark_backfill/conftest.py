"""Fixtures of the planning tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A SQLite database of the test's own: the quickest."""
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture(params=["postgresql", "sqlite", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    return str(
        request.getfixturevalue("pg_url" if request.param == "postgresql" else "mariadb_url")
    )
