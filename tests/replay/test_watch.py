"""`watch`: rounds, outages told once, and an exit code that says whether anything was seen."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backlogctl.clock import utc_now
from backlogctl.errors import ClusterUnreachable, LedgerError
from backlogctl.ledger.gaps import Gaps
from backlogctl.monitoring.offsets.history import make_marks
from backlogctl.monitoring.offsets.observation import Observation
from backlogctl.monitoring.watch import loop
from backlogctl.monitoring.watch.board import Board
from backlogctl.replay.cli import main
from backlogctl.replay.cli.watch import RecentTexts
from backlogctl.replay.observe import retention
from backlogctl.replay.web import exporter
from backlogctl.values import Gap, Sample
from tests.replay.makers import write_config

STREAMS = {
    name: {"cluster": "main", "topic": name, "group": "service"}
    for name in ("orders", "invoices", "refunds")
}


def make_observation(stream: str) -> Observation:
    sample = Sample(stream, "main", stream, "service", "topic-id", utc_now(), ())
    return Observation(sample, (), (), make_marks(()))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cluster = {"bootstrap.servers": "127.0.0.1:1"}
    write_config(tmp_path, clusters={"main": cluster}, streams=STREAMS, watch={"interval": "1s"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "connect", lambda _: None)
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
