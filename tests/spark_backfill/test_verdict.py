"""The verdict, errors of Spark, messages of a chunk, phases, and settings of a session."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext

from backlogctl.config import SparkSection
from backlogctl.errors import KafkaFailure, SourceError, StagingError
from backlogctl.sandbox.secured import HOST
from backlogctl.spark_backfill.evidence.injected import locate_messages
from backlogctl.spark_backfill.failures import list_secrets, mask_text, translating
from backlogctl.spark_backfill.injection.waves import LostWorker
from backlogctl.spark_backfill.plan_log import PlanLog, count_tasks
from backlogctl.spark_backfill.request import PriorChunk, Stretch
from backlogctl.spark_backfill.spark import cluster, session
from backlogctl.spark_backfill.spark.cluster import SparkFailure, explain_start, require_master
from backlogctl.spark_backfill.spark.probe import ExecutorReport, inspect_executor, write_token
from backlogctl.spark_backfill.verdict import Tally, VerdictBasis, count_expected, judge_plan
from backlogctl.values import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SHARP = VerdictBasis()
counts = st.dictionaries(st.integers(0, 5), st.integers(0, 50), max_size=6)


def tally(rebuilt: dict[int, int], **other: dict[int, int]) -> Tally:
    return Tally(rebuilt, other.get("surviving", {}), other.get("quarantined", {}))


def test_equality_in_every_partition_is_exact() -> None:
    verdict = judge_plan({0: 3, 2: 5}, tally({0: 3, 2: 5}), SHARP)
    assert (verdict.kind, verdict.reasons) == ("exact", ())


def test_fault_37_a_total_that_matches_proves_nothing() -> None:
    verdict = judge_plan({0: 10, 1: 10}, tally({0: 9, 1: 11}), SHARP)
    assert verdict.kind == "surplus"
    assert [p.surplus for p in verdict.partitions] == [0, 1]
    assert [p.shortfall for p in verdict.partitions] == [1, 0]


@given(expected=counts, rebuilt=counts, quarantined=counts)
def test_exact_means_equal_everywhere(
    expected: dict[int, int], rebuilt: dict[int, int], quarantined: dict[int, int]
) -> None:
    verdict = judge_plan(expected, tally(rebuilt, quarantined=quarantined), SHARP)
    numbers = {*expected, *rebuilt}
    equal = all(expected.get(p, 0) == rebuilt.get(p, 0) for p in numbers)
    clean = not any(quarantined.values())
    assert (verdict.kind == "exact") == (equal and clean)
    assert (verdict.kind == "surplus") == any(
        rebuilt.get(p, 0) > expected.get(p, 0) for p in numbers
    )
    for item in verdict.partitions:
        assert item.expected + item.surplus == item.rebuilt + item.shortfall
        assert item.surplus == 0 or item.shortfall == 0
        assert item.collapsed <= item.shortfall


@given(expected=counts, moves=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1))
def test_errors_that_cancel_out_between_partitions_are_never_exact(
    expected: dict[int, int], moves: list[tuple[int, int]]
) -> None:
    rebuilt = dict(expected)
    for source, target in moves:
        if rebuilt.get(source, 0):
            rebuilt[source] -= 1
            rebuilt[target] = rebuilt.get(target, 0) + 1
    assert sum(rebuilt.values()) == sum(expected.values())
    moved = any(rebuilt.get(p, 0) != expected.get(p, 0) for p in {*rebuilt, *expected})
    assert (judge_plan(expected, tally(rebuilt), SHARP).kind == "exact") != moved


@pytest.mark.parametrize(
    "basis",
    [
        replace(SHARP, blurred=(0,)),
        replace(SHARP, bounded=True),
        replace(SHARP, holes="the topic is compacted"),
        replace(SHARP, spread=True),
        replace(SHARP, ragged="among 900 survivors are 3 rows without a message"),
        replace(SHARP, unproved="nothing survives to compare with"),
    ],
)
def test_weak_evidence_is_never_exact(basis: VerdictBasis) -> None:
    verdict = judge_plan({0: 4}, tally({0: 4}), basis)
    assert verdict.kind == "short"
    assert len(verdict.reasons) == 1


def test_fault_19_and_20_the_unexplained_rest_is_at_most_that_many() -> None:
    verdict = judge_plan(
        {0: 10}, tally({0: 8}), replace(SHARP, holes="2 control or aborted records")
    )
    assert "at most 2, control records included" in verdict.reasons[0]


def test_one_mutable_row_may_stand_for_several_messages() -> None:
    basis = replace(SHARP, collapsible=True)
    verdict = judge_plan({0: 10, 1: 4}, tally({0: 6}, quarantined={0: 1}), basis)
    assert [p.collapsed for p in verdict.partitions] == [3, 0]
    surviving = judge_plan({1: 4}, tally({}, surviving={1: 2}), basis)
    assert (surviving.partitions[0].collapsed, surviving.kind) == (2, "short")


def test_uncertain_rows_make_it_exact_within_that_many() -> None:
    verdict = judge_plan({0: 4}, tally({0: 4}), replace(SHARP, uncertain={0: 2}))
    assert verdict.kind == "within"
    assert verdict.partitions[0].uncertain == 2
    assert "2 rows at the edges" in verdict.reasons[0]
    short = judge_plan({0: 4}, tally({0: 3}), replace(SHARP, uncertain={0: 2}))
    assert short.kind == "short"


def test_restated_rows_cover_the_loss_however_many_there_are() -> None:
    basis = replace(SHARP, collapsible=True, blurred=(0, 1))
    assert judge_plan({0: 4, 1: 4}, tally({0: 9, 1: 1}), basis).kind == "covering"
    # Nothing of partition 1 is sent, and nothing of it survives: not even a newer state.
    assert judge_plan({0: 4, 1: 4}, tally({0: 9}), basis).kind == "short"
    assert judge_plan({0: 4}, tally({0: 9}, quarantined={0: 1}), basis).kind == "short"


def test_control_records_of_earlier_recoveries_are_no_messages() -> None:
    stretches = [Stretch(0, 4, 8, 4), Stretch(1, 0, 5, 5)]
    assert count_expected([OffsetRange(0, 0, 10)], stretches) == {0: 9}
    assert count_expected([OffsetRange(0, 0, 7)], stretches) == {0: 7}


def test_ranges_that_overlap_count_once() -> None:
    ranges = [
        OffsetRange(0, 0, 10),
        OffsetRange(0, 5, 12),
        OffsetRange(0, 6, 8),
        OffsetRange(1, 3, 3),
        OffsetRange(0, 20, 21),
    ]
    assert count_expected(ranges) == {0: 13, 1: 0}


def test_rows_that_edge_takes_in_or_leaves_out_are_no_surplus_and_no_shortfall() -> None:
    """100 were lost; 6 rows may be lost or not, 3 of them likely."""
    basis = VerdictBasis(uncertain={0: 6})
    for rebuilt, forced in ((100, 0), (103, 3), (97, -3)):
        verdict = judge_plan({0: 100}, replace(tally({0: rebuilt}), forced={0: forced}), basis)
        assert verdict.kind == "within"
        (part,) = verdict.partitions
        assert (part.rebuilt, part.surplus, part.shortfall) == (rebuilt, 0, 0)
    more = judge_plan({0: 100}, replace(tally({0: 105}), forced={0: 3}), basis)
    assert (more.kind, more.partitions[0].surplus) == ("surplus", 2)


def test_gaps_whose_errors_cancel_out_in_a_partition_are_never_exact() -> None:
    verdict = judge_plan({0: 200}, tally({0: 200}), VerdictBasis(uneven=(0,)))
    assert verdict.kind == "short"
    assert "more or fewer rows than messages" in verdict.reasons[0]


def test_covering_needs_every_row_that_changed() -> None:
    restated = VerdictBasis(collapsible=True)
    assert judge_plan({0: 100}, tally({0: 40}), restated).kind == "covering"
    hidden = replace(restated, unread="3 rows that `consumed` names are not sent")
    verdict = judge_plan({0: 100}, tally({0: 40}), hidden)
    assert (verdict.kind, "consumed" in " ".join(verdict.reasons)) == ("short", True)
    # A row that survives does not stand for a hundred messages that nothing was made of.
    lonely = judge_plan({0: 100, 1: 5}, tally({1: 5}, surviving={0: 1}), restated)
    assert lonely.kind == "short"
    few = judge_plan({0: 2, 1: 5}, tally({1: 5}, surviving={0: 4}), restated)
    assert few.kind == "covering"


PROPERTIES = {
    "bootstrap.servers": "story:9092",
    "client.id": "s",
    "sasl.username": "story",
    "sasl.password": "hunter2",
    "ssl.key.pem": "-----BEGIN",
}


def test_fault_59_secrets_are_masked_and_nothing_else_is() -> None:
    secrets = list_secrets(PROPERTIES)
    assert sorted(secrets) == ["-----BEGIN", "hunter2"]
    text = "could not reach story:9092 as story with hunter2"
    assert mask_text(text, secrets) == "could not reach story:9092 as story with ***"


def test_an_error_whose_cause_is_unknown_is_as_retryable_as_its_kind() -> None:
    with pytest.raises(LostWorker) as lost, translating("write", subject="x", kind=LostWorker):
        raise OSError("the worker is gone")
    assert lost.value.retryable
    with pytest.raises(SourceError) as source, translating("read", subject="x"):
        raise OSError("no such file")
    assert not source.value.retryable
    with pytest.raises(KafkaFailure) as kafka, translating("read", subject="x", kind=KafkaFailure):
        raise OSError("no")
    assert not kafka.value.retryable


@given(data=st.data())
def test_what_is_sure_lies_in_a_gap_and_what_is_not_possible_does_not(data: st.DataObject) -> None:
    offsets = sorted(data.draw(st.sets(st.integers(100, 160), min_size=1, max_size=40)))
    log_start = data.draw(st.integers(90, 170))
    start = data.draw(st.integers(90, log_start))
    gap = OffsetRange(0, start, data.draw(st.integers(start, log_start)))
    ids = np.array([f"m{i}" for i in range(len(offsets))], dtype=object)
    # A later recovery has put some of them behind the chunk once more.
    again = data.draw(st.sets(st.sampled_from(ids.tolist())))
    there: dict[str, list[int]] = {mid: [at] for at, mid in enumerate(sorted(again), 170)}
    for mid, at in zip(ids, offsets, strict=True):
        if at >= log_start:
            there.setdefault(mid, []).append(at)
    chunk = PriorChunk("r-1", 0, 0, len(ids), offsets[0], offsets[-1])
    found = locate_messages(chunk, ids, [gap], there, log_start)
    truth = np.array([gap.start <= at < gap.end for at in offsets])
    assert not (found.sure & ~truth).any()
    assert not (truth & ~found.possible).any()
    assert not (found.likely & ~found.possible).any()
    assert not (found.sure & ~found.likely).any()
    if gap.start <= offsets[0] and gap.end == log_start:
        # The log itself says which of them expired.
        assert (found.sure == truth).all()
        assert (found.possible == truth).all()


def test_a_chunk_that_nobody_wrote_into_leaves_nothing_open() -> None:
    chunk = PriorChunk("r-1", 0, 0, 10, 50, 59)
    ids = np.array([f"m{i}" for i in range(10)], dtype=object)
    found = locate_messages(chunk, ids, [OffsetRange(0, 53, 57)], {}, None)
    assert found.sure.tolist() == [False] * 3 + [True] * 4 + [False] * 3
    assert (found.possible == found.sure).all()


def test_a_copy_elsewhere_does_not_move_the_others_of_its_chunk() -> None:
    """Put back once more since: the copy says nothing of where the chunk's own lay."""
    chunk = PriorChunk("r-1", 0, 0, 10, 50, 59)
    ids = np.array([f"m{i}" for i in range(10)], dtype=object)
    there = {f"m{i}": [80 + i] for i in range(5)}
    found = locate_messages(chunk, ids, [OffsetRange(0, 50, 60)], there, 60)
    assert found.sure.all()
    assert found.possible.all()


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


