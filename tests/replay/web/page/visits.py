"""The page of a night, asked without a server."""

from __future__ import annotations

import re
from typing import Any

from starlette.testclient import TestClient

from backlogctl.replay.web.page.app import make_page
from tests.replay.web.page.night import Night


def serve(night: Night, **changes: Any) -> TestClient:
    """A client of the page; `changes` are of what `make_page` takes."""
    values = {"board": night.board, "deliveries": lambda: night.deliveries, **changes}
    app = make_page(night.workspace, clock=lambda: night.now, **values)
    return TestClient(app)


def read(night: Night, path: str, status: int = 200, **changes: Any) -> str:
    """A page as it is sent."""
    answer = serve(night, **changes).get(path)
    text: str = answer.text
    assert answer.status_code == status, text
    return text


def strip(text: str) -> str:
    """The words of a page."""
    text = re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())
