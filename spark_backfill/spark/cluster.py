"""Spark on other machines: ships our code, and checks the executors with a first small job.

Spark itself waits for a master, or for executors, for minutes or for ever; each of these has a
limit here, and an error that names what to look at.
"""

from __future__ import annotations

import atexit
import importlib
import queue
import shutil
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from backlogctl.errors import BacklogError, StagingError
from backlogctl.spark_backfill.failures import find_first_cause
from backlogctl.spark_backfill.spark.probe import ExecutorReport, inspect_executor, write_token

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Found = TypeVar("Found")

START_SECONDS = 120.0
START_SETTING = "spark.backlogctl.startTimeout"
# What we take of a cluster that is shared, where the user does not say: a standalone master gives
# all it has to the first who asks.
STANDALONE_DEFAULTS: Mapping[str, str] = {"spark.cores.max": "8"}

_PACKAGES = ("backlogctl_delivery", "backlogctl")
_SPARK_VERSION = ".".join(pyspark.__version__.split(".")[:2])
_CONNECT_SECONDS = 5.0
_DOCS = "see docs/spark.md"
# What executors say somewhere in their long answers, and what to do about it.
_ADVICE = {
    "Python in worker has different version": "`spark.pyspark.python` names the "
    "executors' Python; it must be of the driver's minor version",
    "Cannot run program": "`spark.pyspark.python` names the executors' Python, by its path on "
    "their machines",
    "No module named": "the executors' Python lacks this library",
    "Master removed our application": "its executors end at once: see their logs",
}

_shipped: WeakSet[SparkContext] = WeakSet()


class SparkFailure(BacklogError):
    """Spark could not be started."""

    code = "spark"


def is_local(master: str) -> bool:
    """Whether this master runs its tasks in the driver's own process."""
    return master == "local" or master.startswith("local[")


def require_master(master: str) -> None:
    """Connects to a standalone master, which Spark would try for a minute.

    Raises:
        SparkFailure: none of its addresses takes connections.
    """
    if not master.startswith("spark://"):
        return
    reasons = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
                return
        except (OSError, ValueError) as error:
            reasons.append(f"{address}: {getattr(error, 'strerror', None) or error}")
    raise SparkFailure(
        f"the Spark master cannot be reached: {'; '.join(reasons)}",
        subject=master,
        hint="is it running, and is `spark.master` the URL that its page shows?",
        retryable=True,
    )


def explain_start(error: SparkFailure, master: str) -> SparkFailure:
    """Spark that gave up on a standalone master says only that it has stopped."""
    if "stopped SparkContext" not in error.message:
        return error
    return SparkFailure(
        "the Spark master took the connection, but not the application",
        subject=master,
        hint=f"it must be a master of Spark {_SPARK_VERSION}; {error.hint}",
    )


