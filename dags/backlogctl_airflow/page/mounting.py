"""What the plugin hands to Airflow: the page, made when somebody first asks for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

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
    from backlogctl_airflow.page.app import make_app

    return make_app()
