"""What keeps the house in order: names, files of a kind, sizes; and what a machine needs."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = (
    "backlogctl",
    "delivery",
    "monitoring",
    "fanout",
    "spark_backfill",
    "sandbox",
    "replay",
    "dags",
)

# Applications install backlogctl_delivery alone, so it holds these algorithms of Kafka's clients
# a second time. Functions that a framework calls by their command or task are not counted.
HELD_TWICE = {"place_crc32", "place_murmur2", "translate"}
FRAMEWORKS = {"command", "task", "verb"}

MOST_FILES_OF_A_KIND = 8
LONGEST_FILE, SHORTEST_FILE = 600, 20
MAY_BE_SHORT = {"__init__.py", "__main__.py", "env.py"}


def list_files(room: str) -> list[Path]:
    """Product files; links to the other rooms are not followed."""
    return sorted(path for path in (ROOT / room).rglob("*.py") if _is_ours(path))


def _is_ours(path: Path) -> bool:
    inside = [path, *path.parents][: len(path.relative_to(ROOT).parts)]
    return not any(part.is_symlink() for part in inside) and not path.name.endswith("_pb2.py")


def list_names(path: Path) -> list[str]:
    """Public classes and functions of a file."""
    return [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and not FRAMEWORKS & {_name_decorator(item) for item in node.decorator_list}
    ]


def _name_decorator(node: ast.expr) -> str:
    called = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(called).rpartition(".")[2]


def test_no_public_name_is_defined_in_two_rooms() -> None:
    places: dict[str, dict[str, str]] = defaultdict(dict)
    for room in ROOMS:
        for path in list_files(room):
            for name in list_names(path):
                places[name][room] = str(path.relative_to(ROOT))
    twins = [
        f"{name}: {', '.join(found.values())}"
        for name, found in sorted(places.items())
        if len(found) > 1 and name not in HELD_TWICE | {"main"}
    ]
    assert not twins, "one name for two things; rename one of them:\n" + "\n".join(twins)


def test_a_kind_of_recovery_has_few_files() -> None:
    kinds = [path for path in (ROOT / "replay/kinds").iterdir() if (path / "__init__.py").exists()]
    assert kinds
    for kind in kinds:
        files = [path.name for path in kind.rglob("*.py") if path.name != "__init__.py"]
        assert len(files) <= MOST_FILES_OF_A_KIND, (
            f"replay/kinds/{kind.name} has {len(files)} files, {MOST_FILES_OF_A_KIND} are allowed; "
            f"merge what belongs together: {', '.join(sorted(files))}"
        )


def test_files_are_neither_too_long_nor_too_short() -> None:
    wrong = []
    for room in ROOMS:
        for path in list_files(room):
            lines = len(path.read_text().splitlines())
            is_dag = room == "dags" or "runbooks" in path.parts
            may_be_short = is_dag or path.name in MAY_BE_SHORT
            if lines > LONGEST_FILE:
                wrong.append(f"{path.relative_to(ROOT)}: {lines} lines; split it by its nouns")
            elif lines < SHORTEST_FILE and not may_be_short:
                wrong.append(f"{path.relative_to(ROOT)}: {lines} lines; put it where it is used")
    assert not wrong, f"{SHORTEST_FILE} to {LONGEST_FILE} lines a file:\n" + "\n".join(wrong)


BOTH = ("prometheus", "promtool")


def test_what_is_left_out_is_there() -> None:
    """A test that moved or has another name would be run again, and nobody would know."""
    listed = (ROOT / "tests/long.txt").read_text().splitlines()
    assert listed
    lost = []
    for name in listed:
        file, _, test = name.partition("::")
        path = ROOT / file
        if not path.exists() or f"def {test.partition('[')[0]}(" not in path.read_text():
            lost.append(name)
    assert not lost, f"tests/long.txt names no test: {', '.join(lost)}"


@pytest.mark.parametrize("folder", ["bin", "here/.tools"])
@pytest.mark.parametrize("programs", [BOTH, BOTH[:1], BOTH[1:]])
def test_both_programs_of_prometheus_are_needed(
    tmp_path: Path, folder: str, programs: tuple[str, ...]
) -> None:
    for name in programs:
        _add(tmp_path / folder / name, "true")
    done = _run_need(tmp_path, "prometheus")
    assert done.returncode == (0 if programs == BOTH else 1), done.stdout + done.stderr
    assert ("missing: Prometheus" in done.stderr) is (programs != BOTH)


NEW, OLD = (f"echo go version go1.{minor}.3 linux/amd64" for minor in (26, 19))


@pytest.mark.parametrize(
    ("what", "programs", "missing"),
    [
        ("jdk", {"bin/javac": "true"}, ""),
        ("jdk", {"bin/java": "true"}, "missing: Java's compiler"),
        ("etcd", {"bin/etcd": "true"}, ""),
        ("etcd", {"here/.tools/etcd": "true"}, ""),
        ("etcd", {}, "missing: etcd"),
        ("node", {"bin/node": "true", "bin/npm": "true"}, ""),
        ("node", {"bin/node": "true"}, "missing: Node and npm"),
        ("go", {"bin/go": NEW}, ""),
        ("go", {"bin/go": OLD, "here/.tools/go/bin/go": NEW}, ""),
        ("go", {"bin/go": OLD}, "missing: Go 1.26 or newer"),
    ],
)
def test_what_builds_the_clients_is_needed(
    tmp_path: Path, what: str, programs: dict[str, str], missing: str
) -> None:
    for name, line in programs.items():
        _add(tmp_path / name, line)
    done = _run_need(tmp_path, what)
    assert (done.returncode != 0) is bool(missing), done.stdout + done.stderr
    assert missing in done.stderr


def _run_need(tmp_path: Path, what: str) -> subprocess.CompletedProcess[str]:
    """For somebody who may not install, on a machine for which there is no toolchain."""
    for file in ("scripts/need.sh", "tests/clients/go/go.mod"):
        (tmp_path / "here" / file).parent.mkdir(parents=True)
        shutil.copy(ROOT / file, tmp_path / "here" / file)
    path = tmp_path / "bin"
    _add(path / "id", "echo 1000")
    _add(path / "uname", "echo mips")
    for name in ("bash", "dirname", "sed"):
        found = shutil.which(name)
        assert found is not None
        (path / name).symlink_to(found)
    return subprocess.run(
        ["bash", str(tmp_path / "here" / "scripts" / "need.sh"), what],
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _add(program: Path, line: str) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
