"""Translates errors of Spark, JDBC and SQLAlchemy: their first cause, without secrets."""

from __future__ import annotations

import errno
import os
import re
import signal
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from sqlalchemy.exc import SQLAlchemyError

from backlogctl.config.kafka_properties import SECRET_PROPERTIES
from backlogctl.errors import BacklogError, SourceError, StagingError

# Recognises a full disk, whatever else was being done, and says which directory it holds.

_TEXTS = ("no space left on device", "disk quota exceeded")
_PYTHON = f"[errno {errno.ENOSPC}]"
# Who writes shuffle files and spills.
_SPARKS_OWN = ("org.apache.spark.storage.", "org.apache.spark.shuffle.")
_STAGING: ContextVar[str] = ContextVar("_STAGING", default="")


@contextmanager
def planning_into(directory: str) -> Iterator[None]:
    """A plan is staged in `directory`: a full disk is told with that, wherever Spark met it.

    Raises:
        StagingError: no space was left; nothing was planned.
        SparkEnded
    """
    token = _STAGING.set(directory)
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        if known := explain_end(error, "make the plan", directory) or explain_full_disk(
            error, "make the plan", directory
        ):
            raise known from None
        raise
    finally:
        _STAGING.reset(token)


def explain_full_disk(error: BaseException, doing: str, subject: str) -> BacklogError | None:
    """What is said of a disk of ours that is full; None where the error is another one."""
    text = _read_all(error)
    if not _is_full(text):
        return None
    staging = _STAGING.get()
    if _is_sparks_own(text):
        where = _name_local_directory()
        other = "set `spark.local.dir` under `spark.conf` to a directory that has some"
    else:
        where = staging or "the directory that it writes to"
        other = "point `staging.dir` to a directory that has some"
    stands = "nothing was planned and nothing was changed; " if staging else ""
    return StagingError(
        f"could not {doing}: no space left in {where}",
        subject=subject,
        hint=f"{stands}free space there, or {other}, and do it again",
    )


# Spark's JVM in the middle of work: the system may have killed it, and nothing says so but its end.


class SparkEnded(BacklogError):
    """The JVM of this process' Spark is gone: nothing more can be done with it."""

    code = "spark_ended"
    retryable = True


def name_log() -> Path:
    """Where the JVM of this process, and its workers, write what they say."""
    return Path(tempfile.gettempdir()) / f"backlog-spark-{os.getuid()}-{os.getpid()}.log"


def explain_end(error: BaseException, doing: str, subject: str) -> SparkEnded | None:
    """What is said where Spark's JVM has ended; None where it runs, or is not this process' own."""
    process = getattr(SparkContext._gateway, "proc", None)
    # What a JVM has said itself is no sign of its end.
    if process is None or isinstance(error, (PySparkException, Py4JJavaError)):
        return None
    try:
        # Its connections are closed a moment before it is gone.
        code = process.wait(0.5)
    except TimeoutExpired:
        return None
    how = f"with exit code {code}"
    if code < 0:
        how = f"by {signal.Signals(-code).name}"
    killed = ", as the system does where memory is short" if code == -signal.SIGKILL else ""
    return SparkEnded(
        f"could not {doing}: Spark's JVM ended {how}{killed}",
        subject=subject,
        hint=f"its log is {name_log()}; where memory is short make `spark.driver.memory` under "
        "`spark.conf` smaller or give the machine more; then do it again",
    )


def is_target_full(error: BaseException) -> bool:
    """Whether the disk that is written to is full, and not one of Spark's own."""
    text = _read_all(error)
    return _is_full(text) and not _is_sparks_own(text)


def _is_full(text: str) -> bool:
    # A database that says so means its own disk.
    return "sqlexception" not in text and any(full in text for full in _TEXTS)


def _is_sparks_own(text: str) -> bool:
    return _PYTHON not in text and any(name in text for name in _SPARKS_OWN)


def _read_all(error: BaseException) -> str:
    """All that an error and its causes say, stack traces of the JVM too, in small letters."""
    parts: list[str] = []
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        try:
            parts.append(str(found))
        except (Py4JError, OSError):  # the JVM is gone
            parts.append(repr(found.args))
        # Spark's own errors keep the JVM's trace beside their text.
        parts.append(str(getattr(found, "_stackTrace", None) or ""))
        found = found.__cause__ or found.__context__
    return "\n".join(parts).lower()


def _name_local_directory() -> str:
    context = SparkContext._active_spark_context
    if context is None or not str(context.master).startswith("local"):
        return "the local directory of a Spark executor"
    named = os.environ.get("SPARK_LOCAL_DIRS") or context.getConf().get("spark.local.dir")
    return f"Spark's local directory {named or '/tmp'}"  # noqa: S108 - the JVM's default


