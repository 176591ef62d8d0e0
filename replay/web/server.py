"""Bounds on connections: who opens thousands and says nothing takes the server from nobody.

uvicorn limits neither how many there are, nor how long a request's header may take.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from uvicorn.protocols.http.h11_impl import H11Protocol

from backlogctl.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import ASGIApp

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


# A web server in a thread of this process, on an address that is bound before it starts.

_STOP_SECONDS = 3.0
_BACKLOG = 64  # connections that wait to be accepted
LOG = logging.getLogger(__name__)


def parse_address(text: str, subject: str) -> tuple[str, int]:
    """`HOST:PORT`, `[IPv6]:PORT` or `:PORT` (every address).

    Raises:
        UsageError: it is none of these.
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or host.count("[") != host.count("]"):
        raise UsageError(
            f"`{text}` is not an address", subject=subject, hint="write HOST:PORT, 127.0.0.1:9321"
        )
    if ":" in host and not host.startswith("["):
        raise UsageError(
            f"`{text}` is not an address", subject=subject, hint="write IPv6 as [::1]:9321"
        )
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - asked for by name


def bind_address(text: str, subject: str) -> socket.socket:
    """A socket that listens; port 0 takes a free one.

    Args:
        subject: the option or key that the address is of, for the error.

    Raises:
        UsageError: it is not an address, is taken, or is not of this machine.
    """
    host, port = parse_address(text, subject)
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise _refuse(text, subject, error) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise _refuse(text, subject, error) from error
    return bound


class Server:
    """Serves an app on a bound socket while the `with` block runs."""

    def __init__(
        self, app: ASGIApp, bound: socket.socket, tls: tuple[Path, Path] | None = None
    ) -> None:
        """Args: tls: certificate and key.

        Raises:
            UsageError: the certificate or the key cannot be used.
        """
        import uvicorn

        silence_repetitions()
        self._socket = bound
        self._scheme = "http" if tls is None else "https"
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=1,
            http=BoundedProtocol,
            backlog=_BACKLOG,
            ssl_certfile=None if tls is None else tls[0],
            ssl_keyfile=None if tls is None else tls[1],
        )
        try:
            config.load()
        except OSError as error:  # ssl.SSLError is one
            raise UsageError(
                f"the certificate or its key cannot be used: {error.strerror or error}",
                subject="watch.tls",
                hint="both are PEM files, the key without a password",
            ) from error
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="backlog-server", daemon=True)

    @property
    def url(self) -> str:
        """Where it answers, as a person on this machine would type it."""
        host, port, *_ = self._socket.getsockname()
        if host in ("0.0.0.0", "::"):  # noqa: S104
            host = "127.0.0.1"
        shown = f"[{host}]" if ":" in host else host
        return f"{self._scheme}://{shown}:{port}"

    @property
    def is_open(self) -> bool:
        """Whether others than this machine can reach it."""
        host = self._socket.getsockname()[0]
        return not ipaddress.ip_address(host.partition("%")[0]).is_loopback

    @property
    def thread(self) -> threading.Thread:
        return self._thread

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(_STOP_SECONDS)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except (Exception, SystemExit):
            LOG.exception("the server ended")


def _refuse(text: str, subject: str, error: OSError) -> UsageError:
    reasons: dict[int | None, Any] = {
        errno.EADDRINUSE: ("is taken by another program", "stop it, or take another port"),
        errno.EADDRNOTAVAIL: ("is not an address of this machine", "take another host"),
        errno.EACCES: ("may not be used by this user", "take a port above 1023"),
    }
    told = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)
    why, hint = reasons.get(error.errno, (f"cannot be listened on: {told}", "take another address"))
    return UsageError(
        f"{text} {why}",
        subject=subject,
        hint=f"{hint} with --listen HOST:PORT or `watch.listen` (port 0: any free one), or "
        "--no-serve",
    )
