"""Fault 58: where nobody may be asked, by whatever name, number or way it is reached."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import pytest
from pydantic import ValidationError

from backlog.config import LookBackService
from backlogctl_delivery.lookback.asker import make_checker
from backlogctl_delivery.lookback.checkers import Answer, Question, may_ask, read_networks
from backlogctl_delivery.lookback.messages import Outcome
from backlogctl_delivery.lookback.settings import ServiceSettings
from tests.delivery.lookback.world import Answerer, ServeGrpc, ask, make_grpc, make_service


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
