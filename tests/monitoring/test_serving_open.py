"""The server where strangers reach it: half-open connections, other hosts, tokens, TLS (fault 78)."""

from __future__ import annotations

import logging
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from backlog.errors import UsageError
from replay.console.server import connections
from replay.console.server.access import HostGuard, TokenGuard, find_hosts
from replay.console.server.listening import Server, bind_address
from tests.kafka_tools import wait_until

MOST, HEADER_SECONDS = 20, 1.0


def make_app() -> Starlette:
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
        url = stack.enter_context(serve_app(make_app()))
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
    told = [one for one in caplog.records if not one.name.startswith("kafka")]
    assert len(told) < 10


def test_a_slow_second_request_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", HEADER_SECONDS)
    with serve_app(make_app()) as url:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as one:
            one.settimeout(30)
            one.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\nGET /metr")
            seen = b""
            while True:
                try:
                    data = one.recv(1000)
                except ConnectionResetError:
                    break
                if not data:
                    break
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
    with serve_app(HostGuard(make_app(), hosts)) as url:
        assert httpx.get(url, headers={"Host": host}).status_code == code


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret-token\n")
    with serve_app(TokenGuard(make_app(), file)) as url:
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
    with serve_app(TokenGuard(make_app(), file)) as url:
        assert httpx.get(f"{url}/metrics", auth=("anyone", "")).status_code == 401


def test_https_by_files(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    with serve_app(make_app(), (certificate, key)) as url:
        assert url.startswith("https://")
        trusted = ssl.create_default_context(cafile=certificate)
        assert httpx.get(url, verify=trusted).text == "shown"
    with pytest.raises(UsageError, match="certificate or its key cannot be used"):
        Server(make_app(), bind_address("127.0.0.1:0", "--listen"), (key, certificate))
    with pytest.raises(UsageError, match="certificate or its key cannot be used"):
        Server(make_app(), bind_address("127.0.0.1:0", "--listen"), (tmp_path / "no", key))
