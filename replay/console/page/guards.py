"""The headers of every answer, and the answer where the program itself failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOG = logging.getLogger("backlog.console.page")
OWN_SITE = ("'self'",)


def make_headers(frame_ancestors: Sequence[str] = OWN_SITE) -> Mapping[str, str]:
    """The headers of every answer.

    Args:
        frame_ancestors: who may show the page in a frame, as the Content-Security-Policy has it:
            `https://wiki.example`; nobody where it is empty.

    Raises:
        ValueError: one of them is no single source.
    """
    for source in frame_ancestors:
        if not source or any(sign.isspace() or sign in ";," for sign in source):
            raise ValueError(f"frame_ancestors: {source!r} is not one source, such as 'self'")
    framers = " ".join(frame_ancestors) or "'none'"
    return {
        # The inline styles are the widths of bars and the drawings; there are no inline scripts.
        "Content-Security-Policy": "default-src 'none'; style-src 'self' 'unsafe-inline'; "
        "script-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
        f"form-action 'none'; frame-ancestors {framers}",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


def find_root(request: Request, prefix: str = "") -> str:
    """The way to the overview from any address below it, even one that is no page's."""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    root: str = request.scope.get("root_path", "")
    depth = raw.count(b"/") - root.count("/") - prefix.count("/") - 1
    return "../" * max(0, depth)


class Guard:
    """Puts the headers on every answer, and answers where an exception would end the request."""

    def __init__(
        self,
        app: ASGIApp,
        headers: Mapping[str, str],
        say_fault: Callable[[Request], Response],
    ) -> None:
        self._app = app
        self._own = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        self._names = {name for name, _ in self._own}
        self._say_fault = say_fault

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                kept = [item for item in message["headers"] if item[0].lower() not in self._names]
                message = {**message, "headers": [*kept, *self._own]}
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:
            if begun or scope["type"] != "http":
                raise
            from starlette.requests import Request

            LOG.exception("the page at %r", scope["path"])
            answer = self._say_fault(Request(scope))
            await answer(scope, receive, send_with_headers)
