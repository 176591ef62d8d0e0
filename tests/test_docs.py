"""What the pages point to is there: files, anchors, commands, options, make's targets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from replay.cli import app

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"(?:^\$ |`)(?:\.venv/bin/)?(backlogctl [^`\n]+)", re.MULTILINE)
# What programs say: the page's templates, and the sentences beside them.
SPOKEN = sorted(
    [
        ROOT / "monitoring/advice.py",
        *ROOT.glob("monitoring/page/*.py"),
        *ROOT.glob("monitoring/page/templates/*.html"),
    ]
)
_SPOKEN_COMMAND = re.compile(r"(backlogctl [a-z][^`\"<{\n]*)")
_MAKE = re.compile(r"(?:^\$ |`)make ([a-z-]+)", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def name_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


def list_commands() -> Iterator[Any]:
    for page in PAGES:
        for found in _COMMAND.findall(page.read_text()):
            yield pytest.param(found, id=f"{name_page(page)}: {found[:40].strip()}")
    for page in SPOKEN:
        for found in sorted(set(_SPOKEN_COMMAND.findall(page.read_text()))):
            yield pytest.param(found, id=f"{name_page(page)}: {found[:40].strip()}")


def find_anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in find_anchors(target), link


@pytest.mark.parametrize("line", list(list_commands()))
def test_commands_and_their_options_exist(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command: Any = typer.main.get_command(app)
    while words and not words[0].startswith("-") and hasattr(command, "commands"):
        assert words[0] in command.commands, line
        command = command.commands[words.pop(0)]
    known = {"--config", "--json", "--help"} | {o for p in command.params for o in p.opts}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in known, line


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(_MAKE.findall(page.read_text())) <= targets