def ship_packages(context: SparkContext) -> None:
    """Executors get our modules; their libraries they must have themselves."""
    if context in _shipped:
        return
    # Executors fetch it from the driver whenever one starts, so it stays until the end.
    scratch = Path(tempfile.mkdtemp(prefix="backlogctl-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    for package in _PACKAGES:
        (folder,) = importlib.import_module(package).__path__
        shutil.copytree(
            folder,
            scratch / "packages" / package,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    archive = shutil.make_archive(str(scratch / "backlogctl"), "zip", scratch / "packages")
    shutil.rmtree(scratch / "packages")
    context.addPyFile(archive)
    _shipped.add(context)


def check_executors(context: SparkContext, staging: Path | None, seconds: float) -> None:
    """Runs a first job on the executors: our code, its libraries and the staging directory.

    Args:
        staging: must be one directory for the driver and every executor; None to leave it out.
        seconds: how long the cluster may take to give us a core.

    Raises:
        SparkFailure: no executor came in time, or it cannot run our code.
        StagingError: an executor has another staging directory, or may not use it.
    """
    directory = None if staging is None else staging / f".probe-{uuid.uuid4().hex}"
    try:
        token = "" if directory is None else write_token(directory)
        place = None if directory is None else str(directory)
        width = max(2, context.defaultParallelism)

        def look() -> list[ExecutorReport]:
            job = context.parallelize(range(width), width)
            return list(job.map(lambda _: inspect_executor(place, token)).collect())

        reports = _run_within(context, seconds, look)
        _judge(reports, str(context.master), staging, directory)
    except OSError as error:
        raise StagingError(
            f"could not be written: {error.strerror}", subject=f"staging.dir {staging}"
        ) from None
    finally:
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


def _judge(
    reports: list[ExecutorReport], master: str, staging: Path | None, directory: Path | None
) -> None:
    for report in reports:
        if report.missing:
            raise SparkFailure(
                f"the executors' Python, {report.python}, cannot run our code: {report.missing}",
                subject=f"{master}, host {report.host}",
                hint=f"the libraries that executors need are listed: {_DOCS}",
            )
        staging_error = report.staging_error
        if not staging_error and directory is not None and not (directory / report.answer).exists():
            staging_error = "what it wrote there is not seen here"
        if staging_error:
            raise StagingError(
                f"the Spark executor on {report.host} does not share it: {staging_error}",
                subject=f"staging.dir {staging}",
                hint="name a directory that this machine and all executors mount at the same "
                f"path, and may write; {_DOCS}",
            )


def _run_within(context: SparkContext, seconds: float, job: Callable[[], Found]) -> Found:
    """Runs a job that is cancelled when it gets no core in time."""
    answers: queue.Queue[Found | BaseException] = queue.Queue()
    group = f"backlogctl-{uuid.uuid4().hex}"

    def work() -> None:
        try:
            context.setJobGroup(group, "backlogctl checks the executors", interruptOnCancel=True)
            answers.put(job())
        except BaseException as error:  # noqa: BLE001 (raised again by who waits for it)
            answers.put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        context.cancelJobGroup(group)
        raise SparkFailure(
            f"no executor took a task within {seconds:g} s",
            subject=str(context.master),
            hint="see on the master's page whether it has free cores and memory for "
            "`spark.executor.memory`, and in the executors' logs whether they reach "
            f"`spark.driver.host`; `{START_SETTING}` waits longer; {_DOCS}",
            retryable=True,
        ) from None
    if isinstance(answer, (PySparkException, Py4JError)):
        cause, advice = _explain(answer)
        raise SparkFailure(
            f"the executors could not run a first task: {cause}",
            subject=str(context.master),
            hint=f"{advice}; {_DOCS}" if advice else _DOCS,
        ) from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _explain(error: BaseException) -> tuple[str, str]:
    """The cause, and what to do about it where that is known."""
    cause, _ = find_first_cause(error)
    lines = [*str(error).splitlines(), cause]
    for sign, advice in _ADVICE.items():
        if line := next((line for line in lines if sign in line), None):
            return line[line.index(sign) :].strip(), advice
    return cause, ""


# Object stores that speak S3: what a location on one needs of Spark.

_CONNECTOR = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_CLASS = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def needs_s3(location: str) -> bool:
    """Whether Spark reaches this location only with the jars of hadoop-aws."""
    return location.startswith("s3a:")


def has_s3(spark: SparkSession) -> bool:
    """Whether this Spark was started with them."""
    return _has_class(spark, _CLASS)


def _has_class(spark: SparkSession, name: str) -> bool:
    jvm: Any = spark._jvm
    try:
        jvm.org.apache.spark.util.Utils.classForName(name, False, False)
    except Py4JError:
        return False
    return True


def require_connector(spark: SparkSession) -> None:
    """Where `spark-submit` has started the JVM, nothing of ours is on its class path by itself.

    Raises:
        SparkFailure: it has no Kafka connector.
    """
    if not _has_class(spark, _CONNECTOR):
        raise SparkFailure(
            "this driver was started without Spark's Kafka connector",
            subject=str(spark.sparkContext.master),
            hint=f"name its jars, as the driver sees them, in `spark.jars`; {_DOCS}",
        )


def require_s3(spark: SparkSession, location: str) -> None:
    """The jars must be there before Spark's JVM starts.

    Raises:
        SparkFailure: this process has a Spark without them.
    """
    if not has_s3(spark):
        raise SparkFailure(
            "this process runs Spark without what reaches an object store (hadoop-aws)",
            subject=location,
            hint="start it in a process of its own",
        )
