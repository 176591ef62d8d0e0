"""Hooks that hang, fail, refuse and come back: said once, tried on, and nobody waits for them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from backlog.errors import BacklogError, ClusterUnreachable
from monitoring.notifications.delivery import Pauses
from monitoring.notifications.messages import Message
from monitoring.notifications.notifier import Notifier, check_hooks
from monitoring.notifications.posting import Answer, Line, Outcome
from monitoring.verdicts import Verdict
from tests.kafka_tools import StreamStub, wait_until
from tests.monitoring.notifications.hook_server import OK, HookServer, Reply, Request, serve_hook
from tests.monitoring.notifications.makers import COMMAND, make_hook, make_look

QUICK = Pauses((0.05, 0.1, 0.2), refused=0.3)
MESSAGE = Message(b"{}", {"Content-Type": "application/json"})
KEY = "0123456789abcdef0123456789abcdef"


class Said:
    """What is said of hooks that fail, and work again."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, what: str, error: BacklogError | None) -> None:
        self.texts.append(f"{what}: {error.message if error else 'works again'}")


class Scripted:
    """Answers by a list; the last one goes on."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)

    def __call__(self, _: Request) -> Reply:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


def notify(said: Said, hooks: Mapping[str, Mapping[str, Any]]) -> Notifier:
    made = {name: make_hook(**document) for name, document in hooks.items()}
    return Notifier(made, said, pauses=QUICK)


def find_verdicts(server: HookServer) -> list[tuple[str | None, str]]:
    return [(found["before"], found["verdict"]) for found in server.documents]


def count(notifier: Notifier, hook: str = "team") -> dict[str, int]:
    return {outcome: n for (name, outcome), n in notifier.counts.read().items() if name == hook}


def test_each_kind_is_told_of_a_change_and_its_end() -> None:
    said = Said()
    with serve_hook() as server:
        hooks = {
            "team": {"slack": f"{server.url}/slack"},
            "oncall": {"pagerduty": KEY, "pagerduty_url": f"{server.url}/pagerduty"},
            "bus": {"webhook": f"{server.url}/webhook", "token": "t0ken"},
        }
        with notify(said, hooks) as notifier:
            notifier.note(make_look(Verdict.OK))
            wait_until(lambda: server.requests, 30)  # PagerDuty's: an earlier process may have died
            for verdict in (Verdict.STOP, Verdict.STOP):
                notifier.note(make_look(verdict))
            wait_until(lambda: len(server.requests) >= 4, 30)
            for _ in range(2):
                notifier.note(make_look(Verdict.OK))
            wait_until(lambda: len(server.requests) >= 7, 30)
        by_path: dict[str, list[Request]] = {}
        for request in server.requests:
            assert request.headers["Content-Type"] == "application/json"
            by_path.setdefault(request.path, []).append(request)
    slack = [request.document["text"] for request in by_path["/slack"]]
    assert slack == [
        f"*orders*: ok → *stop*\norders/0: this is stop\nnext: `{COMMAND}`",
        "*orders*: stop → *ok*\norders/0: this is ok",
    ]
    actions = [request.document["event_action"] for request in by_path["/pagerduty"]]
    assert actions == ["resolve", "trigger", "resolve"]
    assert len({request.document["dedup_key"] for request in by_path["/pagerduty"]}) == 1
    webhook = by_path["/webhook"]
    assert [request.document["verdict"] for request in webhook] == ["stop", "ok"]
    assert {request.headers["Authorization"] for request in webhook} == {"Bearer t0ken"}
    assert said.texts == []
    assert count(notifier) == {"delivered": 2, "failed": 0, "refused": 0, "replaced": 0}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(500, body="<html>sorry</html>"), "it answered 500"),
        (Reply(503, body="rollup_error"), "it answered 503: rollup_error"),
        (Reply(hangs=60), "no answer in 0.3 s"),
        (Reply(drips=True), "no answer in 0.3 s"),
    ],
)
def test_a_hook_that_fails_is_said_once_and_tried_until_it_works(reply: Reply, reason: str) -> None:
    said = Said()
    with serve_hook(lambda _: reply) as server:
        hook = {"webhook": server.url, "timeout": "300ms"}
        with notify(said, {"team": hook}) as notifier:
            notifier.note(make_look(Verdict.STOP))
            wait_until(lambda: count(notifier)["failed"] >= 5, 60)
            assert said.texts == [f"hook team: {reason}"]
            server.answer = lambda _: OK
            server.ended.set()
            wait_until(lambda: count(notifier)["delivered"], 60)
            wait_until(lambda: len(said.texts) == 2, 30)
            notifier.note(make_look(Verdict.LOST))
            wait_until(lambda: count(notifier)["delivered"] == 2, 60)
        assert find_verdicts(server)[-1] == ("stop", "lost")
    assert said.texts == [f"hook team: {reason}", "hook team: works again"]


def test_a_hook_that_nobody_serves_is_told_what_is_true_when_it_is_back() -> None:
    said = Said()
    with serve_hook() as gone:
        port = gone.port
    with notify(said, {"team": {"webhook": f"http://127.0.0.1:{port}/"}}) as notifier:
        notifier.note(make_look(Verdict.OK))
        notifier.note(make_look(Verdict.STOP))
        wait_until(lambda: said.texts, 60)
        notifier.note(make_look(Verdict.LOSING))
        with serve_hook(port=port) as server:
            wait_until(lambda: len(said.texts) == 2, 60)
            assert find_verdicts(server) == [("stop", "losing")]
    assert said.texts == ["hook team: the connection was refused", "hook team: works again"]


def test_it_waits_as_long_as_the_hook_asks() -> None:
    said = Said()
    busy = Reply(429, {"Retry-After": "2"}, "rate_limited")
    with (
        serve_hook(Scripted(busy, OK)) as server,
        notify(said, {"team": {"slack": f"{server.url}/x"}}) as notifier,
    ):
        notifier.note(make_look(Verdict.STOP))
        wait_until(lambda: count(notifier)["delivered"], 60)
        first, second = server.requests
    assert second.at - first.at >= 1.9, "the pause alone is a twentieth of a second"
    assert said.texts == [], "one answer of that kind is no outage"
    assert count(notifier)["failed"] == 1


def test_what_is_refused_is_said_at_once_and_holds_up_no_other_stream() -> None:
    said = Said()

    def answer(request: Request) -> Reply:
        is_bad = request.document["stream"] == "orders" and len(server.requests) < 4
        return Reply(404, body="no_service") if is_bad else OK

    with (
        serve_hook(answer) as server,
        notify(said, {"team": {"webhook": f"{server.url}/x"}}) as notifier,
    ):
        notifier.note(make_look(Verdict.STOP))
        notifier.note(make_look(Verdict.STALL, "bills"))
        wait_until(lambda: len(said.texts) == 2, 60)
        streams = [found["stream"] for found in server.documents]
    assert streams[:2] == ["orders", "bills"]
    assert streams[-1] == "orders"
    assert said.texts == ["hook team: it answered 404: no_service", "hook team: works again"]
    assert count(notifier)["delivered"] == 2


def test_a_redirect_is_not_followed() -> None:
    with serve_hook() as other:
        moved = Reply(302, {"Location": f"{other.url}/elsewhere"})
        with serve_hook(lambda _: moved) as server:
            answer = Line(server.url, 10).post(MESSAGE)
        assert other.requests == []
    assert answer.outcome is Outcome.REFUSED
    assert "redirects are not followed" in answer.reason


def make_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    certificate, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=hook", "-addext", f"subjectAltName={name}"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def test_only_a_certificate_that_is_trusted_is_talked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = make_certificate(tmp_path, "IP:127.0.0.1")
    with serve_hook(tls=tls) as server:
        refused = Line(server.url, 10).post(MESSAGE)
        assert refused.outcome is Outcome.FAILED
        assert refused.reason.startswith("its certificate is not trusted: self")
        assert server.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(tls[0]))
        assert Line(server.url, 10).post(MESSAGE) == Answer(Outcome.DELIVERED)
        other = server.url.replace("127.0.0.1", "localhost")
        assert "certificate is not trusted" in Line(other, 10).post(MESSAGE).reason


def test_proxies_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_hook() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        answer = Line("http://hooks.invalid/backlog", 10).post(MESSAGE)
        assert answer.outcome is Outcome.DELIVERED
        assert [request.path for request in proxy.requests] == ["http://hooks.invalid/backlog"]
        monkeypatch.setenv("https_proxy", proxy.url)
        tunnel = Line("https://hooks.invalid/backlog", 10).post(MESSAGE)
        assert tunnel == Answer(Outcome.FAILED, "the proxy did not make a connection")
        monkeypatch.setenv("no_proxy", "hooks.invalid")
        gone = Line("http://hooks.invalid/backlog", 10).post(MESSAGE)
    assert gone == Answer(Outcome.FAILED, "its name cannot be resolved")


def test_the_reason_of_a_service_is_told_and_no_other_text() -> None:
    invalid = '{"status": "invalid event", "message": "Event object is invalid", "errors": ["\\u001b[2J"]}'
    cases = {
        "invalid_payload": "it answered 400: invalid_payload",
        invalid: r"it answered 400: Event object is invalid, \x1b[2J",
        "<html>me:s3cr3t</html>": "it answered 400",
        '["s3cr3t"]': "it answered 400",
    }
    for body, reason in cases.items():
        with serve_hook(Scripted(Reply(400, body=body))) as server:
            assert Line(server.url, 10).post(MESSAGE) == Answer(Outcome.REFUSED, reason)


@pytest.fixture
def hanging() -> Iterator[Callable[[], dict[str, Any]]]:
    """A hook that takes connections and never answers."""
    with serve_hook(lambda _: Reply(hangs=600)) as server:
        yield lambda: {"webhook": server.url, "timeout": "60s"}


def test_nobody_waits_for_a_hook_that_hangs(hanging: Callable[[], dict[str, Any]]) -> None:
    said = Said()
    with serve_hook() as server:
        notifier = notify(said, {"slow": hanging(), "team": {"webhook": server.url}})
        with notifier:
            began = time.monotonic()
            for number in range(600):
                verdict = Verdict.STOP if number % 2 else Verdict.LOSING
                notifier.note(make_look(verdict, f"stream-{number // 2}"))
            assert time.monotonic() - began < 10, "a look costs next to nothing"
            wait_until(lambda: count(notifier)["delivered"] >= 300, 120)
            began = time.monotonic()
        assert time.monotonic() - began < 20, "nor does the end wait for it"


def test_a_bug_in_the_text_is_a_failure_and_not_the_end(caplog: pytest.LogCaptureFixture) -> None:
    said = Said()
    with serve_hook() as server:

        def find_told(_: object) -> Any:
            raise RuntimeError(server.url)

        hooks = {"team": make_hook(webhook=server.url)}
        with Notifier(hooks, said, find_told, pauses=QUICK) as notifier:
            notifier.note(make_look(Verdict.STOP))
            wait_until(lambda: said.texts, 60)
    assert said.texts == ["hook team: a fault of the program: RuntimeError"]
    assert server.url not in caplog.text


def test_a_stream_that_cannot_be_seen_is_told_as_unknown() -> None:
    stream = StreamStub("orders", "service")
    error = ClusterUnreachable("no broker answered", subject="cluster main")
    with serve_hook() as server, notify(Said(), {"team": {"webhook": server.url}}) as notifier:
        notifier.note(make_look(Verdict.OK))
        for _ in range(3):
            notifier.note_failure(stream, error)
        wait_until(lambda: server.requests, 30)
        (found,) = server.documents
    assert (found["before"], found["verdict"]) == ("ok", "unknown")
    assert found["sentence"] == "cluster main: no broker answered"
    assert found["lag"] is None


def test_hooks_are_tested_once_each() -> None:
    with serve_hook() as good, serve_hook(lambda _: Reply(403, body="invalid_token")) as bad:
        hooks = {
            "team": make_hook(slack=f"{good.url}/slack"),
            "oncall": make_hook(pagerduty=KEY, pagerduty_url=f"{good.url}/pagerduty"),
            "bus": make_hook(webhook=bad.url),
        }
        found = [one.to_json() for one in check_hooks(hooks)]
        assert [len(server.requests) for server in (good, bad)] == [3, 1]
        assert bad.documents[0]["event"] == "test"
    outcomes = [(one["hook"], one["kind"], one["outcome"], one["reason"]) for one in found]
    assert outcomes == [
        ("team", "slack", "delivered", ""),
        ("oncall", "pagerduty", "delivered", ""),
        ("bus", "webhook", "refused", "it answered 403: invalid_token"),
    ]
