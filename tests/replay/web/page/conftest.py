"""Nights for the tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.replay.web.page.night import Night, make_stream


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[Night]:
    """One stream, `orders`, and nothing written yet."""
    begun = Night.begin(tmp_path, streams={"orders": make_stream("orders")})
    yield begun
    begun.ledger.close()
