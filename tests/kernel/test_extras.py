"""Without an extra the rest works, and a command that needs it says which."""

from __future__ import annotations

import subprocess
import sys

import pytest

from backlogctl.extras import ExtraMissing, explain_import

# What is named is as if it were not installed.
_WITHOUT = """
import importlib, pkgutil, sys
class Missing:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("airflow", "pandas", "py4j", "pyspark"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing)
"""
_LIGHT = (
    _WITHOUT
    + """
for name in ("config", "kafka", "ledger", "fanout", "monitoring", "replay.cli", "replay.web",
             "replay.kinds.expand", "replay.consumers", "replay.observe"):
    package = importlib.import_module(f"backlogctl.{name}")
    for one in pkgutil.walk_packages(package.__path__, f"backlogctl.{name}."):
        if not one.name.endswith((".__main__", ".env")) and ".versions." not in one.name:
            importlib.import_module(one.name)
"""
)
_PLAN = (
    _WITHOUT
    + """
from backlogctl.replay.cli.shared import show_error
try:
    import backlogctl.spark_backfill.rebuild
except ImportError as error:
    sys.exit(show_error(error, as_json=False))
"""
)


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )


def test_what_looks_and_expands_needs_no_extra() -> None:
    done = run(_LIGHT)
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_command_names_the_extra_that_is_missing() -> None:
    done = run(_PLAN)
    assert done.returncode == 2
    assert done.stderr == (
        "error: extra spark: library pyspark is not installed\n"
        "hint: pip install 'backlogctl[spark]'\n"
    )


@pytest.mark.parametrize(
    "error", [ImportError("a circle"), ModuleNotFoundError("x", name="ours"), OSError("no disk")]
)
def test_other_errors_are_no_missing_extras(error: Exception) -> None:
    assert explain_import(error) is None


def test_a_module_of_a_library_names_its_extra() -> None:
    error = explain_import(ModuleNotFoundError("x", name="pyspark.sql"))
    assert isinstance(error, ExtraMissing)
    assert error.hint == "pip install 'backlogctl[spark]'"
