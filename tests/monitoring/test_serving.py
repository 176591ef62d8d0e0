"""The server: where it listens, what it answers, and when it says that it is well."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from backlogctl.clock import utc_now
from backlogctl.errors import LedgerError, UsageError
from backlogctl.ledger import Ledger
from backlogctl.monitoring.metrics.scrape import Exported, Scrape
from backlogctl.monitoring.watch.board import Board, ClusterPass
from backlogctl.replay.web import server as connections
from backlogctl.replay.web.access import HostGuard, TokenGuard, find_hosts
from backlogctl.replay.web.app import HealthCheck, make_web_app
from backlogctl.replay.web.server import Server, bind_address, parse_address
from tests.kit.kafka import wait_until
from tests.kit.prometheus import Scraped
from tests.monitoring.notifications.hook_server import make_certificate
from tests.monitoring.test_metrics import make_status

# The server where strangers reach it: half-open connections, other hosts, tokens, TLS (fault 78).

MOST, HEADER_SECONDS = 20, 1.0


def make_plain_app() -> Starlette:
    paths = ("/", "/metrics", "/healthz", "/readyz")
    return Starlette(routes=[Route(p, lambda _: PlainTextResponse("shown")) for p in paths])


@contextmanager
def serve_app(app: ASGIApp, tls: tuple[Path, Path] | None = None) -> Iterator[str]:
    with Server(app, bind_address("127.0.0.1:0", "--listen"), tls) as server:
        yield server.url


def test_fault_78_half_open_connections_take_it_from_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "MOST", MOST)
    monkeypatch.setattr(connections, "HEADER_SECONDS", HEADER_SECONDS)
    with ExitStack() as stack:
        url = stack.enter_context(serve_app(make_plain_app()))
        port = int(url.rpartition(":")[2])
        # A request each that never ends; the first ones are held, the rest closed at once.
        half_open = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(300)
        ]
        for one in half_open[:MOST]:
            one.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-Slow: ")

        def answers() -> bool:
            try:
                return httpx.get(f"{url}/metrics", timeout=5).text == "shown"
            except httpx.TransportError:
                return False

        wait_until(answers, 30, "it answers again")
        for one in half_open:
            one.settimeout(30)
            with suppress(ConnectionResetError):
                assert one.recv(10) == b""
    # Clients of other tests may still live in this process.
    told = [one for one in caplog.records if "kafka" not in one.name]
    assert len(told) < 10


def test_a_slow_second_request_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", HEADER_SECONDS)
    with serve_app(make_plain_app()) as url:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as one:
            one.settimeout(30)
            one.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\nGET /metr")
            seen = b""
            with suppress(ConnectionResetError):
                while data := one.recv(1000):
                    seen += data
        assert seen.count(b"shown") == 1


def test_running_out_of_files_is_logged_once_a_minute() -> None:
    once = connections.SaidOnce()
    full = logging.LogRecord(
        "asyncio", 40, "", 0, "socket.accept() out of system resource", (), None
    )
    other = logging.LogRecord("asyncio", 40, "", 0, "something else", (), None)
    assert [once.filter(full), once.filter(full), once.filter(other)] == [True, False, True]


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1:9321", 200),
        ("[::1]:9321", 200),
        ("localhost", 200),
        ("backlog-watch:9321", 200),
        ("backlog.example.com", 200),
        ("extra.example.com:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("[broken", 421),
    ],
)
def test_only_our_hosts_are_served(host: str, code: int) -> None:
    hosts = find_hosts("https://backlog.example.com/x", ["extra.example.com"])
    with serve_app(HostGuard(make_plain_app(), hosts)) as url:
        assert httpx.get(url, headers={"Host": host}).status_code == code


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret-token\n")
    with serve_app(TokenGuard(make_plain_app(), file)) as url:
        assert httpx.get(f"{url}/healthz").status_code == 200
        refused = httpx.get(f"{url}/metrics")
        assert refused.status_code == 401
        assert "Basic" in refused.headers["www-authenticate"]
        bearer = {"Authorization": "Bearer s3cret-token"}
        assert httpx.get(f"{url}/metrics", headers=bearer).status_code == 200
        assert httpx.get(f"{url}/metrics", auth=("anyone", "s3cret-token")).status_code == 200
        assert httpx.get(f"{url}/metrics", auth=("anyone", "other")).status_code == 401
        file.write_text("changed")
        assert httpx.get(f"{url}/metrics", headers=bearer).status_code == 401
        file.unlink()
        assert httpx.get(f"{url}/metrics", headers=bearer).status_code == 503


def test_an_empty_token_lets_nobody_in(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("")
    with serve_app(TokenGuard(make_plain_app(), file)) as url:
        assert httpx.get(f"{url}/metrics", auth=("anyone", "")).status_code == 401


def test_https_by_files(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with serve_app(make_plain_app(), (certificate, key)) as url:
        assert url.startswith("https://")
        trusted = ssl.create_default_context(cafile=certificate)
        assert httpx.get(url, verify=trusted).text == "shown"
    with pytest.raises(UsageError, match="certificate or its key cannot be used"):
        Server(make_plain_app(), bind_address("127.0.0.1:0", "--listen"), (key, certificate))
    with pytest.raises(UsageError, match="certificate or its key cannot be used"):
        Server(make_plain_app(), bind_address("127.0.0.1:0", "--listen"), (tmp_path / "no", key))


INTERVAL = timedelta(seconds=30)
PATIENT = 120.0  # seconds; a busy machine may let a server wait


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9321", ("127.0.0.1", 9321)),
        ("[::1]:0", ("::1", 0)),
        (":80", ("0.0.0.0", 80)),
        ("metrics.example:65535", ("metrics.example", 65535)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, "--listen") == address


@pytest.mark.parametrize("text", ["", "9321", "localhost", "a:b", "::1:80", "[::1:80", "h:65536"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="not an address") as caught:
        parse_address(text, "--listen")
    assert caught.value.exit_code == 2


def test_an_address_that_is_taken_is_named() -> None:
    with bind_address("127.0.0.1:0", "watch.listen") as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError, match="is taken by another program") as caught:
            bind_address(address, "watch.listen")
    assert address in str(caught.value)
    assert "--listen" in caught.value.hint
    with pytest.raises(UsageError, match=r"cannot be listened on|not an address of this machine"):
        bind_address("192.0.2.1:1", "--listen")


def serve(board: Board, ledger: Ledger, page: FastAPI | None = None) -> Server:
    scrape = Scrape(board, ledger, Exported({}, ("main",)))
    health = HealthCheck(
        board, scrape.ledger.answers, INTERVAL, ("main",), [threading.current_thread()]
    )
    return Server(
        make_web_app(scrape, health, page or FastAPI()), bind_address("127.0.0.1:0", "--listen")
    )


def get(url: str, **settings: Any) -> httpx.Response:
    return httpx.get(url, timeout=PATIENT, **settings)


def make_pass() -> ClusterPass:
    # Its time is the ledger's, which may be another host's.
    return ClusterPass("main", utc_now() - timedelta(hours=1), 1.0, ())


def test_it_answers_plain_and_compressed(ledger: Ledger) -> None:
    board = Board()
    board.put_cluster(make_pass())
    page = FastAPI(docs_url=None)
    page.add_api_route("/", lambda: "the page")
    with serve(board, ledger, page) as server:
        url = server.url
        packed = get(f"{url}/metrics")
        plain = get(f"{url}/metrics", headers={"Accept-Encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        for answer in (packed, plain):
            assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            Scraped(answer.text).check()
            assert Scraped(answer.text).value("backlog_pass_seconds", cluster="main") == 1
        refused = get(f"{url}/metrics", headers={"Accept-Encoding": "gzip;q=0"})
        assert "content-encoding" not in refused.headers
        assert httpx.head(f"{url}/metrics", timeout=PATIENT).status_code == 200
        assert get(f"{url}/").json() == "the page"
        assert get(f"{url}/nothing").status_code == 404
        assert get(f"{url}/docs").status_code == 404
    with pytest.raises(httpx.ConnectError):
        get(f"{url}/healthz")


def test_alive_and_ready(ledger: Ledger) -> None:
    board = Board()
    with serve(board, ledger) as server:
        ready = get(f"{server.url}/readyz")
        assert (ready.status_code, get(f"{server.url}/healthz").status_code) == (503, 200)
        assert "were not looked at yet" in ready.json()["reasons"][0]
        board.put_cluster(make_pass())
        # The ledger is not waited for long; it is asked on.
        wait_until(lambda: get(f"{server.url}/readyz").json()["status"] == "ok", 60, "it is ready")
        assert get(f"{server.url}/readyz").status_code == 200


def test_a_sampler_that_ended_is_told() -> None:
    ended = threading.Thread(target=lambda: None, name="samples")
    ended.start()
    ended.join()
    health = HealthCheck(Board(), lambda: True, INTERVAL, (), [ended]).check_life()
    assert (health.code, health.body["dead"]) == (503, ["samples"])


class Clock:
    """A clock that is turned by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_ready_means_young_samples_and_a_ledger() -> None:
    clock = Clock()
    board = Board(clock)
    health = HealthCheck(board, lambda: True, INTERVAL, ("main", "other"))
    board.put_cluster(make_pass())
    clock.now += 85
    assert health.check_readiness().code == 503, "the other cluster was not looked at"
    board.note_failure("other", "", "it is away")
    assert health.check_readiness().code == 200, "one that is away does not hold back the rest"
    assert health.check_readiness().body["failing"] == ["other"]
    assert replace(health, ledger_answers=lambda: False).check_readiness().code == 503
    clock.now += 10
    old = health.check_readiness()
    assert old.code == 503
    assert "more than 91 s" in old.body["reasons"][0]


