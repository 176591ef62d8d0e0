"""Messages that are due: each is taken by one instance for a while, and given back with a result.

A lease belongs to a token. Who comes after it ran out, or after the message was decided by somebody
else, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, or_, select, update

from delivery.lookback.database import Database
from delivery.lookback.states import State
from delivery.lookback.tables import MESSAGES

_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class Claim:
    """A message that is ours until the lease ends."""

    id: str
    created_at: datetime
    token: str
    row: Mapping[str, Any]


def claim_due(
    database: Database,
    token: str,
    lease: timedelta,
    limit: int,
    state: State,
    *further: ColumnElement[bool],
) -> list[Claim]:
    """Takes up to `limit` messages in this state whose time has come, oldest first.

    Raises:
        LookBackDatabaseError: nothing is taken.
    """
    with database.write() as connection:
        now = database.now(connection)
        columns = MESSAGES.c
        wanted = (
            select(MESSAGES)
            # A literal, so that the partial index of the state is used.
            .where(columns.state == state.value, columns.next_at <= now, *further)
            .where(or_(columns.lease_until.is_(None), columns.lease_until <= now))
            .order_by(columns.next_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        rows = connection.execute(wanted).mappings().all()
        made = [Claim(row["id"], row["created_at"], token, dict(row)) for row in rows]
        if made:
            change = {"lease_token": token, "lease_until": now + lease}
            connection.execute(update(MESSAGES).where(_are(made)).values(change))
    return made


def find_held(connection: Connection, claim: Claim, state: State) -> Mapping[str, Any] | None:
    """The message as it is now, locked; None where it is not ours or not in that state any more."""
    held = select(MESSAGES).where(_is(claim), *_still(claim, state)).with_for_update()
    row = connection.execute(held).mappings().first()
    return None if row is None else dict(row)


def give_back(
    connection: Connection, claim: Claim, state: State, change: Mapping[str, Any]
) -> bool:
    """Writes the result and ends the lease; False where the message is not ours any more."""
    values = {"lease_token": None, "lease_until": None, **change}
    done = connection.execute(
        update(MESSAGES).where(_is(claim), *_still(claim, state)).values(values)
    )
    return done.rowcount == 1


def give_back_all(
    connection: Connection, claims: Sequence[Claim], state: State, change: Mapping[str, Any]
) -> int:
    """As `give_back`, the same for several of one token; how many were still ours."""
    if not claims:
        return 0
    values = {"lease_token": None, "lease_until": None, **change}
    done = connection.execute(
        update(MESSAGES)
        .where(
            _are(claims),
            *_still(claims[0], state),
        )
        .values(values)
    )
    return done.rowcount


def shorten(reason: str) -> str:
    """A reason as it is stored."""
    return reason[:_LONGEST_REASON]


def _is(claim: Claim) -> ColumnElement[bool]:
    return and_(MESSAGES.c.id == claim.id, MESSAGES.c.created_at == claim.created_at)


def _are(claims: Sequence[Claim]) -> ColumnElement[bool]:
    times = [claim.created_at for claim in claims]
    return and_(
        MESSAGES.c.id.in_([claim.id for claim in claims]),
        # So that PostgreSQL looks into their days only.
        MESSAGES.c.created_at.between(min(times), max(times)),
    )


def _still(claim: Claim, state: State) -> tuple[ColumnElement[bool], ...]:
    return MESSAGES.c.state == state.value, MESSAGES.c.lease_token == claim.token
