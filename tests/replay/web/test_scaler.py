"""How many consumers KEDA and HPAs are told, over the wire and on a real broker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from fastapi import FastAPI
from grpc_health.v1 import health_pb2, health_pb2_grpc

from backlogctl.config import Config, Stream
from backlogctl.errors import LedgerError, UsageError
from backlogctl.kafka.clients import make_producer
from backlogctl.ledger import Ledger
from backlogctl.monitoring.metrics.scrape import Exported, Scrape
from backlogctl.monitoring.watch.board import Board
from backlogctl.monitoring.watch.loop import watch_streams
from backlogctl.monitoring.watch.notes import with_stopped_warning
from backlogctl.monitoring.watch.scaler import (
    Scaler,
    ScalerAnswer,
)
from backlogctl.replay.web import scaler as service
from backlogctl.replay.web.app import HealthCheck, make_web_app
from backlogctl.replay.web.exporter import open_exporter
from backlogctl.replay.web.externalscaler_pb2 import (
    GetMetricSpecResponse,
    GetMetricsRequest,
    GetMetricsResponse,
    IsActiveResponse,
    ScaledObjectRef,
)
from backlogctl.replay.web.scaler import serve_scaler
from backlogctl.replay.web.server import Server, bind_address
from backlogctl.values import RecoveryState
from tests.conftest import MakeTopic
from tests.kit.kafka import (
    StreamStub,
    commit,
    delete_group,
    join,
    leave_at,
    move_log_start,
    publish,
    wait_until,
)
from tests.kit.ledger import approve, create_recovery
from tests.monitoring.live_watch import look
from tests.monitoring.notifications.hook_server import make_certificate
from tests.monitoring.test_scaler import LOSING, REPLICAS, WINDOW, make_lag, make_seen, spread
from tests.monitoring.test_serving import Clock
from tests.replay.doctor.world import make_workspace

INTERVAL = timedelta(seconds=30)
WITHIN = 60.0  # seconds; a busy machine may let a call wait


# Over the wire, as KEDA asks.


class Keda:
    """A client as KEDA is one: `StreamIsActive` and the three calls."""

    def __init__(self, channel: Any) -> None:
        def find(method: str, answer: Any, kind: str = "unary_unary") -> Any:
            make = getattr(channel, kind)
            return make(
                f"/externalscaler.ExternalScaler/{method}",
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=answer.FromString,
            )

        self._active = find("IsActive", IsActiveResponse)
        self._stream = find("StreamIsActive", IsActiveResponse, "unary_stream")
        self._spec = find("GetMetricSpec", GetMetricSpecResponse)
        self._metrics = find("GetMetrics", GetMetricsResponse)

    def is_active(self, stream: str = "orders") -> bool:
        return bool(self._active(refer(stream), timeout=WITHIN).result)

    def open_stream(self, stream: str = "orders") -> Any:
        return self._stream(refer(stream), timeout=WITHIN)

    def read_target(self, stream: str = "orders") -> tuple[str, int, float]:
        (spec,) = self._spec(refer(stream), timeout=WITHIN).metricSpecs
        return spec.metricName, spec.targetSize, spec.targetSizeFloat

    def read_metric(self, stream: str = "orders") -> float:
        request = GetMetricsRequest(scaledObjectRef=refer(stream), metricName="consumers")
        (value,) = self._metrics(request, timeout=WITHIN).metricValues
        assert (value.metricName, value.metricValue) == ("consumers", value.metricValueFloat)
        return float(value.metricValueFloat)

    def read_error(self, stream: str = "orders") -> tuple[str, str]:
        """The status of both questions, which must be the same, and its sentence."""
        told = set()
        for ask in (self.is_active, self.read_metric):
            with pytest.raises(grpc.RpcError) as caught:
                ask(stream)
            error: Any = caught.value
            told.add((error.code().name, error.details()))
        (found,) = told
        return found


def refer(stream: str) -> ScaledObjectRef:
    return ScaledObjectRef(
        name="order-service", namespace="shop", scalerMetadata={"stream": stream} if stream else {}
    )


def make_streams(**consumers: Mapping[str, Any] | None) -> Mapping[str, Stream]:
    """Streams of these names, each with its section `consumers`."""
    streams = {
        name: {
            "cluster": "main",
            "topic": name,
            "group": "order-service",
            **({} if section is None else {"consumers": section}),
        }
        for name, section in consumers.items()
    }
    document = {"clusters": {"main": {"bootstrap.servers": "127.0.0.1:1"}}, "streams": streams}
    return Config.from_text(json.dumps(document)).streams


MANUAL = {"launcher": "manual", "replicas": REPLICAS}


def make_scaler(ledger: Ledger, board: Board) -> Scaler:
    streams = make_streams(orders=MANUAL, bills=None)
    return Scaler(board, ledger, streams, INTERVAL, timedelta(seconds=WINDOW))


@contextmanager
def ask(scaler: Scaler) -> Iterator[Keda]:
    with (
        serve_scaler(scaler, "127.0.0.1:0", "watch.scaler") as address,
        grpc.insecure_channel(address) as channel,
    ):
        yield Keda(channel)


def test_keda_comes_to_the_number(ledger: Ledger) -> None:
    board = Board()
    board.put_stream(make_seen(*spread([4000] * 12, course=LOSING)))
    with ask(make_scaler(ledger, board)) as keda:
        assert keda.read_target() == ("consumers", 1, 1.0)
        assert (keda.read_metric(), keda.is_active()) == (12.0, True)
        board.put_stream(make_seen(*spread([0] * 12)))
        assert (keda.read_metric(), keda.is_active()) == (0.0, False)


def test_what_is_not_known_is_an_error_and_never_zero(ledger: Ledger) -> None:
    clock = Clock()
    board = Board(clock)
    with ask(make_scaler(ledger, board)) as keda:
        assert keda.read_error() == ("UNAVAILABLE", "stream orders: it was not looked at yet")
        # Without a target KEDA makes no HPA: it is told all the same.
        assert keda.read_target()[0] == "consumers"
        board.put_stream(make_seen(*spread([0] * 12)))
        assert keda.read_metric() == 0
        board.note_failure("main", "orders", "cluster main: no broker answered")
        assert keda.read_error() == (
            "UNAVAILABLE",
            "stream orders: the last look failed: cluster main: no broker answered",
        )
        board.put_stream(make_seen(*spread([0] * 12)))
        clock.now += 89
        assert keda.read_metric() == 0
        clock.now += 2
        told = ("UNAVAILABLE", "stream orders: the last look was 1 min 31 s ago")
        assert keda.read_error() == told
        board.put_stream(make_seen(*spread([0, None])))
        assert keda.read_error()[0] == "UNAVAILABLE"


def test_a_ledger_that_is_away_may_hide_a_recovery(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LedgerError("it does not answer", subject="ledger")

    board = Board()
    board.put_stream(make_seen(*spread([0] * 12)))
    monkeypatch.setattr(ledger.recoveries, "list", fail)
    with ask(make_scaler(ledger, board)) as keda:
        code, told = keda.read_error()
    assert code == "UNAVAILABLE"
    assert told.endswith("whether a recovery has stopped its consumers is not known: ledger: it does not answer")  # fmt: skip


def test_what_cannot_be_scaled_is_named(ledger: Ledger) -> None:
    with ask(make_scaler(ledger, Board())) as keda:
        assert keda.read_error("")[0] == "INVALID_ARGUMENT"
        code, told = keda.read_error("ordres")
        assert (code, told[:40]) == ("INVALID_ARGUMENT", "stream ordres: there is no such stream (")
        code, told = keda.read_error("bills")
        assert code == "FAILED_PRECONDITION"
        assert "`streams.bills.consumers`" in told
        with pytest.raises(grpc.RpcError):
            keda.read_target("ordres")


def test_a_fault_of_ours_is_an_error_too(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("secret")

    scaler = make_scaler(ledger, Board())
    monkeypatch.setattr(scaler, "answer", fail)
    with ask(scaler) as keda:
        assert keda.read_error() == ("INTERNAL", "internal error (ZeroDivisionError)")
    assert "an answer to KEDA" in caplog.text


def test_a_recovery_is_not_fought(ledger: Ledger) -> None:
    """From the moment on in which it stops the consumers, until they are looked at after it."""
    board, seen = Board(), make_seen(*spread([4000] * 12, course=LOSING))
    board.put_stream(seen)
    recovery = create_recovery(ledger, "expand", group="order-service", plan_hash="0" * 64)
    approve(ledger, recovery)
    ledger.recoveries.advance(recovery.id, RecoveryState.RUNNING, "ada")
    held = f"stream orders: its consumers are stopped by expand {recovery.id}: start and end none"
    with ask(make_scaler(ledger, board)) as keda:
        assert keda.read_metric() == 12, "it has stopped nobody yet"
        ledger.steps.start(recovery.id, "stop_consumers")
        assert keda.read_error() == ("FAILED_PRECONDITION", held), "the last look was before that"
        # Its group has no lag meanwhile: what it has to read is in the temporary topic.
        stopped = with_stopped_warning(ledger, make_seen(*spread([0] * 12)))
        board.put_stream(stopped)
        board.note_failure("main", "orders", "it is away")
        assert keda.read_error() == ("FAILED_PRECONDITION", held)
        assert keda.read_target()[0] == "consumers"
        board.put_stream(stopped)
        ledger.steps.start(recovery.id, "restore")
        ledger.steps.complete(recovery.id, "restore", {})
        assert keda.read_error() == ("FAILED_PRECONDITION", held), "that look says nothing of now"
        board.put_stream(with_stopped_warning(ledger, seen))
        assert keda.read_metric() == 12


def test_a_stream_of_activity_tells_changes_and_ends_with_what_is_unknown(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_STREAM_SECONDS", 0.05)
    board = Board()
    board.put_stream(make_seen(*spread([0] * 12)))
    scaler = make_scaler(ledger, board)
    answer, asked = scaler.answer, list[str]()

    def note(name: str) -> ScalerAnswer:
        asked.append(name)
        return answer(name)

    monkeypatch.setattr(scaler, "answer", note)
    with ask(scaler) as keda:
        told = keda.open_stream()
        assert next(told).result is False
        board.put_stream(make_seen(*spread([0, 5])))
        assert next(told).result is True
        before = len(asked)
        wait_until(lambda: len(asked) > before + 3, WITHIN, "it is looked at again and again")
        board.note_failure("main", "orders", "it is away")
        with pytest.raises(grpc.RpcError) as caught:
            next(told)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        board.put_stream(make_seen(*spread([0, 6])))
        left = keda.open_stream()
        assert next(left).result is True
        began = time.monotonic()
    # Open streams do not keep the process.
    assert time.monotonic() - began < 10


def test_open_streams_leave_threads_for_the_calls(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_MOST_STREAMS", 3)
    monkeypatch.setattr(service, "_THREADS", 1)
    board = Board()
    board.put_stream(make_seen(*spread([5] * 12)))
    with ask(make_scaler(ledger, board)) as keda:
        streams = [keda.open_stream() for _ in range(3)]
        assert all(next(one).result for one in streams)
        with pytest.raises(grpc.RpcError) as caught:
            next(keda.open_stream())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert keda.read_metric() == REPLICAS
        streams.pop().cancel()

        def opens() -> bool:
            try:
                return bool(next(keda.open_stream()).result)
            except grpc.RpcError:
                return False

        wait_until(opens, WITHIN, "one that ended makes room")


def test_with_tls_and_health(ledger: Ledger, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    board = Board()
    board.put_stream(make_seen(*spread([5] * 12)))
    scaler = make_scaler(ledger, board)
    with serve_scaler(scaler, "127.0.0.1:0", "watch.scaler", (certificate, key)) as address:
        trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(address, trusted) as channel:
            assert Keda(channel).read_metric() == REPLICAS
            for name in ("", "externalscaler.ExternalScaler"):
                request = health_pb2.HealthCheckRequest(service=name)
                check = health_pb2_grpc.HealthStub(channel).Check(request, timeout=WITHIN)
                assert check.status == health_pb2.HealthCheckResponse.SERVING
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
            Keda(channel).read_metric()


def test_an_address_that_cannot_be_had_is_named(ledger: Ledger, tmp_path: Path) -> None:
    scaler = make_scaler(ledger, Board())
    with (
        serve_scaler(scaler, "127.0.0.1:0", "watch.scaler") as taken,
        pytest.raises(UsageError, match=f"watch.scaler: {taken} cannot be listened on"),
        serve_scaler(scaler, taken, "watch.scaler"),
    ):
        pass
    for address, tls in (("9322", None), ("127.0.0.1:0", (tmp_path / "no", tmp_path / "none"))):
        with (
            pytest.raises(UsageError, match=r"watch\.scaler"),
            serve_scaler(scaler, address, "watch.scaler", tls),
        ):
            pass


def test_the_same_as_json(ledger: Ledger) -> None:
    board = Board()
    scaler = make_scaler(ledger, board)
    scrape = Scrape(board, ledger, Exported({}, ("main",)))
    check = HealthCheck(board, lambda: True, INTERVAL, ("main",))
    app = make_web_app(scrape, check, FastAPI(), scaler)
    with Server(app, bind_address("127.0.0.1:0", "--listen")) as server:

        def get(stream: str = "orders") -> httpx.Response:
            return httpx.get(f"{server.url}/scaler/{stream}", timeout=WITHIN)

        unknown = get()
        assert (unknown.status_code, unknown.json()) == (
            503,
            {"stream": "orders", "error": "stream orders: it was not looked at yet"},
        )
        assert unknown.headers["cache-control"] == "no-store"
        assert (get("ordres").status_code, get("bills").status_code) == (404, 503)
        seen = make_seen(make_lag(0, 40), make_lag(1, None, log_start=5000), make_lag(2, 0))
        board.put_stream(seen)
        found = get()
        assert found.status_code == 200
        assert found.json() == {
            "stream": "orders",
            "consumers": 1,
            "active": True,
            "why": "as many as in normal times; only 1 partition to read",
            "verdict": "ok",
            "lag": 40,
            "partitions": [
                {"partition": 0, "lag": 40, "at_most": 40},
                {"partition": 1, "lag": 0, "at_most": 0},
                {"partition": 2, "lag": 0, "at_most": 0},
            ],
            "consumers_to_win": None,
            "taken_at": found.json()["taken_at"],
        }
        board.put_stream(replace(seen, stopped_by="expand r-1"))
        held = get()
        assert held.status_code == 409
        assert "stopped by expand r-1" in held.json()["error"]


# On a real broker: each case in which KEDA's own Kafka scaler scales by what nobody can read, or
# does not scale by what is there. A topic has 12 partitions; 6 consumers run in normal times.

Prepare = Callable[[dict[str, str], str, str], None]


def leave_nothing(properties: dict[str, str], name: str, group: str) -> None:
    publish(properties, name, {0: 20})
    commit(properties, group, name, {0: 20})


def never_commit(properties: dict[str, str], name: str, group: str) -> None:
    publish(properties, name, {0: 20})


def expire_all(properties: dict[str, str], name: str, group: str) -> None:
    publish(properties, name, {0: 20, 1: 30})
    move_log_start(properties, name, {0: 20, 1: 30})


def lose_the_commit(properties: dict[str, str], name: str, group: str) -> None:
    """As `offsets.retention.minutes` does to a group that was left."""
    leave_nothing(properties, name, group)
    publish(properties, name, {0: 5})
    delete_group(properties, group)


def overtake(properties: dict[str, str], name: str, group: str) -> None:
    publish(properties, name, {0: 100})
    commit(properties, group, name, {0: 10})
    move_log_start(properties, name, {0: 90})


def overtake_all(properties: dict[str, str], name: str, group: str) -> None:
    overtake(properties, name, group)
    move_log_start(properties, name, {0: 100})


def commit_beyond(properties: dict[str, str], name: str, group: str) -> None:
    publish(properties, name, {0: 20})
    leave_at(properties, group, name, {0: 500})


def lag_on_two(properties: dict[str, str], name: str, group: str) -> None:
    publish(properties, name, {0: 20, 7: 20})
    commit(properties, group, name, {0: 10, 7: 10})


def end_with_a_marker(properties: dict[str, str], name: str, group: str) -> None:
    producer = make_producer(properties, {"transactional.id": f"shop-{group}"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(name, b"value", b"key", 0)
    producer.commit_transaction(60)
    commit(properties, group, name, {0: 1})


def leave_open(properties: dict[str, str], name: str, group: str) -> None:
    """Nothing behind an open transaction can be read: to its lag it counts only later."""
    leave_nothing(properties, name, group)
    producer = make_producer(properties, {"transactional.id": f"open-{group}"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(name, b"value", b"key", 0)
    producer.flush(60)


CASES: dict[str, tuple[Prepare, float, bool, int | None]] = {
    "caught up": (leave_nothing, 0, False, 0),
    "never committed": (never_commit, 1, True, None),
    "never committed, and all expired": (expire_all, 0, False, 0),
    "the commit is gone": (lose_the_commit, 1, True, None),
    "retention has passed the commit": (overtake, 1, True, 10),
    "retention has passed all": (overtake_all, 0, False, 0),
    "the commit is beyond the end": (commit_beyond, 1, True, None),
    "lag on two partitions": (lag_on_two, 2, True, 20),
    "only a marker is left": (end_with_a_marker, 0, False, 0),
    "behind an open transaction": (leave_open, 0, False, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_what_its_own_scaler_gets_wrong(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger, case: str
) -> None:
    prepare, consumers, active, lag = CASES[case]
    name = topic(partitions=12)
    prepare(properties, name, group)
    stream = StreamStub(name, group)
    look(ledger, properties, stream)  # one sample does not tell whether anything is written
    board = Board()
    board.put_stream(look(ledger, properties, stream))
    streams = make_streams(orders={**MANUAL, "replicas": 6})
    streams = {"orders": streams["orders"].model_copy(update={"topic": name, "group": group})}
    scaler = Scaler(board, ledger, streams, INTERVAL, timedelta(seconds=WINDOW))
    with ask(scaler) as keda:
        assert (keda.read_metric(), keda.is_active()) == (consumers, active)
    assert scaler.answer("orders").lag == lag


def test_watch_answers_keda(
    properties: dict[str, str], topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    """All of it together: what cannot be looked at is an error, and holds up no other stream."""
    name = topic(partitions=4)
    publish(properties, name, {0: 20, 1: 20})
    stream = {
        "cluster": "main",
        "topic": name,
        "group": group,
        "consumers": {"launcher": "manual", "replicas": 2},
    }
    workspace = make_workspace(
        tmp_path,
        properties,
        streams={"orders": stream, "bills": {**stream, "topic": f"{name}-missing"}},
        watch={"scaler": "127.0.0.1:0", "interval": "1s", "window": "1m"},
    )
    stop = threading.Event()
    with open_exporter(workspace, "127.0.0.1:0", "--listen", lambda *_: None) as exporter:
        loop = threading.Thread(
            target=watch_streams,
            args=(workspace.config, workspace.ledger, timedelta(seconds=1), stop),
            kwargs={"on_status": exporter.note, "on_error": exporter.note_failure},
        )
        loop.start()
        member = None
        try:
            with grpc.insecure_channel(exporter.scaler) as channel:
                keda = Keda(channel)

                def read(stream: str) -> int:
                    return httpx.get(f"{exporter.url}/scaler/{stream}", timeout=WITHIN).status_code

                wait_until(lambda: read("orders") == 200, WITHIN, "it is looked at")
                assert (keda.read_metric(), keda.is_active()) == (2, True)
                wait_until(lambda: "failed" in keda.read_error("bills")[1], WITHIN, "it is missing")
                assert keda.read_error("bills")[0] == "UNAVAILABLE"
                assert read("bills") == 503
                # It has members now, and no commit: nobody knows what they have to read.
                member = join(properties, group, name)
                wait_until(lambda: read("orders") == 503, WITHIN, "it is in the group")
                assert "no committed offset" in keda.read_error()[1]
        finally:
            stop.set()
            loop.join(90)
            if member is not None:
                member.close()
    workspace.ledger.close()
