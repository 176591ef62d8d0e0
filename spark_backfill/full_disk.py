"""Recognises a full disk, whatever else was being done, and says which directory it holds."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException

from backlog.errors import BacklogError, StagingError

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
    """
    token = _STAGING.set(directory)
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        if full := explain_full_disk(error, "make the plan", directory):
            raise full from None
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
