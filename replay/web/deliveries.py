"""What is seen of an outbox or of look-back at one moment: frozen, or why it is unknown."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from backlogctl.clock import utc_now
from backlogctl.config import Config, mask_secrets
from backlogctl.errors import BacklogError
from backlogctl.formats import format_duration
from backlogctl.monitoring.watch.loop import OnOutage, Outages, RoundThread
from backlogctl.replay.observe.deliveries import open_look_back, open_outbox

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from backlogctl_delivery.lookback.admin import Count
    from backlogctl_delivery.lookback.tables import LookBackDatabase
    from backlogctl_delivery.outbox.admin import OutboxStatus
    from backlogctl_delivery.outbox.database import OutboxDatabase


@dataclass(frozen=True, slots=True)
class LookBackStatus:
    """How look-back stands: the states that have not ended, and records that did not fit."""

    counts: tuple[Count, ...]
    incidents: int


Status: TypeAlias = "OutboxStatus | LookBackStatus"


@dataclass(frozen=True, slots=True)
class DeliveryLook:
    """One outbox, or look-back.

    Attributes:
        outbox: its name; "" is look-back.
        status: None where it is unknown.
        problem: why it is unknown; "" where it is known, or was not looked at yet.
        taken_at: of the last look, good or not; None before it.
    """

    outbox: str
    status: Status | None = None
    problem: str = ""
    taken_at: datetime | None = None

    @property
    def subject(self) -> str:
        return f"outbox {self.outbox}" if self.outbox else "look-back"


# What `watch` exports of outboxes and look-back: the names that their own processes have too.


def collect_deliveries(read: Callable[[], Sequence[DeliveryLook]]) -> Iterator[Metric]:
    """Families of what is configured; what was not looked at yet is absent, and not away."""
    looks = [one for one in read() if one.status is not None or one.problem]
    outboxes = [one for one in looks if one.outbox]
    if outboxes:
        from backlogctl_delivery.outbox.admin import OutboxStatus
        from backlogctl_delivery.outbox.metrics import collect_outboxes

        yield from collect_outboxes(
            {
                one.outbox: one.status if isinstance(one.status, OutboxStatus) else None
                for one in outboxes
            }
        )
    for one in looks:
        if not one.outbox:
            from backlogctl_delivery.lookback.metrics import collect_look_back

            status = one.status
            counts = status.counts if isinstance(status, LookBackStatus) else None
            yield from collect_look_back(counts)


# Looks at outboxes and look-back on an interval, a thread for each: who hangs holds up nobody.

LOG = logging.getLogger(__name__)
# A database that has not answered for so long is unknown, whatever it said before.
PATIENCE = timedelta(seconds=30)


class DeliveryWatch:
    """Looks while the `with` block runs.

    Args:
        on_outage: called with what cannot be read when that begins, and with None when it ends.
        patience: how long an answer is waited for.
    """

    def __init__(self, config: Config, on_outage: OnOutage, patience: timedelta = PATIENCE) -> None:
        self._lookers = [
            _Looker(name, open_, read, config.watch.interval, patience, on_outage)
            for name, open_, read in _list_databases(config)
        ]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for looker in self._lookers:
            self._stack.enter_context(looker)
        for looker in self._lookers:  # all are asked to stop before any of them is waited for
            self._stack.callback(looker.stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self) -> tuple[DeliveryLook, ...]:
        """How each stands as far as is known now; asks nobody."""
        return tuple(looker.read() for looker in self._lookers)


class _Looker(RoundThread):
    """One outbox, or look-back; its database is opened at the first look."""

    def __init__(
        self,
        outbox: str,
        open_: Callable[[], Any],
        read: Callable[[Any], Status],
        interval: timedelta,
        patience: timedelta,
        on_outage: OnOutage,
    ) -> None:
        self._open, self._read = open_, read
        self._database: Any = None
        self._patience, self._outages = patience.total_seconds(), Outages(on_outage)
        self._look = DeliveryLook(outbox)
        self._asked_at: float | None = None
        name = f"backlog-{self._look.subject.replace(' ', '-')}"
        super().__init__(name, interval.total_seconds())

    def read(self) -> DeliveryLook:
        asked_at = self._asked_at
        waited = 0.0 if asked_at is None else time.monotonic() - asked_at
        if waited < self._patience:
            return self._look
        return DeliveryLook(self._look.outbox, None, _tell_silence(waited), self._look.taken_at)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    def look_once(self) -> None:
        """Asks the database."""
        silent = threading.Timer(self._patience, self._note_silence)
        silent.daemon = True
        silent.start()
        self._asked_at = time.monotonic()
        try:
            if self._database is None:
                self._database = self._open()
            status, problem = self._read(self._database), None
        except BacklogError as error:
            status, problem = None, error
        except Exception as error:
            # One look must not end all looks in silence.
            LOG.exception("the look at %s failed", self._look.subject)
            status, problem = (
                None,
                BacklogError(f"internal error ({type(error).__name__}); see the log and report it"),
            )
        silent.cancel()
        told = "" if problem is None else mask_secrets(_tell(problem))
        self._look = DeliveryLook(self._look.outbox, status, told, utc_now())
        self._asked_at = None
        self._note(problem)

    def _note_silence(self) -> None:
        self._note(BacklogError(_tell_silence(self._patience)))

    def _note(self, problem: BacklogError | None) -> None:
        try:
            self._outages.note(self._look.subject, problem)
        except Exception:
            LOG.exception("an outage of %s was not reported", self._look.subject)


def _read_outbox(database: OutboxDatabase) -> Status:
    from backlogctl_delivery.outbox.admin import OutboxAdmin

    return OutboxAdmin(database).read_status()


def _read_look_back(database: LookBackDatabase) -> Status:
    from backlogctl_delivery.lookback.admin import count_incidents, count_messages

    return LookBackStatus(tuple(count_messages(database)), count_incidents(database))


def _list_databases(
    config: Config,
) -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], Status]]]:
    for name in config.outboxes:
        yield name, partial(open_outbox, config, name), _read_outbox
    if config.look_back is not None:
        yield "", partial(open_look_back, config), _read_look_back


def _tell_silence(seconds: float) -> str:
    return f"its database has not answered for {format_duration(seconds)}"


def _tell(error: BacklogError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message
