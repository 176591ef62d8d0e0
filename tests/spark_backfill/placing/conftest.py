"""The shop's database of the tests of placing."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def shop(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db"
