"""`watch` tells hooks what the page shows, and no secret of theirs is seen anywhere."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from backlogctl.replay.web import exporter
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.kafka_tools import commit, properties_of, publish, wait_until
from tests.monitoring.metric_lines import Scraped
from tests.monitoring.notifications.hook_server import HookServer, Reply, serve_hook
from tests.replay.calling import call_main
from tests.replay.makers import write_config

ROOT = Path(__file__).parents[2]
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


@dataclass(frozen=True)
class Watch:
    """`backlogctl watch --json` as a process."""

    url: str
    out: Path
    err: Path

    @property
    def said(self) -> str:
        return self.out.read_text() + self.err.read_text()


@contextmanager
def watch(directory: Path, environment: dict[str, str]) -> Iterator[Watch]:
    out, err = directory / "out", directory / "err"
    words = ["watch", "--listen", "127.0.0.1:0", "--json"]
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "backlogctl.replay.cli", *words],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        address = re.compile(r"serving (http://127\.0\.0\.1:\d+)/")
        wait_until(lambda: address.search(err.read_text()) or process.poll() is not None)
        found = address.search(err.read_text())
        assert found is not None, err.read_text()
        yield Watch(found[1], out, err)
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(10)


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
        with watch(tmp_path, make_environment(good)) as running:
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
