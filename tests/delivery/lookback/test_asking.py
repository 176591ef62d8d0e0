"""Services that answer, hang, flood, redirect, or are where nobody may be asked."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from backlog.config import LookBackService
from delivery.lookback.asker import make_checker
from delivery.lookback.asking.addresses import may_ask, read_networks
from delivery.lookback.asking.interface import MOST_BYTES, Answer, Question
from delivery.lookback.grpc_server import SERVICE, add_look_back
from delivery.lookback.states import Outcome
from tests.delivery.lookback.world import LOOPBACK, Answerer, make_service

_SHORT = timedelta(milliseconds=500)


def _ask(service: LookBackService, biz_id: str = "1") -> Answer:
    async def ask() -> Answer:
        checker = make_checker(service)
        try:
            return await checker.ask(Question("payment", biz_id))
        finally:
            await checker.close()

    return asyncio.run(ask())


def test_it_asks_by_http(answerer: Answerer) -> None:
    answerer.statuses |= {"1": "committed", "2": "rolled_back"}
    service = make_service(f"{answerer.url}/ok?a=b")
    assert [_ask(service, one).outcome for one in "123"] == ["committed", "rolled_back", "unknown"]
    assert set(answerer.hosts) == {answerer.url.removeprefix("http://")}


@pytest.mark.parametrize("code", [204, 404, 500, 503])
def test_a_status_other_than_200_settles_nothing(answerer: Answerer, code: int) -> None:
    found = _ask(make_service(f"{answerer.url}/status/{code}"))
    assert found == Answer(Outcome.FAILED, f"HTTP status {code}")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"nonsense", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 50_000, "not JSON"),
        (b"", "not JSON"),
        (b"[1]", "its status is none of"),
        (b"{}", "its status is none of"),
        (b'{"status":["committed"]}', "its status is none of"),
        (b'{"status":"COMMITTED"}', "its status is none of"),
    ],
)
def test_what_is_no_answer_settles_nothing(answerer: Answerer, raw: bytes, reason: str) -> None:
    answerer.raw = raw
    found = _ask(make_service(f"{answerer.url}/raw"))
    assert found.outcome is Outcome.FAILED
    assert reason in found.reason


def test_fault_52_ten_megabytes_are_not_read(answerer: Answerer) -> None:
    found = _ask(make_service(f"{answerer.url}/huge", timeout=timedelta(seconds=60)))
    assert found == Answer(Outcome.FAILED, f"its answer has more than {MOST_BYTES} bytes")
    assert answerer.written < 10 << 20


@pytest.mark.parametrize("path", ["hang", "drip"])
def test_fault_52_one_that_hangs_or_drips_is_left_in_time(answerer: Answerer, path: str) -> None:
    began = time.monotonic()
    found = _ask(make_service(f"{answerer.url}/{path}", timeout=_SHORT))
    assert found.outcome is Outcome.FAILED
    assert "0.5 s" in found.reason
    assert time.monotonic() - began < 60  # the drip alone would take longer


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert _ask(make_service(f"http://127.0.0.1:{port}/")).outcome is Outcome.FAILED


def test_fault_58_a_redirect_is_not_followed(answerer: Answerer) -> None:
    answerer.statuses["1"] = "committed"
    found = _ask(make_service(f"{answerer.url}/redirect"))
    assert found == Answer(Outcome.FAILED, "HTTP status 307")
    assert answerer.asked["1"] == 1


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_fault_58_an_address_that_is_not_listed_is_not_asked(answerer: Answerer, kind: str) -> None:
    place = answerer.url.removeprefix("http://")
    address = {"http": answerer.url} if kind == "http" else {"grpc": place, "tls": False}
    found = _ask(LookBackService.model_validate(address))
    assert found.outcome is Outcome.REFUSED
    assert "127.0.0.1" in found.reason
    assert not answerer.asked


def test_fault_58_a_name_is_resolved_once_and_all_it_gives_is_looked_at(
    answerer: Answerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(answerer.url.rpartition(":")[2])
    answers = iter([["127.0.0.1"], ["169.254.169.254"], ["127.0.0.1", "10.0.0.1"]])
    names: list[Any] = []
    real = socket.getaddrinfo

    def resolve(host: Any, *arguments: Any, **more: Any) -> Any:
        if host != "payments.test":
            return real(host, *arguments, **more)
        names.append(host)
        family, kind = socket.AF_INET, socket.SOCK_STREAM
        return [(family, kind, 6, "", (address, port)) for address in next(answers)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    service = make_service(f"http://payments.test:{port}/ok")
    assert _ask(service).outcome is Outcome.UNKNOWN
    assert (len(names), answerer.hosts) == (1, [f"payments.test:{port}"])
    for refused in ("169.254.169.254", "10.0.0.1"):
        found = _ask(service)
        assert found.outcome is Outcome.REFUSED
        assert refused in found.reason
    assert len(answerer.hosts) == 1


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [
        *((text, True) for text in ("8.8.8.8", "2606:4700::1111", "10.1.2.3", "::ffff:10.1.2.3")),
        *((text, False) for text in ("10.2.0.1", "127.0.0.1", "0.0.0.0", "169.254.169.254")),
        *((text, False) for text in ("::1", "fe80::1", "fc00::1", "::ffff:169.254.169.254")),
        *((text, False) for text in ("64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "224.0.0.1")),
        *((text, False) for text in ("100.64.0.1", "255.255.255.255", "ff02::1", "::")),
    ],
)
def test_fault_58_which_addresses_may_be_asked(address: str, is_allowed: bool) -> None:
    assert may_ask(ip_address(address), read_networks(["10.1.0.0/16"])) is is_allowed


@pytest.fixture
def serve_grpc() -> Iterator[Callable[[Callable[[str, str], str]], str]]:
    """Starts a gRPC server that answers by the function; gives its address."""
    servers: list[Any] = []
    pool = ThreadPoolExecutor(4)

    def serve(answer: Callable[[str, str], str]) -> str:
        server = grpc.server(pool)
        add_look_back(server, answer)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield serve
    for server in servers:
        server.stop(None).wait(30)
    pool.shutdown()


def _make_grpc(address: str, **changes: Any) -> LookBackService:
    document = {"grpc": address, "tls": False, "networks": LOOPBACK, **changes}
    return LookBackService.model_validate(document)


def test_it_asks_by_grpc_and_health_can_be_checked(serve_grpc: Any) -> None:
    known = {"1": "committed", "2": "rolled_back", "3": "unknown"}
    address = serve_grpc(lambda _, biz_id: known[biz_id])
    service = _make_grpc(address)
    assert [_ask(service, one).outcome for one in "123"] == ["committed", "rolled_back", "unknown"]
    # What it does not know raises there; that settles nothing.
    assert _ask(service, "4") == Answer(Outcome.FAILED, "gRPC status UNKNOWN")
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        stub = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(request, timeout=60).status == health_pb2.HealthCheckResponse.SERVING


def test_fault_52_a_grpc_service_that_hangs_is_left_in_time(serve_grpc: Any) -> None:
    released = threading.Event()

    def hang(*_: str) -> str:
        released.wait(120)
        return "committed"

    try:
        found = _ask(_make_grpc(serve_grpc(hang), timeout=_SHORT))
    finally:
        released.set()
    assert found.outcome is Outcome.FAILED


def test_what_is_no_grpc_service_settles_nothing(answerer: Answerer) -> None:
    place = answerer.url.removeprefix("http://")
    assert _ask(_make_grpc(place)).outcome is Outcome.FAILED
