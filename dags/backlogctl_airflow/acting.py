"""Who a task works for, and what it works with."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk import Context
from rich.console import Console

from backlogctl_airflow.configuration import load
from backlogctl_airflow.reasons import translated_errors
from replay.opening import open_workspace
from replay.recovery.identity import Identity, acting_as
from replay.recovery.origins import AIRFLOW
from replay.recovery.workspace import Workspace


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
    with translated_errors(context), acting_as(person or find_person(context)):
        yield open_workspace(load())


def make_console() -> Console:
    """Progress as lines of the task's log."""
    return Console(file=sys.stdout, force_terminal=False, width=120)
