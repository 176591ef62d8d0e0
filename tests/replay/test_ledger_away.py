"""`status` where the ledger cannot be used: the brokers are asked all the same."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
from contextlib import closing, suppress
from pathlib import Path

import pytest

from backlogctl.config import load_config
from backlogctl.errors import LedgerError
from backlogctl.ledger import ledger as opening
from backlogctl.ledger import open_ledger
from backlogctl.replay.opening import open_workspace
from tests.conftest import MakeTopic
from tests.kit.kafka import publish, set_offsets_raw
from tests.kit.ledger import make_gap
from tests.kit.recoveries import store_plan
from tests.kit.shop import call_main


@pytest.fixture
def place(
    properties: dict[str, str], topic: MakeTopic, group: str, small_disk: Path, tmp_path: Path
) -> Path:
    """A configuration, and its ledger on a disk of its own; nine messages, four of them read."""
    name = topic(partitions=1)
    publish(properties, name, {0: 9})
    set_offsets_raw(properties, group, name, {0: 4})
    write_config(tmp_path, properties, name, group, f"sqlite:///{small_disk}/ledger.db")
    with open_ledger(f"sqlite:///{small_disk}/ledger.db"):
        pass
    return small_disk / "ledger.db"


def write_config(
    directory: Path, properties: dict[str, str], topic: str, group: str, ledger: str
) -> None:
    stream = {"cluster": "main", "topic": topic, "group": group}
    document = {"ledger": ledger, "clusters": {"main": properties}, "streams": {"orders": stream}}
    (directory / "backlog.yaml").write_text(json.dumps(document))


def fill(disk: Path) -> None:
    """Until nothing more goes on it."""
    with suppress(OSError), (disk / "full").open("wb", 0) as file:
        while file.write(bytes(4096)):
            pass


def make_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)


def damage(path: Path) -> None:
    """All but the first page, which says that it is a database, and the second."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
        (root,) = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'backlog_samples'"
        ).fetchone()
    assert root < pages
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(os.urandom(size))


@pytest.mark.parametrize("what", ["full", "read only", "damaged"])
def test_status_says_what_the_brokers_say(place: Path, tmp_path: Path, what: str) -> None:
    if what == "full":
        fill(place.parent)
    elif what == "read only":
        make_read_only(place.parent)
    else:
        damage(place)
    code, out, err = call_main(("status", "--json"), tmp_path, {})
    assert code == 1, err
    document = json.loads(out)
    (entry,) = document["streams"]
    assert (entry["lag"], entry["lost"], entry["verdict"]) == (5, None, "unknown")
    assert entry["next_commands"] == []
    assert "what was lost is unknown: the ledger does not answer" in entry["sentence"]
    assert [one["what"] for one in entry["unseen"]] == ["ledger"]
    error = document["ledger_error"]
    assert error["subject"].endswith("ledger.db")
    assert error["hint"]
    code, out, _ = call_main(("status", "orders", "--check"), tmp_path, {})
    assert code == 1
    assert "history, gaps, holds and recoveries are unknown" in " ".join(out.split())
    assert "5 behind" in out


def test_a_recovery_is_shown_where_nothing_can_be_written(place: Path, tmp_path: Path) -> None:
    """What comes next is by what is on record: a look at the topic could not be kept."""
    config = load_config(tmp_path / "backlog.yaml", {})
    recovery = store_plan(open_workspace(config)).id
    code, _, err = call_main(("cancel", recovery), tmp_path, {})
    assert code == 0, err
    fill(place.parent)
    code, out, err = call_main(("show", recovery, "--json"), tmp_path, {})
    assert code == 0, out + err
    assert json.loads(out)["next_commands"] == ["backlogctl status orders"]


def test_a_server_that_is_away(
    properties: dict[str, str], topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    name = topic(partitions=1)
    publish(properties, name, {0: 9})
    set_offsets_raw(properties, group, name, {0: 4})
    write_config(tmp_path, properties, name, group, "postgresql://shop@127.0.0.1:1/ledger")
    code, out, err = call_main(("status", "--json"), tmp_path, {})
    assert code == 1, err
    document = json.loads(out)
    assert document["streams"][0]["lag"] == 5
    assert "nothing listens at 127.0.0.1:1" in document["ledger_error"]["message"]


def test_damage_is_noticed_at_opening_and_what_can_be_read_is_kept(tmp_path: Path) -> None:
    """By every command, and as its hint says: the gaps are in the file that it makes."""
    path = tmp_path / "ledger.db"
    with open_ledger(f"sqlite:///{path}") as ledger:
        ledger.gaps.record(make_gap())
        known = ledger.gaps.list()
    damage(path)
    with pytest.raises(LedgerError, match="the file is damaged") as caught:
        open_ledger(f"sqlite:///{path}")
    assert caught.value.hint is not None
    found = re.search("`(sqlite3 .*?)`", caught.value.hint)
    assert found is not None
    subprocess.run(found[1], shell=True, check=True, capture_output=True)
    with open_ledger(f"sqlite:///{path}.new") as ledger:
        assert ledger.gaps.list() == known


def test_a_large_file_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not looked at in time is looked at by the doctor."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    monkeypatch.setattr(opening, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr("backlogctl.ledger.schema._STEPS", 1)
    with open_ledger(url) as ledger:
        assert not ledger.check_pages(0.0)
        assert ledger.check_pages(60.0)
        assert ledger.gaps.list() == ()
