"""Services that answer, hang, flood, redirect, or are where nobody may be asked."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import ValidationError
from sqlalchemy import update

from backlogctl.config import LookBackService
from backlogctl_delivery.lookback.admin import resume_messages
from backlogctl_delivery.lookback.asker import (
    Claim,
    claim_questions,
    claim_unlisted,
    find_pause,
    make_checker,
    park_unprepared,
    record_answer,
)
from backlogctl_delivery.lookback.checkers import (
    MOST_BYTES,
    Answer,
    Question,
    may_ask,
    read_networks,
)
from backlogctl_delivery.lookback.grpc_service import SERVICE
from backlogctl_delivery.lookback.messages import Outcome, State
from backlogctl_delivery.lookback.settings import LookBackSettings, ServiceSettings
from backlogctl_delivery.lookback.tables import MESSAGES, LookBackDatabase
from tests.delivery.kit import (
    Answerer,
    ServeGrpc,
    Teller,
    ask,
    make_grpc,
    make_service,
    make_settings,
)

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


# Fault 58: where nobody may be asked, by whatever name, number or way it is reached.


@dataclass
class Place:
    """A service by one of both protocols, that says it is committed."""

    kind: str
    port: int
    asked: list[str] = field(default_factory=list)

    def make(self, host: str, **changes: Any) -> ServiceSettings:
        """The service at another host; nothing is listed."""
        given = {"networks": [], **changes}
        if self.kind == "http":
            return make_service(f"http://{host}:{self.port}/ok", **given)
        return make_grpc(f"{host}:{self.port}", **given)


@pytest.fixture(params=["http", "grpc"])
def place(request: pytest.FixtureRequest, answerer: Answerer, serve_grpc: ServeGrpc) -> Place:
    if request.param == "http":
        made = Place("http", int(answerer.url.rpartition(":")[2]))
        answerer.on_ask = made.asked.append
        answerer.statuses["1"] = "committed"
        return made
    made = Place("grpc", 0)

    def answer(_: str, biz_id: str) -> str:
        made.asked.append(biz_id)
        return "committed"

    made.port = int(serve_grpc(answer).rpartition(":")[2])
    return made


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
def test_what_is_no_name_is_no_answer(host: str) -> None:
    """And ends no other questions."""
    found = ask(make_service(f"http://{host}/x"))
    assert found.outcome is Outcome.FAILED


def test_fault_58_a_redirect_is_not_followed(answerer: Answerer) -> None:
    answerer.statuses["1"] = "committed"
    found = ask(make_service(f"{answerer.url}/redirect"))
    assert found == Answer(Outcome.FAILED, "HTTP status 307")
    assert answerer.asked["1"] == 1


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "0x7f000001",
            "0x7f.1",
            "0.0.0.0",
            "localhost",
            "10.0.0.1",
            "169.254.169.254",
            "100.64.0.1",
        ),
        *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]"),
        *("[fe80::1]", "[fd00::1]", "[ff02::1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]"),
        *("[2002:7f00:1::]", "[::ffff:0:127.0.0.1]"),
    ],
)
def test_fault_58_an_address_that_is_not_listed_is_not_asked(place: Place, host: str) -> None:
    found = ask(place.make(host))
    assert found.outcome is Outcome.REFUSED, found
    assert place.asked == []


@pytest.mark.parametrize(
    "host", ["127.1", "2130706433", "0", "017700000001", "0177.0.0.1", "[::1", "[1]", "300.1.1.1"]
)
def test_fault_58_a_number_is_no_host(host: str) -> None:
    with pytest.raises(ValidationError, match="must be"):
        LookBackService(http=f"http://{host}:80/")
    with pytest.raises(ValidationError, match="must be"):
        LookBackService(grpc=f"{host}:80")


def test_fault_58_a_zone_is_link_local(answerer: Answerer) -> None:
    found = ask(make_service("http://[fe80::1%25lo]:1/", networks=["fe80::/10"]))
    assert found.outcome is not Outcome.UNKNOWN
    assert not answerer.asked


def test_fault_58_a_name_is_resolved_once_and_all_it_gives_is_looked_at(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebinding: by the time of a second look the name leads elsewhere."""
    answers = iter([["127.0.0.1"], ["169.254.169.254"], ["127.0.0.1", "10.0.0.1"]])
    names: list[Any] = []
    resolve_names(monkeypatch, {"payments.test": lambda: next(answers)}, names)
    service = place.make("payments.test", networks=["127.0.0.0/8"])
    assert ask(service).outcome is Outcome.COMMITTED
    assert (len(names), len(place.asked)) == (1, 1)
    for refused in ("169.254.169.254", "10.0.0.1"):
        found = ask(service)
        assert found.outcome is Outcome.REFUSED
        assert refused in found.reason
    assert len(place.asked) == 1


