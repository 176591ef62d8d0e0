"""The Spark session: our settings, the connectors' jars, and no noise on the terminal."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from backlogctl import IMPORT_ROOT
from backlogctl.clock import Deadline
from backlogctl.config.sections import SparkSection
from backlogctl.formats import Say
from backlogctl.jars import ensure_jars, find_jars, find_java
from backlogctl.spark_backfill.failures import name_log, translating
from backlogctl.spark_backfill.spark.cluster import (
    STANDALONE_DEFAULTS,
    START_SECONDS,
    START_SETTING,
    SparkFailure,
    check_executors,
    explain_start,
    is_local,
    require_connector,
    require_master,
    require_s3,
    ship_packages,
)

# The jars that Spark needs beside its own.

SPARK_JARS = Path(__file__).with_name("spark.jars")
_S3_JARS = Path(__file__).with_name("s3.jars")


def find_spark_jars() -> Path:
    """Their directory; it is there once they were fetched."""
    return find_jars(SPARK_JARS)


def ensure_spark_jars(progress: Say | None = None) -> tuple[Path, ...]:
    """The jars for `spark.jars`: the Kafka connector and the JDBC drivers."""
    return ensure_jars(SPARK_JARS, progress)


def ensure_s3_jars(progress: Say | None = None) -> tuple[Path, ...]:
    """What Spark needs to reach `s3a:` locations."""
    return ensure_jars(_S3_JARS, progress)


# Spark's classes, read and verified once for all: with them the driver starts in half the time.
#
# `python -m backlogctl.spark_backfill.spark.class_archive_maker` makes the archive, once in an
# environment: a minute, and 150 MB. It is Java's dynamic class data sharing (JEP 350). Java itself
# checks at each start that the archive is of this Java and of these jars, else does without it.

DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
# A user who says one of these has an archive, or wants none.
_OWN = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")


def find_class_archive() -> Path:
    """Where this environment's archive is, if it was made."""
    return Path(sys.prefix, "share", "backlogctl", "spark.jsa")


def make_options(own: str) -> str:
    """Java options of a driver that uses the archive; "" where there is none, or the user's `own`
    say otherwise."""
    archive = find_class_archive()
    if any(word in own for word in _OWN) or not archive.is_file():
        return ""
    # A path with a space would be two options.
    return "" if " " in str(archive) else f"-XX:SharedArchiveFile={archive}"


# What a user may change: sizes and speed.
_DEFAULTS: Mapping[str, str] = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # A plan has more than the 100 classes that Spark keeps: it would compile all of them again for
    # the next plan, which is a quarter of a warm plan's work.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Else PySpark asks the JVM several times about each column that is named, to say in an error
    # which line named it: half of all calls of a plan.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Rows of staged files and archives that are in memory at once; they may be large.
    "spark.sql.parquet.columnarReaderBatchSize": "512",
}
# What exactness needs; wins over the user's settings.
_REQUIRED: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.speculation": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    # How SQL text is read: a user's names and texts stand in it as they are.
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.variable.substitute": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.jsonGenerator.ignoreNullFields": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|sasl|jaas|ssl|credential",
    "spark.sql.redaction.options.regex": "(?i)url|secret|password|token|sasl|jaas|ssl|user",
}
# They print a stack trace for each refused expression; we report its first cause.
_SPARK_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_LOOPBACK = "127.0.0.1"
_CLASS_PATH = "spark.driver.extraClassPath"
_UTC = "-Duser.timezone=UTC"


def open_session(
    settings: SparkSection, app_name: str, *, staging: Path | None = None, s3: bool = False
) -> SparkSession:
    """Starts Spark, or returns the session that already runs in this process.

    The JVM's and the workers' own output goes to a log file, not to the terminal. On a cluster our
    code is shipped, and a first job shows that executors can work with it.

    Args:
        staging: a directory that executors elsewhere must share.
        s3: reach object stores as well, which takes more jars: see `needs_s3`.

    Raises:
        EmbeddedError: no Java, or the connectors' jars could not be fetched.
        SparkFailure: Spark did not start, or gives no executor that can run our code.
        StagingError: an executor does not share `staging`.
    """
    find_java()
    own = {name: str(value) for name, value in settings.conf.items()}
    local = is_local(settings.master)
    seconds = _read_seconds(own)
    _require_same_spark(settings.master)
    if SparkContext._active_spark_context is None:
        require_master(settings.master)
    if local:
        # Spark resolves its host name even so, and fails where that does not resolve.
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    _choose_python(own)
    builder = SparkSession.builder.master(settings.master).appName(app_name)
    for name, value in make_conf(settings.master, own, s3=s3).items():
        builder = builder.config(name, value)
    log = name_log()
    try:
        with (
            translating(
                "start Spark", subject=settings.master, hint=f"its log is {log}", kind=SparkFailure
            ),
            _quiet(log),
            _own_interrupts(),
        ):
            session: SparkSession = builder.getOrCreate()
    except SparkFailure as failure:
        raise explain_start(failure, settings.master) from None
    require_connector(session)
    if s3:
        require_s3(session, "s3a:")
    session.sparkContext.setLogLevel("ERROR")
    # Where the JVM ends PySpark would print a stack trace; who waits for Spark is told.
    accumulators = session.sparkContext._accumulatorServer
    accumulators.handle_error = lambda *_: None  # type: ignore[method-assign]
    for logger in _SPARK_LOGGERS:
        PySparkLogger.getLogger(logger).disabled = True
    if not local:
        try:
            ship_packages(session.sparkContext)
            check_executors(session.sparkContext, staging, seconds)
        except BaseException:
            # Without executors the application would wait on the cluster until we end.
            session.stop()
            raise
    return session


