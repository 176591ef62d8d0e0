"""How what went wrong is told: masked, in one message, with nothing of the original behind it."""

from __future__ import annotations

import io
import traceback
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import structlog
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from backlog.errors import KafkaFailure, Refused
from backlogctl_airflow.reasons import (
    ENDED,
    REASON,
    RunbookError,
    RunbookRefusal,
    skipping,
    translated_errors,
)

SECRET = "hunter2-of-the-broker"


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A task's first try of three; the secret is known."""
    monkeypatch.setattr("backlog.config.root._SECRETS", {SECRET})
    return {"ti": MagicMock(try_number=1, max_tries=2)}


def break_with(error: Exception) -> None:
    """As a client does it: the reason behind the error holds more than the error."""
    try:
        raise OSError(f"SASL password {SECRET} was refused")
    except OSError as cause:
        raise error from cause


def fail(context: dict[str, Any], error: Exception) -> Exception:
    """What Airflow gets."""
    with (
        pytest.raises((RunbookError, RunbookRefusal)) as caught,
        translated_errors(cast("Context", context)),
    ):
        break_with(error)
    return caught.value


def list_kept(context: dict[str, Any]) -> dict[str, Any]:
    return {call.kwargs["key"]: call.kwargs["value"] for call in context["ti"].xcom_push.mock_calls}


@pytest.mark.parametrize(
    "error",
    [
        KafkaFailure(f"it said {SECRET}", subject="cluster main"),
        Refused(f"no: {SECRET}"),
        ValueError(f"a fault with {SECRET}"),
    ],
)
def test_no_secret_is_behind_a_failure(context: dict[str, Any], error: Exception) -> None:
    """Airflow logs an exception with all that stands behind it."""
    failure = fail(context, error)
    assert (failure.__context__, failure.__cause__) == (None, None)
    told = "".join(traceback.format_exception(failure))
    assert SECRET not in told
    assert "***" in str(failure)
    assert SECRET not in str(list_kept(context))
    assert list_kept(context)[REASON] == str(failure)


def test_what_ended_by_itself_is_known_as_that(context: dict[str, Any]) -> None:
    """A failed task without it was marked by a person."""
    fail(context, KafkaFailure("away"))
    assert ENDED not in list_kept(context)
    fail(context, Refused("no"))
    assert list_kept(context)[ENDED] is True
    last = {"ti": MagicMock(try_number=3, max_tries=2)}
    fail(last, KafkaFailure("away"))
    assert list_kept(last)[ENDED] is True


def test_its_log_has_the_reason_and_no_traceback(context: dict[str, Any]) -> None:
    out = io.StringIO()
    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()],
        logger_factory=structlog.PrintLoggerFactory(out),
    )
    try:
        for error in (Refused("no room"), RuntimeError("of somebody else")):
            try:
                with translated_errors(cast("Context", context)):
                    if isinstance(error, Refused):
                        raise error
                raise error
            except (RunbookRefusal, RuntimeError):
                structlog.get_logger().exception("Task failed with exception")
    finally:
        structlog.configure(**before)
    first, _, rest = out.getvalue().partition("\n")
    assert "no room" in first
    assert "Traceback" not in first
    assert "Traceback" in rest


def test_who_skips_says_why(context: dict[str, Any]) -> None:
    raised = skipping(cast("Context", context), "nothing to do")
    assert isinstance(raised, AirflowSkipException)
    assert list_kept(context)[REASON] == "nothing to do"
