"""The server: where it listens, what it answers, and when it says that it is well."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from backlog.clock import utc_now
from backlog.errors import LedgerError, UsageError
from backlog.ledger import Ledger, open_ledger
from monitoring.board import Board, ClusterPass
from monitoring.metrics.scrape import Exported, Scrape
from monitoring.server.app import make_app
from monitoring.server.health import Doctor
from monitoring.server.listening import Server, bind_address, parse_address
from tests.monitoring.metric_lines import Scraped

INTERVAL = timedelta(seconds=30)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as opened:
        yield opened


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
    doctor = Doctor(board, ledger, INTERVAL, ("main",), [threading.current_thread()])
    return Server(make_app(scrape, doctor, page), bind_address("127.0.0.1:0", "--listen"))


def make_pass(age: float = 0.0) -> ClusterPass:
    return ClusterPass("main", utc_now() - timedelta(seconds=age), 1.0, ())


def test_it_answers_plain_and_compressed(ledger: Ledger) -> None:
    board = Board()
    board.put_cluster(make_pass())
    page = FastAPI(docs_url=None)
    page.add_api_route("/", lambda: "the page")
    with serve(board, ledger, page) as server:
        url = server.url
        packed = httpx.get(f"{url}/metrics")
        plain = httpx.get(f"{url}/metrics", headers={"Accept-Encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        for answer in (packed, plain):
            assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            Scraped(answer.text).check()
            assert Scraped(answer.text).value("backlog_pass_seconds", cluster="main") == 1
        refused = httpx.get(f"{url}/metrics", headers={"Accept-Encoding": "gzip;q=0"})
        assert "content-encoding" not in refused.headers
        assert httpx.head(f"{url}/metrics").status_code == 200
        assert httpx.get(f"{url}/").json() == "the page"
        assert httpx.get(f"{url}/nothing").status_code == 404
        assert httpx.get(f"{url}/docs").status_code == 404
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")


def test_alive_and_ready(ledger: Ledger) -> None:
    board = Board()
    with serve(board, ledger) as server:
        ready = httpx.get(f"{server.url}/readyz")
        assert (ready.status_code, httpx.get(f"{server.url}/healthz").status_code) == (503, 200)
        assert "was not looked at yet" in ready.json()["reasons"][0]
        board.put_cluster(make_pass())
        assert httpx.get(f"{server.url}/readyz").json()["status"] == "ok"


def test_a_sampler_that_ended_is_told() -> None:
    ended = threading.Thread(target=lambda: None, name="samples")
    ended.start()
    ended.join()
    health = Doctor(Board(), Now(), INTERVAL, (), [ended]).check_life()
    assert (health.code, health.body["dead"]) == (503, ["samples"])


class Now:
    """A ledger that answers."""

    now = staticmethod(utc_now)


class Away:
    """A ledger that does not."""

    @staticmethod
    def now() -> object:
        raise LedgerError("it is away", subject="ledger")


def test_ready_means_young_samples_and_a_ledger() -> None:
    board = Board()
    doctor = Doctor(board, Now(), INTERVAL, ("main", "other"))
    board.put_cluster(make_pass(age=85))
    assert doctor.check_readiness().code == 503, "the other cluster was not looked at"
    board.note_failure("other", "", "it is away")
    assert doctor.check_readiness().code == 200, "one that is away does not hold back the rest"
    assert doctor.check_readiness().body["failing"] == ["other"]
    assert replace(doctor, ledger=Away()).check_readiness().code == 503  # type: ignore[arg-type]
    board.put_cluster(make_pass(age=95))
    old = doctor.check_readiness()
    assert old.code == 503
    assert "more than 91 s" in old.body["reasons"][0]
