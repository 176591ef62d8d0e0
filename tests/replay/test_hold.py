"""`hold`: raised, shown, extended, given back by hand and when it is due."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from backlogctl.clock import utc_now
from backlogctl.config import load_config
from backlogctl.errors import Refused
from backlogctl.fanout.disk import DiskCheck
from backlogctl.kafka.admin import alter_topic_config, read_topic_overrides
from backlogctl.kafka.log_dirs import LogDirs
from backlogctl.ledger import OPERATOR
from backlogctl.replay.cli import main
from backlogctl.replay.observe import retention
from backlogctl.replay.observe.retention import hold_stream, release_due, release_stream
from backlogctl.replay.opening import open_workspace
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kafka_tools import properties_of
from tests.replay.makers import PAST, change_ledger, write_config
from tests.replay.shop import Shop

MS, BYTES = "retention.ms", "retention.bytes"
HOUR = 3_600_000
MARGIN = 600_000


class Desk:
    """A workspace whose stream `orders` is on a real topic that keeps an hour."""

    def __init__(self, directory: Path, bootstrap: str, topic: str, group: str) -> None:
        stream = {"cluster": "main", "topic": topic, "group": group}
        self.properties = properties_of(bootstrap)
        path = write_config(
            directory, clusters={"main": self.properties}, streams={"orders": stream}
        )
        self.workspace = open_workspace(load_config(path))
        self.stream = self.workspace.config.stream("orders")
        self.topic = topic

    def read(self) -> tuple[str | None, str | None]:
        found = read_topic_overrides(self.properties, self.topic, [MS, BYTES])
        return found[MS], found[BYTES]

    def make_due(self) -> None:
        change_ledger(self.workspace, f"UPDATE backlog_holds SET until = '{PAST}'")


@pytest.fixture
def desk(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Desk]:
    monkeypatch.chdir(tmp_path)
    name = topic(partitions=1, config={MS: str(HOUR), BYTES: "5000000"})
    made = Desk(tmp_path, kafka.bootstrap, name, group)
    yield made
    made.workspace.ledger.close()


def test_command_holds_shows_and_releases(shop: Shop) -> None:
    alter_topic_config(shop.properties, shop.topic, {MS: str(100 * HOUR)})
    held = shop.run("hold", "orders", "--for", "6h", "--json").document
    (one,) = held["holds"]
    assert (one["stream"], one["topic"], one["holder"]) == ("orders", shop.topic, "operator")
    assert (one["old"], one["raised"]) == ({MS: str(100 * HOUR)}, {MS: str(106 * HOUR + MARGIN)})
    assert held["disk"]["usable_bytes"] > 0
    assert "not known" in held["warnings"][0], "one sample tells no growth"

    shown = shop.run("hold").out
    assert "retention.ms" in shown
    assert "4 d 4 h" in shown
    assert "`backlogctl watch` gives it back then" in shown
    assert shop.run("hold", "orders", "--json").document["holds"] == [one]

    assert "released" in shop.run("hold", "orders", "--release").out
    assert read_topic_overrides(shop.properties, shop.topic, [MS]) == {MS: str(100 * HOUR)}
    assert shop.run("hold").out == "nothing is held\n"
    assert "no operator holds stream orders" in shop.run("hold", "orders", "--release").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--for", "6h"], "name the stream"),
        (["--release"], "name the stream"),
        (["orders", "--for", "6h", "--release"], "exclude"),
        (["orders", "--for", "soon"], "6h"),
        (["orders", "--for", "0s"], "longer than zero"),
        (["order", "--for", "6h"], "orders"),
        (["orders", "--for", "6h", "--allow", "all"], "disk"),
    ],
)
def test_bad_usage(
    tmp_path: Path,
    words: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["hold", *words]) == 2
    assert told in capfd.readouterr().err


def test_hold_is_extended_by_what_is_new(desk: Desk) -> None:
    first = hold_stream(desk.workspace, desk.stream, timedelta(hours=6)).hold
    assert first is not None
    assert desk.read() == (str(7 * HOUR + MARGIN), "-1")
    again = hold_stream(desk.workspace, desk.stream, timedelta(hours=8)).hold
    assert again is not None
    assert again.id == first.id
    kept = int(desk.read()[0] or 0) - (9 * HOUR + MARGIN)
    assert 0 <= kept < 60_000, "as if it had been held for eight hours from now on"
    shorter = hold_stream(desk.workspace, desk.stream, timedelta(hours=1)).hold
    assert shorter is not None
    assert shorter.until is not None
    assert again.until is not None
    assert shorter.until < again.until
    assert int(desk.read()[0] or 0) >= 9 * HOUR + MARGIN, "what is raised is not lowered"
    released, warnings = release_stream(desk.workspace, desk.stream)
    assert ([one.id for one in released], warnings) == ([first.id], [])
    assert desk.read() == (str(HOUR), "5000000")


def test_hold_that_is_due_is_given_back_by_the_next_command(
    desk: Desk, capfd: pytest.CaptureFixture[str]
) -> None:
    for command in (["hold"], ["status", "--json"], ["watch", "--rounds", "1"]):
        hold_stream(desk.workspace, desk.stream, timedelta(hours=1))
        assert desk.read()[1] == "-1"
        assert release_due(desk.workspace) == [], "not before its time"
        desk.make_due()
        assert main(command) == 0
        assert desk.read() == (str(HOUR), "5000000"), command
        assert f"retention of topic {desk.topic} was given back" in capfd.readouterr().err
        assert desk.workspace.ledger.holds.list() == ()


def test_what_somebody_changed_is_told_when_it_is_due(desk: Desk) -> None:
    hold_stream(desk.workspace, desk.stream, timedelta(hours=1))
    alter_topic_config(desk.properties, desk.topic, {MS: "7777777"})
    desk.make_due()
    (warning,) = release_due(desk.workspace)
    assert "somebody changed it" in warning
    assert desk.read() == ("7777777", "5000000")


def test_full_disks_refuse_a_hold_unless_allowed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = DiskCheck(2000, 1000, False, "each broker needs more")
    monkeypatch.setattr(retention, "estimate_hold", lambda *_, **__: full)
    with pytest.raises(Refused, match="would fill up: each broker needs more"):
        hold_stream(desk.workspace, desk.stream, timedelta(hours=1))
    assert desk.read() == (str(HOUR), "5000000")
    assert desk.workspace.ledger.holds.list() == ()
    held = hold_stream(desk.workspace, desk.stream, timedelta(hours=1), allow_full=True)
    assert held.warnings == ("the disks may fill up: each broker needs more",)
    assert desk.read()[1] == "-1"


def test_topic_that_keeps_everything_needs_no_hold(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    alter_topic_config(desk.properties, desk.topic, {MS: "-1", BYTES: "-1"})
    monkeypatch.setattr(retention, "read_log_dirs", lambda *_: LogDirs(None, "nobody tells"))
    assert main(["hold", "orders", "--for", "6h"]) == 0
    assert "nothing deletes the messages" in capfd.readouterr().out
    assert desk.workspace.ledger.holds.list() == ()


def test_hold_of_an_unreachable_cluster_stays_and_is_told(tmp_path: Path) -> None:
    workspace = open_workspace(load_config(write_config(tmp_path)))
    held = workspace.ledger.holds.begin(
        stream="orders",
        cluster="gone",
        topic="orders",
        topic_id="id",
        holder=OPERATOR,
        old={MS: None},
        raised={MS: "5"},
        until=utc_now() - timedelta(minutes=1),
        actor="ada",
    )
    (told,) = release_due(workspace)
    assert "could not be" in told
    assert "no such cluster" in told
    assert workspace.ledger.holds.list() == (held,)
