"""The steps of a recovery: an expansion's are rows, a rebuild's are lines of its record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from backlog.ledger import StepRecord
from backlog.values import Event


def read_steps(events: Iterable[Event]) -> tuple[StepRecord, ...]:
    """The steps that the record tells of, in the order they began."""
    found: dict[str, StepRecord] = {}
    for event in events:
        name, _, word = event.action.rpartition(" ")
        known = found.get(name)
        if word == "started" and known is None:
            found[name] = StepRecord(event.recovery_id, name, event.at, event.at, None, None, 1)
        elif word == "started" and known is not None:
            attempts = known.attempts + 1
            found[name] = replace(known, last_started_at=event.at, attempts=attempts)
        elif word == "completed" and known is not None and known.completed_at is None:
            found[name] = replace(known, completed_at=event.at)
    return tuple(found.values())
