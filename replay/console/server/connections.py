"""Bounds on connections: who opens thousands and says nothing takes the server from nobody.

uvicorn limits neither how many there are, nor how long a request's header may take.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 256
HEADER_SECONDS = 10.0
# asyncio tries again once a second, and logs each try of each waiting connection.
_AGAIN_SECONDS = 60.0
_OUT_OF_FILES = "socket.accept() out of system resource"


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 for at most `MOST` connections; each has `HEADER_SECONDS` to send a request."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """One too many is closed at once."""
        super().connection_made(transport)
        if len(self.connections) > MOST:
            transport.abort()
            return
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the timer."""
        self._cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """The next request has its own time; while nothing of it came, uvicorn's keep-alive."""
        super().on_response_complete()
        self._wait_for_request()

    def _wait_for_request(self) -> None:
        self._cancel()
        self._timer = self.loop.call_later(HEADER_SECONDS, self._end_silent)

    def _end_silent(self) -> None:
        cycle: Any = self.cycle  # None before the first request
        if (cycle is None or cycle.response_complete) and not self.transport.is_closing():
            self.transport.abort()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class SaidOnce(logging.Filter):
    """Lets asyncio say that there are no more files once a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._said = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a repetition."""
        if _OUT_OF_FILES not in str(record.msg):
            return True
        now = time.monotonic()
        fresh = now - self._said >= _AGAIN_SECONDS
        self._said = now if fresh else self._said
        return fresh


def silence_repetitions() -> None:
    """Puts the filter on asyncio's log, once."""
    log: Any = logging.getLogger("asyncio")
    if not any(isinstance(one, SaidOnce) for one in log.filters):
        log.addFilter(SaidOnce())
