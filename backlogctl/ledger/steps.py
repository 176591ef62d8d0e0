"""Steps: how far each step of a recovery has come, so that a run goes on where it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, insert, select, update

from backlogctl.errors import UsageError
from backlogctl.ledger.schema import Manager, read_value, table_of


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a recovery as it stands.

    `completed_at` is None until it was completed; `detail` is that of the completion.
    """

    recovery_id: str
    step: str
    first_started_at: datetime
    last_started_at: datetime
    completed_at: datetime | None
    attempts: int
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return self.completed_at is not None


# A recovery that stops consumers does so in the first of these; the second starts them again.
STOP_STEP, RESTORE_STEP = "stop_consumers", "restore"


def has_stopped_consumers(steps: Iterable[StepRecord]) -> bool:
    """Whether the group's own consumers stand still now, as the ledger has it."""
    known = {step.step: step for step in steps}
    restored = known.get(RESTORE_STEP)
    return STOP_STEP in known and not (restored is not None and restored.is_complete)


steps = table_of("backlog_steps", StepRecord, key=("recovery_id", "step"))


class Steps(Manager):
    """Verbs on steps. They are called by the runner that has the recovery's lease."""

    def start(self, recovery_id: str, step: str) -> StepRecord:
        """Writes down that a step starts, perhaps again: its attempts grow by one.

        A step that is completed stays so.
        """
        with self._database.write() as connection:
            now = self._lock(connection, recovery_id)
            known = _find(connection, recovery_id, step)
            if known is None:
                connection.execute(
                    insert(steps).values(
                        recovery_id=recovery_id,
                        step=step,
                        first_started_at=now,
                        last_started_at=now,
                        attempts=1,
                        detail={},
                    )
                )
            else:
                connection.execute(
                    update(steps)
                    .where(_is_step(recovery_id, step))
                    .values(last_started_at=now, attempts=known.attempts + 1)
                )
            return _read(connection, recovery_id, step)

    def complete(
        self, recovery_id: str, step: str, detail: Mapping[str, Any] | None = None
    ) -> StepRecord:
        """Writes down that a step is done; a second time changes nothing.

        Raises:
            UsageError: it was never started.
        """
        with self._database.write() as connection:
            now = self._lock(connection, recovery_id)
            if not _read(connection, recovery_id, step).is_complete:
                connection.execute(
                    update(steps)
                    .where(_is_step(recovery_id, step))
                    .values(completed_at=now, detail=detail or {})
                )
            return _read(connection, recovery_id, step)

    def get(self, recovery_id: str, step: str) -> StepRecord | None:
        """One step; None where it was never started."""
        return self._first(select(steps).where(_is_step(recovery_id, step)), StepRecord)

    def list(self, recovery_id: str) -> tuple[StepRecord, ...]:
        """The steps that were started, in the order of their first start."""
        query = select(steps).where(steps.c.recovery_id == recovery_id)
        return self._list(query.order_by(steps.c.first_started_at, steps.c.step), StepRecord)

    def _lock(self, connection: Connection, recovery_id: str) -> datetime:
        self._database.lock_name(connection, f"steps:{recovery_id}")
        return self._database.now(connection)


def _is_step(recovery_id: str, step: str) -> ColumnElement[bool]:
    return (steps.c.recovery_id == recovery_id) & (steps.c.step == step)


def _find(connection: Connection, recovery_id: str, step: str) -> StepRecord | None:
    return read_value(connection, select(steps).where(_is_step(recovery_id, step)), StepRecord)


def _read(connection: Connection, recovery_id: str, step: str) -> StepRecord:
    record = _find(connection, recovery_id, step)
    if record is None:
        raise UsageError("it was never started", subject=f"recovery {recovery_id} step {step}")
    return record
