"""Looks and hooks for the tests of notifications."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from backlogctl.config import Hook
from backlogctl.monitoring.notifications.changes import StreamObservation
from backlogctl.monitoring.verdict.status import GroupStatus, Verdict
from tests.monitoring.test_metrics import make_status

NOW = datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC)
COMMAND = "backlogctl consumers status orders"


def make_look(verdict: Verdict, stream: str = "orders", **changes: Any) -> GroupStatus:
    """A stream's status with that verdict."""
    told: dict[str, Any] = {
        "verdict": verdict,
        "course": Verdict.OK if verdict is Verdict.LOST else verdict,
        "sentence": f"{stream}/0: this is {verdict}",
        "next_commands": () if verdict is Verdict.OK else (COMMAND,),
        "taken_at": NOW,
        **changes,
    }
    return replace(make_status(stream=stream), **told)


def see(verdict: Verdict, stream: str = "orders", **changes: Any) -> StreamObservation:
    return StreamObservation.of_status(make_look(verdict, stream, **changes))


def make_hook(**document: Any) -> Hook:
    """A hook as backlog.yaml describes it."""
    return Hook.model_validate(document)
