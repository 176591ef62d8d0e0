"""Recoveries: one planned and approved piece of work each; the database allows one at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, Text, insert, or_, select, text, type_coerce, update

from backlogctl.clock import format_time
from backlogctl.errors import InvalidTransition, Refused, UsageError
from backlogctl.ledger.events import (
    GENESIS,
    Owner,
    append_event,
    get_recovery,
    get_recovery_row,
    refuse_expired,
    refuse_lost_lease,
    refuse_transition,
)
from backlogctl.ledger.gaps import move_gaps, release_gaps
from backlogctl.ledger.schema import (
    ACTIVE_RECOVERY,
    LedgerDatabase,
    Manager,
    UniqueConflict,
    among,
    gaps,
    make_value,
    recoveries,
    recovery_gaps,
    runner,
    take_id,
    transitions,
)
from backlogctl.values import FINAL, GapState, Recovery, RecoveryState
from backlogctl_delivery.database import encode_json

State = RecoveryState
_ASKABLE: Mapping[str | None, frozenset[RecoveryState]] = {
    "pause": frozenset({State.RUNNING}),
    "cancel": frozenset({State.APPROVED, State.RUNNING, State.PAUSED, State.FAILED}),
    None: frozenset(State) - FINAL,
}

# The states that a gap goes through.
_TO_VERIFIED = (GapState.PLANNED, GapState.STAGED, GapState.INJECTED, GapState.VERIFIED)


class Recoveries(Manager):
    def next_id(self, now: datetime) -> str:
        """An id of the UTC day of `now`, `r-YYYYMMDD-NNNN-xxxxxx`; no ledger makes it again."""
        with self._database.write() as connection:
            return take_id(connection, "r", now)

    def create(
        self,
        kind: str,
        stream: str,
        cluster: str,
        topic: str,
        group: str,
        plan: Mapping[str, Any],
        plan_hash: str,
        gap_ids: Iterable[str],
        actor: str,
        id: str | None = None,  # noqa: A002 - the word of the callers
        *,
        stops_consumers: bool,
        holds_when_failed: bool,
        planned_at: datetime | None = None,
    ) -> Recovery:
        """Stores a plan and takes its gaps, in one transaction.

        Recoveries of the stream that are still `planned` are superseded: rejected, with an event
        that says so, and their gaps are open for this one.

        Args:
            stops_consumers: whether the group's own consumers are stopped while it is worked on.
            holds_when_failed: whether a failed one left something changed, so that it is active
                until it is run again or cancelled.
            planned_at: of one that another ledger had: it keeps its time, and supersedes none.

        Raises:
            InvalidTransition: a gap is not open.
            UsageError: there is no such gap, or it is of another stream.
            Refused: the id is taken.
        """
        wanted = tuple(sorted(set(gap_ids)))
        try:
            with self._database.write() as connection:
                self._database.lock_name(connection, f"gaps:{stream}")
                now = self._database.now(connection)
                new_id = id or take_id(connection, "r", now)
                _refuse_foreign(connection, wanted, stream)
                if planned_at is None:
                    _supersede(connection, stream, new_id, now, actor)
                connection.execute(
                    insert(recoveries).values(
                        id=new_id,
                        kind=kind,
                        stream=stream,
                        cluster=cluster,
                        topic=topic,
                        group=group,
                        state=State.PLANNED,
                        plan_hash=plan_hash,
                        plan=plan,
                        created_at=planned_at or now,
                        detail={},
                        events_head=GENESIS,
                        stops_consumers=stops_consumers,
                        holds_when_failed=holds_when_failed,
                    )
                )
                if wanted:
                    connection.execute(
                        insert(recovery_gaps),
                        [{"recovery_id": new_id, "gap_id": gap_id} for gap_id in wanted],
                    )
                move_gaps(connection, wanted, GapState.PLANNED, now, new_id, None, actor)
                detail = {"kind": kind, "plan_hash": plan_hash, "gaps": list(wanted)}
                action = "adopted" if planned_at else "planned"
                append_event(connection, new_id, now, actor, action, detail)
                return get_recovery(connection, new_id)
        except UniqueConflict:
            raise Refused(
                "this id is taken", subject=f"recovery {id}", hint="reserve another with next_id"
            ) from None

    def get(self, recovery_id: str) -> Recovery:
        """One recovery.

        Raises:
            UsageError: there is no such recovery.
        """
        with self._database.read() as connection:
            return get_recovery(connection, recovery_id)

    def list(
        self,
        stream: str | Collection[str] | None = None,
        states: Iterable[RecoveryState] | None = None,
        since: datetime | None = None,
        origin: Mapping[str, str] | None = None,
    ) -> tuple[Recovery, ...]:
        """Recoveries, oldest first; `since` is when they were planned, and included.

        Args:
            origin: fields that the plan's `origin` must have.
        """
        query = select(recoveries, runner).order_by(recoveries.c.created_at, recoveries.c.id)
        query = among(query, recoveries.c.stream, stream)
        if states is not None:
            query = query.where(recoveries.c.state.in_(states))
        if since is not None:
            query = query.where(recoveries.c.created_at >= since)
        wanted = dict(origin or {})
        for field in wanted.items():
            # The stored text is canonical, so the field is in it as it is written here; it may
            # be in it elsewhere as well.
            written = encode_json(dict([field]))[1:-1]
            stored = type_coerce(recoveries.c.plan, Text)
            query = query.where(stored.contains(written, autoescape=True))
        return tuple(one for one in self._list(query, Recovery) if _has_origin(one, wanted))

    def gap_ids(self, recovery_id: str) -> tuple[str, ...]:
        """The gaps that the recovery was planned for, whatever became of them."""
        query = select(recovery_gaps.c.gap_id).where(recovery_gaps.c.recovery_id == recovery_id)
        with self._database.read() as connection:
            return tuple(connection.execute(query.order_by(recovery_gaps.c.gap_id)).scalars())

    def approve(
        self, recovery_id: str, by: str, identity: str, plan_hash: str, expires_at: datetime
    ) -> Recovery:
        """Approves the plan of this hash; an expired approval is renewed the same way.

        Args:
            by: the name given. identity: who the system says it was.
            plan_hash: the hash of the plan that the approver saw.

        Raises:
            Refused: the recovery's plan has another hash, or `expires_at` is past.
            InvalidTransition: it is not `planned`, or another recovery of the same topic or group
                is active; the message names it.
        """
        with self._naming_the_other(recovery_id), self._database.write() as connection:
            row = get_recovery_row(connection, recovery_id, lock=True)
            now = self._database.now(connection)
            before = row["state"]
            expired = before is State.APPROVED and row["approval_expires_at"] <= now
            if before is not State.PLANNED and not expired:
                refuse_transition(row, State.APPROVED)
            if plan_hash != row["plan_hash"]:
                raise Refused(
                    "the approval is for another plan than the stored one; nothing was approved",
                    subject=f"recovery {recovery_id}",
                    hint=f"look at `backlogctl show {recovery_id}` and approve again",
                )
            if expires_at <= now:
                raise Refused(
                    f"the approval would already be expired, at {format_time(expires_at)}",
                    subject=f"recovery {recovery_id}",
                )
            connection.execute(
                update(recoveries)
                .where(recoveries.c.id == recovery_id)
                .values(
                    state=State.APPROVED,
                    approved_by=by,
                    approved_identity=identity,
                    approved_hash=plan_hash,
                    approval_expires_at=expires_at,
                )
            )
            detail = {
                "by": by,
                "identity": identity,
                "plan_hash": plan_hash,
                "expires_at": format_time(expires_at),
            }
            append_event(connection, recovery_id, now, by, "approved", detail)
            return get_recovery(connection, recovery_id)

    def advance(
        self,
        recovery_id: str,
        to: RecoveryState,
        actor: str,
        detail: Mapping[str, Any] | None = None,
        *,
        owner: Owner | None = None,
        expected: RecoveryState | None = None,
    ) -> Recovery:
        """Moves a recovery to a state and writes the event, in one transaction.

        `rejected` and `cancelled` open its gaps again. `Recovery.detail` is that of the last
        advance. `pause` is no longer requested once it is paused or runs again; nothing is once
        it is at an end.

        Args:
            owner: whose lease it must be still, decided in the same transaction.
            expected: the state it must be in still; None for any that allows the move.

        Raises:
            LeaseHeld: the lease is no longer the owner's; nothing was changed.
            InvalidTransition: not from the state it is in (also the same one: another did it
                first), or another recovery of the same topic or group is active.
            ApprovalNeeded: it was approved, and the approval expired before the first run.
        """
        if to is State.APPROVED:
            raise UsageError("a recovery is approved with approve()", subject=recovery_id)
        with self._naming_the_other(recovery_id), self._database.write() as connection:
            row = get_recovery_row(connection, recovery_id, lock=True)
            now = self._database.now(connection)
            if owner is not None:
                refuse_lost_lease(row, owner)
            before = row["state"]
            if before is not (expected or before) or not _is_allowed(connection, before, to):
                refuse_transition(row, to)
            if before is State.APPROVED and to is State.RUNNING:
                refuse_expired(row, now)
            changes: dict[str, Any] = {"state": to, "detail": detail or {}}
            if to in FINAL or (to in (State.PAUSED, State.RUNNING) and row["requested"] == "pause"):
                changes["requested"] = None
            connection.execute(
                update(recoveries).where(recoveries.c.id == recovery_id).values(**changes)
            )
            if to in (State.REJECTED, State.CANCELLED):
                release_gaps(connection, recovery_id, now, actor)
            append_event(connection, recovery_id, now, actor, to.value, detail or {})
            return get_recovery(connection, recovery_id)

    def add_put_back(
        self, recovery_id: str, gap_ids: Collection[str], reason: str, actor: str
    ) -> None:
        """Gives gaps to a recovery that has put their messages back without taking them: they are
        verified, all or none.

        Raises:
            InvalidTransition: a gap is another recovery's.
        """
        with self._database.write() as connection:
            now = self._database.now(connection)
            for state in _TO_VERIFIED:
                move_gaps(connection, tuple(gap_ids), state, now, recovery_id, reason, actor)

    def request(
        self, recovery_id: str, what: Literal["pause", "cancel"] | None, actor: str
    ) -> Recovery:
        """Leaves a word for the runner, which looks between two waves; None takes `pause` back.

        `cancel` takes the place of `pause`, and stays.

        Raises:
            InvalidTransition: the recovery is in a state where that cannot be asked, or `cancel`
                was asked for before.
        """
        with self._database.write() as connection:
            row = get_recovery_row(connection, recovery_id, lock=True)
            if row["state"] not in _ASKABLE[what]:
                raise InvalidTransition(
                    f"it is {row['state']}: {what or 'taking a request back'} is not possible",
                    subject=f"recovery {recovery_id}",
                )
            if row["requested"] == what:
                return make_value(row, Recovery)
            if row["requested"] == "cancel":
                raise InvalidTransition(
                    f"cancel was asked for already: {what or 'taking that back'} is not possible",
                    subject=f"recovery {recovery_id}",
                )
            connection.execute(
                update(recoveries).where(recoveries.c.id == recovery_id).values(requested=what)
            )
            action = f"{what} requested" if what else "request taken back"
            now = self._database.now(connection)
            append_event(connection, recovery_id, now, actor, action, {})
            return get_recovery(connection, recovery_id)

    def _naming_the_other(self, recovery_id: str) -> _Naming:
        return _Naming(self, self._database, recovery_id)


class _Naming:
    """Turns the unique index's refusal into one that names the recovery that is in the way."""

    def __init__(self, manager: Recoveries, database: LedgerDatabase, recovery_id: str) -> None:
        self._manager = manager
        self._database = database
        self._id = recovery_id

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, UniqueConflict):
            return
        mine = self._manager.get(self._id)
        query = select(recoveries.c.id, recoveries.c.state, recoveries.c.topic).where(
            recoveries.c.cluster == mine.cluster,
            or_(recoveries.c.topic == mine.topic, recoveries.c.group == mine.group),
            recoveries.c.id != self._id,
            text(f"({ACTIVE_RECOVERY})"),
        )
        with self._database.read() as connection:
            other = connection.execute(query.order_by(recoveries.c.id)).mappings().first()
        if other is None:  # it came to its end while we looked
            raise InvalidTransition(
                "another recovery of the same topic or group was active a moment ago",
                subject=f"recovery {self._id}",
                hint="try again",
                retryable=True,
            ) from None
        verb = "run" if other["state"] is State.FAILED else "finish"
        same = f"topic {mine.topic}" if other["topic"] == mine.topic else f"group {mine.group}"
        raise InvalidTransition(
            f"recovery {other['id']} of the same {same} is {other['state']};"
            " one is worked on at a time",
            subject=f"recovery {self._id}",
            hint=f"{verb} or cancel {other['id']} first",
        ) from None


