"""How far a planning is: its phases, and the tasks of the stages that Spark works on."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from backlogctl.spark_backfill.plan_log import PlanLog, count_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Tracker:
    """A status tracker with two stages at work, one of which ended meanwhile."""

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return [3, 4, 5]

    def getStageInfo(self, stage: int) -> Any:  # noqa: N802
        known = {3: (8, 40), 4: (4, 8)}.get(stage)
        return known and SimpleNamespace(numCompletedTasks=known[0], numTasks=known[1])


def make_spark(tracker: Any) -> SparkSession:
    context = SimpleNamespace(statusTracker=lambda: tracker)
    return cast("SparkSession", SimpleNamespace(sparkContext=context))


def test_a_long_phase_tells_how_far_spark_is() -> None:
    told: list[str] = []
    times = iter([100.0, 140.0, 141.0])
    log = PlanLog(told.append, make_spark(Tracker()), clock=lambda: next(times))
    log.tell_phase()
    with log.timed("candidates", "reading candidates from orders"):
        log.tell_phase()
    log.tell_phase()
    assert told == [
        "reading candidates from orders",
        "reading candidates from orders: 12 of 48 tasks, 40 s",
    ]
    assert log.seconds == {"candidates": 41.0}


def test_where_spark_does_not_say_only_the_time_is_told() -> None:
    told: list[str] = []
    times = iter([100.0, 140.0])
    log = PlanLog(told.append, make_spark(None), clock=lambda: next(times))

    def fail() -> None:
        with log.timed("proof", "proving the rules on survivors"):
            log.tell_phase()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert told[1:] == ["proving the rules on survivors: 40 s"]
    assert not log.seconds
    log.tell_phase()
    assert len(told) == 2


def test_tasks_of_a_job_that_runs_are_counted(spark: SparkSession) -> None:
    stopped = threading.Event()
    found: list[tuple[int, int]] = []

    def watch() -> None:
        while not found and not stopped.is_set():
            found.extend(seen for seen in [count_tasks(spark)] if seen != (0, 0))

    thread = threading.Thread(target=watch)
    thread.start()
    for _ in range(100):
        if not thread.is_alive():
            break
        spark.range(0, 5_000_000, 1, 3).selectExpr("sum(hash(id))").collect()
    stopped.set()
    thread.join(60)
    done, total = found[0]
    assert 0 <= done <= total
    assert total
