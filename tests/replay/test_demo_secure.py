"""The story of the lost orders on a broker with logins and rules, as `make demo-secure` tells it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from replay.demo.rebuild.story import tell_story


@pytest.mark.timeout(600)
def test_a_user_with_the_documented_rights_puts_every_order_back_once() -> None:
    out = io.StringIO()
    audit = tell_story(Console(file=out, width=120), secure=True)
    assert audit.passed, out.getvalue()
    told = out.getvalue()
    assert "backlogctl acl" in told
    assert "a-long-password" not in told
