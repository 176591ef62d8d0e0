"""`backlogctl` as a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from tests.kit.kafka import wait_until

ROOT = Path(__file__).resolve().parents[2]


def start_backlogctl(
    directory: Path,
    *words: str,
    environment: Mapping[str, str] | None = None,
    module: str = "backlogctl.replay.cli",
    out: IO[bytes] | int = subprocess.PIPE,
    err: IO[bytes] | int = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """Starts it in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *words],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        text=True,
        start_new_session=True,
    )


@dataclass(frozen=True)
class Watch:
    """`backlogctl watch` while it serves."""

    url: str
    process: subprocess.Popen[str]
    out: Path
    err: Path

    @property
    def said(self) -> str:
        """All that it has said so far."""
        return self.out.read_text() + self.err.read_text()


@contextmanager
def watching(directory: Path, *words: str, **environment: str) -> Iterator[Watch]:
    """From when it serves; afterwards it is asked to end, and does so in time."""
    out, err = directory / "watch.out", directory / "watch.err"
    words = ("watch", "--listen", "127.0.0.1:0", *words)
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = start_backlogctl(
            directory, *words, environment=environment, out=stdout, err=stderr
        )
    address = re.compile(r"serving (http://127\.0\.0\.1:\d+)/")
    try:
        wait_until(lambda: address.search(err.read_text()) or process.poll() is not None)
        found = address.search(err.read_text())
        assert found is not None, err.read_text()
        yield Watch(found[1], process, out, err)
        process.terminate()
        assert process.wait(60) == 0, err.read_text()
    finally:
        print(err.read_text())  # shown where the test fails
        process.kill()
        process.wait(10)


def is_running(pid: int) -> bool:
    """Whether the process is there, and no zombie that its new parent has not reaped."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