CLUSTER = "spark://h:7077"


def test_settings_of_the_user_are_between_defaults_and_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "ensure_spark_jars", lambda: (Path("/jars/ours.jar"),))
    own = {"spark.jars": "theirs.jar", "spark.cores.max": "3", "spark.sql.session.timeZone": "CET"}
    conf = session.make_conf(CLUSTER, own)
    assert conf["spark.jars"] == "theirs.jar,/jars/ours.jar"
    assert conf["spark.cores.max"] == "3"
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert conf["spark.speculation"] == "false"
    assert "spark.driver.host" not in conf  # executors elsewhere could not reach 127.0.0.1
    assert session.make_conf(CLUSTER, {})["spark.cores.max"] == "8"
    local = session.make_conf("local[*]", {})
    assert local["spark.driver.host"] == local["spark.driver.bindAddress"] == HOST
    assert "spark.cores.max" not in local
    # In one JVM a copy of them, by another class loader, would only be loaded twice.
    assert local["spark.driver.extraClassPath"] == "/jars/ours.jar"
    assert "spark.jars" not in local
    mine = {"spark.driver.extraClassPath": "/mine.jar", "spark.jars": "theirs.jar"}
    both = session.make_conf("local[2]", mine)
    assert both["spark.driver.extraClassPath"] == "/mine.jar:/jars/ours.jar"
    assert both["spark.jars"] == "theirs.jar"
    assert "spark.driver.extraClassPath" not in conf