def test_ready_means_streams_and_groups() -> None:
    clock = Clock()
    board = Board(clock)
    health = HealthCheck(board, lambda: True, INTERVAL, ("main",), with_streams={"main"})
    board.put_cluster(make_pass())
    assert health.check_readiness().body["reasons"] == [
        "streams of cluster main were not looked at yet"
    ]
    board.put_stream(make_status(stream="orders"))
    assert health.check_readiness().code == 200
    clock.now += 100
    board.put_cluster(make_pass())
    late = health.check_readiness()
    assert (late.code, late.body["age_seconds"]) == (503, {"main": 100.0})
    # Of several streams one may be gone: the newest tells whether the loop goes on.
    board.put_stream(make_status(stream="bills"))
    assert health.check_readiness().code == 200
    clock.now += 100
    board.put_stream(make_status(stream="bills"))
    assert health.check_readiness().code == 503, "the groups are old"


def test_a_loop_over_streams_that_hangs_is_dead() -> None:
    clock = Clock()
    board = Board(clock)
    health = HealthCheck(board, lambda: True, INTERVAL, ())
    for show in (
        board.note_round,
        lambda: board.put_stream(make_status(stream="orders")),
        lambda: board.note_failure("main", "orders", "it is away"),
    ):
        clock.now += 299
        assert health.check_life().code == 200
        show()
    clock.now += 301
    board.put_cluster(make_pass())
    board.note_failure("main", "", "it is away")
    dead = health.check_life()
    assert (dead.code, dead.body["dead"]) == (503, ["backlog-streams"])
    rare = replace(health, interval=timedelta(minutes=1))
    assert rare.check_life().code == 200, "ten rounds may be longer than five minutes"