def test_fault_58_each_question_looks_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is kept from when the name led to where it may be asked."""
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])
    resolve_names(monkeypatch, {"payments.test": lambda: next(answers)})
    found = ask(place.make("payments.test", networks=["127.0.0.0/8"]), "1", "2")
    assert found.outcome is Outcome.REFUSED
    assert place.asked == ["1"]


@pytest.fixture
def trap(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Every variable that names a proxy names this one; what connects to it is in the list."""
    came: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    connection, where = listening.accept()
                except OSError:
                    return
                came.append(where)
                connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
            for each in (name, name.upper()):
                monkeypatch.setenv(each, f"http://127.0.0.1:{listening.getsockname()[1]}")
        for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield came
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def test_fault_58_a_proxy_of_the_environment_is_not_used(
    place: Place, trap: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go where this process may not, and resolve the name itself."""
    resolve_names(monkeypatch, {"payments.test": lambda: ["127.0.0.1"]})
    for host in ("127.0.0.1", "payments.test"):
        assert ask(place.make(host, networks=["127.0.0.0/8"])).outcome is Outcome.COMMITTED
    assert len(place.asked) == 2
    assert trap == []


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [
        *((text, True) for text in ("8.8.8.8", "2606:4700::1111", "10.1.2.3", "::ffff:10.1.2.3")),
        *((text, True) for text in ("64:ff9b::808:808", "64:ff9b::a01:203", "2002:808:808::1")),
        *((text, False) for text in ("10.2.0.1", "127.0.0.1", "0.0.0.0", "169.254.169.254")),
        *((text, False) for text in ("::1", "fe80::1", "fc00::1", "::ffff:169.254.169.254")),
        *((text, False) for text in ("64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "224.0.0.1")),
        *((text, False) for text in ("100.64.0.1", "255.255.255.255", "ff02::1", "::")),
        # Written into IPv6 in ways that Python calls global.
        *((text, False) for text in ("::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b:1::7f00:1")),
        *((text, False) for text in ("fec0::1", "200::1", "5f00::1", "2001::1")),
    ],
)
def test_fault_58_which_addresses_may_be_asked(address: str, is_allowed: bool) -> None:
    assert may_ask(ip_address(address), read_networks(["10.1.0.0/16"])) is is_allowed


def test_fault_52_a_name_server_that_hangs_keeps_only_its_own_questions(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up cannot be given up: its thread stays. The others must not wait for one."""
    released = threading.Event()

    def hang() -> list[str]:
        released.wait(60)
        return []

    resolve_names(monkeypatch, {"hangs.test": hang})
    hanging = place.make("hangs.test", timeout=timedelta(milliseconds=50), at_once=2)

    async def work() -> list[Outcome]:
        stuck = make_checker(hanging)
        good = make_checker(place.make("127.0.0.1", networks=["127.0.0.0/8"]))
        try:
            # As many as wait in vain one after the other in a minute.
            asked = [stuck.ask(Question("payment", str(number))) for number in range(50)]
            outcomes = {answer.outcome for answer in await asyncio.gather(*asked)}
            assert outcomes == {Outcome.FAILED}
            async with asyncio.timeout(20):
                # What the asker itself does meanwhile.
                await asyncio.to_thread(lambda: None)
                return [(await good.ask(Question("payment", "1"))).outcome]
        finally:
            released.set()
            await stuck.close()
            await good.close()

    assert asyncio.run(work()) == [Outcome.COMMITTED]


def resolve_names(
    monkeypatch: pytest.MonkeyPatch,
    known: dict[str, Callable[[], list[str]]],
    asked: list[Any] | None = None,
) -> None:
    """The name server."""
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *arguments: Any, **more: Any) -> Any:
        if host not in known:
            return real(host, port, *arguments, **more)
        if asked is not None:
            asked.append(host)
        family, kind = socket.AF_INET, socket.SOCK_STREAM
        return [(family, kind, 6, "", (address, port)) for address in known[host]()]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


# Messages that fell silent: who is asked, how often, and what an answer changes.

_SERVICE = make_service("http://127.0.0.1:1")


@pytest.fixture
def settings() -> LookBackSettings:
    """Asked at once, three times."""
    return make_settings(
        first_check=timedelta(microseconds=1),
        wait_for_prepare=timedelta(microseconds=1),
        pause=timedelta(microseconds=1),
        longest_pause=timedelta(microseconds=1),
        max_checks=3,
        services={"payments": _SERVICE},
    )


def _claim(database: LookBackDatabase, token: str = "me", service: str = "payments") -> list[Claim]:
    return claim_questions(database, service, token, timedelta(minutes=1), 10)


