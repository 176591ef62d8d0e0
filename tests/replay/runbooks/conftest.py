"""A shop in no cluster, for the rules of the runbooks."""

from __future__ import annotations

from pathlib import Path

import pytest

from backlogctl.replay.engine.kind import Workspace
from tests.replay.runbooks.desks import open_shop


@pytest.fixture
def desk(tmp_path: Path) -> Workspace:
    return open_shop(tmp_path)