def test_one_process_has_one_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    running = SimpleNamespace(master="local[2]")
    monkeypatch.setattr(SparkContext, "_active_spark_context", running)
    with pytest.raises(SparkFailure, match=r"Spark on local\[2\] already"):
        session.open_session(SparkSection(master=CLUSTER), "test")
    conf = {"spark.backlogctl.startTimeout": "soon"}
    with pytest.raises(SparkFailure, match="`soon` is not a number of seconds"):
        session.open_session(SparkSection(master=CLUSTER, conf=conf), "test")


def test_one_master_of_several_is_enough() -> None:
    nowhere = f"{HOST}:1"
    with socket.create_server((HOST, 0)) as server:
        require_master(f"spark://{nowhere},{HOST}:{server.getsockname()[1]}")
    require_master("yarn")
    with pytest.raises(SparkFailure, match="Connection refused") as caught:
        require_master(f"spark://{nowhere}")
    assert caught.value.retryable
    with pytest.raises(SparkFailure, match="invalid literal"):
        require_master("spark://host")


@pytest.mark.parametrize(
    ("said", "cause", "advice"),
    [
        (
            "Traceback\nPySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
            "different version: 3.12 than that in driver: 3.11.\nPlease check\n\tat x",
            "Python in worker has different version: 3.12 than that in driver: 3.11.",
            "spark.pyspark.python",
        ),
        (
            'java.io.IOException: Cannot run program "/x/python": error=2, No such file\n\tat y',
            'Cannot run program "/x/python": error=2, No such file',
            "by its path on",
        ),
        ("something else", "something else", ""),
    ],
)
def test_what_executors_say_is_explained(said: str, cause: str, advice: str) -> None:
    found = cluster._explain(Py4JError(said))
    assert found[0] == cause
    assert advice in found[1]
    assert bool(advice) == bool(found[1])


