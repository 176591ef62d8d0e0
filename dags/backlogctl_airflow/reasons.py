"""Why a task ended, for people: one message, secrets masked, in its log and beside it as an XCom.

A task that fails by one of ours has no traceback in its log: its reader is on call. What is a fault
of the program keeps its traceback, masked.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import structlog
from airflow.sdk import Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRuntimeError,
    AirflowSkipException,
)

from backlog.config import mask_secrets
from backlog.errors import (
    ApprovalNeeded,
    BacklogError,
    ConfigurationError,
    Refused,
    UsageError,
)
from backlog.extras import explain_import
from backlogctl_delivery.visible import escape_text, escape_trace
from replay.recovery.brakes import CANARY, CancelRequested, PausedBecause
from replay.telling.standing import say_standing

LOG = logging.getLogger("backlogctl_airflow")


def _escape_line(record: logging.LogRecord) -> bool:
    """Airflow's page gives colours to what a log says in escape sequences."""
    record.msg, record.args = escape_trace(record.getMessage()), ()
    return True


LOG.addFilter(_escape_line)
# The XCom of a task that failed, was skipped or waits.
REASON = "reason"
# The XCom of a task that failed by itself and is not tried again: nobody had to mark it.
ENDED = "ended"
# A broker or a database may be back for the next try; these say the same again.
_FINAL = (UsageError, ConfigurationError, ApprovalNeeded, Refused, CancelRequested)
_SLOW_CANARY = (
    "It ends here, and the layout is given back: look at the consumers, or run it again with a "
    "`rate` that they reach"
)


class RunbookError(AirflowException):
    """A task's failure in one message; worth another try."""


class RunbookRefusal(AirflowFailException):
    """A task's failure that another try would only repeat."""


def describe_error(error: BacklogError) -> str:
    """An error for people, without secrets."""
    told = f"\n{say_standing(error.standing)}" if error.standing else ""
    return f"{escape_text(mask_secrets(str(error)))}{mask_secrets(told)}"


@contextmanager
def translated_errors(context: Context | None = None) -> Iterator[None]:
    """Our errors as Airflow's: with a retry only where that may help.

    Args:
        context: of the task, beside which the reason is kept.

    Raises:
        RunbookError, RunbookRefusal: with nothing of the original, whose text is not masked.
    """
    try:
        yield
        return
    except (AirflowException, AirflowRuntimeError):
        raise
    except BacklogError as error:
        failure = _translate(error)
    except Exception as error:  # noqa: BLE001 whatever it is, it is masked
        if missing := explain_import(error):
            failure = _translate(missing)
        else:
            LOG.error("%s", mask_secrets(traceback.format_exc()))
            told = mask_secrets(f"{type(error).__name__}: {error}")
            failure = RunbookError(f"a fault of the program, its traceback is above: {told}")
    fail(context, failure)


def fail(context: Context | None, failure: AirflowException) -> NoReturn:
    """Ends the task: its reason is kept, and stands in the log without a traceback."""
    if context is not None:
        keep_reason(context, str(failure))
        task = context["ti"]
        if isinstance(failure, RunbookRefusal) or task.try_number > task.max_tries:
            _push(context, ENDED, value=True)
    _drop_tracebacks()
    try:
        raise failure from None
    finally:
        # What is handled around this would be shown with it, and is not masked.
        failure.__context__ = None


def skipping(context: Context, told: str) -> AirflowSkipException:
    """What ends the task as skipped; it says why."""
    LOG.info("%s", told)
    keep_reason(context, told)
    return AirflowSkipException(told)


def keep_reason(context: Context, told: str) -> None:
    """Beside the task, for the report and for who looks at the run."""
    _push(context, REASON, told)


def _push(context: Context, key: str, value: Any) -> None:
    with suppress(AirflowRuntimeError):  # marked meanwhile: nobody asks this try any more
        context["ti"].xcom_push(key=key, value=value)


def _translate(error: BacklogError) -> AirflowException:
    if isinstance(error, PausedBecause):
        if error.why == CANARY:
            # Every try would be as slow, and meanwhile nobody reads the topic.
            told = f"{error.subject}: {error.message}. {_SLOW_CANARY}"
            return RunbookRefusal(mask_secrets(told))
        # Interrupted: by a worker that stops, or a task that was marked. The next try goes on.
        return RunbookError(describe_error(error))
    final = isinstance(error, _FINAL) and not error.retryable
    return (RunbookRefusal if final else RunbookError)(describe_error(error))


def _drop_tracebacks() -> None:
    """Airflow logs a failure with its traceback; of ours, its message says it all."""
    processors: list[Any] = structlog.get_config()["processors"]
    if _say_reason_only not in processors:
        processors.insert(0, _say_reason_only)


def _say_reason_only(
    _logger: Any, _method: str, event: structlog.typing.EventDict
) -> Mapping[str, Any]:
    failure = sys.exc_info()[1]
    if event.get("exc_info") and isinstance(failure, RunbookError | RunbookRefusal):
        return {"level": "error", "event": str(failure)}
    return event