def test_fault_50_an_answer_that_comes_after_the_commit_changes_nothing(teller: Teller) -> None:
    """RocketMQ #1517: what was committed was asked about all the same."""
    teller.prepare("1")
    (claim,) = _claim(teller.database)
    teller.commit("1")
    before = teller.find("1")
    late = Answer(Outcome.ROLLED_BACK)
    assert record_answer(teller.database, teller.settings, claim, late) is State.FORWARDED
    assert teller.find("1") == before
    # The other way round: the application's word comes after the answer.
    teller.prepare("2")
    (claim,) = _claim(teller.database)
    record_answer(teller.database, teller.settings, claim, Answer(Outcome.COMMITTED))
    row = teller.find("2")
    assert (row["state"], row["decided_by"]) == (State.FORWARDING, "look-back")
    teller.roll_back("2")
    assert teller.find("2") == row


def test_fault_50_two_instances_never_hold_the_same_message(teller: Teller) -> None:
    for number in range(4):
        teller.prepare(str(number))
    first, second = _claim(teller.database, "one"), _claim(teller.database, "two")
    assert (len(first), second) == (4, [])
    with teller.database.write() as connection:
        past = teller.database.now(connection) - timedelta(seconds=1)
        connection.execute(update(MESSAGES).values(lease_until=past))
    (taken, *_) = _claim(teller.database, "two")
    # Whose lease has ended says nothing any more.
    stale = next(claim for claim in first if claim.id == taken.id)
    record_answer(teller.database, teller.settings, stale, Answer(Outcome.ROLLED_BACK))
    assert teller.state(taken.row["biz_id"]) == State.PREPARED
    record_answer(teller.database, teller.settings, taken, Answer(Outcome.COMMITTED))
    assert teller.state(taken.row["biz_id"]) == State.FORWARDING


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.FAILED, Outcome.REFUSED])
def test_what_settles_nothing_is_no_roll_back_and_parks_in_the_end(
    teller: Teller, outcome: Outcome
) -> None:
    """RocketMQ-dashboard #4435: what was given up could not be taken up again."""
    teller.prepare("1")
    for asked in (1, 2, 3):
        (claim,) = _claim(teller.database)
        assert claim.row["checks"] == asked - 1
        record_answer(teller.database, teller.settings, claim, Answer(outcome, "why"))
    row = teller.find("1")
    assert (row["state"], row["decision"], row["checks"]) == (State.PARKED, None, 3)
    assert row["last_outcome"] == f"{outcome}: why"
    assert _claim(teller.database) == []
    resume_messages(teller.database, teller.settings, [row["id"]], 1)
    (claim,) = _claim(teller.database)
    assert claim.row["checks"] == 0
    record_answer(teller.database, teller.settings, claim, Answer(Outcome.COMMITTED))
    assert teller.state("1") == State.FORWARDING


def test_neither_waiting_nor_a_crash_uses_up_checks(teller: Teller) -> None:
    """RocketMQ #8311: what was still too young to be asked about was counted as asked."""
    teller.prepare("1")
    with teller.database.write() as connection:
        now = teller.database.now(connection)
        connection.execute(update(MESSAGES).values(next_at=now + timedelta(hours=1)))
    assert _claim(teller.database) == []
    assert teller.find("1")["checks"] == 0
    with teller.database.write() as connection:
        connection.execute(update(MESSAGES).values(next_at=now))
    for _ in range(5):  # claimed, and the instance dies before it asks
        assert len(_claim(teller.database)) == 1
        with teller.database.write() as connection:
            connection.execute(update(MESSAGES).values(lease_until=now))
    row = teller.find("1")
    assert (row["checks"], row["state"]) == (0, State.PREPARED)


def test_a_service_is_not_in_the_way_of_another(teller: Teller) -> None:
    for number in range(20):
        teller.prepare(str(number))
    teller.prepare("other", service="orders")
    assert [one.row["biz_id"] for one in _claim(teller.database, service="orders")] == ["other"]
    teller.prepare("nobody", service='x"; DROP TABLE look_back_messages; --')
    teller.prepare("other-2", service="orders")
    found = claim_unlisted(teller.database, teller.settings, "me", 10)
    assert {one.row["biz_id"] for one in found} == {"nobody", "other-2"}


def test_a_commit_without_its_prepare_is_parked_and_says_so(teller: Teller) -> None:
    teller.commit("1")
    assert park_unprepared(teller.database) == 1
    row = teller.find("1")
    assert (row["state"], row["decision"]) == (State.PARKED, "committed")
    assert "has not come" in row["parked_because"]


def test_pauses_grow_up_to_the_longest() -> None:
    settings = make_settings(pause=timedelta(minutes=1), longest_pause=timedelta(hours=1))
    pauses = [find_pause(settings, tries).total_seconds() / 60 for tries in (1, 2, 3, 7, 99_999)]
    assert pauses == [1, 2, 4, 60, 60]
