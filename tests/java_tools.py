"""Kafka's own command line tools, from Maven Central."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from backlogctl.jars import ensure_jars, find_java

_TOOLS = Path(__file__).with_name("kafka-tools.jars")


def write_script(path: Path, name: str) -> Path:
    """A shell script that runs a tool, such as `AclCommand`."""
    jars = os.pathsep.join(map(str, ensure_jars(_TOOLS)))
    options = "-XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    path.write_text(
        f'#!/bin/sh\nexec {find_java()} {options} -cp {jars} org.apache.kafka.tools.{name} "$@"\n'
    )
    path.chmod(0o755)
    return path


def run_line(line: str, directory: Path) -> str:
    """Runs a command line as a shell would, with the directory's scripts first on the PATH."""
    done = subprocess.run(
        line,
        shell=True,
        cwd=directory,
        env={**os.environ, "PATH": f"{directory}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout
