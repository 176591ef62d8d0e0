"""Fixtures of the planning tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A SQLite database of the test's own: the quickest."""
    return f"sqlite:///{tmp_path}/shop.db"
