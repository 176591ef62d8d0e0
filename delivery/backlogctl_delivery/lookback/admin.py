"""What an operator does: look, park, resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, or_, select, update

from backlogctl_delivery.errors import Refused, UsageError
from backlogctl_delivery.lookback.messages import ENDED, State
from backlogctl_delivery.lookback.settings import LookBackSettings
from backlogctl_delivery.lookback.tables import INCIDENTS, MESSAGES, Database

OPEN = tuple(state for state in State if state not in ENDED)
# Never shown: what applications send may be personal.
_SHOWN = [column for column in MESSAGES.c if column.name not in ("key", "value", "headers")]


@dataclass(frozen=True, slots=True)
class Count:
    """How many messages are in a state; `oldest_seconds` is None where none is."""

    state: State
    messages: int
    oldest_seconds: float | None


def count_messages(database: Database) -> list[Count]:
    """The states that have not ended, each, also where it has no message.

    Raises:
        LookBackDatabaseError: they could not be counted.
    """
    counts: list[Count] = []
    with database.read() as connection:
        now = database.now(connection)
        for state in OPEN:
            # One by one: each has a small index of its own.
            wanted = select(func.count(), func.min(MESSAGES.c.created_at))
            number, oldest = connection.execute(wanted.where(MESSAGES.c.state == state.value)).one()
            age = None if oldest is None else (now - oldest).total_seconds()
            counts.append(Count(state, number, age))
    return counts


def list_messages(
    database: Database, states: Sequence[State], limit: int, service: str | None = None
) -> list[Mapping[str, Any]]:
    """Messages in these states, oldest first, without what they hold."""
    wanted = select(*_SHOWN).where(MESSAGES.c.state.in_([state.value for state in states]))
    if service is not None:
        wanted = wanted.where(MESSAGES.c.service == service)
    with database.read() as connection:
        rows = connection.execute(wanted.order_by(MESSAGES.c.created_at).limit(limit)).mappings()
        return [dict(row) for row in rows]


def list_incidents(
    database: Database, limit: int, message_id: str | None = None
) -> list[Mapping[str, Any]]:
    """What did not fit, newest first."""
    wanted = select(INCIDENTS).order_by(INCIDENTS.c.at.desc(), INCIDENTS.c.id.desc()).limit(limit)
    if message_id is not None:
        wanted = wanted.where(INCIDENTS.c.message_id == message_id)
    with database.read() as connection:
        return [dict(row) for row in connection.execute(wanted).mappings()]


def show_message(database: Database, message: str) -> dict[str, Any]:
    """A message by its id, without what it holds but for sizes.

    Raises:
        UsageError: there is none.
    """
    sizes = (func.length(MESSAGES.c.key), func.length(MESSAGES.c.value))
    wanted = select(*_SHOWN, sizes[0].label("key_bytes"), sizes[1].label("value_bytes"))
    with database.read() as connection:
        row = connection.execute(wanted.where(MESSAGES.c.id == message)).mappings().first()
    if row is None:
        raise _refuse_unknown(message)
    return {**row, "incidents": list_incidents(database, 100, message)}


def park_message(database: Database, message: str, who: str) -> None:
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
    database: Database, settings: LookBackSettings, messages: Sequence[str] | None, limit: int
) -> list[str]:
    """Takes parked messages up again, with all their tries; `None` is all, up to a limit.

    One without a decision is asked about at once, a committed one is sent.

    Returns:
        the ids that were resumed.
    """
    with database.write() as connection:
        now: datetime = database.now(connection)
        wanted = select(
            MESSAGES.c.id, MESSAGES.c.created_at, MESSAGES.c.decision, MESSAGES.c.topic
        ).where(MESSAGES.c.state == State.PARKED.value)
        if messages is not None:
            wanted = wanted.where(MESSAGES.c.id.in_(list(messages)))
        rows = connection.execute(
            wanted.order_by(MESSAGES.c.created_at).limit(limit).with_for_update()
        ).all()
        change: dict[str, Any] = {
            "checks": 0,
            "forwards": 0,
            "next_at": now,
            "parked_because": None,
        }
        for state in (State.PREPARED, State.FORWARDING, State.COMMITTED):
            group = [row for row in rows if _find_state(row.decision, row.topic) is state]
            if state is State.COMMITTED:
                change["next_at"] = now + settings.wait_for_prepare
            if group:
                same = (
                    (MESSAGES.c.id == row.id) & (MESSAGES.c.created_at == row.created_at)
                    for row in group
                )
                connection.execute(
                    update(MESSAGES).where(or_(*same)).values(state=state.value, **change)
                )
    return [row.id for row in rows]


def count_incidents(database: Database) -> int:
    """How many records did not fit, of the time that they are kept."""
    with database.read() as connection:
        wanted = select(func.count()).select_from(INCIDENTS)
        count: int = connection.execute(wanted).scalar_one()
    return count


def _find_state(decision: str | None, topic: str | None) -> State:
    if decision is None:
        return State.PREPARED
    return State.COMMITTED if topic is None else State.FORWARDING


def _refuse_unknown(message: str) -> UsageError:
    return UsageError(
        "there is no such message",
        subject=f"message {message}",
        hint="see `backlogctl lookback list`; one is known once its record was read",
    )
