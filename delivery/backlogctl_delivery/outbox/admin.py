"""What people see of an outbox and do to it. Payloads are never shown: their sizes are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Select, case, delete, exists, func, select, update

from backlogctl_delivery.errors import Refused, UsageError
from backlogctl_delivery.outbox.database import (
    NEVER,
    OutboxDatabase,
    State,
    clock_ms,
    create_tables,
    messages,
    require_shape,
)
from backlogctl_delivery.outbox.heads import IS_AHEAD
from backlogctl_delivery.outbox.messages import read_headers

_c = messages.c
_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """How an outbox stands.

    Attributes:
        pending, in_progress, parked: rows that are not sent.
        oldest_seconds: since the oldest row that is not sent was added; None where all are.
        oldest_waiting_seconds: the same without parked rows.
        failed: of those that are pending, how many were tried before.
        ahead: how many were written by a clock ahead of the database's; a sender takes them up.
    """

    pending: int
    in_progress: int
    parked: int
    oldest_seconds: float | None
    oldest_waiting_seconds: float | None = None
    failed: int = 0
    ahead: int = 0

    @property
    def waiting(self) -> int:
        """What is not sent, and will be."""
        return self.pending + self.in_progress

    @property
    def unsent(self) -> int:
        return self.pending + self.in_progress + self.parked


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """One row, as it may be shown; times in UTC, sizes in bytes.
    `partition`, `offset`: where Kafka has it; None until it is sent, or where Kafka did not say.
    """

    id: int
    message_id: str
    topic: str
    state: State
    attempts: int
    max_attempts: int
    created_at: datetime
    sent_at: datetime | None
    partition: int | None
    offset: int | None
    next_attempt_at: datetime | None
    lease_until: datetime | None
    owner: str | None
    last_error: str | None
    key_bytes: int | None
    value_bytes: int | None
    headers: tuple[str, ...]


def _verb(
    work: Callable[Concatenate[OutboxAdmin, _P], _R],
) -> Callable[Concatenate[OutboxAdmin, _P], _R]:
    """In a loop, where the engine is an asynchronous one; so a verb calls no other."""

    @wraps(work)
    def run(desk: OutboxAdmin, /, *args: _P.args, **named: _P.kwargs) -> _R:
        return desk._database.run(lambda: work(desk, *args, **named))

    return run


class OutboxAdmin:
    """Verbs of one outbox. All of them raise OutboxDatabaseError where the database refuses."""

    def __init__(self, database: OutboxDatabase) -> None:
        self._database = database

    @property
    def label(self) -> str:
        return self._database.label

    def close(self) -> None:
        self._database.close()

    @property
    def name(self) -> str:
        """What it is called where nobody named it."""
        return self._database.name

    @_verb
    def create(self) -> None:
        """Makes the table where it is not there."""
        with self._database.begin(creates=True) as connection:
            create_tables(connection)

    @_verb
    def check(self) -> None:
        """Whether a sender can work on the table; raises where it cannot."""
        require_shape(self._database)

    @_verb
    def read_status(self) -> OutboxStatus:
        """Counts what is not sent; reads nothing of what is."""
        counted = (
            select(
                _c.state,
                func.count().label("rows"),
                func.count(_c.last_error).label("failed"),
                func.min(_c.created_at).label("oldest"),
                func.sum(case((IS_AHEAD, 1), else_=0)).label("ahead"),
            )
            .where(_c.due_at.is_not(None))
            .group_by(_c.state)
        )
        with self._database.begin() as connection:
            by_state = {row.state: row for row in connection.execute(counted)}
            now = connection.execute(select(clock_ms())).scalar_one()
        ages = {state: max(0.0, (now - row.oldest) / 1_000) for state, row in by_state.items()}
        counts = {state: by_state[state].rows if state in by_state else 0 for state in State}
        return OutboxStatus(
            pending=counts[State.PENDING],
            in_progress=counts[State.IN_PROGRESS],
            parked=counts[State.PARKED],
            ahead=sum(int(row.ahead) for row in by_state.values()),
            failed=by_state[State.PENDING].failed if State.PENDING in by_state else 0,
            oldest_seconds=max(ages.values(), default=None),
            oldest_waiting_seconds=max(
                (age for state, age in ages.items() if state != State.PARKED), default=None
            ),
        )

    @_verb
    def count_awaited(self) -> int:
        """Rows that a sender will send: neither sent, nor parked, nor held up by a parked one."""
        parked = messages.alias()
        is_held_up = exists().where(
            parked.c.ordering_key == _c.ordering_key,
            parked.c.id < _c.id,
            parked.c.state == State.PARKED,
        )
        awaited = select(func.count()).where(
            _c.state.in_([State.PENDING, State.IN_PROGRESS]), ~is_held_up
        )
        with self._database.begin() as connection:
            return connection.execute(awaited).scalar_one()

    @_verb
    def list_entries(
        self, states: Sequence[State], topic: str | None, most: int
    ) -> list[OutboxEntry]:
        """Rows of these states, oldest first; none named: all that are not sent."""
        chosen = _shown().order_by(_c.id).limit(most)
        if states:
            chosen = chosen.where(_c.state.in_([str(state) for state in states]))
        else:
            chosen = chosen.where(_c.due_at.is_not(None))
        if topic is not None:
            chosen = chosen.where(_c.topic == topic)
        with self._database.begin() as connection:
            return [_read(row) for row in connection.execute(chosen)]

    @_verb
    def get_entry(self, row_id: int) -> OutboxEntry:
        """One row. Raises UsageError: there is none."""
        return self._read_entry(row_id)

    def _read_entry(self, row_id: int) -> OutboxEntry:
        with self._database.begin() as connection:
            row = connection.execute(_shown().where(_c.id == row_id)).one_or_none()
        if row is None:
            raise UsageError(
                "there is no such row",
                subject=f"outbox message {row_id}",
                hint="`backlogctl outbox list` shows what is not sent; the rest may be purged",
            )
        return _read(row)

    @_verb
    def retry(self, ids: Sequence[int], *, all_parked: bool = False) -> int:
        """Takes parked rows, or those that wait for another attempt, up again from the first.

        Returns:
            How many.

        Raises:
            Refused: a named row is sent, or being sent.
        """
        chosen = _c.state == State.PARKED if all_parked else _c.id.in_(ids)
        states = (State.PARKED, State.PENDING)
        values = {"state": State.PENDING, "due_at": clock_ms(), "attempts": 0, "interval_ms": 0}
        return self._change(chosen, states, values, None if all_parked else ids)

    @_verb
    def park(self, ids: Sequence[int]) -> int:
        """Holds rows back, and with each the later ones of its key.
        Raises Refused: a named row is sent, or being sent.
        """
        states = (State.PENDING, State.PARKED)
        values = {
            "state": State.PARKED,
            "due_at": NEVER,
            "last_error": func.coalesce(_c.last_error, "parked by an operator"),
        }
        return self._change(_c.id.in_(ids), states, values, ids)

    @_verb
    def purge(self, older_than: timedelta, *, batch: int, most: int) -> int:
        """Deletes rows that were sent so long ago, oldest first, a transaction for each batch.

        Args:
            batch: rows in one transaction.
            most: rows in all.

        Returns:
            How many were deleted: `most` where there are more.
        """
        return sum(self._purge_batches(int(older_than.total_seconds() * 1_000), batch, most))

    @_verb
    def discard(self, row_id: int) -> None:
        """Deletes a parked row: its message is lost, and its key goes on.
        Raises Refused: it is not parked.
        """
        entry = self._read_entry(row_id)
        with self._database.begin() as connection:
            gone = connection.execute(
                delete(messages).where(_c.id == row_id, _c.state == State.PARKED)
            )
        if not gone.rowcount:
            raise Refused(
                f"only a parked message is discarded; this one is {entry.state}",
                subject=f"outbox message {row_id}",
                hint=f"`backlogctl outbox park {row_id}` holds it back first",
            )

    def _purge_batches(self, age_ms: int, batch: int, most: int) -> Iterator[int]:
        left = most
        while left > 0:
            wanted = min(batch, left)
            with self._database.begin() as connection:
                old = (
                    select(_c.id)
                    .where(_c.sent_at <= clock_ms() - age_ms)
                    .order_by(_c.sent_at)
                    .limit(wanted)
                )
                ids = list(connection.execute(old).scalars())
                if ids:
                    connection.execute(delete(messages).where(_c.id.in_(ids)))
            yield len(ids)
            left -= len(ids)
            if len(ids) < wanted:
                return

    def _change(
        self,
        chosen: Any,
        states: Sequence[State],
        values: dict[str, Any],
        named: Sequence[int] | None,
    ) -> int:
        with self._database.begin() as connection:
            done = connection.execute(
                update(messages).where(chosen, _c.state.in_(states)).values(token=None, **values)
            ).rowcount
            if named is None or done == len(set(named)):
                return done
            rows = connection.execute(select(_c.id, _c.state).where(_c.id.in_(named)))
            states_now = {row.id: row.state for row in rows}
            wrong = next(id_ for id_ in named if states_now.get(id_) not in states)
            # The transaction is undone: all of them, or none.
            raise Refused(
                f"it is {states_now.get(wrong, 'not there')}; nothing was changed",
                subject=f"outbox message {wrong}",
                hint=f"see `backlogctl outbox show {wrong}`; what is in progress is told, or due "
                "again when its lease ends",
            )


def _shown() -> Select[Any]:
    return select(
        _c.id,
        _c.message_id,
        _c.topic,
        _c.state,
        _c.attempts,
        _c.max_attempts,
        _c.created_at,
        _c.sent_at,
        _c.sent_partition,
        _c.sent_offset,
        _c.due_at,
        _c.owner,
        _c.last_error,
        func.length(_c.message_key).label("key_bytes"),
        func.length(_c.value).label("value_bytes"),
        _c.headers,
    )


def _read(row: Any) -> OutboxEntry:
    state = State(row.state)
    due = _read_time(row.due_at)
    return OutboxEntry(
        id=row.id,
        message_id=row.message_id,
        topic=row.topic,
        state=state,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        created_at=datetime.fromtimestamp(row.created_at / 1_000, UTC),
        sent_at=_read_time(row.sent_at),
        partition=row.sent_partition,
        offset=row.sent_offset,
        next_attempt_at=due if state is State.PENDING else None,
        lease_until=due if state is State.IN_PROGRESS else None,
        owner=row.owner,
        last_error=row.last_error,
        key_bytes=row.key_bytes,
        value_bytes=row.value_bytes,
        headers=tuple(name for name, _ in read_headers(row.headers)),
    )


def _read_time(ms: int | None) -> datetime | None:
    if ms is None or ms == NEVER:
        return None
    return datetime.fromtimestamp(ms / 1_000, UTC)
