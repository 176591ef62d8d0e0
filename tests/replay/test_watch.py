"""`watch`: rounds, outages told once, exit codes, and hooks."""

from __future__ import annotations

import html
import json
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from backlogctl.clock import utc_now
from backlogctl.errors import ClusterUnreachable, LedgerError
from backlogctl.ledger.gaps import Gaps
from backlogctl.monitoring.offsets import bulk_look
from backlogctl.monitoring.offsets.bulk_look import LedgerFacts
from backlogctl.monitoring.offsets.history import StreamHistory
from backlogctl.monitoring.offsets.observation import Observation
from backlogctl.monitoring.watch import loop
from backlogctl.monitoring.watch.board import Board
from backlogctl.replay.cli import main
from backlogctl.replay.cli.watch import RecentTexts
from backlogctl.replay.observe import retention
from backlogctl.replay.web import exporter
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Gap, Sample
from tests.kit.kafka import commit, properties_of, publish, wait_until
from tests.kit.processes import Watch, watching
from tests.kit.prometheus import Scraped
from tests.kit.recoveries import write_config
from tests.kit.shop import call_main
from tests.monitoring.notifications.hook_server import HookServer, Reply, serve_hook

STREAMS = {
    name: {"cluster": "main", "topic": name, "group": "service"}
    for name in ("orders", "invoices", "refunds")
}


def make_observation(stream: str) -> Observation:
    sample = Sample(stream, "main", stream, "service", "topic-id", utc_now(), ())
    facts = LedgerFacts(timedelta(0), {}, {}, (), {})
    return Observation(sample, (), (), StreamHistory(), facts)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cluster = {"bootstrap.servers": "127.0.0.1:1"}
    watch = {"interval": "1s", "commit_log": False}
    write_config(tmp_path, clusters={"main": cluster}, streams=STREAMS, watch=watch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "connect", lambda _: SimpleNamespace(has_answered=True))
    monkeypatch.setattr(bulk_look, "LEAST_STREAMS", 100)
    return tmp_path


def observe(monkeypatch: pytest.MonkeyPatch, answers: list[bool]) -> list[str]:
    """`answers` says which looks succeed; the last one goes on."""
    looks: list[str] = []

    def look(_: Any, stream: Any, *__: Any, **___: Any) -> Observation:
        looks.append(stream.name)
        if not answers[min(len(looks), len(answers)) - 1]:
            raise ClusterUnreachable("no broker answered", subject="cluster [/ops] 127.0.0.1:1")
        return make_observation(stream.name)

    monkeypatch.setattr(loop, "observe_stream", look)
    monkeypatch.setattr(loop, "LOG", None)
    return looks