_MAX_LENGTH = 600
_DEEPEST = 30
_SPARK_PREFIX = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9]*(?:[_.][A-Z0-9]+)+)\]")
_TRANSIENT = ("08", "40", "53", "57", "55")  # SQLSTATE classes worth another try
# No connection, or the server ended it; a statement that took too long (57014) is none of these.
_AWAY_STATES = ("08", "57P01", "57P02", "57P03")
_AWAY = "check that the database runs and answers, then do it again"
_URL_PASSWORD = re.compile(r"(\b[\w+.\-]+://[^\s:/@]*:)[^\s@]+@")


@contextmanager
def translating(
    doing: str,
    *,
    subject: str,
    hint: str = "",
    kind: type[BacklogError] = SourceError,
    secrets: Iterable[str] = (),
    hides_data: bool = False,
) -> Iterator[None]:
    """Turns whatever Spark, JDBC or SQLAlchemy raise inside into one error of ours.

    A full disk is a StagingError, and the JVM's end SparkEnded, whatever `kind` is: neither the
    topic nor the table is at fault.

    Args:
        hides_data: of an error about data only its name is told: Spark quotes the data.
    """
    try:
        yield
    except BacklogError:
        raise
    except (PySparkException, Py4JError, SQLAlchemyError, OSError) as error:
        ours = None
        if not isinstance(error, SQLAlchemyError):
            ours = explain_end(error, doing, subject) or explain_full_disk(error, doing, subject)
        cause, state = find_first_cause(error)
        if hides_data:
            cause = find_condition(error) or cause
        failure = ours or kind(
            f"could not {doing}: {mask_text(cause, secrets)}",
            subject=subject,
            hint=_AWAY if state.startswith(_AWAY_STATES) else hint,
            # Without a state the kind of error decides.
            retryable=state[:2] in _TRANSIENT if state else None,
        )
        # The originals hold URLs, statements and whole stack traces.
        raise failure from None


def find_first_cause(error: BaseException) -> tuple[str, str]:
    """The innermost message of an error, in one line, and its SQLSTATE where there is one."""
    if isinstance(error, SQLAlchemyError):
        inner = getattr(error, "orig", None)
        state = str(getattr(inner, "sqlstate", "") or "")
        return _shorten(str(inner if inner is not None else error)), state
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return _shorten(str(error)), ""
    try:
        return _find_java_cause(java)
    except (Py4JError, OSError):  # the JVM is gone
        return _shorten(str(error)), ""


def find_condition(error: BaseException) -> str:
    """Spark's innermost name of what is wrong, such as `CAST_INVALID_INPUT`; "" where none is said.

    Beside the name Spark quotes the expression, and what a message holds.
    """
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    texts = [str(error)]
    with suppress(Py4JError, OSError):  # the JVM may be gone
        while java is not None and len(texts) < _DEEPEST:
            texts.append(str(java.getMessage() or ""))
            java = java.getCause()
    return next((found[1] for text in reversed(texts) if (found := _CONDITION.search(text))), "")


def list_secrets(properties: Mapping[str, str]) -> list[str]:
    """The values of client properties that must not be shown; a topic's or a user's name may."""
    return [value for name, value in properties.items() if name in SECRET_PROPERTIES]


def mask_text(text: str, secrets: Iterable[str] = ()) -> str:
    for secret in sorted((s for s in secrets if s), key=len, reverse=True):
        text = text.replace(secret, "***")
    return _URL_PASSWORD.sub(r"\1***@", text)


def _find_java_cause(java: Any) -> tuple[str, str]:
    text, state = "", ""
    for _ in range(_DEEPEST):
        if java is None:
            break
        message = java.getMessage()
        if message:
            text = str(message)
        if hasattr(java, "getSQLState") and "SQLException" in _ancestors(java):
            state = java.getSQLState() or state
        java = java.getCause()
    if "Traceback (most recent call last)" in text:
        lines = [line for line in text.strip().splitlines() if line and not line.startswith(" ")]
        text = lines[-1] if lines else text
    return _shorten(text), state


def _ancestors(java: Any) -> str:
    names, kind = [], java.getClass()
    while kind is not None:
        names.append(kind.getSimpleName())
        kind = kind.getSuperclass()
    return " ".join(names)


def _shorten(text: str) -> str:
    line = " ".join(_SPARK_PREFIX.sub("", text.strip()).split())
    return line if len(line) <= _MAX_LENGTH else f"{line[:_MAX_LENGTH]}..."