def test_a_master_that_does_not_take_the_application_is_named() -> None:
    stopped = SparkFailure("Cannot call methods on a stopped SparkContext.", hint="its log is x")
    explained = explain_start(stopped, CLUSTER)
    assert (explained.subject, explained.message) == (
        CLUSTER,
        "the Spark master took the connection, but not the application",
    )
    assert "Spark 4.0" in explained.hint
    assert "its log is x" in explained.hint
    other = SparkFailure("another")
    assert explain_start(other, CLUSTER) is other


def test_executors_are_judged(tmp_path: Path) -> None:
    good = ExecutorReport("h", "python", "x.zip", answer="answer")
    (tmp_path / "answer").touch()
    cluster._judge([good], CLUSTER, tmp_path, tmp_path)
    cluster._judge([good], CLUSTER, None, None)
    with pytest.raises(StagingError, match="is not seen here"):
        cluster._judge([good], CLUSTER, tmp_path, tmp_path / "other")
    bad = ExecutorReport("h", "python", "x.zip", staging_error="denied")
    with pytest.raises(StagingError, match="on h does not share it: denied"):
        cluster._judge([good, bad], CLUSTER, tmp_path, tmp_path)
    with pytest.raises(SparkFailure, match="No module named 'y'"):
        cluster._judge(
            [ExecutorReport("h", "p", "x", missing="No module named 'y'")], CLUSTER, None, None
        )


def test_a_staging_directory_that_is_not_shared_is_found(tmp_path: Path) -> None:
    token = write_token(tmp_path / "probe")
    seen = inspect_executor(str(tmp_path / "probe"), token)
    assert (seen.missing, seen.staging_error) == ("", "")
    assert (tmp_path / "probe" / seen.answer).read_text() == token
    elsewhere = inspect_executor(str(tmp_path / "elsewhere"), token)
    assert "No such file" in elsewhere.staging_error
    assert "another directory" in inspect_executor(str(tmp_path / "probe"), "another").staging_error


@pytest.mark.spark
def test_a_host_that_does_not_know_its_own_name(tmp_path: Path) -> None:
    nobody = tmp_path / "hosts"
    nobody.touch()
    code = """
from backlogctl.config import SparkSection
from backlogctl.spark_backfill.spark.session import open_session
assert open_session(SparkSection(master="local[1]"), "test").range(9).count() == 9
"""
    # Java then knows no name at all.
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": f"-Djdk.net.hosts.file={nobody}"}
    environment.pop("SPARK_LOCAL_IP", None)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_workers_read_no_archives_again(spark: SparkSession) -> None:
    """Python before 3.12 reads the directory of each archive on its path before each task."""

    def list_archives(_: object) -> list[str]:
        import sys

        return [place for place in sys.path_importer_cache if place.endswith((".zip", ".jar"))]

    assert spark.sparkContext.parallelize([1], 1).mapPartitions(list_archives).collect() == []
