"""Runs the tests that bear a fault's number, and prints a table: `make faults`.

    python scripts/faults.py [--all] [arguments of pytest]

`--all` runs the whole stories of tests/long.txt too. It ends with 1 where a fault's test failed, or
none ran.
"""

from __future__ import annotations

import os
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from scripts.run_tests import main as run_tests

_REPORT = Path("build/faults.xml")
_PAGE = Path("docs/faults.md")
_FAULTS = re.compile(r"(?:\b|_)[Ff]aults?[ _](\d+(?:(?:, | and |_and_|_)\d+)*)")


def main(arguments: Sequence[str]) -> int:
    run_tests(["-k", "fault", f"--junit-xml={_REPORT}", *arguments])
    results, tests = read_results(_REPORT)
    missing = 0
    for number, case in re.findall(r"^\| (\d+) \| ([^|]*) \|", _PAGE.read_text(), re.MULTILINE):
        found = results[int(number)]
        good = bool(found) and set(found) <= {"passed"}
        missing += not good
        said = ", ".join(f"{count} {word}" for word, count in sorted(found.items())) or "NONE RAN"
        print(f"{number:>4}  {said:<20}  {case[:70]:<70}  {tests[int(number)]}")
    print(f"\n{missing} faults without a test that passed" if missing else "\nall shown")
    return int(missing > 0)


def read_results(report: Path) -> tuple[dict[int, Counter[str]], dict[int, str]]:
    """By fault how many of its tests ended how; and the name of one."""
    results: dict[int, Counter[str]] = defaultdict(Counter)
    tests: dict[int, str] = defaultdict(str)
    for case in ET.parse(report).iter("testcase"):
        name = case.get("name", "")
        bad = {child.tag for child in case} & {"failure", "error", "skipped"}
        for number in find_faults(name.partition("[")[0]):
            results[number][bad.pop() if bad else "passed"] += 1
            tests[number] = f"{case.get('classname')}::{name.partition('[')[0]}"
    return results, tests


def find_faults(text: str) -> set[int]:
    """The numbers that a text names: `test_faults_14_and_18_rows`, "faults 1, 2 and 38"."""
    return {int(n) for found in _FAULTS.findall(text) for n in re.findall(r"\d+", found)}


if __name__ == "__main__":
    os.environ.pop("PYTEST_XDIST_WORKER", None)
    sys.exit(main(sys.argv[1:]))
