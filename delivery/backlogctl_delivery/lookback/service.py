"""The service: its parts, each in a thread, each beginning again after what passes.

    intake      the look-back topic -> the tables
    asker       services that know what became of silent messages -> the tables
    forwarder   the tables -> business topics
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
from backlogctl_delivery.lookback.asker import Asker
from backlogctl_delivery.lookback.forwarding import Forwarder
from backlogctl_delivery.lookback.intake import Intake
from backlogctl_delivery.lookback.metrics import Metrics
from backlogctl_delivery.lookback.retention import Keeper
from backlogctl_delivery.lookback.settings import LookBackSettings
from backlogctl_delivery.lookback.tables import Database, create_tables

LOG = logging.getLogger("backlog.delivery.lookback")

# Called with a part and what is wrong with it when that begins, and with None when it ends.
OnOutage = Callable[[str, BacklogError | None], None]

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_WELL_SECONDS = 5.0  # so long without a failure is the end of an outage


class Service:
    """One instance.

    Args:
        properties: client properties of the cluster of both topics.
        say: told once when a part fails, and once when it works again.
    """

    def __init__(
        self,
        database: Database,
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

        Raises:
            BacklogError: why it cannot work.
        """
        create_tables(self._database)
        token = uuid.uuid4().hex
        common = (self._database, self._settings)
        keeper = Keeper(*common)
        wake = threading.Event()
        intake = Intake(*common, self._properties, self.metrics, wake)
        asker = Asker(*common, token, self.metrics)

        def forward(stop: threading.Event) -> None:
            # A token of its own each time: what an earlier one sent, it has given up.
            made = Forwarder(*common, self._properties, uuid.uuid4().hex, self.metrics, wake)
            made.run(stop)

        parts = {
            "intake": intake.run,
            "asker": asker.run,
            "forwarder": forward,
            "keeper": keeper.run,
        }
        threads = [
            threading.Thread(target=self._keep_up, args=(name, part, stop), name=f"lookback-{name}")
            for name, part in parts.items()
        ]
        for thread in threads:
            thread.start()
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
