"""The page as Airflow serves it: the monitoring page, a run's recovery, and reports."""

from __future__ import annotations

import logging
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from airflow.api_fastapi.app import API_ROOT_PATH
from fastapi import APIRouter, Depends, FastAPI
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import replay.console.page
from backlog.config import mask_secrets
from backlog.errors import BacklogError, ConfigurationError, LedgerError, Refused, UsageError
from backlogctl_airflow.page.cache import PageCache
from backlogctl_airflow.page.notices import make_login, make_notice
from backlogctl_airflow.page.rights import (
    require_page,
    require_recovery,
    require_run,
    require_user,
)
from backlogctl_airflow.policies import RECOVER
from replay.console.page.guards import Guard, find_root, make_headers
from replay.recovery.origins import list_recoveries_of_run
from replay.report.document import make_report
from replay.report.page import render_page

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

LOG = logging.getLogger("backlog.airflow.page")
_STATIC = Path(next(iter(replay.console.page.__path__))) / "static"
_FILES = {"page.css": "text/css", "page.js": "text/javascript"}


def make_app(cache: PageCache | None = None) -> FastAPI:
    """The application; it only reads. Airflow's origin alone may show it in a frame."""
    app = FastAPI(title="backlogctl", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.cache = cache = cache or PageCache()
    # Of all routes, whatever else they ask for.
    routes = APIRouter(dependencies=[Depends(require_user)])
    show = partial(routes.api_route, methods=["GET", "HEAD"])

    @show("/static/{name}")
    def show_file(name: str) -> Response:
        if name not in _FILES:
            raise HTTPException(404)
        return FileResponse(_STATIC / name, media_type=_FILES[name])

    def show_of_run(dag_id: str, run_id: str, kind: str) -> Response:
        found = list_recoveries_of_run(cache.open().workspace.ledger, dag_id, run_id)
        if len(found) == 1:
            return RedirectResponse(f"../../{kind}/{quote(found[0].id, safe='')}")
        if found:
            return make_notice(
                f"{len(found)} recoveries of this run",
                "This run planned more than one.",
                up="../../",
                recoveries=reversed(found),
                kind=kind,
            )
        return make_notice(
            "No recovery of this run",
            f"Run {run_id} of {dag_id} has planned none, or none yet.",
            up="../../",
            hint=f"recoveries are planned by runs of {RECOVER}; this page looks again by itself",
        )

    @show("/runs/{dag_id}/{run_id:path}", dependencies=[Depends(require_run)])
    def show_run(dag_id: str, run_id: str) -> Response:
        return show_of_run(dag_id, run_id, "recoveries")

    @show("/run-reports/{dag_id}/{run_id:path}", dependencies=[Depends(require_run)])
    def show_run_report(dag_id: str, run_id: str) -> Response:
        return show_of_run(dag_id, run_id, "reports")

    @show("/reports/{recovery_id}", dependencies=[Depends(require_recovery)])
    def show_report(recovery_id: str) -> Response:
        return HTMLResponse(render_page(make_report(cache.open().workspace, recovery_id)))

    # The same page as below, for those who may see this one recovery only.
    @show("/recoveries/{recovery_id}", dependencies=[Depends(require_recovery)])
    def show_recovery() -> Response:
        return _Handed(cache.open().page)

    @show("/{path:path}", dependencies=[Depends(require_page)])
    def show_page() -> Response:
        return _Handed(cache.open().page)

    app.include_router(routes)

    def say_fault(request: Request) -> Response:
        return make_notice(
            "This page cannot be made",
            "A fault of the program; the log of Airflow's API server has the error.",
            up=find_root(request),
            status=500,
        )

    app.add_middleware(Guard, headers=make_headers(), say_fault=say_fault)
    app.add_exception_handler(BacklogError, _say_error)
    app.add_exception_handler(HTTPException, _say_refusal)
    return app


class _Handed(Response):
    """An answer that another application gives."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A copy: what the other finds out about the request is its own.
        await self._app(dict(scope), receive, send)


def _say_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, BacklogError)
    say = partial(make_notice, up=find_root(request), hint=error.hint)
    told = f"{error.subject}: {error.message}" if error.subject else error.message
    match error:
        case ConfigurationError():
            return say("The configuration is wrong", told, status=503, home=False)
        case LedgerError():
            LOG.warning("%s: %s", request.url.path, mask_secrets(str(error)))
            return say("The ledger does not answer", told, status=503)
        case UsageError():
            return say("There is no such recovery", told, status=404)
        case Refused():
            return say("This cannot be shown", told, status=409)
    LOG.error("%s: %s", request.url.path, mask_secrets(str(error)))
    return say("This page cannot be made", told, status=500)


def _say_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code
    say = partial(make_notice, up=find_root(request), status=status)
    # A token that nobody can read any more: Airflow's own pages ask for a login then, too.
    if status == 401 or (status == 403 and error.detail == "Invalid JWT token"):
        response = _ask_login(request)
    elif status == 403:
        response = say(
            "You may not see this",
            f"It needs the right to read the DAG {RECOVER}; for the recovery of one run, to read"
            " the runs of its DAG.",
            home=False,
        )
    elif status == 404:
        response = say(
            "There is no such page",
            "What exists: the overview, and a page for each stream and recovery.",
        )
    elif status == 405:
        response = say(
            "This page is only looked at",
            f"Nothing can be changed here; runs of {RECOVER} and `backlogctl` do that.",
        )
    else:
        response = say(HTTPStatus(status).phrase, str(error.detail))
    response.headers.update(error.headers or {})
    return response


def _ask_login(request: Request) -> Response:
    path = request.url.path
    query = f"?{request.url.query}" if request.url.query else ""
    login = f"{API_ROOT_PATH}api/v2/auth/login?{urlencode({'next': path + query})}"
    # In a frame, Airflow around it asks for the login; a page of its own is led there.
    if request.method == "GET" and request.headers.get("sec-fetch-dest") == "document":
        return RedirectResponse(login)
    return make_login(login)
