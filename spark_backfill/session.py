"""The Spark session: our settings, the connectors' jars, and no noise on the terminal."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from pyspark import SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from backlog.errors import BacklogError
from backlog.jars import ensure_spark_jars, find_java
from spark_backfill.failures import translating


class SparkSettings(Protocol):
    """The configuration's section `spark`."""

    @property
    def master(self) -> str:
        """Where Spark runs: `local[*]`, `yarn`, `spark://...`."""

    @property
    def conf(self) -> Mapping[str, str]:
        """Settings of the user; ours that exactness needs win over them."""


class SparkFailure(BacklogError):
    """Spark could not be started."""

    code = "spark"


_ROOMS = ("backlog", "spark_backfill")

# What a user may change: sizes and speed.
_DEFAULTS: Mapping[str, str] = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}
# What exactness needs; wins over the user's settings.
_REQUIRED: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.speculation": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.jsonGenerator.ignoreNullFields": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|sasl|jaas|ssl|credential",
    "spark.sql.redaction.options.regex": "(?i)url|secret|password|token|sasl|jaas|ssl|user",
}
# They print a stack trace for each refused expression; we tell its first cause.
_SPARK_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_UTC = "-Duser.timezone=UTC"


def open_session(settings: SparkSettings, app_name: str) -> SparkSession:
    """Starts Spark, or gives the session that already runs in this process.

    The JVM's and the workers' own output goes to a log file, not to the terminal.

    Raises:
        EmbeddedError: no Java, or the connectors' jars could not be fetched.
        SparkFailure: Spark did not start.
    """
    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    root = str(Path(__file__).resolve().parent.parent)
    _prepend_path("PYTHONPATH", root)
    builder = SparkSession.builder.master(settings.master).appName(app_name)
    own = {name: str(value) for name, value in settings.conf.items()}
    local = settings.master.startswith("local")
    conf = {**_DEFAULTS, **own, **_REQUIRED, **_jars(own)}
    for name in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
        conf[name] = f"{own.get(name, '')} {_UTC}".strip()
    if local:
        conf.setdefault("spark.driver.host", "127.0.0.1")
        conf.setdefault("spark.driver.bindAddress", "127.0.0.1")
    for name, value in conf.items():
        builder = builder.config(name, value)
    log = Path(tempfile.gettempdir()) / f"backlog-spark-{os.getuid()}-{os.getpid()}.log"
    with (
        translating(
            "start Spark", subject=settings.master, hint=f"its log is {log}", kind=SparkFailure
        ),
        _quiet(log),
        _own_interrupts(),
    ):
        session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    for logger in _SPARK_LOGGERS:
        PySparkLogger.getLogger(logger).disabled = True
    if not local:
        _ship_rooms(session)
    return session


def _jars(own: Mapping[str, str]) -> dict[str, str]:
    jars = [*filter(None, own.get("spark.jars", "").split(",")), *map(str, ensure_spark_jars())]
    return {"spark.jars": ",".join(jars)}


def _prepend_path(name: str, entry: str) -> None:
    parts = [part for part in os.environ.get(name, "").split(os.pathsep) if part]
    if entry not in parts:
        os.environ[name] = os.pathsep.join([entry, *parts])


def _ship_rooms(session: SparkSession) -> None:
    """Executors elsewhere get our modules; their libraries they must have themselves."""
    root = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as scratch:
        for room in _ROOMS:
            shutil.copytree(
                root / room, Path(scratch) / "rooms" / room, ignore=shutil.ignore_patterns("*.pyc")
            )
        archive = shutil.make_archive(
            str(Path(tempfile.mkdtemp()) / "rooms"), "zip", Path(scratch) / "rooms"
        )
    session.sparkContext.addPyFile(archive)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("KeyboardInterrupt while")


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keeps the handler of Ctrl-C: PySpark's own first asks the JVM to cancel, which, in the
    middle of another call, fails with an error that hides the interrupt."""
    before = signal.getsignal(signal.SIGINT)
    # py4j logs an interrupt with its traceback, on the root logger, and then that the JVM is gone.
    logging.getLogger().addFilter(_is_no_interrupt)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    yield
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


@contextmanager
def _quiet(log: Path) -> Iterator[None]:
    """While the JVM is launched it inherits a log file as its stdout and stderr."""
    if SparkContext._gateway is not None:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    saved = os.dup(1), os.dup(2)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for handle in (*saved, target):
            os.close(handle)
