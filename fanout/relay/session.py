"""Guard and relays together: started, and started again for as long as that is safe."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure, ProducerFenced
from backlogctl.fanout.relay.guard import GroupGuard
from backlogctl.fanout.relay.interface import (
    RECORD,
    GuardLost,
    Patience,
    Position,
    PositionExpired,
    RelayTask,
    SourceRange,
)
from backlogctl.fanout.relay.pool import PATIENCE_SECONDS, RelayPool, Spares, count_processes
from backlogctl.fanout.relay.worker import make_relay_engine
from backlogctl.kafka.clients import make_admin, outlast, wait_for_broker
from backlogctl.kafka.throttling import Throttling

# A relay that is fenced twice within this time has a competing relay.
FENCED_AGAIN_SECONDS = 60.0

MakeRanges = Callable[[], Sequence[SourceRange]]


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the caller does for a session.

    Attributes:
        look: called while it waits; raises what stops the run.
        before_start: called before a relay is started: it fences whoever uses the partition's
            transactional.id, so the caller checks that it still holds the lease.
        on_expired: retention was faster than the relay; called before the relay goes on behind
            what is lost, so that the gap is on record first.
    """

    look: Callable[[], None]
    before_start: Callable[[], None]
    on_expired: Callable[[], object]


class RelaySession:
    """One run's guard and relays (protocol P4.5 and 6)."""

    def __init__(
        self,
        guard: Callable[[], GroupGuard],
        task: Callable[[bytes], RelayTask],
        log: Path,
        hooks: Hooks,
        *,
        engine: str = RECORD,
        processes: int | None = None,
        find_rate: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Args: `guard` makes a new guard, `task` a task with the guard's membership; `find_rate`
        is asked at each start: bytes a second that all relays may send together."""
        self._make_guard = guard
        self._make_task = task
        self._log = log
        self._hooks = hooks
        self._processes = processes
        self._find_rate = find_rate
        self._rate: float | None = None
        self._pace_file = log.with_name("relay.pace")
        self._guard: GroupGuard | None = None
        self._metadata = b""
        self._pool: RelayPool | None = None
        self._spares = Spares(log, engine)
        self._make_ranges: MakeRanges = tuple
        self._known: dict[int, Position] = {}
        self._at_restart: dict[int, Position] = {}
        self._patience = Patience(PATIENCE_SECONDS)
        self._since_fenced = Deadline(0.0)
        self._relaying = False
        self._broken: BacklogError | None = None
        self.restarts = 0

    def make_ready(self, partitions: int) -> None:
        """Starts the processes of so many partitions' relays ahead: they wait for their task."""
        self._spares.fill(count_processes(partitions, self._processes))

    def join(self) -> None:
        """The guard joins, where it is not there yet.
        Raises ConsumerCameBack: somebody else is in the group; names them.
        """
        if self._guard is not None:
            return
        guard = self._make_guard()
        self._guard = guard
        try:
            self._metadata = guard.join(self._hooks.look)
        except BaseException:
            self.leave()
            raise

    def start(self, ranges: MakeRanges) -> None:
        """Starts the relays, with the guard in place; `ranges` is asked again at each restart."""
        self._make_ranges = ranges
        self.abandon()  # where a caller starts them a second time
        self._rate = self._find_rate()
        self._pace_file.unlink(missing_ok=True)  # of an earlier run: its clock may have begun anew
        self._patience.note_progress()
        self._relaying = True
        self._launch()

    def check(self) -> None:
        """Looks at guard and relays, and starts again what can be.

        Raises:
            ConsumerCameBack: somebody joined the group; the relays have stopped.
            ProducerFenced: another runner's relays have taken over.
            BacklogError: it failed, and would again.
        """
        try:
            if self._broken is not None:
                raise self._broken
            if self._guard is not None:
                self._guard.check()
            if self._pool is not None:
                self._pool.check()
        except (GuardLost, PositionExpired, ProducerFenced) as error:
            self._restart(error)
        except BacklogError:
            self.abandon()
            raise

    @property
    def has_guard(self) -> bool:
        return self._guard is not None

    @property
    def positions(self) -> dict[int, Position]:
        """What each partition last committed in this run."""
        if self._pool is not None:
            self._known.update(self._pool.positions)
        return dict(self._known)

    @property
    def throttling(self) -> Throttling:
        """Of all partitions' transactions together, which run side by side."""
        return sum((one.throttling for one in self.positions.values()), Throttling())

    @property
    def last_offsets(self) -> dict[int, int]:
        """The last data record in each temporary partition, as far as this run knows."""
        found: dict[int, int] = {}
        for position in self.positions.values():
            for place, offset in position.last_offsets.items():
                found[place] = max(offset, found.get(place, -1))
        return found

    @property
    def is_done(self) -> bool:
        return not self._relaying or (self._pool is not None and self._pool.is_done)

    @property
    def pids(self) -> tuple[int, ...]:
        return () if self._pool is None else self._pool.pids

    def stop_relays(self) -> None:
        """Ends the relays between two transactions; the guard stays."""
        self._relaying, self._broken = False, None
        pool = self._pool
        if pool is not None:
            pool.stop()
            self._known.update(pool.positions)
            self._pool = None

    def leave(self) -> None:
        """The guard leaves the group cleanly."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.leave()

    def abandon(self) -> None:
        """Ends the relays at once; the next ones abort what they left open."""
        self._spares.close()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.kill()
            self._known.update(pool.positions)

    def close(self) -> None:
        """Ends everything, gently where possible."""
        self._spares.close()
        with contextlib.suppress(BacklogError):
            self.stop_relays()
        self.abandon()
        self.leave()

    def _launch(self) -> None:
        ranges = self._make_ranges()
        task, pace_file = self._make_task(self._metadata), str(self._pace_file)
        pool = RelayPool(
            replace(task, bytes_per_second=self._rate, pace_file=pace_file),
            ranges,
            self._log,
            processes=self._processes,
            before_start=self._hooks.before_start,
            spares=self._spares,
        )
        pool.start()
        self._pool = pool

    def _restart(self, error: BacklogError) -> None:
        """The guard was lost and nobody else is there, retention was faster, or a relay was fenced.

        Where the brokers are away the next `check` tries again.
        """
        self.abandon()
        if self.positions != self._at_restart:
            self._at_restart = self.positions
            self._patience.note_progress()
        if self._patience.is_over():
            raise error
        self.restarts += 1
        self._broken = error
        try:
            self._mend(error)
            if self._relaying:
                self._launch()
        except KafkaFailure as failure:
            if not failure.retryable:
                raise
        else:
            self._broken = None

    def _mend(self, error: BacklogError) -> None:
        if isinstance(error, PositionExpired):
            self._hooks.on_expired()
        elif isinstance(error, ProducerFenced):
            # The coordinator ended a transaction that stood still for too long (a pause of the
            # machine). Or another runner relays: then it has the lease, or fences us again.
            self._hooks.before_start()
            if not self._since_fenced.expired:
                raise error
            self._since_fenced = Deadline(FENCED_AGAIN_SECONDS)
        else:
            self.leave()
            self.join()


# Fences every relay: after this none of them can commit any more (protocol P4.9).

FENCE_SECONDS = 60.0
_AT_ONCE = 16


def fence_relays(
    engine: str,
    task: RelayTask,
    partitions: Iterable[int],
    limit: Deadline | None = None,
    *,
    ends: bool,
) -> None:
    """Takes every relay over: its open transaction is aborted, or has ended.

    1 s instead of the 15 to 18 s that an abandoned transaction would take. Of the task neither the
    guard's membership nor the codec is used.

    Args:
        ends: as of `RelayEngine.take_over`.

    Raises:
        HangingTransaction: how a transaction of one ended is not known.
        KafkaFailure, ClusterUnreachable: not every relay is fenced; call again.
    """
    deadline, relays = limit or Deadline(FENCE_SECONDS), make_relay_engine(engine)
    admin = make_admin(task.properties)
    wait_for_broker(admin, f"topic {task.source}", "fence its relays", deadline)

    def fence(partition: int) -> None:
        outlast(deadline, lambda: relays.take_over(task, partition, deadline, ends=ends))

    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        for future in [pool.submit(fence, partition) for partition in sorted(set(partitions))]:
            future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
