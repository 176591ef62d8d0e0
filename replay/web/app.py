"""The app that `backlogctl watch` serves."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Thread
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from backlogctl.config import mask_secrets
from backlogctl.errors import BacklogError, UsageError
from backlogctl.monitoring.metrics.groups import CONTENT_TYPE
from backlogctl.monitoring.metrics.scrape import Scrape
from backlogctl.monitoring.watch.board import Board, BoardState
from backlogctl.monitoring.watch.scaler import Scaler, ScalingHeld

# Whether the process lives (/healthz), and whether what it serves is fresh (/readyz).

# A sample may be missed twice before what is shown counts as old.
INTERVALS = 3
# A loop over streams that shows nothing for so long hangs: one look takes a minute at most.
HANGS_AFTER = timedelta(minutes=5)
HANGS_INTERVALS = 10
STREAMS_LOOP = "backlog-streams"


@dataclass(frozen=True, slots=True)
class Health:
    """An answer; `code` is 200 or 503."""

    code: int
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """Answers for one process.

    Attributes:
        ledger_answers: without waiting for one that hangs.
        clusters: those whose groups are awaited.
        threads: those that sample; the list may grow.
        with_streams: the clusters that have streams, which are awaited too.
    """

    board: Board
    ledger_answers: Callable[[], bool]
    interval: timedelta
    clusters: Collection[str]
    threads: Sequence[Thread] = field(default_factory=list)
    with_streams: Collection[str] = ()

    def check_life(self) -> Health:
        """Whether every sampler's thread lives, and the loop over the streams goes on."""
        now = self.board.clock()
        dead = [thread.name for thread in self.threads if not thread.is_alive()]
        if now - self.board.round_at > max(
            HANGS_AFTER.total_seconds(), HANGS_INTERVALS * self.interval.total_seconds()
        ):
            dead.append(STREAMS_LOOP)
        up = round(now - self.board.started_at, 1)
        return _make(not dead, {"status": "dead" if dead else "ok", "dead": dead, "up_seconds": up})

    def check_readiness(self) -> Health:
        """Whether all was looked at, one cluster's samples at least are young, the ledger answers.

        `degraded` is ready: what is served is fresh, and something of it cannot be read.

        A cluster is as old as the older of its streams (the newest of them) and its groups. One of
        several that is away does not take the others' figures from anybody: it is named, and
        `backlog_sample_age_seconds` tells its age.
        """
        seen, now = self.board.seen, self.board.clock()
        waiting: list[str] = []
        ages: dict[str, float | None] = {}
        for cluster in sorted(self.clusters):
            looks = {"groups": _find_last(seen, cluster, streams=False)}
            if cluster in self.with_streams:
                looks["streams"] = _find_last(seen, cluster, streams=True)
            # One that failed was looked at too: it must not hold back the others for ever.
            waiting += [
                f"{what} of cluster {cluster}"
                for what, at in looks.items()
                if at is None and not _is_failing(seen, cluster, streams=what == "streams")
            ]
            known = [now - at for at in looks.values() if at is not None]
            ages[cluster] = max(known, default=None)
        limit = self.interval.total_seconds() * INTERVALS + max(
            (done.seconds for done in seen.clusters.values()), default=0.0
        )
        youngest = min((age for age in ages.values() if age is not None), default=None)
        reasons = [f"{what} were not looked at yet" for what in waiting]
        if self.clusters and youngest is None:
            reasons.append("there is no sample yet")
        elif youngest is not None and youngest > limit:
            reasons.append(f"the newest samples are {youngest:.0f} s old, more than {limit:.0f} s")
        if not self.ledger_answers():
            reasons.append("the ledger does not answer")
        unseen = {
            name: [str(one) for one in status.unseen]
            for name, status in sorted(seen.streams.items())
            if status.unseen
        } | {
            f"cluster {name}": [str(one) for one in done.unseen]
            for name, done in sorted(seen.clusters.items())
            if done.unseen
        }
        body = {
            "status": "not ready" if reasons else "degraded" if unseen or seen.failing else "ok",
            "reasons": reasons,
            "unseen": unseen,
            "age_seconds": {n: None if a is None else round(a, 1) for n, a in ages.items()},
            "failing": [" ".join(filter(None, key)) for key in sorted(seen.failing)],
        }
        return _make(not reasons, body)


def _make(good: bool, body: dict[str, Any]) -> Health:
    return Health(200 if good else 503, body)


def _find_last(seen: BoardState, cluster: str, *, streams: bool) -> float | None:
    """When the newest of a cluster's streams was looked at, or all its groups."""
    return max(
        (
            at
            for (of, name), at in seen.looked_at.items()
            if of == cluster and bool(name) == streams
        ),
        default=None,
    )


def _is_failing(seen: BoardState, cluster: str, *, streams: bool) -> bool:
    return any(of == cluster and bool(name) == streams for of, name in seen.failing)


_THREADS = 4


def make_web_app(
    scrape: Scrape,
    check: HealthCheck,
    page: FastAPI,
    scaler: Scaler | None = None,
) -> FastAPI:
    """/metrics, /healthz, /readyz, /scaler/STREAM, and the page on all other paths."""
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

    for path, show in (
        ("/metrics", show_metrics),
        ("/healthz", show_life),
        ("/readyz", show_readiness),
    ):
        app.add_api_route(path, show, methods=["GET", "HEAD"], response_model=None)
    if scaler is not None:
        _add_scaler(app, scaler)
    app.mount("/", page)
    return app


def _add_scaler(app: FastAPI, scaler: Scaler) -> None:
    """`/scaler/STREAM`: 200 with the answer; 404 without such a stream, 409 while a recovery holds
    it, 503 where the number is not known, each with the reason as `error`."""
    # Threads of its own: a ledger that hangs holds up no scrape.
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="backlog-scaler-json")

    async def show_wanted(stream: str) -> Response:
        code, body = await asyncio.get_running_loop().run_in_executor(pool, ask, stream)
        return JSONResponse(body, code, headers={"Cache-Control": "no-store"})

    def ask(stream: str) -> tuple[int, dict[str, Any]]:
        try:
            return 200, scaler.answer(stream).to_json()
        except BacklogError as error:
            known = {ScalingHeld: 409, UsageError: 404}
            code = known.get(type(error), 503)
            return code, {"stream": stream, "error": mask_secrets(str(error))}

    app.add_api_route("/scaler/{stream}", show_wanted, methods=["GET", "HEAD"], response_model=None)


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
