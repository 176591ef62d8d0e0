"""Who may ask: by the host that the request names, and by a token."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

# A probe has no token, and these tell nothing of messages.
_OPEN_PATHS = ("/healthz", "/readyz")


class HostGuard:
    """Refuses requests for a host that is not ours: a web page that rebinds its own name to this
    address would read what is served (DNS rebinding).

    Addresses, and names without a dot, cannot be anybody's public name.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "")
            if not self._is_ours(host):
                told = "this host is not served here; name it in `watch.hosts` if it is yours\n"
                await PlainTextResponse(told, 421)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if not name or "." not in name or name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class TokenGuard:
    """Asks for a token: as `Authorization: Bearer`, or as a browser's password.

    The file is read for each request, so that a token can be changed.
    """

    def __init__(self, app: ASGIApp, file: Path) -> None:
        self._app = app
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            token = self._file.read_bytes().strip()
        except OSError:
            answer = PlainTextResponse("the token cannot be read\n", 503)
            await answer(scope, receive, send)
            return
        given = _read_token(Headers(scope=scope).get("authorization", ""))
        if not token or not hmac.compare_digest(given, token):
            headers = {"WWW-Authenticate": 'Basic realm="backlogctl", charset="UTF-8"'}
            await PlainTextResponse("a token is needed\n", 401, headers)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def find_hosts(url: str | None, hosts: Collection[str]) -> set[str]:
    """The names that are served: those of the configuration, and that of `watch.url`."""
    named = urlsplit(url).hostname if url else None
    return {*hosts, *([named] if named else []), "localhost.localdomain"}


def _read_token(header: str) -> bytes:
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""
