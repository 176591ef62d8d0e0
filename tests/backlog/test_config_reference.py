"""docs/configuration.md is what the code says."""

from __future__ import annotations

from pathlib import Path

from scripts.config_reference import render_reference

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render_reference(), (
        "run: python -m scripts.config_reference > docs/configuration.md"
    )


def test_every_key_has_a_meaning() -> None:
    rows = [line for line in render_reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    for row in rows:
        assert not row.endswith("|  |"), row