def end_tasks(seconds: float = 20.0) -> bool:
    """Cancels this process' jobs, and waits until nothing of them writes, if Spark runs here: when
    a job has failed others of its tasks go on. False where something may write still."""
    context = SparkContext._active_spark_context
    if context is None:
        return True
    limit = Deadline(seconds)
    with suppress(Py4JError, OSError):  # the JVM is gone
        context.cancelAllJobs()
        store = context._jsc.sc().statusStore()
        while not limit.expired:
            executors = store.executorList(True)
            if not any(executors.apply(n).activeTasks() for n in range(executors.size())):
                return _end_workers(context, limit)
            time.sleep(0.05)
        return False
    return True


def _end_workers(context: SparkContext, limit: Deadline) -> bool:
    """Spark takes a task for ended before the Python process that did it is. The next job starts
    others."""
    if not is_local(str(context.master)):
        return False  # elsewhere nobody can see it
    jvm = context._jvm
    assert jvm is not None
    here = jvm.java.lang.ProcessHandle.current()
    while not limit.expired:
        # Spark's daemon is the JVM's child, and the workers are the daemon's.
        parent = [(one, one.parent()) for one in here.descendants().toList()]
        workers = [one for one, its in parent if its.isPresent() and its.get().pid() != here.pid()]
        if not workers:
            return True
        for one in workers:
            one.destroyForcibly()
        time.sleep(0.02)
    return False


def make_submit_conf(settings: SparkSection, *, s3: bool, elsewhere: bool) -> dict[str, str]:
    """Of a driver that `spark-submit` starts: those that its JVM starts with have no later way in.

    Args:
        elsewhere: on a machine that is not this one, and has its own jars.
    """
    conf = make_conf(settings.master, settings.conf, s3=s3, elsewhere=elsewhere)
    if not elsewhere:
        # Else `spark.pyspark.python`, which is the executors', would be the driver's too; and what
        # Spark itself says is no progress. In cluster mode it tells how the driver ended.
        own = {"spark.pyspark.driver.python": sys.executable, "spark.log.level": "ERROR"}
        conf = {**own, **conf}
    return conf


def make_conf(
    master: str, own: Mapping[str, str], *, s3: bool = False, elsewhere: bool = False
) -> dict[str, str]:
    """All settings of a session: the user's, over our defaults, under what exactness needs."""
    conf = {**_DEFAULTS}
    if is_local(master):
        conf |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
        conf["spark.python.daemon.module"] = "backlogctl.spark_backfill.worker_daemon"
    elif master.startswith("spark://"):
        conf |= STANDALONE_DEFAULTS
    jars = {} if elsewhere else _name_jars(own, is_local(master), s3)
    conf = {**conf, **own, **_REQUIRED, **jars}
    for name in (DRIVER_OPTIONS, "spark.executor.extraJavaOptions"):
        conf[name] = f"{own.get(name, '')} {_UTC}".strip()
    archived = "" if elsewhere else make_options(own.get(DRIVER_OPTIONS, ""))
    conf[DRIVER_OPTIONS] = f"{conf[DRIVER_OPTIONS]} {archived}".strip()
    return conf


def _read_seconds(own: Mapping[str, str]) -> float:
    text = own.get(START_SETTING, "")
    try:
        seconds = float(text.removesuffix("s")) if text else START_SECONDS
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise SparkFailure(
            f"`{text}` is not a number of seconds", subject=f"spark.conf {START_SETTING}"
        )
    return seconds


def _require_same_spark(master: str) -> None:
    """One process has one Spark: it must not be taken for another one."""
    running = SparkContext._active_spark_context
    if running is None:
        return
    theirs = str(running.master)
    if theirs != master and not (is_local(theirs) and is_local(master)):
        raise SparkFailure(
            f"this process runs Spark on {theirs} already",
            subject=master,
            hint="start it in a process of its own",
        )


def _choose_python(own: Mapping[str, str]) -> None:
    """PySpark reads the executors' Python from the environment; only spark-submit reads the
    settings."""
    if python := own.get("spark.pyspark.python"):
        os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _prepend_path("PYTHONPATH", str(IMPORT_ROOT))


def _name_jars(own: Mapping[str, str], local: bool, s3: bool) -> dict[str, str]:
    """Where tasks run in the driver's JVM, our jars are simply on its class path: of `spark.jars`
    Spark makes copies, loads their classes twice, and no archive of classes serves them."""
    found = [*ensure_spark_jars(), *(ensure_s3_jars() if s3 else ())]
    jars = [str(path) for path in found]
    name, separator = (_CLASS_PATH, os.pathsep) if local else ("spark.jars", ",")
    theirs = filter(None, own.get(name, "").split(separator))
    return {name: separator.join([*theirs, *jars])}


def _prepend_path(name: str, entry: str) -> None:
    parts = [part for part in os.environ.get(name, "").split(os.pathsep) if part]
    if entry not in parts:
        os.environ[name] = os.pathsep.join([entry, *parts])


def _is_not_py4js(record: logging.LogRecord) -> bool:
    return not record.getMessage().endswith(" while sending command.")


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keeps the handler of Ctrl-C: PySpark's own first asks the JVM to cancel, which, in the
    middle of another call, fails with an error that hides the interrupt."""
    before = signal.getsignal(signal.SIGINT)
    # py4j logs an interrupt, and the JVM's end, with a traceback, on the root logger.
    logging.getLogger().addFilter(_is_not_py4js)
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
