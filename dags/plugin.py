"""What Airflow shows of us: an entry of the navigation, and a tab of each run."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.plugins_manager import AirflowPlugin

from backlogctl.dags import notes
from backlogctl.dags.airflow_internals import Side, find_unsuited

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Mapper
    from starlette.types import ASGIApp, Receive, Scope, Send


LOG = logging.getLogger(__name__)

# What the plugin hands to Airflow: the page, made when somebody first asks for it.

# The page's threads are those that Airflow's own API answers with: a ledger that hangs may hold
# this many of the 40 there are.
MOST_AT_ONCE = 8


class LazyPage:
    """Every process of Airflow imports the plugin; only the API server ever shows the page."""

    def __init__(self) -> None:
        self._app: ASGIApp | None = None
        self._making = asyncio.Lock()
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app or await self._make()
        async with self._turns:
            await app(scope, receive, send)

    async def _make(self) -> ASGIApp:
        async with self._making:
            if self._app is None:
                self._app = await asyncio.to_thread(_make_app)
            return self._app


def _make_app() -> ASGIApp:
    if told := find_unsuited(Side.SERVER):
        from starlette.responses import PlainTextResponse

        LOG.error("%s", told)
        return PlainTextResponse(f"There is no page: {told}.", HTTPStatus.SERVICE_UNAVAILABLE)
    from backlogctl.dags.page.app import make_page_app

    return make_page_app()


# Two people answer one question at the same moment.


def keep_first_answer(app: ASGIApp) -> ASGIApp:
    """Called where an API server is made; as middleware it is the server itself."""
    if not find_unsuited(Side.SERVER):
        from sqlalchemy import event

        from backlogctl.dags.airflow_internals import HITLDetail

        event.listen(HITLDetail, "before_update", refuse_second)
    return app


def refuse_second(mapper: Mapper[Any], connection: Connection, answered: Any) -> None:
    """Within the transaction that writes an answer to a question.

    Airflow looks whether there is one already at what it read before it had locked the row, and
    SQLite has no such locks: the later of two answers took the place of the first, which had been
    accepted (faults 140 and 167). A condition in the statement holds on every database.
    """
    from sqlalchemy import inspect, update
    from starlette.exceptions import HTTPException

    at = inspect(answered).attrs.responded_at.history
    if answered.responded_at is None or not at.has_changes():
        return
    table: Any = mapper.local_table
    first = update(table).where(table.c.ti_id == answered.ti_id, table.c.responded_at.is_(None))
    written = connection.execute(first.values(responded_at=answered.responded_at))
    if not written.rowcount:
        told = "The question was answered a moment before; that answer counts."
        raise HTTPException(HTTPStatus.CONFLICT, told)


FASTAPI_ROOT_MIDDLEWARES: list[Any] = [
    {"name": "backlogctl answers", "middleware": keep_first_answer}
]

# Seen in the address: /backlogctl/ is the page itself, /plugin/backlogctl the page in Airflow.
NAME = "backlogctl"
# Seen on light, dark and the blue of what is chosen; a part of the answer, so no file is asked for.
_ICON = "data:image/svg+xml," + quote(
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'>"
    "<path d='M1 1h6v1.4H1zM1 3.3h4.4v1.4H1zM1 5.6h2.6V7H1z' fill='#e8792b'/></svg>"
)
FASTAPI_APPS: list[Any] = [{"name": NAME, "app": LazyPage(), "url_prefix": f"/{NAME}"}]
# Relative addresses: Airflow may be served under a path.
EXTERNAL_VIEWS: list[Any] = [
    {
        "name": "Backlogs",
        "href": f"{NAME}/",
        "destination": "nav",
        "url_route": NAME,
        "nav_top_level": True,
        "icon": _ICON,
    },
    {
        "name": "Recovery",
        "href": f"{NAME}/runs/{{DAG_ID}}/{{RUN_ID}}",
        "destination": "dag_run",
        "url_route": f"{NAME}-recovery",
        "icon": _ICON,
    },
    {
        "name": "Report",
        "href": f"{NAME}/run-reports/{{DAG_ID}}/{{RUN_ID}}",
        "destination": "dag_run",
        "url_route": f"{NAME}-report",
        "icon": _ICON,
    },
]
LISTENERS: list[Any] = [notes]


class BacklogPlugin(AirflowPlugin):
    """Found by its entry point. Every process of Airflow imports it, so it imports little."""

    name = NAME
    listeners = LISTENERS
    fastapi_apps = FASTAPI_APPS
    fastapi_root_middlewares = FASTAPI_ROOT_MIDDLEWARES
    external_views = EXTERNAL_VIEWS
