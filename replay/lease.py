"""The runner's lease on a recovery, renewed by a thread while the work goes on."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import TracebackType
from typing import Self

from backlog.errors import BacklogError, LeaseHeld
from backlog.ledger import Ledger, Owner

TTL = timedelta(seconds=15)


class Lease:
    """Held inside `with`; `check` says between two waves whether it still is ours.

    Losing it costs no message: whoever takes over fences our producers first (P3). Stopping early
    only spares us the error.
    """

    def __init__(self, ledger: Ledger, recovery_id: str, owner: Owner | None = None) -> None:
        self._ledger = ledger
        self._recovery_id = recovery_id
        self.owner = owner or Owner.current()
        self._stop = threading.Event()
        self._lost: BacklogError | None = None
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def __enter__(self) -> Self:
        self._ledger.leases.acquire(self._recovery_id, self.owner, ttl=TTL)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._lost is None:
            self._ledger.leases.release(self._recovery_id, self.owner)

    def check(self) -> None:
        """Raises LeaseHeld when another runner took over."""
        if self._lost is not None:
            raise self._lost

    def _keep(self) -> None:
        while not self._stop.wait(TTL.total_seconds() / 3):
            try:
                self._ledger.leases.renew(self._recovery_id, self.owner, ttl=TTL)
            except LeaseHeld as error:
                self._lost = error
                return
            except BacklogError:
                # The database is away for a moment: the lease ends by itself if it stays so.
                continue
