"""scripts/need.sh: what is installed already is seen, wherever it is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "need.sh"
BOTH = ("prometheus", "promtool")


@pytest.mark.parametrize("folder", ["bin", "here/.tools"])
@pytest.mark.parametrize("programs", [BOTH, BOTH[:1], BOTH[1:]])
def test_both_programs_of_prometheus_are_needed(
    tmp_path: Path, folder: str, programs: tuple[str, ...]
) -> None:
    script = tmp_path / "here" / "scripts" / "need.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)
    path = tmp_path / "bin"
    for name in ("bash", "dirname"):
        path.mkdir(exist_ok=True)
        found = shutil.which(name)
        assert found is not None
        (path / name).symlink_to(found)
    _add(path / "id", "echo 1000")  # nobody who may install
    for name in programs:
        _add(tmp_path / folder / name, "true")
    done = subprocess.run(
        ["bash", str(script), "prometheus"],
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == (0 if programs == BOTH else 1), done.stdout + done.stderr
    assert ("missing: Prometheus" in done.stderr) is (programs != BOTH)


def _add(program: Path, line: str) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
