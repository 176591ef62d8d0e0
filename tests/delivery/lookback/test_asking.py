"""Services that answer, hang, flood, redirect, or are where nobody may be asked."""

from __future__ import annotations

import socket
import threading
import time
from datetime import timedelta

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from backlogctl_delivery.lookback.checkers import MOST_BYTES, Answer
from backlogctl_delivery.lookback.grpc_service import SERVICE
from backlogctl_delivery.lookback.messages import Outcome
from tests.delivery.lookback.world import Answerer, ServeGrpc, ask, make_grpc, make_service

_SHORT = timedelta(milliseconds=500)


def test_it_asks_by_http(answerer: Answerer) -> None:
    answerer.statuses |= {"1": "committed", "2": "rolled_back"}
    service = make_service(f"{answerer.url}/ok?a=b")
    assert [ask(service, one).outcome for one in "123"] == ["committed", "rolled_back", "unknown"]
    assert set(answerer.hosts) == {answerer.url.removeprefix("http://")}


@pytest.mark.parametrize("code", [204, 404, 500, 503])
def test_a_status_other_than_200_settles_nothing(answerer: Answerer, code: int) -> None:
    found = ask(make_service(f"{answerer.url}/status/{code}"))
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
    found = ask(make_service(f"{answerer.url}/raw"))
    assert found.outcome is Outcome.FAILED
    assert reason in found.reason


def test_fault_52_ten_megabytes_are_not_read(answerer: Answerer) -> None:
    found = ask(make_service(f"{answerer.url}/huge", timeout=timedelta(seconds=60)))
    assert found == Answer(Outcome.FAILED, f"its answer has more than {MOST_BYTES} bytes")
    assert answerer.written < 10 << 20


@pytest.mark.parametrize("path", ["hang", "drip", "headers"])
def test_fault_52_one_that_hangs_or_drips_is_left_in_time(answerer: Answerer, path: str) -> None:
    began = time.monotonic()
    found = ask(make_service(f"{answerer.url}/{path}", timeout=_SHORT))
    assert found.outcome is Outcome.FAILED
    assert "0.5 s" in found.reason or path == "headers"
    assert time.monotonic() - began < 60  # the drip alone would take longer


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert ask(make_service(f"http://127.0.0.1:{port}/")).outcome is Outcome.FAILED


def test_it_asks_by_grpc_and_health_can_be_checked(serve_grpc: ServeGrpc) -> None:
    known = {"1": "committed", "2": "rolled_back", "3": "unknown"}
    address = serve_grpc(lambda _, biz_id: known[biz_id])
    service = make_grpc(address)
    assert [ask(service, one).outcome for one in "123"] == ["committed", "rolled_back", "unknown"]
    # What it does not know raises there; that settles nothing.
    assert ask(service, "4") == Answer(Outcome.FAILED, "gRPC status UNKNOWN")
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        stub = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(request, timeout=60).status == health_pb2.HealthCheckResponse.SERVING


def test_fault_52_ten_megabytes_by_grpc_are_not_read(serve_grpc: ServeGrpc) -> None:
    found = ask(make_grpc(serve_grpc(lambda *_: "committed", padding=10 << 20)))
    assert found == Answer(Outcome.FAILED, "gRPC status RESOURCE_EXHAUSTED")


def test_fault_52_a_grpc_service_that_hangs_is_left_in_time(serve_grpc: ServeGrpc) -> None:
    released = threading.Event()

    def hang(*_: str) -> str:
        released.wait(120)
        return "committed"

    try:
        found = ask(make_grpc(serve_grpc(hang), timeout=_SHORT))
    finally:
        released.set()
    assert found.outcome is Outcome.FAILED


def test_what_is_no_grpc_service_settles_nothing(answerer: Answerer) -> None:
    place = answerer.url.removeprefix("http://")
    assert ask(make_grpc(place)).outcome is Outcome.FAILED
