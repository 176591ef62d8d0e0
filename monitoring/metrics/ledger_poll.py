"""Reads the ledger's metrics in a thread of its own: the ledger may hang for minutes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from threading import Condition, Thread

from prometheus_client.core import GaugeMetricFamily

from backlog.errors import BacklogError

# Two Prometheus servers and a probe at the same time cost one read of the ledger.
FRESH_SECONDS = 2.0
# What is older is not shown; a ledger that is only slow is asked again long before that.
KEPT_SECONDS = 60.0
WAIT_SECONDS = 1.0
LOG = logging.getLogger("backlog.monitoring.metrics")

Families = Sequence[GaugeMetricFamily]


class LedgerPoll:
    """Asks in a thread of its own, once at a time; thread-safe.

    Args:
        collect: raises BacklogError where the ledger does not answer.
        wait: the longest that `read` takes, in seconds.
    """

    def __init__(
        self,
        collect: Callable[[], Families],
        *,
        wait: float = WAIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._collect = collect
        self._wait = wait
        self._clock = clock
        self._changed = Condition()
        self._asking = False
        # The last answer, and when it came; None is a failure.
        self._families: Families | None = None
        self._at = float("-inf")

    def read(self) -> Families | None:
        """The figures, from the last minute; None where the ledger did not answer then.

        It waits a moment for new ones, and no longer: asking goes on without it.
        """
        with self._changed:
            if self._find_age() > FRESH_SECONDS:
                if not self._asking:
                    self._asking = True
                    Thread(target=self._ask, name="backlog-asking", daemon=True).start()
                self._changed.wait_for(lambda: not self._asking, self._wait)
            return self._families if self._find_age() <= KEPT_SECONDS else None

    def answers(self) -> bool:
        """Whether the ledger answered when it was last asked."""
        return self.read() is not None

    def _find_age(self) -> float:
        return self._clock() - self._at

    def _ask(self) -> None:
        families: Families | None = None
        try:
            families = self._collect()
        except BacklogError as error:
            LOG.debug("the ledger was asked for its figures: %s", error)
        except Exception:
            # A bug must not look like a ledger that hangs.
            LOG.exception("the ledger was asked for its figures")
        with self._changed:
            self._families, self._at, self._asking = families, self._clock(), False
            self._changed.notify_all()
