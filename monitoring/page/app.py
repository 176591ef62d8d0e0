"""The page as an application: routes, headers, and what is said when something is not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backlog.clock import utc_now
from backlog.config import Config
from backlog.errors import LedgerError, UsageError
from backlog.ledger import Ledger
from backlog.values import Recovery, RecoveryState
from monitoring.board import Board
from monitoring.page.guards import OWN_SITE, Guard, make_headers
from monitoring.page.overview import NextCommand, read_overview
from monitoring.page.rendering import Renderer
from monitoring.page.statuses import Statuses, StoredStatuses

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

NextCommands = Callable[[Recovery], list[str]]
_STATIC = Path(__file__).parent / "static"
HEADERS = make_headers()


def make_page(
    ledger: Ledger,
    config: Config,
    *,
    board: Board | None,
    next_commands: NextCommands = lambda _: [],
    find_approval: Callable[[Recovery], str] = lambda _: "",
    path: str = "",
    frame_ancestors: Sequence[str] = OWN_SITE,
    reports: bool = False,
    clock: Callable[[], datetime] = utc_now,
) -> FastAPI:
    """The page; it only reads, and can be mounted anywhere: its links are relative.

    Args:
        board: what the samplers of this process see; None judges the ledger's samples.
        next_commands: what an operator would type next about a recovery.
        find_approval: where else its plan can be approved, in words; "" for nowhere.
        path: what every route begins with, such as `/page`; "" serves at the root.
        frame_ancestors: who may show it in a frame, such as `https://wiki.example`.
        reports: whether somebody serves `reports/ID` beside it, to be linked to.

    Raises:
        ValueError: one of `frame_ancestors` is no single source.
    """
    from fastapi import APIRouter, FastAPI
    from fastapi.responses import FileResponse, HTMLResponse
    from starlette.exceptions import HTTPException

    from monitoring.page.recoveries import read_recovery
    from monitoring.page.streams import read_stream

    app = FastAPI(title="backlogctl", docs_url=None, redoc_url=None, openapi_url=None)
    renderer = Renderer(config, clock)
    stored = StoredStatuses(ledger, config)
    next_commands = _forgive(next_commands)
    next_command = _shorten(next_commands, clock)
    routes = APIRouter(prefix=path.rstrip("/"))
    show = partial(routes.api_route, methods=["GET", "HEAD"])

    def answer(template: str, up: str, status: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(renderer.render(template, up, **values), status)

    def find_root(request: Request) -> str:
        return _find_root(request, routes.prefix)

    def look() -> Statuses:
        return Statuses(stored, config, board, clock())

    @show("/")
    def show_overview() -> Response:
        found = read_overview(ledger, config, look(), next_command, clock())
        return answer("overview.html", "", 503 if found.ledger_error else 200, view=found)

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
        return answer("stream.html", "../", view=found)

    @show("/recoveries/{recovery_id}")
    def show_recovery(recovery_id: str) -> Response:
        try:
            recovery = ledger.recoveries.get(recovery_id)
        except UsageError:
            raise _Missing(
                f"There is no recovery {recovery_id}",
                "The ledger has none of that id. `backlogctl recoveries` lists them.",
            ) from None
        found = read_recovery(ledger, recovery, next_commands(recovery), clock())
        linked = recovery.stream in config.streams
        return answer(
            "recovery.html",
            "../",
            view=found,
            linked=linked,
            reports=reports,
            approval=find_approval(recovery),
        )

    def serve(name: str, kind: str) -> None:
        @show(f"/static/{name}", name=name)
        def show_file() -> Response:
            return FileResponse(_STATIC / name, media_type=kind)

    serve("page.css", "text/css")
    serve("page.js", "text/javascript")
    app.include_router(routes)

    def say_fault(request: Request) -> Response:
        return answer(
            "problem.html",
            find_root(request),
            500,
            title="This page cannot be made",
            told="A fault of the program; the log of the process that serves it has the error.",
            hint="the other pages may work, and so does `backlogctl status`",
            nearest=(),
        )

    app.add_middleware(Guard, headers=make_headers(frame_ancestors), tell_fault=say_fault)

    @app.exception_handler(_Missing)
    def say_missing(_: Request, missing: Exception) -> Response:
        assert isinstance(missing, _Missing)
        return answer(
            "problem.html",
            "../",
            404,
            title=missing.title,
            told=missing.told,
            hint="",
            nearest=missing.nearest,
        )

    @app.exception_handler(LedgerError)
    def say_ledger(request: Request, error: Exception) -> Response:
        assert isinstance(error, LedgerError)
        return answer(
            "problem.html",
            find_root(request),
            503,
            title="The ledger does not answer",
            told=f"{error.subject}: {error.message}",
            hint=error.hint or "this page looks again by itself",
            nearest=(),
        )

    @app.exception_handler(HTTPException)
    def say_other(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        known = error.status_code == 404
        response = answer(
            "problem.html",
            find_root(request),
            error.status_code,
            title="There is no such page" if known else "This page is only looked at",
            told="What exists: the overview, and a page for each stream and recovery."
            if known
            else "Nothing can be changed here; `backlogctl` does that.",
            hint="",
            nearest=(),
        )
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


def _find_root(request: Request, prefix: str) -> str:
    """The overview as seen from any address, even one that is no page's."""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    root: str = request.scope.get("root_path", "")
    depth = raw.count(b"/") - root.count("/") - prefix.count("/") - 1
    return "../" * max(0, depth)


def _forgive(next_commands: NextCommands) -> NextCommands:
    """None for a recovery whose plan another version wrote: it may lack anything."""

    def list_commands(recovery: Recovery) -> list[str]:
        try:
            return next_commands(recovery)
        except (LookupError, TypeError, ValueError, AttributeError):
            return []

    return list_commands


def _shorten(next_commands: NextCommands, clock: Callable[[], datetime]) -> NextCommand:
    """One command of a recovery; for one that somebody runs right now, how to watch it."""

    def choose(recovery: Recovery) -> str:
        alive = recovery.lease_until is not None and recovery.lease_until > clock()
        if recovery.state is RecoveryState.RUNNING and alive:
            return f"backlogctl show {recovery.id} --watch"
        return next(iter(next_commands(recovery)), "")

    return choose
