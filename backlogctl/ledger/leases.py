"""Leases: one runner per recovery, on the database's clock."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NoReturn

from sqlalchemy import ColumnElement, Connection, Interval, and_, func, literal, or_, update

from backlogctl.clock import format_time, utc_now
from backlogctl.errors import BacklogError, LeaseHeld, LedgerError
from backlogctl.ledger.events import Owner, append_event, get_recovery_row
from backlogctl.ledger.schema import Manager, recoveries
from backlogctl_delivery.database import UtcTime

TTL = timedelta(seconds=15)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a recovery; `expired` and `age` (since renewed) by the database's clock."""

    owner: Owner
    acquired_at: datetime
    renewed_at: datetime
    until: datetime
    expired: bool
    age: timedelta


class Leases(Manager):
    """Verbs on leases. They are columns of the recovery, so a lease cannot outlive it."""

    def acquire(self, recovery_id: str, owner: Owner, ttl: timedelta = TTL) -> None:
        """Takes the lease: when free, expired, one's own, or of a dead process of this host.

        One conditional UPDATE decides, so of two that try at once one gets it.

        Raises:
            LeaseHeld: names the holder, until when, and how long ago it was renewed.
            UsageError: there is no such recovery.
        """
        with self._database.write() as connection:
            before = self._read_holder(connection, recovery_id)
            now, until = self._times(ttl)
            free = [
                recoveries.c.lease_host.is_(None),
                recoveries.c.lease_until <= now,
                _is_owner(owner),
            ]
            if before is not None and before.owner.is_dead():
                free.append(_is_owner(before.owner))  # exactly that one, not who came after it
            taken = connection.execute(
                update(recoveries)
                .where(recoveries.c.id == recovery_id, or_(*free))
                .values(
                    lease_host=owner.host,
                    lease_pid=owner.pid,
                    lease_started=owner.started,
                    lease_token=owner.token,
                    lease_acquired_at=now,
                    lease_renewed_at=now,
                    lease_until=until,
                )
            ).rowcount
            if taken and before is not None and before.owner != owner:
                why = "expired" if before.expired else "its process is dead"
                detail = {"from": str(before.owner), "to": str(owner), "why": why}
                at = self._database.now(connection)
                append_event(connection, recovery_id, at, str(owner), "lease taken over", detail)
        if not taken:
            self._raise_held(recovery_id)

    def renew(self, recovery_id: str, owner: Owner, ttl: timedelta = TTL) -> None:
        """Extends one's lease; an expired one too, as long as nobody else took it.

        Raises:
            LeaseHeld: it is no longer ours.
        """
        with self._database.write() as connection:
            now, until = self._times(ttl)
            kept = connection.execute(
                update(recoveries)
                .where(recoveries.c.id == recovery_id, _is_owner(owner))
                .values(lease_renewed_at=now, lease_until=until)
            ).rowcount
        if not kept:
            self._raise_held(recovery_id)

    def release(self, recovery_id: str, owner: Owner) -> None:
        """Gives the lease back; nothing happens when it is no longer ours."""
        with self._database.write() as connection:
            connection.execute(
                update(recoveries)
                .where(recoveries.c.id == recovery_id, _is_owner(owner))
                .values({each: None for each in recoveries.c if each.name.startswith("lease_")})
            )

    def holder(self, recovery_id: str) -> Holder | None:
        """Who holds it, or held it last and never gave it back (`expired`); None when free."""
        with self._database.read() as connection:
            return self._read_holder(connection, recovery_id)

    def find_runner(self, recovery_id: str) -> Owner | None:
        """Who works on it now; None where nobody does, or its process is certainly gone."""
        holder = self.holder(recovery_id)
        if holder is None or holder.expired or holder.owner.is_dead():
            return None
        return holder.owner

    def hold(self, recovery_id: str, owner: Owner | None = None, ttl: timedelta = TTL) -> Lease:
        """A context manager that takes the lease, renews it in a thread, and gives it back."""
        return Lease(self, recovery_id, owner or Owner.current(), ttl)

    def _times(self, ttl: timedelta) -> tuple[Any, Any]:
        """Now, and the end of a lease taken now.

        Expressions and not values on PostgreSQL: the UPDATE may wait for another, and then
        compares with the time when its turn has come.
        """
        if self._database.is_sqlite:
            now = utc_now()
            return now, now + ttl
        clock = func.clock_timestamp(type_=UtcTime())
        return clock, clock + literal(ttl, Interval())

    def _read_holder(self, connection: Connection, recovery_id: str) -> Holder | None:
        row = get_recovery_row(connection, recovery_id)
        if row["lease_host"] is None:
            return None
        now = self._database.now(connection)
        owner = Owner(row["lease_host"], row["lease_pid"], row["lease_started"], row["lease_token"])
        return Holder(
            owner=owner,
            acquired_at=row["lease_acquired_at"],
            renewed_at=row["lease_renewed_at"],
            until=row["lease_until"],
            expired=row["lease_until"] <= now,
            age=now - row["lease_renewed_at"],
        )

    def _raise_held(self, recovery_id: str) -> NoReturn:
        holder = self.holder(recovery_id)
        if holder is None:
            message = "its lease was given up or lost"
        else:
            held = holder.renewed_at + holder.age - holder.acquired_at
            taken, renewed = (max(0.0, one.total_seconds()) for one in (held, holder.age))
            message = (
                f"{recovery_id} is held by {holder.owner} until {format_time(holder.until)} by the "
                f"ledger's clock; it was taken {taken:.0f} s ago and renewed {renewed:.0f} s ago"
            )
        raise LeaseHeld(
            message,
            subject=f"recovery {recovery_id}",
            hint="wait for that runner, or ask it to stop with `backlogctl pause`",
        )


