"""What the pages point to is there, and what code and tests refer to is on the pages."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from backlogctl.monitoring.producers.findings import SuspicionCode
from backlogctl.replay.audits.sequence import SURE, UNSURE
from backlogctl.replay.cli import app
from scripts.faults import find_faults
from tests.durations import read_durations

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"(?:^\$ |`)(?:\.venv/bin/)?(backlogctl [^`\n]+)", re.MULTILINE)
# What programs say: the page's templates, and the sentences beside them.
SPOKEN = sorted(
    [
        ROOT / "monitoring/verdict/summary.py",
        *ROOT.glob("replay/web/page/*.py"),
        *ROOT.glob("replay/web/page/templates/*.html"),
    ]
)
_SPOKEN_COMMAND = re.compile(r"(backlogctl [a-z][^`\"<{\n]*)")
FAULTS = ROOT / "docs/faults.md"
_ROW = re.compile(r"^\| (\d+) \|", re.MULTILINE)
# "P4.9", and the crash point "p4.9.fenced".
_STEPS = re.compile(r"\b[Pp](\d+\.\d+)")
# Generated, or not ours.
_NOT_SOURCES = {".venv", ".uv", ".tools", "build", "dist"}
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
    while words and not words[0].startswith("-") and hasattr(command, "get_command"):
        # The kinds of `plan` are not in the group before they are asked for.
        command = command.get_command(typer.Context(command), words.pop(0))
        assert command is not None, line
    known = {"--config", "--json", "--help"} | {o for p in command.params for o in p.opts}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in known, line


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(_MAKE.findall(page.read_text())) <= targets


def read_sources() -> Iterator[tuple[Path, str]]:
    """All Python code and tests but this file, whose examples are none."""
    for path in sorted(ROOT.glob("**/*.py")):
        if path != Path(__file__) and path.relative_to(ROOT).parts[0] not in _NOT_SOURCES:
            yield path, path.read_text()


def test_numbers_are_found_however_they_are_written() -> None:
    assert find_faults("def test_fault_01_13_relays_killed") == {1, 13}
    assert find_faults("def test_faults_14_18_and_34_bad_rows") == {14, 18, 34}
    assert find_faults("(faults 1, 2 and 38). Fault 60: it. F401 default 5") == {1, 2, 38, 60}
    assert _STEPS.findall("(protocol P4.9) reach('p4.10.verified') p4.json") == ["4.9", "4.10"]


def test_each_fault_that_code_or_tests_name_is_explained_and_no_other() -> None:
    named = {number for _, text in read_sources() for number in find_faults(text)}
    assert sorted(map(int, _ROW.findall(FAULTS.read_text()))) == sorted(named)


def test_each_fault_has_a_test_that_every_run_makes() -> None:
    """Of the stories in `long.txt` one that is shorter is left; what took no time has no entry."""
    left_out = set((ROOT / "tests/long.txt").read_text().splitlines())
    variants: dict[str, set[str]] = defaultdict(set)
    for name in {*left_out, *read_durations()}:
        variants[name.partition("[")[0]].add(name)
    made: set[int] = set()
    every: set[int] = set()
    for path, text in read_sources():
        for function in re.findall(r"^ *(?:async )?def (test_\w*fault\w*)", text, re.MULTILINE):
            every |= find_faults(function)
            known = variants[f"{path.relative_to(ROOT)}::{function}"]
            if not known or known - left_out:
                made |= find_faults(function)
    assert every - made == set()
    assert every == {int(number) for number in _ROW.findall(FAULTS.read_text())}


def test_each_fault_is_shown_by_tests_that_name_it() -> None:
    page = ROOT / "docs/faults.md"
    for number, row in re.findall(r"^\| (\d+) \|(.*)$", page.read_text(), re.MULTILINE):
        shown = [link for link in _LINK.findall(row) if link.startswith("../tests/")]
        assert shown, number
        for link in shown:
            assert int(number) in find_faults((page.parent / link).read_text()), (number, link)


def test_each_step_of_a_protocol_that_code_names_is_explained() -> None:
    explained = set(re.findall(r"\*\*P(\d+\.\d+)", (ROOT / "docs/protocols.md").read_text()))
    for path, text in read_sources():
        for step in _STEPS.findall(text):
            assert step in explained, f"{path.relative_to(ROOT)}: P{step}"


def test_each_finding_of_an_audit_is_a_heading() -> None:
    text = "".join(path.read_text() for path in sorted(ROOT.glob("replay/audits/*.py")))
    said = set(re.findall(r"""(?:Finding|_Difference)\(\s*"([a-z-]+)",""", text)) | {SURE, *UNSURE}
    said |= {str(code) for code in SuspicionCode}
    headings = re.findall(r"^### (.+)$", (ROOT / "docs/audits.md").read_text(), re.MULTILINE)
    assert len(said) > 20
    assert said == set(headings)
