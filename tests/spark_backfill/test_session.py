"""Settings of a session, and what is said about a cluster that does not work."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext

from backlogctl.config import SparkSection
from backlogctl.errors import StagingError
from backlogctl.sandbox.secured import HOST
from backlogctl.spark_backfill.spark import cluster, session
from backlogctl.spark_backfill.spark.cluster import SparkFailure, explain_start, require_master
from backlogctl.spark_backfill.spark.probe import ExecutorReport, inspect_executor, write_token

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
