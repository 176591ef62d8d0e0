"""The phases of a planning: which one is at work, how far Spark is in it, how long each took."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from pyspark.sql import SparkSession

from backlogctl.errors import StagingError
from backlogctl.formats import Say, Ticker, format_duration
from backlogctl.spark_backfill.failures import translating


@dataclass(slots=True)
class PlanLog:
    """Progress, warnings and times of one planning."""

    progress: Say
    spark: SparkSession
    clock: Callable[[], float] = monotonic
    warnings: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    _phase: tuple[str, float] | None = None

    def telling(self) -> Ticker:
        """While it is open, each ten seconds of a phase have a line."""
        return Ticker(self.tell_phase)

    @contextmanager
    def timed(self, name: str, doing: str) -> Iterator[None]:
        """One phase: a line when it begins, and how long it took when it ends."""
        self.progress(doing)
        start = self.clock()
        self._phase = (doing, start)
        try:
            yield
        finally:
            self._phase = None
        self.seconds[name] = round(self.clock() - start, 2)

    def tell_phase(self) -> None:
        """How far the phase is: `reading candidates from orders: 12 of 48 tasks, 40 s`."""
        if (phase := self._phase) is None:
            return
        doing, start = phase
        done, total = count_tasks(self.spark)
        tasks = f" {done:,} of {total:,} tasks," if total else ""
        # The phase may have ended while Spark was asked.
        if self._phase is phase:
            self.progress(f"{doing}:{tasks} {format_duration(self.clock() - start)}")


def count_tasks(spark: SparkSession) -> tuple[int, int]:
    """Tasks that are done, and all tasks, of the stages at work; 0, 0 where Spark does not say."""
    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Exception:  # noqa: BLE001 only told, and the work itself says what is wrong
        return 0, 0
    known = [stage for stage in stages if stage is not None]
    return sum(s.numCompletedTasks for s in known), sum(s.numTasks for s in known)


# The folder of a plan's staged files: empty, and its owner's only.


def prepare_staging(root: Path, directory: Path) -> Path:
    """An empty directory that only its owner can enter. What is in it already stays: it may be all
    that is known of what another recovery put back.

    Returns:
        The folder in it for what is only needed meanwhile.

    Raises:
        StagingError: something is in it, or it cannot be made.
    """
    with translating("make the staging directory", subject=str(directory), kind=StagingError):
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory.mkdir(exist_ok=True, mode=0o700)
        is_empty = not any(directory.iterdir())
    if not is_empty:
        raise StagingError(
            "something is staged there already, and stays as it is",
            subject=str(directory),
            hint="plan again: the new plan gets an id of its own",
        )
    return renew_work(directory)


def renew_work(directory: Path) -> Path:
    """The folder for what is only needed meanwhile, empty: rows may be read more than once."""
    work = directory / "work"
    with translating("make the staging directory", subject=str(work), kind=StagingError):
        if work.exists():
            shutil.rmtree(work)
        work.mkdir(mode=0o700)
    return work
