"""An application takes in what it uses and no more: what each module needs, as install.md says."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE = (Path(__file__).parents[2] / "docs/install.md").read_text()
OURS = "backlogctl-delivery"
MODULES = {
    module: "" if extra == "none" else f"[{extra.strip('`')}]"
    for extra, modules in re.findall(r"^\| (none|`\w+`) \| (`back[^|]+) \|$", PAGE, re.MULTILINE)
    for module in re.findall(r"`([^`]+)`", modules)
}
# What is not named is as if it were not installed.
_IMPORT = """
import importlib, sys
class Missing:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing)
importlib.import_module(sys.argv[1])
"""


def import_with(module: str, names: set[str]) -> str:
    """What it complains of where only these packages are installed."""
    others = {
        top
        for top, owners in metadata.packages_distributions().items()
        if not names & {canonicalize_name(owner) for owner in owners}
    }
    command = [sys.executable, "-c", _IMPORT, module, *sorted(others)]
    return subprocess.run(command, check=False, capture_output=True, text=True).stderr


def close(names: set[str]) -> set[str]:
    """Those and what comes with them; `name[extra]` with what the extra brings."""
    found: set[str] = set()
    while new := names - found:
        found |= new
        for wanted in map(Requirement, new):
            for one in map(Requirement, metadata.requires(wanted.name) or ()):
                extras = ["", *wanted.extras]
                if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in extras):
                    name = canonicalize_name(one.name)
                    names = names | {name, *(f"{name}[{extra}]" for extra in one.extras)}
    return {Requirement(name).name for name in found}


def test_it_brings_two_libraries_and_extras_the_rest() -> None:
    assert close({OURS}) == {OURS, "confluent-kafka", "sqlalchemy", "typing-extensions"}
    assert "greenlet" in close({f"{OURS}[asyncio]"})
    assert len(MODULES) >= 10


@pytest.mark.parametrize("module", MODULES)
def test_a_module_needs_what_the_page_says_and_no_more(module: str) -> None:
    assert import_with(module, close({OURS + MODULES[module]})) == ""
    if MODULES[module]:
        assert "No module named" in import_with(module, close({OURS}))
