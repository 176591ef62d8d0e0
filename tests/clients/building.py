"""Builds the clients, once on this machine: a folder of the cache for each state of their sources.

`python -m tests.clients.building` does it before the tests, which have no time for it.
What is missing is told, and is a failure: `scripts/need.sh jdk go node` brings it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from backlogctl.jars import cache_dir, ensure_jars, find_java, make_once, read_jars
from backlogctl.sandbox.embedded import KAFKA_VERSION, ensure_kafka_jars

HERE = Path(__file__).parent
_JARS = HERE / "java" / "clients.jars"
TOOLS = HERE.parents[1] / ".tools"


@cache
def build_java() -> str:
    """The class path of the Java programs."""
    sources = sorted((HERE / "java").glob("*.java"))
    jars = [str(jar) for jar in (*ensure_jars(_JARS), *ensure_kafka_jars())]
    javac = shutil.which("javac", path=f"{find_java().parent}{os.pathsep}{os.environ['PATH']}")
    assert javac is not None, "no javac here: run scripts/need.sh jdk"

    def compile_all(work: Path) -> None:
        options = ["--release", "17", "-nowarn", "-cp", os.pathsep.join(jars), "-d", str(work)]
        _run(work, javac, *options, *map(str, sources))

    made = make_from("java", [_JARS, *sources], compile_all)
    return os.pathsep.join([str(made), *jars])


@cache
def build_go() -> Path:
    """The Go program."""
    sources = [path for path in sorted((HERE / "go").iterdir()) if path.is_file()]

    def build(work: Path) -> None:
        # Neither optimized nor with C: that takes longer to compile than it saves.
        options = ["-gcflags=all=-N -l", "-ldflags=-s -w", "-o", str(work / "clients")]
        _run(HERE / "go", find_go(), "build", *options, ".", CGO_ENABLED="0")

    return make_from("go", sources, build) / "clients"


@cache
def build_node() -> Path:
    """The folder `node_modules` of the Node programs."""
    locks = [HERE / "node" / name for name in ("package.json", "package-lock.json")]
    npm = find("npm")

    def install(work: Path) -> None:
        for lock in locks:
            shutil.copy(lock, work)
        _run(work, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund")

    return make_from("node", locks, install) / "node_modules"


def find_go() -> str:
    """A `go` that is new enough for the module: the PATH's, else the one that need.sh unpacked."""
    wanted = re.search(r"^go (\d+)\.(\d+)", (HERE / "go" / "go.mod").read_text(), re.MULTILINE)
    assert wanted is not None
    for place in (shutil.which("go"), TOOLS / "go" / "bin" / "go"):
        if place is not None and Path(place).exists():
            says = subprocess.run([place, "version"], capture_output=True, text=True, check=True)
            found = re.search(r"go(\d+)\.(\d+)", says.stdout)
            if found and tuple(map(int, found.groups())) >= tuple(map(int, wanted.groups())):
                return str(place)
    raise AssertionError(f"no Go {wanted[1]}.{wanted[2]} or newer here: run scripts/need.sh go")


def find_version(language: str, library: str) -> str:
    """The version of a library that is locked.

    Raises:
        KeyError: there is no such library.
    """
    match language:
        case "Java":
            versions = {jar.artifact: jar.version for jar in read_jars(_JARS)}
            return {"kafka-clients": KAFKA_VERSION, **versions}[library]
        case "Go":
            lines = (HERE / "go" / "go.mod").read_text().splitlines()
            words = [line.split() for line in lines]
            return {line[0]: line[1] for line in words if len(line) > 1}[library].removeprefix("v")
        case "Node":
            package = json.loads((HERE / "node" / "package.json").read_text())
            return str(package["dependencies"][library])
    return importlib.metadata.version(library)


def find(program: str) -> str:
    """A program of Node."""
    found = shutil.which(program)
    assert found is not None, f"no {program} here: run scripts/need.sh node"
    return found


def make_from(language: str, sources: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """A folder of the cache for this state of the sources; `make` fills it, once."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(f"{source.name} {source.stat().st_size}\n".encode() + source.read_bytes())
    folder = cache_dir() / "clients"
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{language}-{digest.hexdigest()[:12]}"
    make_once(made, make)
    return made


def _run(folder: Path, *command: str, **environment: str) -> None:
    known = {**os.environ, **environment}
    done = subprocess.run(
        command, cwd=folder, env=known, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{Path(command[0]).name}: {done.stdout}{done.stderr}"


if __name__ == "__main__":
    build_java()
    build_node()
    build_go()
