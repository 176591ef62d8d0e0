"""Hooks that hang, fail, refuse and come back: said once, tried on, and nobody waits for them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from backlogctl.errors import BacklogError, ClusterUnreachable
from backlogctl.ledger import Ledger
from backlogctl.monitoring.notifications.notifier import Notifier, Pauses, check_hooks
from backlogctl.monitoring.verdict.status import Verdict
from tests.conftest import MakeTopic
from tests.kit.kafka import StreamStub, commit, publish, wait_until
from tests.monitoring.live_watch import make_config, run_watch
from tests.monitoring.notifications.hook_server import (
    OK,
    HookServer,
    Reply,
    Request,
    make_hook,
    make_look,
    serve_hook,
)

QUICK = Pauses((0.05, 0.1, 0.2), refused=0.3)


class Said:
    """What is said of hooks that fail, and work again."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, what: str, error: BacklogError | None) -> None:
        self.texts.append(f"{what}: {error.message if error else 'works again'}")


def notify(said: Said, hooks: Mapping[str, Mapping[str, Any]]) -> Notifier:
    made = {name: make_hook(**document) for name, document in hooks.items()}
    return Notifier(made, said, pauses=QUICK)


def find_changes(server: HookServer) -> list[tuple[str | None, str, bool]]:
    return [(one["before"], one["verdict"], one["resolved"]) for one in server.documents]


def count(notifier: Notifier, hook: str = "team") -> dict[str, int]:
    return {outcome: n for (name, outcome), n in notifier.count().items() if name == hook}


def test_each_kind_is_told_of_a_change_and_its_end() -> None:
    said = Said()
    with serve_hook() as server:
        hooks = {
            "team": {"apprise": f"json://127.0.0.1:{server.port}/apprise"},
            "bus": {"webhook": f"{server.url}/webhook"},
        }
        with notify(said, hooks) as notifier:
            for verdict in (Verdict.OK, Verdict.STOP, Verdict.STOP):
                notifier.note(make_look(verdict))
            wait_until(lambda: len(server.requests) >= 2, 30)
            for _ in range(2):
                notifier.note(make_look(Verdict.OK))
            wait_until(lambda: len(server.requests) >= 4, 30)
            wait_until(lambda: count(notifier)["delivered"] == 2, 30)
    by_path: dict[str, list[Any]] = {"/apprise": [], "/webhook": []}
    for request in server.requests:
        by_path[request.path].append(request.document)
    assert [one["type"] for one in by_path["/apprise"]] == ["failure", "success"]
    assert [one["verdict"] for one in by_path["/webhook"]] == ["stop", "ok"]
    assert said.texts == []
    assert count(notifier) == {"delivered": 2, "failed": 0, "refused": 0, "replaced": 0}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(500, body="<html>sorry</html>"), "it answered 500"),
        (Reply(hangs=60), "no answer in 0.3 s"),
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
        assert find_changes(server)[-1] == ("stop", "lost", False)
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
            assert find_changes(server) == [("stop", "losing", False)]
    assert said.texts == ["hook team: no connection: Connection refused", "hook team: works again"]


def test_it_waits_as_long_as_the_hook_asks() -> None:
    said = Said()
    replies = [Reply(429, {"Retry-After": "2"}, "rate_limited"), OK]
    with (
        serve_hook(lambda _: replies.pop(0)) as server,
        notify(said, {"team": {"webhook": f"{server.url}/x"}}) as notifier,
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
    assert said.texts == ["hook team: it answered 404", "hook team: works again"]
    assert count(notifier)["delivered"] == 2


def test_nobody_waits_for_a_hook_that_hangs() -> None:
    with serve_hook() as server, serve_hook(lambda _: Reply(hangs=600)) as hanging:
        slow = {"webhook": hanging.url, "timeout": "60s"}
        notifier = notify(Said(), {"slow": slow, "team": {"webhook": server.url}})
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

        def find_context(_: object) -> Any:
            raise RuntimeError(server.url)

        hooks = {"team": make_hook(webhook=server.url)}
        with Notifier(hooks, said, find_context, pauses=QUICK) as notifier:
            notifier.note(make_look(Verdict.STOP))
            wait_until(lambda: said.texts, 60)
    assert said.texts == ["hook team: internal error (RuntimeError); report it"]
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
            "team": make_hook(apprise=f"json://127.0.0.1:{good.port}/"),
            "bus": make_hook(webhook=bad.url),
        }
        found = [one.to_json() for one in check_hooks(hooks)]
        assert [len(server.requests) for server in (good, bad)] == [1, 1]
    outcomes = [(one["hook"], one["kind"], one["outcome"], one["reason"]) for one in found]
    assert outcomes == [
        ("team", "json", "delivered", ""),
        ("bus", "webhook", "refused", "it answered 403"),
    ]


# The real watcher on a real broker tells hooks that a group stops and comes back.


def test_a_group_that_stops_and_comes_back_is_told_while_other_hooks_hang_and_fail(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger
) -> None:
    name = topic(partitions=1)
    publish(properties, name, {0: 10})
    commit(properties, group, name, {0: 10})
    said, looks = Said(), list[float]()
    with (
        serve_hook() as good,
        serve_hook(lambda _: Reply(hangs=600.0)) as hanging,
        serve_hook(lambda _: Reply(500, body="")) as failing,
    ):
        hooks = {
            "good": make_hook(webhook=good.url, **{"from": "stop"}),
            "hanging": make_hook(webhook=hanging.url, timeout="90s"),
            "failing": make_hook(webhook=failing.url),
        }
        notifier = Notifier(hooks, said, pauses=Pauses((0.05,)))
        watching = run_watch(
            make_config(properties, StreamStub(name, group)),
            *(ledger, 0.5),
            on_observation=lambda _: looks.append(time.monotonic()),
            window=timedelta(seconds=3),
            on_status=notifier.note,
            on_error=notifier.note_failure,
        )
        with notifier, watching:
            wait_until(lambda: len(looks) >= 3)
            publish(properties, name, {0: 90})
            wait_until(lambda: find_changes(good), what="it is told that nobody reads")
            assert find_changes(good) == [("ok", "stop", False)]
            commit(properties, group, name, {0: 100})
            wait_until(lambda: len(good.requests) >= 2, what="it is told that all is read")
            seen = len(looks)
            wait_until(lambda: len(looks) >= seen + 5)
    assert find_changes(good) == [("ok", "stop", False), ("stop", "ok", True)]
    stopped, recovered = good.documents
    assert stopped["sentence"].startswith("orders/0: 90 behind, nobody is in the group")
    assert stopped["next_commands"] == ["backlogctl status orders"]
    assert (stopped["lag"], recovered["lag"]) == (90, 0)
    assert len(hanging.requests) == 1
    assert "hook failing: it answered 500" in said.texts
    assert len([text for text in said.texts if text.startswith("hook failing")]) == 1
    slowest = max(later - earlier for earlier, later in pairwise(looks))
    assert slowest < 20, "no look waits for a hook"
