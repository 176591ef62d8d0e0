"""Which messages a service is to be asked about, and what its answer changes."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import or_, select, update

from backlog.config import LookBack
from backlog.crashpoints import reach
from delivery.lookback.applying import BY_LOOK_BACK, make_change
from delivery.lookback.asking.interface import Answer
from delivery.lookback.claims import Claim, claim_due, find_held, give_back, shorten
from delivery.lookback.database import Database
from delivery.lookback.deciding import settle
from delivery.lookback.states import State
from delivery.lookback.tables import MESSAGES

_PARKED_AT_ONCE = 500


def claim_questions(
    database: Database, service: str, token: str, lease: timedelta, limit: int
) -> list[Claim]:
    """Takes messages of one service that are due: what one service keeps, others do not wait for.

    Raises:
        LookBackDatabaseError: nothing is taken.
    """
    own = MESSAGES.c.service == service
    return claim_due(database, token, lease, limit, State.PREPARED, own)


def claim_unlisted(database: Database, settings: LookBack, token: str, limit: int) -> list[Claim]:
    """Takes messages that are due and whose service the configuration does not name."""
    unlisted = MESSAGES.c.service.not_in(list(settings.services))
    return claim_due(database, token, settings.lease / 2, limit, State.PREPARED, unlisted)


def record_answer(database: Database, settings: LookBack, claim: Claim, answer: Answer) -> State:
    """What an answer changes: nothing, where the message was decided meanwhile (fault 50).

    Only a question that was put, or could not be, counts as one: neither the time before the first
    nor a crash between claim and answer uses up any.

    Returns:
        how the message stands now.

    Raises:
        LookBackDatabaseError: nothing is recorded; it is asked again when the lease has ended.
    """
    reach("p8.answer.before")
    with database.write() as connection:
        row = find_held(connection, claim, State.PREPARED)
        if row is None:
            state = connection.execute(
                select(MESSAGES.c.state).where(
                    MESSAGES.c.id == claim.id, MESSAGES.c.created_at == claim.created_at
                )
            ).scalar_one_or_none()
            return State(state or State.PARKED)
        now = database.now(connection)
        checks = row["checks"] + 1
        said = f"{answer.outcome}: {answer.reason}" if answer.reason else str(answer.outcome)
        change = {"checks": checks, "last_outcome": shorten(said)}
        if (decision := answer.outcome.decision) is not None:
            change |= make_change(settle(decision), BY_LOOK_BACK, now)
        elif checks >= settings.max_checks:
            change["state"] = State.PARKED.value
            change["parked_because"] = f"asked {checks} times, and nothing settles it"
        else:
            change["next_at"] = now + find_pause(settings, checks)
        give_back(connection, claim, State.PREPARED, change)
    reach("p8.answer.after")
    return State(change.get("state", State.PREPARED))


def find_pause(settings: LookBack, tries: int) -> timedelta:
    """How long is waited after so many tries: twice as long each time, up to the longest."""
    doubled: timedelta = settings.pause * int(2 ** min(max(tries - 1, 0), 20))
    return min(doubled, settings.longest_pause)


def park_unprepared(database: Database, settings: LookBack) -> int:
    """Parks commits whose prepared message has not come; returns how many.

    If it comes later it is forwarded all the same.
    """
    with database.write() as connection:
        now = database.now(connection)
        due = (
            select(MESSAGES.c.id, MESSAGES.c.created_at)
            .where(MESSAGES.c.state == State.COMMITTED.value, MESSAGES.c.next_at <= now)
            .limit(_PARKED_AT_ONCE)
            .with_for_update(skip_locked=True)
        )
        found = connection.execute(due).all()
        if not found:
            return 0
        same = (
            (MESSAGES.c.id == made) & (MESSAGES.c.created_at == created) for made, created in found
        )
        connection.execute(
            update(MESSAGES)
            .where(or_(*same))
            .values(
                state=State.PARKED.value,
                parked_because="it was committed, and its prepared message has not come",
            )
        )
    return len(found)
