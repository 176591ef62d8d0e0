"""What an operator does: look, park, resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, case, func, or_, select, update

from backlogctl_delivery.errors import Refused, UsageError
from backlogctl_delivery.lookback.messages import ENDED, State
from backlogctl_delivery.lookback.settings import LookBackSettings
from backlogctl_delivery.lookback.tables import (
    INCIDENTS,
    MESSAGES,
    OUTBOX,
    LookBackDatabase,
    select_unsent,
)
from backlogctl_delivery.outbox import database as outbox
from backlogctl_delivery.outbox.admin import OutboxAdmin

OPEN = tuple(state for state in State if state not in ENDED)
# Never shown: what applications send may be personal.
_SHOWN = [column for column in MESSAGES.c if column.name not in ("key", "value", "headers")]
# How a message stands that the outbox has not sent.
_SENDING = case(
    (OUTBOX.c.state == outbox.State.PARKED.value, State.PARKED.value), else_=State.FORWARDING.value
).label("sending")


@dataclass(frozen=True, slots=True)
class Count:
    """How many messages are in a state; `oldest_seconds` is None where none is."""

    state: State
    messages: int
    oldest_seconds: float | None


def count_messages(database: LookBackDatabase) -> list[Count]:
    """The states that have not ended, each, also where it has no message.
    Raises LookBackDatabaseError: they could not be counted.
    """
    counts: dict[State, Count] = {}
    with database.read() as connection:
        now = database.now(connection)
        for state in OPEN:
            if state is State.FORWARDING:
                counts[state] = Count(state, 0, None)
                continue
            # One by one: each has a small index of its own.
            wanted = select(func.count(), func.min(MESSAGES.c.created_at))
            number, oldest = connection.execute(wanted.where(MESSAGES.c.state == state.value)).one()
            counts[state] = Count(state, number, _find_age(now, oldest))
        in_outbox = (
            select(_SENDING, func.count(), func.min(OUTBOX.c.created_at))
            .where(OUTBOX.c.due_at.is_not(None))
            .group_by(_SENDING)
        )
        for name, number, oldest_ms in connection.execute(in_outbox):
            state, before = State(name), counts[State(name)]
            age = _find_age(now, datetime.fromtimestamp(oldest_ms / 1_000, UTC))
            ages = [one for one in (before.oldest_seconds, age) if one is not None]
            counts[state] = Count(state, before.messages + number, max(ages))
    return list(counts.values())


def list_messages(
    database: LookBackDatabase, states: Sequence[State], limit: int, service: str | None = None
) -> list[dict[str, Any]]:
    """Messages in these states, oldest first, without what they hold."""
    names = [state.value for state in states]
    # What the outbox has not sent is few; what it has sent is not looked through.
    unsent = select_unsent(_SENDING.in_(names)).order_by(OUTBOX.c.created_at)
    if service is None:
        unsent = unsent.limit(limit)
    with database.read() as connection:
        ids = list(connection.execute(unsent).scalars())
        by_id: dict[str, dict[str, Any]] = {}
        for condition in (MESSAGES.c.state.in_(names), MESSAGES.c.id.in_(ids)):
            wanted = select(*_SHOWN).where(condition)
            if service is not None:
                wanted = wanted.where(MESSAGES.c.service == service)
            rows = connection.execute(wanted.order_by(MESSAGES.c.created_at).limit(limit))
            by_id |= {row["id"]: dict(row) for row in rows.mappings()}
        _add_sending(connection, by_id)
    chosen = (row for row in by_id.values() if row["state"] in names)
    return sorted(chosen, key=lambda row: row["created_at"])[:limit]


def list_incidents(
    database: LookBackDatabase, limit: int, message_id: str | None = None
) -> list[dict[str, Any]]:
    """What did not fit, newest first."""
    wanted = select(INCIDENTS).order_by(INCIDENTS.c.at.desc(), INCIDENTS.c.id.desc()).limit(limit)
    if message_id is not None:
        wanted = wanted.where(INCIDENTS.c.message_id == message_id)
    with database.read() as connection:
        return [dict(row) for row in connection.execute(wanted).mappings()]


def show_message(database: LookBackDatabase, message: str) -> dict[str, Any]:
    """A message by its id: sizes, not what it holds. Raises UsageError: there is none."""
    sizes = (func.length(MESSAGES.c.key), func.length(MESSAGES.c.value))
    wanted = select(*_SHOWN, sizes[0].label("key_bytes"), sizes[1].label("value_bytes"))
    with database.read() as connection:
        rows = connection.execute(wanted.where(MESSAGES.c.id == message)).mappings()
        by_id = {row["id"]: dict(row) for row in rows}
        _add_sending(connection, by_id)
    if not by_id:
        raise _refuse_unknown(message)
    return {**by_id[message], "incidents": list_incidents(database, 100, message)}


def park_message(database: LookBackDatabase, message: str, who: str) -> None:
    """Parks a message that waits for its decision.

    Raises:
        UsageError: there is none of that id.
        Refused: it waits for none.
    """
    change = {
        "state": State.PARKED.value,
        "parked_because": f"by {who}",
        "lease_token": None,
        "lease_until": None,
    }
    with database.write() as connection:
        held = [State.PREPARED.value, State.COMMITTED.value]
        done = connection.execute(
            update(MESSAGES)
            .where(MESSAGES.c.id == message, MESSAGES.c.state.in_(held))
            .values(change)
        )
    if done.rowcount == 0:
        state = show_message(database, message)["state"]
        raise Refused(f"it is {state}", subject=f"message {message}", hint="nothing was changed")


def resume_messages(
    database: LookBackDatabase,
    settings: LookBackSettings,
    messages: Sequence[str] | None,
    limit: int,
) -> list[str]:
    """Takes parked messages up again, with all their tries; `None` is all, up to a limit.

    One without a decision is asked about at once, a committed one is sent.

    Returns:
        the ids that were resumed.
    """
    with database.write() as connection:
        now: datetime = database.now(connection)
        wanted = select(MESSAGES.c.id, MESSAGES.c.created_at, MESSAGES.c.decision)
        wanted = wanted.where(MESSAGES.c.state == State.PARKED.value)
        if messages is not None:
            wanted = wanted.where(MESSAGES.c.id.in_(list(messages)))
        rows = connection.execute(
            wanted.order_by(MESSAGES.c.created_at).limit(limit).with_for_update()
        ).all()
        change: dict[str, Any] = {"checks": 0, "parked_because": None}
        for state, due in (
            (State.PREPARED, now),
            (State.COMMITTED, now + settings.wait_for_prepare),
        ):
            same = [
                (MESSAGES.c.id == row.id) & (MESSAGES.c.created_at == row.created_at)
                for row in rows
                if (row.decision is None) == (state is State.PREPARED)
            ]
            if same:
                values = {"state": state.value, "next_at": due, **change}
                connection.execute(update(MESSAGES).where(or_(*same)).values(values))
    return [row.id for row in rows] + _resume_sending(database, messages, limit - len(rows))


def _resume_sending(
    database: LookBackDatabase, messages: Sequence[str] | None, limit: int
) -> list[str]:
    """What the outbox has parked is sent again."""
    parked = OUTBOX.c.state == outbox.State.PARKED.value
    wanted = select(OUTBOX.c.id, OUTBOX.c.message_id).where(parked, OUTBOX.c.due_at.is_not(None))
    if messages is not None:
        wanted = wanted.where(OUTBOX.c.message_id.in_(list(messages)))
    with database.read() as connection:
        rows = connection.execute(wanted.order_by(OUTBOX.c.id).limit(limit)).all()
    if rows:
        OutboxAdmin(database.outbox).retry([row.id for row in rows])
    return [row.message_id for row in rows]


def _add_sending(connection: Connection, by_id: dict[str, dict[str, Any]]) -> None:
    """The state and the last error of messages that the outbox has not sent."""
    unsent = select(OUTBOX.c.message_id, _SENDING, OUTBOX.c.attempts, OUTBOX.c.last_error).where(
        OUTBOX.c.due_at.is_not(None), OUTBOX.c.message_id.in_(list(by_id))
    )
    for message_id, state, attempts, error in connection.execute(unsent):
        row = by_id[message_id]
        row |= {"state": state, "last_outcome": error or row["last_outcome"]}
        if state == State.PARKED:
            row["parked_because"] = f"the brokers refused it {attempts} times"


def count_incidents(database: LookBackDatabase) -> int:
    """How many records did not fit, of the time that they are kept."""
    with database.read() as connection:
        wanted = select(func.count()).select_from(INCIDENTS)
        count: int = connection.execute(wanted).scalar_one()
    return count


def _find_age(now: datetime, oldest: datetime | None) -> float | None:
    return None if oldest is None else (now - oldest).total_seconds()


def _refuse_unknown(message: str) -> UsageError:
    return UsageError(
        "there is no such message",
        subject=f"message {message}",
        hint="see `backlogctl lookback list`; one is known once its record was read",
    )
