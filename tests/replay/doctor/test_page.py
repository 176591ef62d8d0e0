"""docs/doctor.md is what the catalogue says, and every finding leads there."""

from __future__ import annotations

import re
from pathlib import Path

from backlogctl.monitoring.doctor.checks import CATALOGUE
from backlogctl.replay.doctor.reference import render_page

PAGE = Path(__file__).parents[3] / "docs" / "doctor.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render_page(), (
        "run: python -m backlogctl.replay.doctor.reference > docs/doctor.md"
    )


def test_every_check_has_a_heading() -> None:
    headings = [line.removeprefix("### ") for line in PAGE.read_text().splitlines()]
    assert not set(CATALOGUE) - set(headings)


def test_every_finding_names_a_check() -> None:
    root = PAGE.parents[1]
    files = [*(root / "monitoring/doctor").glob("*.py"), *(root / "replay").rglob("doctor/*.py")]
    named = {
        name for file in files for name in re.findall(r'"([a-z-]+)", CheckLevel', file.read_text())
    }
    assert named - set(CATALOGUE) == set()
    assert len(named) > 30
