"""Which process runs which tests."""

from __future__ import annotations

from pathlib import Path

from tests import sharing

ROOT = Path(__file__).resolve().parents[1]


def test_a_file_is_a_share_and_what_belongs_together_is_one() -> None:
    assert (
        sharing.name_share("tests/replay/test_hold.py::test_a[x::y]") == "tests/replay/test_hold.py"
    )
    together = {sharing.name_share(f"tests/dags/test_{name}.py::test_it") for name in "ab"}
    assert together == {"tests/dags/"}


def test_the_longest_are_begun_first() -> None:
    shares = [
        "tests/backlog/test_clock.py",
        "tests/replay/test_hold.py",
        "tests/replay/test_recovery.py",
        "tests/dags/",
    ]
    assert sorted(shares, key=sharing.rank_share) == shares[::-1]


def test_what_is_named_is_there() -> None:
    missing = [name for name in sharing._LONGEST if not (ROOT / name).exists()]
    assert missing == []
    assert set(sharing._TOGETHER) <= set(sharing._LONGEST)
