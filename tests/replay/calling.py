"""`backlogctl` called in this process, as its caller sees it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO

import pytest

from backlogctl.replay.cli import main, shared


def call_main(
    words: tuple[str, ...], directory: Path, environment: Mapping[str, str]
) -> tuple[int, str, str]:
    """Its exit code, and what it said on stdout and stderr."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with pytest.MonkeyPatch.context() as patch, _turned(out, err):
            patch.chdir(directory)
            patch.setattr(shared, "SESSION", shared.Session())
            for name, value in environment.items():
                patch.setenv(name, value)
            code = main(words)
        for file in (out, err):
            file.seek(0)
        return code, out.read(), err.read()


@contextmanager
def _turned(out: IO[str], err: IO[str]) -> Iterator[None]:
    """The process's own outputs, where Java writes too: `--json` turns them once more."""
    with ExitStack() as undone:
        for number, file, redirect in ((1, out, redirect_stdout), (2, err, redirect_stderr)):
            kept = os.dup(number)
            undone.callback(os.close, kept)
            undone.callback(os.dup2, kept, number)
            os.dup2(file.fileno(), number)
            stream = os.fdopen(number, "w", closefd=False)
            undone.enter_context(stream)
            undone.enter_context(redirect(stream))
        yield