def test_fault_28_watch_that_saw_nothing_fails(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    looks = observe(monkeypatch, [False])
    assert main(["watch", "--rounds", "2", "--json"]) == 1
    said = capfd.readouterr()
    assert json.loads(said.out)["error"]["code"] == "unreachable"
    assert said.err.count("no broker answered") == 1, "an outage is told once"
    assert "cluster [/ops] 127.0.0.1:1" in said.err
    assert looks == ["orders", "orders"], "one look a round is enough for a cluster that is away"


def test_fault_28_watch_tells_when_an_outage_begins_and_ends(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    looks = observe(monkeypatch, [True, True, True, False, False, True])
    assert main(["watch", "--rounds", "4", "--json"]) == 0
    said = capfd.readouterr()
    assert json.loads(said.out) == {"schema_version": 1, "rounds": 4, "looks": 6, "new_gaps": 0}
    assert len(looks) == 3 + 1 + 1 + 3
    assert said.err.count("no broker answered") == 1
    assert said.err.count("cluster main: answers again") == 1


def test_watch_serves_what_it_saw(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    observe(monkeypatch, [True])
    nothing_near = SimpleNamespace(partitions=(), unseen=())
    monkeypatch.setattr(loop, "assess_now", lambda *_, **__: nothing_near)
    stored = (make_observation("orders").sample,)
    monkeypatch.setattr(loop, "read_timeline", lambda *_: stored)
    monkeypatch.setattr(exporter, "_make_samplers", lambda *_: ())
    shown: list[object] = []
    monkeypatch.setattr(Board, "put_stream", lambda _, status: shown.append(status))
    assert main(["watch", "--rounds", "1", "--listen", "127.0.0.1:0", "--json"]) == 0
    said = capfd.readouterr()
    assert said.err.count("serving http://127.0.0.1:") == 1
    assert len(shown) == len(STREAMS)
    assert main(["watch", "--rounds", "1"]) == 0
    assert "serving" not in capfd.readouterr().err, "rounds are for a look, not for a server"


def test_watch_gives_holds_back_and_shows_that_it_goes_on_when_all_is_away(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    observe(monkeypatch, [False])
    monkeypatch.setattr(exporter, "_make_samplers", lambda *_: ())
    noted: list[str] = []
    monkeypatch.setattr(Board, "note_failure", lambda _, __, stream, ___: noted.append(stream))
    monkeypatch.setattr(Board, "note_round", lambda _: noted.append("round"))
    answers: list[Any] = [["the retention was given back"], LedgerError("away"), RuntimeError()]

    def give_back(_: object) -> list[str]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    monkeypatch.setattr(retention, "release_due", give_back)
    assert main(["watch", "--rounds", "3", "--listen", "127.0.0.1:0"]) == 1
    assert noted == [*STREAMS, "round"] * 3, "each stream of a cluster that is away failed"
    assert answers == []
    assert capfd.readouterr().err.count("the retention was given back") == 1


def test_watch_outlasts_a_ledger_that_does_not_tell_gaps(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    observe(monkeypatch, [True])

    def list_gaps(_: Gaps, stream: str | None = None) -> tuple[Gap, ...]:
        if stream is None:
            return ()
        raise LedgerError("the database went away", subject="ledger")

    monkeypatch.setattr(Gaps, "list", list_gaps)
    assert main(["watch", "--rounds", "2", "--json"]) == 0
    said = capfd.readouterr()
    assert json.loads(said.out)["looks"] == 2 * len(STREAMS)
    assert said.err.count("the database went away") == 1


def test_what_was_told_is_forgotten_when_it_was_not_heard_for_long() -> None:
    told = RecentTexts(most=2)
    assert [told.is_new(text) for text in "abac"] == [True, True, False, True]
    assert not told.is_new("a"), "it was heard again"
    assert told.is_new("b")


def test_a_suspicion_that_grows_is_told_each_ten_minutes() -> None:
    now = 0.0
    told = RecentTexts(clock=lambda: now)
    first = "! orders partition 3: committed 580 is below the log start 811"
    assert told.is_new(first)
    assert not told.is_new(first.replace("811", "1,034"))
    assert told.is_new(first.replace("partition 3", "partition 4"))
    now = 599.0
    assert not told.is_new(first.replace("811", "2,000"))
    now = 600.0
    assert told.is_new(first.replace("811", "2,001"))
    assert not told.is_new(first.replace("811", "2,001"))


def test_watch_names_an_address_that_is_taken(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    observe(monkeypatch, [True])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["watch", "--listen", address, "--json"]) == 2
    error = json.loads(capfd.readouterr().out)["error"]
    assert address in error["message"]
    assert error["subject"] == "--listen"
    assert main(["watch", "--listen", address, "--no-serve"]) == 2


def test_a_cluster_without_streams_is_watched_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster = {"bootstrap.servers": "127.0.0.1:1"}
    write_config(tmp_path, clusters={"main": cluster}, streams={}, watch={"interval": "1s"})
    monkeypatch.chdir(tmp_path)
    assert main(["watch", "--rounds", "1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["rounds"] == 1


SECRETS = {"KEY": "hunter2" * 4, "TOKEN": "hunter2-token"}


def describe_hooks(good: HookServer, bad: HookServer) -> dict[str, Any]:
    return {
        "team": {"apprise": "${env:TEAM}"},
        "bus": {"webhook": f"{good.url}/webhook", "token": "${env:TOKEN}"},
        "broken": {"webhook": f"{bad.url}/${{env:KEY}}", "token": "${env:TOKEN}"},
    }


def make_environment(good: HookServer) -> dict[str, str]:
    team = f"json://127.0.0.1:{good.port}/hunter2-team"
    return {**SECRETS, "TEAM": team, "NO_PROXY": "127.0.0.1"}


def list_of(server: HookServer, path: str) -> list[Any]:
    return [request.document for request in server.requests if request.path == path]


def has_verdict(running: Watch, verdict: str) -> bool:
    found = Scraped(httpx.get(f"{running.url}/metrics", timeout=60).text)
    return 1 in found.find("backlog_verdict", verdict=verdict).values()


def count_delivered(running: Watch) -> dict[str, float]:
    found = Scraped(httpx.get(f"{running.url}/metrics", timeout=60).text)
    counts = found.find("backlog_notifications_total", outcome="delivered")
    return {dict(labels)["hook"]: count for labels, count in counts.items() if count}


def test_hooks_are_told_what_the_page_shows_and_nobody_sees_their_secrets(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, tmp_path: Path
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(partitions=1)
    publish(properties, name, {0: 10})
    commit(properties, group, name, {0: 10})
    refusal = Reply(401, body=json.dumps({"message": f"not {SECRETS['TOKEN']}"}))
    with serve_hook() as good, serve_hook(lambda _: refusal) as bad:
        write_config(
            tmp_path,
            clusters={"main": {"bootstrap.servers": kafka.bootstrap}},
            streams={"orders": {"cluster": "main", "topic": name, "group": group}},
            watch={
                "interval": "500ms",
                "window": "3s",
                "url": "https://backlog.example",
                "groups": {"allow": [group]},
                "hooks": describe_hooks(good, bad),
            },
        )
        with watching(tmp_path, "--json", **make_environment(good)) as running:
            wait_until(lambda: has_verdict(running, "ok"), what="the stream is ok")
            publish(properties, name, {0: 90})
            wait_until(lambda: list_of(good, "/webhook"), what="nobody reads")
            (told,) = list_of(good, "/webhook")
            page = html.unescape(httpx.get(f"{running.url}/streams/orders", timeout=60).text)
            wait_until(lambda: "hook broken: it answered 401" in running.said)
            shown = [page, httpx.get(f"{running.url}/", timeout=60).text]
            commit(properties, group, name, {0: 100})
            for path in ("/webhook", "/hunter2-team"):
                wait_until(lambda p=path: len(list_of(good, p)) >= 2, what=path)  # type: ignore[misc]
            sent = {"team": 2, "bus": 2}
            wait_until(lambda: count_delivered(running) == sent, what="all is counted")
            metrics = httpx.get(f"{running.url}/metrics", timeout=60).text
            shown.append(metrics)
        shown.append(running.said)
        assert json.loads(running.out.read_text())["looks"] > 3
        assert [request.path for request in bad.requests][:1] == [f"/{SECRETS['KEY']}"]
    assert (told["before"], told["verdict"], told["lag"]) == ("ok", "stop", 90)
    assert told["sentence"] in page
    assert told["next_commands"] == ["backlogctl status orders"]
    assert told["next_commands"][0] in page
    assert told["page"] == "https://backlog.example/streams/orders"
    first, last = list_of(good, "/hunter2-team")
    for text in (f"ok → stop\n{told['sentence']}", told["next_commands"][0]):
        assert text in first["message"]
    assert last["message"].startswith("stop → ok")
    assert (first["title"], last["type"]) == (last["title"], "success")
    assert Scraped(metrics).value("backlog_notifications_total", hook="broken", outcome="refused")
    assert running.said.count("hook broken: it answered 401") == 1
    for text in shown:
        assert "hunter2" not in text


@pytest.mark.parametrize("as_json", [False, True])
def test_hooks_are_tested_by_a_message_each(tmp_path: Path, *, as_json: bool) -> None:
    refusal = Reply(403, body=json.dumps({"message": f"not {SECRETS['TOKEN']}"}))
    with serve_hook() as good, serve_hook(lambda _: refusal) as bad:
        write_config(tmp_path, watch={"hooks": describe_hooks(good, bad)})
        words = ("watch", "--test-hooks", *(["--json"] if as_json else []))
        code, out, err = call_main(words, tmp_path, make_environment(good))
    assert code == 1
    assert "hunter2" not in out + err
    if as_json:
        found = json.loads(out)["hooks"]
        assert [one["outcome"] for one in found] == ["delivered"] * 2 + ["refused"]
        assert found[-1]["reason"] == "it answered 403"
    else:
        assert out.splitlines() == [
            "team (json): delivered",
            "bus (webhook): delivered",
            "broken (webhook): refused: it answered 403",
        ]


def test_hooks_that_all_take_their_test_are_no_failure(tmp_path: Path) -> None:
    with serve_hook() as good:
        write_config(tmp_path, watch={"hooks": {"bus": {"webhook": good.url}}})
        environment = {"NO_PROXY": "127.0.0.1"}
        assert call_main(("watch", "--test-hooks"), tmp_path, environment)[0] == 0
    write_config(tmp_path)
    code, _, err = call_main(("watch", "--test-hooks"), tmp_path, environment)
    assert code == 2
    assert "has no hooks" in err


def test_rounds_are_for_a_look_and_tell_no_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    monkeypatch.setattr(exporter, "open_notifier", lambda *given: opened.append(given))
    hooks = {"bus": {"webhook": "https://hooks.example/"}}
    write_config(tmp_path, streams={}, watch={"hooks": hooks})
    assert call_main(("watch", "--rounds", "1"), tmp_path, {})[0] == 0
    assert opened == []
