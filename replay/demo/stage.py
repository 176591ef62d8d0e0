"""How the demo looks and runs its commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Protocol

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule

from backlog.errors import BacklogError
from backlog.ledger import open_ledger
from backlog.numbers import format_duration
from backlog.progress import Say
from replay.telling.layout import Text

_STOP_SECONDS = 10.0
# Spark lives for seconds here: compiling its code for hours of work would take half of them.
SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_ROOT = Path(__file__).resolve().parents[2]


class Stage:
    """Prints chapters and runs `backlogctl` as a reader would type it, in the shop's directory."""

    def __init__(self, console: Console, directory: Path, environment: Mapping[str, str]) -> None:
        self._console = console
        self._directory = directory
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        self.environment = {**os.environ, **environment, "PYTHONPATH": path}
        self.environment.setdefault("JDK_JAVA_OPTIONS", SHORT_LIVED_JVM)
        # A configuration of the reader's own must not get into the story.
        self.environment.pop("BACKLOG_CONFIG", None)
        if not console.is_terminal:
            self.environment.setdefault("COLUMNS", "100")
        self._chapter = 0

    def open_chapter(self, title: str) -> None:
        """A numbered heading."""
        self._chapter += 1
        self._console.print()
        heading = Text(f"{self._chapter}  {title}", style="bold cyan")
        self._console.print(Rule(heading, align="left", style="cyan"))

    def tell(self, text: str) -> None:
        """A sentence or two."""
        self._console.print(Padding(Text.from_markup(text), (0, 0, 0, 2), expand=False))

    def show(self, part: RenderableType) -> None:
        """A table, or what else there is to see."""
        self._console.print(part)

    def show_command(self, *words: str) -> str:
        """Shows a command line, and returns it without its first word."""
        line = " ".join(word if " " not in word else f'"{word}"' for word in words)
        self._console.print()
        shown = Text.assemble(("  $ ", "dim"), (f"backlogctl {line}", "bold green"))
        self._console.print(shown, soft_wrap=True)
        self._console.file.flush()
        return line

    def run(self, *words: str, quiet: bool = False) -> None:
        """Shows a command line, and runs it; `quiet` leaves out what it prints on stdout.

        Raises:
            BacklogError: it failed; its own output says why.
        """
        line = self.show_command(*words)
        process = subprocess.Popen(
            make_command(*words),
            cwd=self._directory,
            env=self.environment,
            stdout=subprocess.DEVNULL if quiet else None,
        )
        try:
            code = process.wait()
        except BaseException:
            _stop(process)
            raise
        if code:
            raise BacklogError(f"it ended with exit code {code}", subject=f"backlogctl {line}")


def make_command(*words: str) -> tuple[str, ...]:
    """How a process runs `backlogctl`."""
    return (sys.executable, "-m", "replay.cli", *words)


def write_report(stage: Stage, recovery_id: str, report: Path | None) -> None:
    """The incident report, where somebody wants to keep it."""
    if report is None:
        return
    stage.open_chapter("For the incident review")
    began = time.monotonic()
    stage.run("report", recovery_id, "--html", str(report.resolve()))
    took = format_duration(time.monotonic() - began)
    stage.tell(f"One file that needs nothing else, on a screen or on paper; it took {took}.")


def print_opening(console: Console, title: str, text: str) -> None:
    """What the story is about; `text` is markup."""
    opening = Panel(
        Text.from_markup(text), title=f"backlogctl {title}", title_align="left", border_style="cyan"
    )
    console.print()
    console.print(opening)


def tell_progress(console: Console) -> Say:
    """Prints what is fetched before the story can begin."""
    return lambda text: console.print(f"  [dim]{text}[/]")


def find_recovery(directory: Path) -> str:
    """The id of the recovery that was planned last."""
    with open_ledger(f"sqlite:///{directory / 'ledger.db'}") as ledger:
        return ledger.recoveries.list(stream="orders")[-1].id


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the story as Ctrl-C does; a second one does not disturb the cleaning up."""
    numbers = (signal.SIGTERM, signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _stop(process: subprocess.Popen[bytes]) -> None:
    for ask in (process.terminate, process.kill):
        with suppress(ProcessLookupError):
            ask()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
            return


class Judged(Protocol):
    """What the story came to, as its last line says it."""

    @property
    def passed(self) -> bool:
        """Whether all is well."""


def print_end(console: Console, told: str, result: Judged, seconds: float) -> None:
    """Where a reader goes on, how long it took, and the result.

    Args:
        told: in rich's markup.
    """
    console.print()
    console.print(Padding(Text.from_markup(told), (0, 0, 0, 2)))
    console.print(f"  [dim]That took {format_duration(seconds)}; everything it started is gone.[/]")
    console.print()
    mark, style = ("✔", "bold green") if result.passed else ("✘", "bold red")
    console.print(Text(f"{mark} {result}", style=style))
