"""Asks services about messages that fell silent, many at once: no service waits for another.

Each service has so many questions under way at most. What hangs keeps only its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, or_, select, update

from backlogctl_delivery.crashpoints import reach
from backlogctl_delivery.lookback.checkers import Answer, Checker, Question
from backlogctl_delivery.lookback.intake import BY_LOOK_BACK, make_change
from backlogctl_delivery.lookback.messages import Decision, Outcome, State, settle
from backlogctl_delivery.lookback.metrics import NOT_LISTED, Metrics
from backlogctl_delivery.lookback.settings import LookBackSettings, ServiceSettings
from backlogctl_delivery.lookback.tables import MESSAGES, LookBackDatabase, forward

_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class Claim:
    """A message that is ours until the lease ends."""

    id: str
    created_at: datetime
    token: str
    row: Mapping[str, Any]


def claim_due(
    database: LookBackDatabase,
    token: str,
    lease: timedelta,
    limit: int,
    *further: ColumnElement[bool],
) -> list[Claim]:
    """Takes up to `limit` prepared messages whose time has come, oldest first.
    Raises LookBackDatabaseError: nothing is taken.
    """
    with database.write() as connection:
        now = database.now(connection)
        columns = MESSAGES.c
        wanted = (
            select(MESSAGES)
            # A literal, so that the partial index of the state is used.
            .where(columns.state == State.PREPARED.value, columns.next_at <= now, *further)
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


def find_held(connection: Connection, claim: Claim) -> Mapping[str, Any] | None:
    """The message as it is now, locked; None where it is not ours or not in that state any more."""
    held = select(MESSAGES).where(_is(claim), *_still(claim)).with_for_update()
    row = connection.execute(held).mappings().first()
    return None if row is None else dict(row)


def release_claim(connection: Connection, claim: Claim, change: Mapping[str, Any]) -> bool:
    """Writes the result and ends the lease; False where the message is not ours any more."""
    values = {"lease_token": None, "lease_until": None, **change}
    done = connection.execute(update(MESSAGES).where(_is(claim), *_still(claim)).values(values))
    return done.rowcount == 1


def _is(claim: Claim) -> ColumnElement[bool]:
    return and_(MESSAGES.c.id == claim.id, MESSAGES.c.created_at == claim.created_at)


def _are(claims: Sequence[Claim]) -> ColumnElement[bool]:
    times = [claim.created_at for claim in claims]
    return and_(
        MESSAGES.c.id.in_([claim.id for claim in claims]),
        # So that PostgreSQL looks into their days only.
        MESSAGES.c.created_at.between(min(times), max(times)),
    )


def _still(claim: Claim) -> tuple[ColumnElement[bool], ...]:
    return MESSAGES.c.state == State.PREPARED.value, MESSAGES.c.lease_token == claim.token


_PARKED_AT_ONCE = 500


def claim_questions(
    database: LookBackDatabase, service: str, token: str, lease: timedelta, limit: int
) -> list[Claim]:
    """Takes messages of one service that are due; no other waits for what one service keeps."""
    return claim_due(database, token, lease, limit, MESSAGES.c.service == service)


def claim_unlisted(
    database: LookBackDatabase, settings: LookBackSettings, token: str, limit: int
) -> list[Claim]:
    """Takes messages that are due and whose service the configuration does not name."""
    unlisted = MESSAGES.c.service.not_in(list(settings.services))
    return claim_due(database, token, settings.lease / 2, limit, unlisted)


def record_answer(
    database: LookBackDatabase, settings: LookBackSettings, claim: Claim, answer: Answer
) -> State:
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
        row = find_held(connection, claim)
        if row is None:
            state = connection.execute(
                select(MESSAGES.c.state).where(
                    MESSAGES.c.id == claim.id, MESSAGES.c.created_at == claim.created_at
                )
            ).scalar_one_or_none()
            return State(state or State.PARKED)
        now = database.now(connection)
        checks = row["checks"] + 1
        outcome = f"{answer.outcome}: {answer.reason}" if answer.reason else str(answer.outcome)
        change = {"checks": checks, "last_outcome": outcome[:_LONGEST_REASON]}
        if (decision := answer.outcome.decision) is not None:
            change |= make_change(settle(decision), BY_LOOK_BACK, now)
            if decision is Decision.COMMITTED:
                forward(connection, settings, [row], now)
        elif checks >= settings.max_checks:
            change["state"] = State.PARKED.value
            change["parked_because"] = f"asked {checks} times, and nothing settles it"
        else:
            change["next_at"] = now + find_pause(settings, checks)
        release_claim(connection, claim, change)
    reach("p8.answer.after")
    return State(change.get("state", State.PREPARED))


def find_pause(settings: LookBackSettings, tries: int) -> timedelta:
    """How long is waited after so many tries: twice as long each time, up to the longest."""
    doubled: timedelta = settings.pause * int(2 ** min(max(tries - 1, 0), 20))
    return min(doubled, settings.longest_pause)


def park_unprepared(database: LookBackDatabase) -> int:
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
        rows = connection.execute(due).all()
        if not rows:
            return 0
        same = (
            (MESSAGES.c.id == made) & (MESSAGES.c.created_at == created) for made, created in rows
        )
        connection.execute(
            update(MESSAGES)
            .where(or_(*same))
            .values(
                state=State.PARKED.value,
                parked_because="it was committed, and its prepared message has not come",
            )
        )
    return len(rows)


_IDLE_SECONDS = 0.3
_PARTING_SECONDS = 2.0
_UNLISTED = 100
_NOT_LISTED = Answer(Outcome.REFUSED, "the configuration names no such service")


def make_checker(service: ServiceSettings) -> Checker:
    """Who asks this service; gRPC is imported only where one needs it."""
    if service.grpc is not None:
        from backlogctl_delivery.lookback.grpc_service import GrpcChecker

        return GrpcChecker(service)
    from backlogctl_delivery.lookback.http_checker import HttpChecker

    return HttpChecker(service)


class Asker:
    """One instance's questions. `token`: of this instance's leases."""

    def __init__(
        self, database: LookBackDatabase, settings: LookBackSettings, token: str, metrics: Metrics
    ) -> None:
        self._database, self._settings = database, settings
        self._token, self._metrics = token, metrics
        self._under_way: Counter[str] = Counter()

    def run(self, stop: threading.Event) -> None:
        """Asks until told to stop; what is not answered soon after is asked when its lease ends.
        Raises LookBackDatabaseError: begin again; what was under way is asked when its lease ends.
        """
        asyncio.run(self._run(stop))

    async def _run(self, stop: threading.Event) -> None:
        checkers = {name: make_checker(one) for name, one in self._settings.services.items()}
        self._under_way.clear()
        asked: set[asyncio.Task[None]] = set()
        try:
            async with asyncio.TaskGroup() as tasks:
                while not stop.is_set():
                    for name, checker in checkers.items():
                        for claim in await self._claim(name):
                            self._under_way[name] += 1
                            task = tasks.create_task(self._ask(name, checker, claim))
                            asked.add(task)
                            task.add_done_callback(asked.discard)
                    await asyncio.to_thread(self._settle_others)
                    await asyncio.sleep(_IDLE_SECONDS)
                if asked:
                    await asyncio.wait(asked, timeout=_PARTING_SECONDS)
                for task in asked:
                    task.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            for checker in checkers.values():
                await checker.close()

    async def _claim(self, name: str) -> list[Claim]:
        limits = self._settings.services[name]
        room = limits.at_once - self._under_way[name]
        if room <= 0:
            return []
        # Beyond the longest answer there is time to record it.
        lease = limits.timeout + self._settings.lease / 2
        return await asyncio.to_thread(
            claim_questions, self._database, name, self._token, lease, room
        )

    async def _ask(self, name: str, checker: Checker, claim: Claim) -> None:
        try:
            reach("p8.asked.before")
            question = Question(claim.row["biz_type"], claim.row["biz_id"])
            answer = await checker.ask(question)
            await asyncio.to_thread(self._record, name, claim, answer)
        finally:
            self._under_way[name] -= 1

    def _record(self, name: str, claim: Claim, answer: Answer) -> None:
        record_answer(self._database, self._settings, claim, answer)
        self._metrics.checks.labels(name, answer.outcome).inc()

    def _settle_others(self) -> None:
        """Messages that nobody can be asked about."""
        for claim in claim_unlisted(self._database, self._settings, self._token, _UNLISTED):
            self._record(NOT_LISTED, claim, _NOT_LISTED)
        park_unprepared(self._database)
