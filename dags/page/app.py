"""The page as Airflow serves it: the monitoring page, a run's recovery, and reports."""

from __future__ import annotations

import logging
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, FastAPI
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import backlogctl.replay.web.page
from backlogctl.clock import utc_now
from backlogctl.config import mask_secrets
from backlogctl.dags.airflow_internals import (
    API_ROOT_PATH,
    DagAccessEntity,
    GetUserDep,
    get_user,
    requires_access_dag,
)
from backlogctl.dags.configuration import read_deployment
from backlogctl.dags.notes import read_note
from backlogctl.dags.page.cache import PageCache
from backlogctl.dags.policies import RECOVER
from backlogctl.errors import BacklogError, ConfigurationError, LedgerError, Refused, UsageError
from backlogctl.replay.engine.plan import find_origin, list_recoveries_of_run, name_origin
from backlogctl.replay.present.report import make_report
from backlogctl.replay.present.report_page import render_page
from backlogctl.replay.web.page.app import PageGuard, find_root, make_headers
from backlogctl.replay.web.page.rendering import Renderer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


# Who may look: Airflow's user, with the right to read the DAG that recovers.
#
# Airflow does not ask for a login before what a plugin serves: each route asks here.

require_user = get_user
# All streams and recoveries: for those who may read the DAG of all recoveries.
require_page = requires_access_dag("GET", param_dag_id=RECOVER)
# What a run of the DAG in the path planned: for those who may read its runs.
require_run = requires_access_dag("GET", DagAccessEntity.RUN)


def require_recovery(request: Request, recovery_id: str, user: GetUserDep) -> None:
    """The right to the page, or to the runs of the DAG that planned this one recovery.
    Raises HTTPException: 403; it does not reveal whether the recovery exists.
    """
    try:
        require_page(request, user)
    except HTTPException:
        dag_id = _find_dag(request, recovery_id)
        if dag_id is None:
            raise
        requires_access_dag("GET", DagAccessEntity.RUN, param_dag_id=dag_id)(request, user)


def _find_dag(request: Request, recovery_id: str) -> str | None:
    try:
        ledger = request.app.state.cache.open().workspace.ledger
        origin = find_origin(ledger.recoveries.get(recovery_id))
        return None if origin is None else origin.dag_id
    except BacklogError:
        return None


# Pages of this application's own: no login, no right, a wrong configuration, which recovery.

# Seconds between two looks, as long as no configuration says another.
_LOOKS_AGAIN = 10


@cache
def _make_renderer() -> Renderer:
    return Renderer(mask_secrets, utc_now, _LOOKS_AGAIN, "backlogctl.dags.page")


def make_notice(title: str, told: str, *, up: str, status: int = 200, **more: Any) -> HTMLResponse:
    """A page that says one thing, in the style of the others; `more` as of `render_problem`."""
    return HTMLResponse(_make_renderer().render_problem(up, title, told, **more), status)


def make_login(address: str) -> HTMLResponse:
    """What is said without a login; it needs no other file, which would ask for one too."""
    return HTMLResponse(_make_renderer().render("login.html", "", login=address), 401)


LOG = logging.getLogger(__name__)
_STATIC = Path(next(iter(backlogctl.replay.web.page.__path__))) / "static"
_FILES = {"page.css": "text/css", "page.js": "text/javascript"}


def make_page_app(cache: PageCache | None = None) -> FastAPI:
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
        origin = name_origin(dag_id, run_id, deployment=read_deployment())
        found = list_recoveries_of_run(cache.open().workspace.ledger, origin)
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
        # Which says why, and what works instead, once the run has ended.
        note, is_over = read_note(dag_id, run_id)
        return make_notice(
            "No recovery of this run",
            f"Run {run_id} of {dag_id} has planned {'none' if is_over else 'none yet'}.\n{note}",
            up="../../",
            hint="" if is_over else "this page looks again by itself",
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

    app.add_middleware(PageGuard, headers=make_headers(), say_fault=say_fault)
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
