"""What is sent to a hook, and what comes of it, on a real HTTP server; no secret is in a reason."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from apprise.plugins import pagerduty

from backlogctl.monitoring.notifications.changes import Change
from backlogctl.monitoring.notifications.messages import (
    DeliveryResult,
    DeliveryStatus,
    MessageContext,
    Notification,
    WebhookClient,
)
from backlogctl.monitoring.verdict.status import Verdict
from tests.monitoring.notifications.hook_server import HookServer, Reply, serve_hook
from tests.monitoring.notifications.makers import COMMAND, make_hook, see

HOSTILE = "<!channel> & <https://evil.example|page>\n\x1b[2J\u202e"
PAGE = "https://backlog.example/streams/orders"
CONTEXT = MessageContext((COMMAND,), PAGE)
TEST = Notification.of_test("team")
BAD, QUIET = (5, 0), (0, 0)


def describe(verdict: Verdict, before: Verdict | None, **changes: Any) -> Notification:
    news = QUIET if verdict is Verdict.OK else BAD
    return Notification.of_change(Change(see(verdict, **changes), before, news), CONTEXT)


def post(url: str, message: Notification = TEST, **hook: Any) -> DeliveryResult:
    return WebhookClient(make_hook(webhook=url, **hook)).post(message)


def test_a_webhook_gets_the_sentence_and_the_next_command() -> None:
    with serve_hook() as server:
        message = describe(Verdict.STOP, Verdict.OK)
        assert post(f"{server.url}/x", message, token="t0ken") == DeliveryResult(
            DeliveryStatus.DELIVERED
        )
        assert post(server.url) == DeliveryResult(DeliveryStatus.DELIVERED)
    request, test = server.requests
    assert (request.path, request.headers["Authorization"]) == ("/x", "Bearer t0ken")
    assert request.headers["Content-Type"] == "application/json"
    assert request.document == {
        "schema_version": 1,
        "event": "verdict",
        "stream": "orders",
        "cluster": "main",
        "topic": "orders",
        "group": "service",
        "at": "2026-11-21T01:02:03.000000Z",
        "before": "ok",
        "verdict": "stop",
        "course": "stop",
        "resolved": False,
        "sentence": "orders/0: this is stop",
        "next_commands": [COMMAND],
        "page": PAGE,
        "lag": 60,
        "lag_seconds": 0.0,
        "lost": None,
        "seconds_to_drain": None,
        "seconds_to_loss": 60.5,
        "expected_loss": None,
    }
    assert (test.document["event"], test.document["hook"]) == ("test", "team")
    assert "Authorization" not in test.headers


def test_a_service_of_apprise_gets_the_change_in_words() -> None:
    with serve_hook() as server:
        client = WebhookClient(make_hook(apprise=f"json://127.0.0.1:{server.port}/x"))
        for message in (
            describe(Verdict.LOST, Verdict.STOP, course=Verdict.BEYOND_END),
            describe(Verdict.UNKNOWN, None, sentence=HOSTILE),
            describe(Verdict.OK, Verdict.LOST),
        ):
            assert client.post(message) == DeliveryResult(DeliveryStatus.DELIVERED)
    lost, unknown, ok = server.documents
    assert {one["title"] for one in server.documents} == {"orders (orders for service on main)"}
    lines = ["stop → lost, beyond end", "orders/0: this is lost", f"next: {COMMAND}", PAGE]
    assert lost["message"].splitlines() == lines
    assert unknown["message"].splitlines()[0] == "unknown"
    assert unknown["message"].splitlines()[1].endswith(r"\n\x1b[2J\u202e")
    assert [one["type"] for one in (lost, unknown, ok)] == ["failure", "warning", "success"]


def test_pagerduty_gets_a_trigger_and_a_resolve_of_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = make_hook(apprise="pagerduty://integration-key@api-key-of-it?action=map")
    assert hook.resolves_alerts
    with serve_hook() as server:
        monkeypatch.setitem(pagerduty.PAGERDUTY_API_LOOKUP, "us", server.url)
        client = WebhookClient(hook)
        client.post(describe(Verdict.LOSING, Verdict.OK))
        client.post(describe(Verdict.OK, Verdict.LOSING))
        client.post(describe(Verdict.STOP, None, group="other"))
    trigger, resolve, other = server.documents
    assert trigger["routing_key"] == "integration-key"
    assert [trigger["event_action"], resolve["event_action"]] == ["trigger", "resolve"]
    assert trigger["dedup_key"] == resolve["dedup_key"] != other["dedup_key"]
    assert trigger["payload"]["severity"] == "critical"
    assert "orders/0: this is losing" in trigger["payload"]["summary"]


def test_slack_takes_no_text_for_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from apprise.plugins.slack import NotifySlack

    hook = make_hook(apprise="slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/")
    with serve_hook() as server:
        monkeypatch.setattr(NotifySlack, "webhook_url", server.url)
        answer = WebhookClient(hook).post(describe(Verdict.STOP, None, sentence=HOSTILE))
    assert answer == DeliveryResult(DeliveryStatus.DELIVERED)
    assert "&lt;!channel&gt; &amp; &lt;https" in server.requests[0].body
    assert "<!channel>" not in server.requests[0].body


REFUSED, FAILED = DeliveryStatus.REFUSED, DeliveryStatus.FAILED


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (Reply(401, body="me:s3cr3t"), DeliveryResult(REFUSED, "it answered 401")),
        (Reply(500), DeliveryResult(FAILED, "it answered 500")),
        (Reply(429, {"Retry-After": "7"}), DeliveryResult(FAILED, "it answered 429", 7.0)),
        (Reply(hangs=60), DeliveryResult(FAILED, "no answer in 0.3 s")),
    ],
    ids=["refused", "failed", "busy", "hangs"],
)
def test_what_comes_of_it(reply: Reply, answer: DeliveryResult) -> None:
    with serve_hook(lambda _: reply) as server:
        assert post(server.url, timeout="300ms") == answer


def test_a_redirect_is_not_followed() -> None:
    with serve_hook() as other:
        moved = Reply(302, {"Location": f"{other.url}/elsewhere"})
        with serve_hook(lambda _: moved) as server:
            answer = post(server.url)
        assert other.requests == []
    assert answer.outcome is DeliveryStatus.REFUSED
    assert "redirects are not followed" in answer.reason


def post_by_apprise(server: HookServer, scheme: str = "json") -> DeliveryResult:
    url = f"{scheme}://me:hunter2hunter2@127.0.0.1:{server.port}/s3cr3t-path"
    return WebhookClient(make_hook(apprise=url)).post(TEST)


def test_no_reason_holds_a_part_of_apprises_url(caplog: pytest.LogCaptureFixture) -> None:
    with serve_hook() as gone:
        pass
    with serve_hook(lambda _: Reply(403)) as bad:
        refused, away = post_by_apprise(bad), post_by_apprise(gone)
        unknown = post_by_apprise(bad, "nope")
    assert (refused.outcome, away.outcome, unknown.outcome) == (FAILED, FAILED, REFUSED)
    assert "403" in refused.reason
    for text in (refused.reason, away.reason, unknown.reason, caplog.text):
        assert "hunter2" not in text
        assert "s3cr3t" not in text


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
        refused = post(server.url)
        assert refused.outcome is DeliveryStatus.FAILED
        assert refused.reason.startswith("its certificate is not trusted: self")
        assert server.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(tls[0]))
        assert post(server.url) == DeliveryResult(DeliveryStatus.DELIVERED)
        other = server.url.replace("127.0.0.1", "localhost")
        assert "certificate is not trusted" in post(other).reason


def test_proxies_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_hook() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert post("http://hooks.invalid/backlog") == DeliveryResult(DeliveryStatus.DELIVERED)
        assert [request.path for request in proxy.requests] == ["http://hooks.invalid/backlog"]
        monkeypatch.setenv("https_proxy", proxy.url)
        tunnel = post("https://hooks.invalid/backlog")
        assert tunnel == DeliveryResult(
            DeliveryStatus.FAILED, "the proxy did not make a connection"
        )
        monkeypatch.setenv("no_proxy", "hooks.invalid")
        gone = post("http://hooks.invalid/backlog")
    assert gone.outcome is DeliveryStatus.FAILED
    assert gone.reason.startswith("no connection: ")


def test_no_repr_shows_a_secret() -> None:
    hook = make_hook(apprise="slack://T1JJ3T3L2/A1BRTD4JD/s3cr3t-s3cr3t")
    assert "s3cr3t" not in repr(hook)
