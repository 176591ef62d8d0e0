"""What is sent to a hook and when, on a real HTTP server; no secret is in a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from apprise.plugins import pagerduty

from backlogctl.errors import ClusterUnreachable
from backlogctl.monitoring.notifications.changes import Change, Damper, Mailbox, StreamObservation
from backlogctl.monitoring.notifications.messages import (
    DeliveryResult,
    DeliveryStatus,
    MessageContext,
    Notification,
    WebhookClient,
)
from backlogctl.monitoring.verdict.status import Verdict
from tests.kit.kafka import StreamStub
from tests.monitoring.notifications.hook_server import (
    COMMAND,
    NOW,
    HookServer,
    Reply,
    make_certificate,
    make_hook,
    see,
    serve_hook,
)

HOSTILE = "<!channel> & <https://evil.example|page>\n\x1b[2J\u202e"
PAGE = "https://backlog.example/streams/orders"
CONTEXT = MessageContext((COMMAND,), PAGE)
TEST = Notification.of_test("team")
BAD, QUIET = (5, 0), (0, 0)
REFUSED, FAILED = DeliveryStatus.REFUSED, DeliveryStatus.FAILED
DELIVERED = DeliveryResult(DeliveryStatus.DELIVERED)


def describe(verdict: Verdict, before: Verdict | None, **changes: Any) -> Notification:
    news = QUIET if verdict is Verdict.OK else BAD
    return Notification.of_change(Change(see(verdict, **changes), before, news), CONTEXT)


def post(url: str, message: Notification = TEST, **hook: Any) -> DeliveryResult:
    return WebhookClient(make_hook(webhook=url, **hook)).post(message)


def test_a_webhook_gets_the_sentence_and_the_next_command() -> None:
    with serve_hook() as server:
        message = describe(Verdict.STOP, Verdict.OK)
        assert post(f"{server.url}/x", message, token="t0ken") == DELIVERED
        assert post(server.url) == DELIVERED
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
        "lag": None,
        "lag_at_least": 60,
        "urgency": "now",
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
            assert client.post(message) == DELIVERED
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
    assert answer == DELIVERED
    assert "&lt;!channel&gt; &amp; &lt;https" in server.requests[0].body
    assert "<!channel>" not in server.requests[0].body


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
    assert answer.outcome is REFUSED
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


def test_only_a_certificate_that_is_trusted_is_talked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = make_certificate(tmp_path)
    with serve_hook(tls=tls) as server:
        refused = post(server.url)
        assert refused.outcome is FAILED
        assert refused.reason.startswith("its certificate is not trusted: self")
        assert server.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(tls[0]))
        assert post(server.url) == DELIVERED
        other = server.url.replace("127.0.0.1", "localhost")
        assert "certificate is not trusted" in post(other).reason


def test_proxies_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_hook() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert post("http://hooks.invalid/backlog") == DELIVERED
        assert [request.path for request in proxy.requests] == ["http://hooks.invalid/backlog"]
        monkeypatch.setenv("https_proxy", proxy.url)
        tunnel = post("https://hooks.invalid/backlog")
        assert tunnel == DeliveryResult(FAILED, "the proxy did not make a connection")
        monkeypatch.setenv("no_proxy", "hooks.invalid")
        gone = post("http://hooks.invalid/backlog")
    assert gone.outcome is FAILED
    assert gone.reason.startswith("no connection: ")


OK, LAGGING, UNKNOWN, WARN = Verdict.OK, Verdict.LAGGING, Verdict.UNKNOWN, Verdict.WARN
STALL, STOP, LOSING, LOST = Verdict.STALL, Verdict.STOP, Verdict.LOSING, Verdict.LOST


class Hooked:
    """A mailbox whose messages are all delivered at once, unless it is `away`."""

    def __init__(self, least: Verdict = UNKNOWN, *, resolves_first: bool = False) -> None:
        self.replaced = 0
        self.now = 0.0
        self.is_away = False
        self.told: list[tuple[Verdict | None, Verdict, bool]] = []
        self.mailbox = Mailbox(
            least,
            resolves_first=resolves_first,
            on_replaced=self.count,
            clock=lambda: self.now,
        )

    def count(self) -> None:
        self.replaced += 1

    def put(self, *verdicts: Verdict, stream: str = "orders", beside: Verdict = OK) -> None:
        for verdict in verdicts:
            self.mailbox.put(see(verdict, stream, course=beside if verdict is LOST else verdict))
            if not self.is_away:
                self.send()

    def send(self) -> None:
        while (change := self.mailbox.take()) is not None:
            self.told.append((change.before, change.look.verdict, change.is_resolved))
            self.mailbox.note_delivered(change)


@pytest.mark.parametrize(
    ("looks", "counted"),
    [
        ([OK, STOP, LOSING], [OK, STOP, LOSING]),
        # It flaps between two looks: nobody is told again and again.
        ([STOP, OK, STOP, OK, STOP], [STOP, STOP, STOP]),
        ([STOP, OK, OK], [STOP, OK]),
        ([STOP, OK, WARN, OK], [STOP, WARN]),
        ([LOST, STOP, STOP, STOP], [LOST, STOP, STOP]),
    ],
)
def test_what_is_worse_counts_at_once_and_what_is_better_when_it_is_seen_twice(
    looks: list[Verdict], counted: list[Verdict]
) -> None:
    damper = Damper()
    assert [verdict for verdict in looks if damper.count(see(verdict))] == counted


def test_a_stream_that_cannot_be_seen_is_unknown_after_three_looks() -> None:
    damper = Damper()
    error = str(ClusterUnreachable("no broker answered", subject="cluster main"))
    failure = StreamObservation.of_failure(StreamStub("orders", "service"), error, NOW)
    assert (failure.verdict, failure.sentence) == (UNKNOWN, "cluster main: no broker answered")
    assert damper.count(see(OK))
    assert [damper.count(failure) for _ in range(3)] == [False, False, True]
    assert [damper.count(see(OK)) for _ in range(2)] == [False, True]
    assert [damper.count(failure) for _ in range(2)] == [False, False], "counted anew"


def test_only_changes_are_told_with_the_verdict_before() -> None:
    hook = Hooked()
    hook.put(OK, OK, STOP, STOP, LOSING, OK, OK)
    assert hook.told == [(OK, STOP, False), (STOP, LOSING, False), (LOSING, OK, True)]


def test_a_stream_that_is_bad_at_first_is_told_once_and_a_good_one_never() -> None:
    hook = Hooked()
    hook.put(LOST, LOST)
    hook.put(OK, OK, stream="bills")
    assert hook.told == [(None, LOST, False)]


def test_what_an_earlier_process_said_is_resolved_where_that_is_asked_for() -> None:
    hook = Hooked(resolves_first=True)
    hook.put(OK, OK)
    assert hook.told == [(None, OK, True)]


def test_below_the_least_verdict_it_is_resolved_and_silent() -> None:
    hook = Hooked(LOSING)
    hook.put(OK, STOP, WARN)
    assert hook.told == []
    hook.put(LOSING, LOST, STOP, WARN, OK)
    assert hook.told == [(WARN, LOSING, False), (LOSING, LOST, False), (LOST, STOP, True)]


@pytest.mark.parametrize("little", [LAGGING, UNKNOWN])
def test_where_too_little_is_known_nothing_is_resolved(little: Verdict) -> None:
    hook = Hooked(WARN)
    hook.put(STOP, little, STOP, little, OK)
    assert hook.told == [(None, STOP, False), (STOP, OK, True)]


def test_a_stop_beside_what_is_lost_already_is_news() -> None:
    hook = Hooked()
    hook.put(LOST)
    hook.put(LOST, LOST, beside=STOP)
    hook.put(LOST)
    assert len(hook.told) == 3
    deaf = Hooked(LOSING)
    deaf.put(LOST)
    deaf.put(LOST, beside=STOP)
    deaf.put(LOST, beside=LOSING)
    assert len(deaf.told) == 2


def test_of_what_waits_only_the_latest_is_sent() -> None:
    hook = Hooked()
    hook.put(OK)
    hook.is_away = True
    hook.put(STOP, LOSING)
    assert hook.replaced == 1
    hook.is_away = False
    hook.put(LOST)
    assert hook.told == [(OK, LOST, False)]
    hook.is_away = True
    hook.put(OK, LOST)
    hook.is_away = False
    hook.put(LOST)
    assert len(hook.told) == 1, "back where it was before anything was sent"
    assert hook.replaced == 3


def take(hook: Hooked) -> Change:
    change = hook.mailbox.take()
    assert change is not None
    return change


def test_what_was_not_taken_waits_and_others_have_their_turn() -> None:
    hook = Hooked()
    hook.put(OK)
    hook.is_away = True
    hook.put(STOP)
    hook.put(STOP, stream="bills")
    first = take(hook)
    hook.mailbox.note_failed(first)
    assert take(hook).look.stream == "bills"
    hook.mailbox.note_delivered(take(hook))
    again = take(hook)
    assert (again.look, again.before) == (first.look, OK)
    assert hook.mailbox.has_tried()
    hook.mailbox.note_failed(again, wait=300)
    assert hook.mailbox.take() is None
    hook.now = 301
    hook.mailbox.note_delivered(take(hook))
    assert not hook.mailbox.has_tried()
    assert hook.mailbox.take() is None


def test_a_recovery_is_told_though_the_trouble_was_perhaps_not_heard() -> None:
    hook = Hooked()
    hook.put(OK)
    hook.is_away = True
    hook.put(STOP)
    hook.mailbox.note_failed(take(hook))  # no answer: perhaps it heard it
    hook.is_away = False
    hook.put(OK)
    assert hook.told == [(STOP, OK, True)]


def test_what_changed_while_it_was_sent_is_sent_next() -> None:
    hook = Hooked()
    hook.put(OK)
    hook.is_away = True
    hook.put(STOP)
    sent = take(hook)
    hook.put(OK)  # nothing to say, as far as it is known
    assert hook.mailbox.take() is None
    hook.mailbox.note_delivered(sent)
    hook.send()
    assert hook.told == [(STOP, OK, True)]
