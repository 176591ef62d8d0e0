"""An application takes in what it uses and no more: what each module imports, as install.md says."""

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
ROWS = re.findall(r"^\| (`backlogctl_delivery\.[^|]+) \| ([^|]*) \|$", PAGE, re.MULTILINE)
NEEDED = {
    module: set(" ".join(re.findall(r"`([^`]+)`", packages)).split())
    for modules, packages in ROWS
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


def import_without(module: str, missing: set[str]) -> str:
    """What it complains of where these are not installed."""
    command = [sys.executable, "-c", _IMPORT, module, *sorted(missing)]
    return subprocess.run(command, check=False, capture_output=True, text=True).stderr


def find_others(names: set[str]) -> set[str]:
    """The top-level modules of all that is installed but for these packages, and ours."""
    kept = names | {"backlogctl-delivery"}
    return {
        top
        for top, owners in metadata.packages_distributions().items()
        if not kept & {canonicalize_name(owner) for owner in owners}
    }


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


def test_the_extra_brings_what_an_asynchronous_session_needs() -> None:
    assert {"greenlet", "aiosqlite", "redis", "pymysql"} <= close(
        {"backlogctl-delivery[asyncio,mariadb,redis]"}
    )
    assert "greenlet" not in close({"backlogctl-delivery"})


def test_the_page_lists_what_applications_take_in() -> None:
    assert {
        "backlogctl_delivery.outbox",
        "backlogctl_delivery.idempotent.sql",
        "backlogctl_delivery.lookback.producer",
    } <= set(NEEDED)
    assert "sqlalchemy" in NEEDED["backlogctl_delivery.outbox"]


@pytest.mark.parametrize("module", NEEDED)
def test_a_module_needs_what_the_page_says_and_no_more(module: str) -> None:
    assert import_without(module, find_others(close(NEEDED[module]))) == ""
    for name in NEEDED[module]:
        assert "No module named" in import_without(
            module, find_others(close(NEEDED[module] - {name}))
        )
