"""A ledger of its own for each test; no broker answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from backlogctl.replay.engine.kind import Workspace
from tests.kit.recoveries import open_desk


@pytest.fixture
def desk(tmp_path: Path) -> Workspace:
    return open_desk(tmp_path)
