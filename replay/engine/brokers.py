"""Says within seconds that a broker is away, whatever a run waits for meanwhile.

Work waits in many places, and some of them are Spark's or the client's own and say nothing. So the
cluster is asked beside the work. Nothing is decided by it: a run ends by its own limits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Self

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import BacklogError
from backlogctl.formats import Say, format_duration, format_moment
from backlogctl.kafka.clients import Admin, find_addresses, make_admin, read_addresses
from backlogctl.kafka.errors import try_addresses

LOG = logging.getLogger(__name__)

_EACH = 2.0
_ANSWER = 2.0
_PROBE = 1.0
_END = 1.0
# A machine that stood still for a moment is no broker that is away.
_SILENT = 2


class BrokerWatch:
    """While it is entered, `say` hears which brokers are away, since when and why; and of their
    return."""

    def __init__(self, properties: Mapping[str, str], say: Say) -> None:
        self._properties, self._say = properties, say
        self._known: dict[int, str] = {}  # the address of each broker that was ever there
        self._away: dict[str, datetime] = {}  # by what it is called
        self._silent = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="broker watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(_END)

    def _run(self) -> None:
        admin: Admin | None = None
        while not self._stopped.is_set():
            try:
                admin = self._look(admin or make_admin(self._properties))
            except Exception:
                # Whether brokers can be told must not fail the work.
                LOG.debug("the brokers cannot be watched", exc_info=True)
            self._stopped.wait(_EACH)

    def _look(self, admin: Admin) -> Admin | None:
        """The client for the next look; None where this one may have lost its brokers for good."""
        try:
            named = read_addresses(admin, Deadline(_ANSWER))
        except BacklogError:
            self._silent += 1
            self._note(self._find_silent())
            return None
        self._silent, self._known = 0, {**self._known, **named}
        gone = {number: at for number, at in self._known.items() if number not in named}
        tried = try_addresses(",".join(gone.values()), _PROBE)
        unnamed = "the cluster does not name it any more"
        self._note({f"broker {n} at {at}": tried[at] or unnamed for n, at in gone.items()})
        return admin

    def _find_silent(self) -> dict[str, str]:
        """Where nobody answers: those that cannot be connected to; after some looks all others."""
        asked = find_addresses(self._properties).split(",")
        places = {f"broker {n} at {at}": at for n, at in self._known.items()} or {
            f"broker {at}": at for at in asked
        }
        tried = try_addresses(",".join(places.values()), _PROBE)
        is_long = self._silent >= _SILENT and not any(tried.values())
        return {
            name: tried[at] or "it takes connections, and does not answer"
            for name, at in places.items()
            # One that was away is not back before it answers.
            if tried[at] or is_long or name in self._away
        }

    def _note(self, away: Mapping[str, str]) -> None:
        now = utc_now()
        for name in [name for name in away if name not in self._away]:
            self._tell(f"{name} is away since {format_moment(now)}: {away[name]}")
            self._away[name] = now
        for name in [name for name in self._away if name not in away]:
            seconds = (now - self._away.pop(name)).total_seconds()
            self._tell(f"{name} is back, after {format_duration(seconds)}")

    def _tell(self, text: str) -> None:
        if not self._stopped.is_set():
            self._say(text)