class Lease:
    """A lease that is renewed by a daemon thread while the `with` block runs.

    `check()` is asked between two effects. It is the process's own view: after a stop of the
    process (SIGSTOP, a sleeping machine) it asks the database before it says yes. What keeps a
    zombie from writing is Kafka's fencing, not this.
    """

    def __init__(self, leases: Leases, recovery_id: str, owner: Owner, ttl: timedelta) -> None:
        self.owner = owner
        self._leases = leases
        self._recovery_id = recovery_id
        self._ttl = ttl
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._lost: LeaseHeld | None = None
        self._good_until = 0.0
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        begin = _elapsed()
        self._leases.acquire(self._recovery_id, self.owner, self._ttl)
        self._good_until = begin + self._ttl.total_seconds()
        self._thread = threading.Thread(
            target=self._renew_on, name=f"lease {self._recovery_id}", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=self._ttl.total_seconds())
        if self._lost is None:
            try:
                self._leases.release(self._recovery_id, self.owner)
            except LedgerError as failure:  # it ends by itself; the work's own error matters more
                _log.warning("lease of %s not given back: %s", self._recovery_id, failure)

    @property
    def lost(self) -> bool:
        """Whether another holder took it, or nobody can say any more that it is ours."""
        return self._lost is not None or _elapsed() >= self._good_until

    def check(self) -> None:
        """Returns when the lease is ours.

        Raises:
            LeaseHeld: it was lost; it stays lost.
            LedgerError: it ran out, and the database cannot be asked.
        """
        if self._lost is None and _elapsed() >= self._good_until:
            self._renew()
        if self._lost is not None:
            raise LeaseHeld(self._lost.message, subject=self._lost.subject, hint=self._lost.hint)

    def confirm(self) -> None:
        """Returns when the database says now that the lease is ours; it is renewed.

        Raises:
            LeaseHeld: it was lost; it stays lost.
            LedgerError: the database cannot be asked.
        """
        self._renew()
        self.check()

    def _renew_on(self) -> None:
        while not self._stopped.wait(self._ttl.total_seconds() / 3):
            try:
                self._renew()
            except BacklogError as failure:  # the database may be back before the lease ends
                _log.warning("lease of %s not renewed: %s", self._recovery_id, failure)
            if self._lost is not None:
                return

    def _renew(self) -> None:
        with self._lock:
            if self._lost is not None:
                return
            begin = _elapsed()
            try:
                self._leases.renew(self._recovery_id, self.owner, self._ttl)
            except LeaseHeld as held:
                self._lost = held
                return
            self._good_until = begin + self._ttl.total_seconds()


def _elapsed() -> float:
    # CLOCK_BOOTTIME goes on while the machine sleeps, as the database's clock does.
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)


def _is_owner(owner: Owner) -> ColumnElement[bool]:
    return and_(
        recoveries.c.lease_host == owner.host,
        recoveries.c.lease_pid == owner.pid,
        recoveries.c.lease_started == owner.started,
        recoveries.c.lease_token == owner.token,
    )
