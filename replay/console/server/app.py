"""The app that `backlogctl watch` serves."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from monitoring.metrics.exposition import CONTENT_TYPE
from monitoring.metrics.scrape import Scrape
from replay.console.server.health import Health, HealthCheck

_THREADS = 4
_INDEX = """\
<!doctype html><html lang="en"><title>backlogctl</title><h1>backlogctl watch</h1><ul>
<li><a href="/metrics">/metrics</a><li><a href="/healthz">/healthz</a>
<li><a href="/readyz">/readyz</a></ul></html>
"""


def make_app(scrape: Scrape, check: HealthCheck, page: FastAPI | None = None) -> FastAPI:
    """/metrics, /healthz, /readyz, and the page on all other paths."""
    app = FastAPI(title="backlogctl", docs_url=None, redoc_url=None, openapi_url=None)

    # Threads of its own: those that the page shares may all wait for a ledger that hangs.
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="backlog-scrape")

    async def show_metrics(request: Request) -> Response:
        body = await asyncio.get_running_loop().run_in_executor(pool, scrape.answer)
        headers = {"Vary": "Accept-Encoding", "Cache-Control": "no-store"}
        if _takes_gzip(request.headers.get("accept-encoding", "")):
            headers["Content-Encoding"] = "gzip"
            return Response(body, media_type=CONTENT_TYPE, headers=headers)
        return StreamingResponse(_unpack(body), media_type=CONTENT_TYPE, headers=headers)

    # It waits for nobody.
    async def show_life() -> Response:
        return answer(check.check_life())

    async def show_readiness() -> Response:
        loop = asyncio.get_running_loop()
        return answer(await loop.run_in_executor(pool, check.check_readiness))

    def answer(health: Health) -> Response:
        return JSONResponse(health.body, health.code, headers={"Cache-Control": "no-store"})

    def show_index() -> Response:
        return HTMLResponse(_INDEX)

    for path, show in (
        ("/metrics", show_metrics),
        ("/healthz", show_life),
        ("/readyz", show_readiness),
    ):
        app.add_api_route(path, show, methods=["GET", "HEAD"], response_model=None)
    if page is None:
        app.add_api_route("/", show_index, methods=["GET"], response_model=None)
    else:
        app.mount("/", page)
    return app


def _takes_gzip(accepted: str) -> bool:
    for item in accepted.lower().split(","):
        name, _, rest = item.strip().partition(";")
        if name.strip() in ("gzip", "*"):
            quality = rest.replace(" ", "").removeprefix("q=")
            return not (quality and quality.strip("0.") == "")
    return False


def _unpack(packed: bytes) -> Iterator[bytes]:
    """The text, piece by piece: all of it at once may be tens of megabytes."""
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
    while packed:
        yield inflate.decompress(packed, 1 << 20)
        packed = inflate.unconsumed_tail
    yield inflate.flush()
