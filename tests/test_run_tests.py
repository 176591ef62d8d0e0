"""The whole run: a test that fails gets one more go and no more; one of exactly-once none."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_SCRIPT = _ROOT / "scripts/run_tests.py"

# Said here once more: one that is dropped over there is missed.
_FINAL = (
    "tests/crash/",
    "tests/fanout/relay/",
    "tests/replay/expand/",
    "tests/spark_backfill/injection/",
)
# Whole stories of the same, and what must not lose one either.
_STORIES = (
    "tests/delivery/test_idempotent_killed.py",
    "tests/delivery/test_idempotent_mariadb.py",
    "tests/delivery/test_idempotent_redis.py",
    "tests/delivery/test_idempotent_sql.py",
    "tests/replay/offload/",
    "tests/replay/redrive/",
    "tests/replay/test_across_offload.py",
    "tests/replay/test_across_kinds.py",
    "tests/test_demos.py",
    "tests/replay/test_recovery.py",
    "tests/spark_backfill/archive/",
)
_CHANCE = """
from pathlib import Path

def test_chance():
    here = Path("was_here")
    again = here.exists()
    here.touch()
    assert again

def test_good():
    Path("good").open("a").write("x")
"""
_WRONG = "def test_wrong():\n    assert False\n"


def _run(folder: Path, **files: str) -> tuple[int, str]:
    for name, text in files.items():
        file = folder / Path(name).with_name(f"test_{Path(name).name}.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    done = subprocess.run(
        [sys.executable, str(_SCRIPT)],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(autouse=True)
def own_project(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")


def test_a_failure_by_chance_is_run_once_more_and_told(tmp_path: Path) -> None:
    code, printed = _run(tmp_path, chance=_CHANCE)
    assert code == 0, printed
    assert "passed alone, after it had failed: test_chance.py::test_chance" in printed
    assert (tmp_path / "good").read_text() == "x", "what passed is not run again"


def test_what_is_wrong_fails(tmp_path: Path) -> None:
    code, printed = _run(tmp_path, chance=_CHANCE, wrong=_WRONG)
    assert code == 1
    assert "failed twice: test_wrong.py::test_wrong" in printed
    assert "passed alone, after it had failed: test_chance.py::test_chance" in printed


def test_many_failures_are_no_chance(tmp_path: Path) -> None:
    code, printed = _run(
        tmp_path,
        chance=_CHANCE,
        wrong=_WRONG + "\n".join(f"def test_wrong_{n}():\n    assert False\n" for n in range(4)),
    )
    assert code == 1
    assert "no second go" in printed


def test_a_file_that_cannot_be_read_fails_at_once(tmp_path: Path) -> None:
    code, printed = _run(tmp_path, broken="import nothing_of_this_name\n")
    assert code not in (0, 5)
    assert "nothing_of_this_name" in printed


def test_a_test_of_exactly_once_has_no_second_go(tmp_path: Path) -> None:
    files = [f"{folder}once_{number}" for number, folder in enumerate(_FINAL)]
    code, printed = _run(tmp_path, **{name: _CHANCE.replace("was", name[-1]) for name in files})
    assert code == 1, "once doubled is doubled"
    _, _, told = printed.rpartition("no second go where messages must be there exactly once:")
    expected = [name.replace("once_", "test_once_") + ".py::test_chance" for name in files]
    assert told.split() == expected


def test_the_folders_of_exactly_once_are_there() -> None:
    spec = importlib.util.spec_from_file_location("run_tests", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    places = {*_FINAL, *_STORIES}
    assert set(script.EXACTLY_ONCE) == places
    assert [place for place in places if not [*_ROOT.glob(f"{place}*")]] == []