class Hanging:
    """A ledger behind a network that swallows everything."""

    def __init__(self) -> None:
        self.ends = threading.Event()
        self.asked = 0

    def now(self) -> object:
        self.asked += 1
        self.ends.wait(2 * PATIENT)
        raise LedgerError("it is away", subject="ledger")

    def __getattr__(self, name: str) -> object:
        raise AssertionError(name)


def test_a_ledger_that_hangs_holds_up_no_answer() -> None:
    board, hanging = Board(), Hanging()
    board.put_cluster(make_pass())
    page, shown = FastAPI(), threading.Semaphore(0)

    def show() -> None:
        shown.release()
        hanging.ends.wait(2 * PATIENT)

    page.add_api_route("/", show)
    with (
        serve(board, hanging, page) as server,  # type: ignore[arg-type]
        ThreadPoolExecutor(60) as pool,
        ExitStack() as last,
    ):
        last.callback(hanging.ends.set)  # before the pool waits for the pages
        pages = [pool.submit(httpx.get, f"{server.url}/", timeout=None) for _ in range(45)]
        for _ in range(40):
            assert shown.acquire(timeout=PATIENT), "as many as the web framework has threads"
        began = time.monotonic()
        asked = [pool.submit(get, f"{server.url}/metrics") for _ in range(4)]
        assert get(f"{server.url}/healthz").status_code == 200
        for answer in asked:
            assert Scraped(answer.result().text).value("backlog_ledger_up") == 0
        assert get(f"{server.url}/readyz").json()["reasons"] == ["the ledger does not answer"]
        wait_until(lambda: hanging.asked, 60, "the ledger is asked")
        assert hanging.asked == 1
        # All the while it hung: no answer waited for it.
        assert time.monotonic() - began < PATIENT / 2
        assert not hanging.ends.is_set()
        assert not any(page.done() for page in pages)
        hanging.ends.set()
        assert {page.result().status_code for page in pages} == {200}
