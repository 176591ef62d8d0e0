"""The page as an application: routes, headers, and answers where something is missing or fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backlogctl.clock import utc_now
from backlogctl.errors import LedgerError, UsageError
from backlogctl.monitoring.watch.board import Board
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.next_commands import list_next_commands, name_approval
from backlogctl.replay.web.deliveries import DeliveryLook
from backlogctl.replay.web.page.overview import (
    Statuses,
    StoredStatuses,
    StreamChoice,
    list_commands,
    read_overview,
)
from backlogctl.replay.web.page.rendering import Renderer
from backlogctl.values import Recovery, RecoveryState

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


# The headers of every answer, and the answer where the program itself failed.

LOG = logging.getLogger(__name__)
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
        f"form-action 'self'; frame-ancestors {framers}",
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


class PageGuard:
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


MOST_PARTITIONS = 60
_STATIC = Path(__file__).parent / "static"
HEADERS = make_headers()


def make_page(
    workspace: Workspace,
    *,
    board: Board | None,
    deliveries: Callable[[], Sequence[DeliveryLook]] = tuple,
    find_approval: Callable[[Recovery], str] = lambda _: "",
    path: str = "",
    frame_ancestors: Sequence[str] = OWN_SITE,
    reports: bool = False,
    clock: Callable[[], datetime] = utc_now,
) -> FastAPI:
    """The page; it only reads, and can be mounted anywhere: its links are relative.

    Args:
        board: what the samplers of this process see; None judges the ledger's samples.
        deliveries: how outboxes and look-back stand; none are shown without it.
        find_approval: the address where Airflow asks about its plan; "" where it does not.
        path: what every route begins with, such as `/page`; "" serves at the root.
        frame_ancestors: who may show it in a frame, such as `https://wiki.example`.
        reports: whether somebody serves `reports/ID` beside it, to be linked to.

    Raises:
        ValueError: one of `frame_ancestors` is no single source.
    """
    from fastapi import APIRouter, FastAPI
    from fastapi.responses import FileResponse, HTMLResponse
    from starlette.exceptions import HTTPException

    from backlogctl.replay.web.page.recoveries import read_recovery
    from backlogctl.replay.web.page.streams import read_stream

    ledger, config = workspace.ledger, workspace.config
    app = FastAPI(title="backlogctl", docs_url=None, redoc_url=None, openapi_url=None)
    renderer = Renderer(config.mask_secrets, clock, config.watch.interval.total_seconds())
    stored = StoredStatuses(ledger, config)
    routes = APIRouter(prefix=path.rstrip("/"))
    show = partial(routes.api_route, methods=["GET", "HEAD"])

    def answer(
        template: str, up: str, status: int = 200, *, busy: bool = False, **values: Any
    ) -> HTMLResponse:
        return HTMLResponse(renderer.render(template, up, busy=busy, **values), status)

    def look() -> Statuses:
        return Statuses(stored, config, board, clock(), partial(list_commands, workspace))

    def find_answers(planned: Iterable[Recovery]) -> Mapping[str, str]:
        """By the command that approves a plan, where Airflow takes the answer."""
        asked = ((name_approval(one.id), find_approval(one)) for one in planned)
        return {command: address for command, address in asked if address}

    def list_answers() -> Mapping[str, str]:
        return find_answers(ledger.recoveries.list(states=[RecoveryState.PLANNED]))

    def next_command(recovery: Recovery) -> str:
        return next(iter(list_next_commands(workspace, recovery)), "")

    @show("/")
    def show_overview(q: str = "", verdict: str = "", sort: str = "") -> Response:
        choice = StreamChoice(q, verdict, sort)
        found = read_overview(ledger, config, look(), next_command, clock(), deliveries(), choice)
        if found.ledger_error:
            return answer("overview.html", "", 503, view=found, answers={})
        return answer("overview.html", "", view=found, answers=list_answers())

    @show("/streams/{name}")
    def show_stream(name: str) -> Response:
        stream = config.streams.get(name)
        if stream is None:
            raise _Missing(
                f"There is no stream {name}",
                "The configuration of this page has no stream of that name.",
                tuple(get_close_matches(name, config.streams, n=3)),
            )
        found = read_stream(ledger, config, stream, look(), next_command, clock())
        return answer("stream.html", "../", view=found, answers=list_answers())

    @show("/recoveries/{recovery_id}")
    def show_recovery(recovery_id: str) -> Response:
        try:
            recovery = ledger.recoveries.get(recovery_id)
        except UsageError:
            raise _Missing(
                f"There is no recovery {recovery_id}",
                "The ledger has none of that id. `backlogctl recoveries` lists them.",
            ) from None
        found = read_recovery(workspace, recovery, clock())
        linked = recovery.stream in config.streams
        return answer(
            "recovery.html",
            "../",
            view=found,
            linked=linked,
            most=MOST_PARTITIONS,
            reports=reports,
            answers=find_answers([recovery]),
            busy=found.alive,
        )

    def serve(name: str, kind: str) -> None:
        @show(f"/static/{name}", name=name)
        def show_file() -> Response:
            return FileResponse(_STATIC / name, media_type=kind)

    serve("page.css", "text/css")
    serve("page.js", "text/javascript")
    app.include_router(routes)

    def say_problem(
        up: str, status: int, title: str, told: str, hint: str = "", nearest: Sequence[str] = ()
    ) -> Response:
        page = renderer.render_problem(up, title, told, hint=hint, nearest=nearest)
        return HTMLResponse(page, status)

    def say_fault(request: Request) -> Response:
        return say_problem(
            find_root(request, routes.prefix),
            500,
            "This page cannot be made",
            "A fault of the program; the log of the process that serves it has the error.",
            "the other pages may work, and so does `backlogctl status`",
        )

    app.add_middleware(PageGuard, headers=make_headers(frame_ancestors), say_fault=say_fault)

    @app.exception_handler(_Missing)
    def say_missing(_: Request, missing: Exception) -> Response:
        assert isinstance(missing, _Missing)
        return say_problem("../", 404, missing.title, missing.told, nearest=missing.nearest)

    @app.exception_handler(LedgerError)
    def say_ledger(request: Request, error: Exception) -> Response:
        assert isinstance(error, LedgerError)
        return say_problem(
            find_root(request, routes.prefix),
            503,
            "The ledger does not answer",
            f"{error.subject}: {error.message}",
            error.hint or "this page looks again by itself",
        )

    @app.exception_handler(HTTPException)
    def say_other(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        title = "This page is only looked at"
        told = "Nothing can be changed here; `backlogctl` does that."
        if error.status_code == 404:
            title = "There is no such page"
            told = "What exists: the overview, and a page for each stream and recovery."
        response = say_problem(find_root(request, routes.prefix), error.status_code, title, told)
        response.headers.update(error.headers or {})
        return response

    return app


class _Missing(Exception):
    """A stream or recovery that is not there."""

    def __init__(self, title: str, told: str, nearest: tuple[str, ...] = ()) -> None:
        super().__init__(title)
        self.title = title
        self.told = told
        self.nearest = nearest
