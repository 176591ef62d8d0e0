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
ROWS = re.findall(r"^\| (`delivery\.[^|]+) \| ([^|]*) \|$", PAGE, re.MULTILINE)
NEEDED = {
    module: set(re.findall(r"[a-z-]+", " ".join(re.findall(r"`([^`]+)`", packages))))
    for modules, packages in ROWS
    for module in re.findall(r"`([^`]+)`", modules)
}
_LIST = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(*sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)))
"""


def list_imported(module: str) -> set[str]:
    """The packages of others that it imports, by the names they are installed by."""
    done = subprocess.run(
        [sys.executable, "-c", _LIST, module], check=True, capture_output=True, text=True
    )
    known = metadata.packages_distributions()
    found = {name for top in done.stdout.split() for name in known.get(top, ())}
    return {canonicalize_name(name) for name in found} - {"backlogctl"}


def close(names: set[str]) -> set[str]:
    """Those and what comes with them."""
    found: set[str] = set()
    while new := names - found:
        found |= new
        for name in new:
            required = map(Requirement, metadata.requires(name) or ())
            names = names | {
                canonicalize_name(one.name)
                for one in required
                if one.marker is None or one.marker.evaluate({"extra": ""})
            }
    return found


def test_the_page_lists_what_applications_take_in() -> None:
    assert {"delivery.outbox", "delivery.once.sql", "delivery.lookback.producer"} <= set(NEEDED)
    assert "sqlalchemy" in NEEDED["delivery.outbox"]


@pytest.mark.parametrize("module", NEEDED)
def test_a_module_imports_no_more_than_the_page_says(module: str) -> None:
    imported = list_imported(module)
    # What a virtual environment loads by itself.
    assert imported - {"distutils-precedence", "setuptools"} <= close(NEEDED[module])
    assert not imported & {"pyspark", "pandas", "pyarrow", "numpy", "fastapi"}
