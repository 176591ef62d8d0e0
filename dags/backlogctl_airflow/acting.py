"""Who a task works for, and our errors as Airflow's."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from rich.console import Console

from backlog.config import mask_secrets
from backlog.errors import (
    ApprovalNeeded,
    BacklogError,
    ConfigurationError,
    Refused,
    UsageError,
)
from backlogctl_airflow.configuration import load
from replay.opening import open_workspace
from replay.recovery.brakes import CANARY, CancelRequested, PausedBecause
from replay.recovery.identity import Identity, acting_as
from replay.recovery.origins import AIRFLOW
from replay.recovery.workspace import Workspace
from replay.telling.standing import say_standing

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


def find_person(context: Context) -> Identity:
    """Who asked for this run: a user of Airflow, or the DAG that did it by itself."""
    run = context["dag_run"]
    name = getattr(run, "triggering_user_name", None)
    return Identity(AIRFLOW, name or f"dag/{run.dag_id}", socket.gethostname())


@contextmanager
def opened(context: Context, person: Identity | None = None) -> Iterator[Workspace]:
    """Configuration and ledger for one task; what it does is on record as the person's.

    Raises:
        RunbookError, RunbookRefusal: in words for people, without a traceback of ours.
    """
    with translated_errors(), acting_as(person or find_person(context)):
        yield open_workspace(load())


@contextmanager
def translated_errors() -> Iterator[None]:
    """Our errors as Airflow's, secrets masked: with a retry only where that may help."""
    failure: AirflowException
    try:
        yield
        return
    except PausedBecause as pause:
        # Interrupted: by a worker that stops, or a task that was marked. The next try goes on.
        failure = RunbookError(describe_error(pause))
        if pause.why == CANARY:
            # Every try would be as slow, and meanwhile nobody reads the topic.
            failure = RunbookRefusal(
                mask_secrets(f"{pause.subject}: {pause.message}. {_SLOW_CANARY}")
            )
    except BacklogError as error:
        final = isinstance(error, _FINAL) and not error.retryable
        failure = (RunbookRefusal if final else RunbookError)(describe_error(error))
    # Raised here: an exception's context would carry what was masked.
    raise failure


def make_console() -> Console:
    """Progress as lines of the task's log."""
    return Console(file=sys.stdout, force_terminal=False, width=120)


def describe_error(error: BacklogError) -> str:
    """An error for people, without secrets."""
    told = f"\n{say_standing(error.standing)}" if error.standing else ""
    return mask_secrets(f"{error}{told}")
