"""The service: its parts, each in a thread, each beginning again after what passes.

    intake      the look-back topic -> the tables
    asker       services that know what became of silent messages -> the tables
    forwarder   the outbox, with what is committed -> business topics
    keeper      partitions ahead, old ones archived and dropped

Any number of instances work side by side: the parts share nothing but the database and the group.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from backlogctl_delivery.errors import BacklogError
from backlogctl_delivery.kafka import PARTITIONERS
from backlogctl_delivery.lookback.asker import Asker
from backlogctl_delivery.lookback.intake import Intake
from backlogctl_delivery.lookback.metrics import Metrics
from backlogctl_delivery.lookback.retention import LookBackRetention
from backlogctl_delivery.lookback.settings import LookBackSettings
from backlogctl_delivery.lookback.tables import LookBackDatabase, create_tables
from backlogctl_delivery.outbox.sender import OutboxSender, Settings

LOG = logging.getLogger(__name__)

# Called with a part and what is wrong with it when that begins, and with None when it ends.
OnOutage = Callable[[str, BacklogError | None], None]

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_PARTING_SECONDS = 10.0
_WELL_SECONDS = 20.0  # without a failure; that no broker answers is found out in 15


class Service:
    """One instance.

    Args:
        properties: client properties of the cluster of both topics.
        say: told once when a part fails, and once when it works again.
    """

    def __init__(
        self,
        database: LookBackDatabase,
        settings: LookBackSettings,
        properties: Mapping[str, Any],
        say: OnOutage,
    ) -> None:
        self._database, self._settings, self._properties = database, settings, properties
        self._say = say
        self.metrics = Metrics(database, settings.services)
        self._failures: list[BaseException] = []

    def run(self, stop: threading.Event) -> None:
        """Works until told to stop, or until a part fails in a way that does not pass.
        Raises BacklogError: why it cannot work.
        """
        create_tables(self._database)
        token = uuid.uuid4().hex
        common = (self._database, self._settings)
        keeper = LookBackRetention(*common)
        sender = make_sender(*common, self._properties)
        sender.counts = self.metrics.forwards
        intake = Intake(*common, self._properties, self.metrics, sender.add_hints)
        asker = Asker(*common, token, self.metrics)

        parts = {
            "intake": intake.run,
            "asker": asker.run,
            "forwarder": lambda _: sender.run(),
            "keeper": keeper.run,
        }
        threads = [
            threading.Thread(target=self._keep_up, args=(name, part, stop), name=f"lookback-{name}")
            for name, part in parts.items()
        ]
        for thread in threads:
            thread.start()
        stop.wait()
        sender.close(_PARTING_SECONDS)
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _keep_up(
        self, name: str, part: Callable[[threading.Event], None], stop: threading.Event
    ) -> None:
        outage = _Outage(name, self._say)
        while not stop.is_set():
            timer = threading.Timer(_WELL_SECONDS, outage.end)
            timer.daemon = True
            timer.start()
            try:
                part(stop)
            except BacklogError as error:
                self.metrics.failures.labels(name).inc()
                if not error.retryable:
                    self._give_up(error, stop)
                    return
                outage.begin(error)
            except BaseException as error:  # noqa: BLE001 - told by the main thread
                self._give_up(error, stop)
                return
            finally:
                timer.cancel()
            stop.wait(outage.pause())

    def _give_up(self, error: BaseException, stop: threading.Event) -> None:
        self._failures.append(error)
        stop.set()


def make_sender(
    database: LookBackDatabase, settings: LookBackSettings, properties: Mapping[str, Any]
) -> OutboxSender:
    """Who sends what is committed: the outbox's sender, on the tables of look-back."""
    partitioner = PARTITIONERS[settings.partitioner]
    return OutboxSender(
        database.writer,
        {**properties, "partitioner": partitioner},
        Settings(
            lease=settings.lease,
            # What was given up is long over when the lease ends.
            delivery_timeout=settings.lease / 2,
            first_interval=settings.pause,
            longest_interval=settings.longest_pause,
        ),
        command="backlogctl lookback list",
    )


class _Outage:
    """Failures of one part that follow each other: said once, with growing pauses between."""

    def __init__(self, name: str, say: OnOutage) -> None:
        self._name, self._say = name, say
        self._tries = 0
        self._lock = threading.Lock()

    def begin(self, error: BacklogError) -> None:
        with self._lock:
            self._tries += 1
            if self._tries == 1:
                self._say(self._name, error)

    def end(self) -> None:
        with self._lock:
            if self._tries:
                self._tries = 0
                self._say(self._name, None)

    def pause(self) -> float:
        with self._lock:
            return float(min(_FIRST_PAUSE * 2 ** max(self._tries - 1, 0), _LONGEST_PAUSE))