def _supersede(connection: Connection, stream: str, new_id: str, now: datetime, actor: str) -> None:
    planned = (
        select(recoveries.c.id)
        .where(recoveries.c.stream == stream, recoveries.c.state == State.PLANNED)
        .order_by(recoveries.c.id)
        .with_for_update()
    )
    for old in connection.execute(planned).scalars().all():
        detail = {"superseded_by": new_id}
        connection.execute(
            update(recoveries)
            .where(recoveries.c.id == old)
            .values(state=State.REJECTED, detail=detail, requested=None)
        )
        release_gaps(connection, old, now, actor)
        append_event(connection, old, now, actor, f"superseded by {new_id}", detail)


def _has_origin(recovery: Recovery, wanted: Mapping[str, str]) -> bool:
    if not wanted:
        return True
    origin = recovery.plan.get("origin")
    return isinstance(origin, Mapping) and wanted.items() <= dict(origin).items()


def _refuse_foreign(connection: Connection, ids: tuple[str, ...], stream: str) -> None:
    for begin in range(0, len(ids), 500):
        query = select(gaps.c.id, gaps.c.stream).where(
            gaps.c.id.in_(ids[begin : begin + 500]), gaps.c.stream != stream
        )
        for found in connection.execute(query).mappings():
            raise UsageError(f"it is of stream {found['stream']}", subject=f"gap {found['id']}")


def _is_allowed(connection: Connection, before: RecoveryState, after: RecoveryState) -> bool:
    query = select(transitions.c.subject).where(
        transitions.c.subject == "recovery",
        transitions.c.from_state == before.value,
        transitions.c.to_state == after.value,
    )
    return connection.execute(query).first() is not None
