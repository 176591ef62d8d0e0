"""The command line: options, exit codes, errors, one document with --json."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from backlogctl.replay.cli import main
from tests.kafka_tools import commit, publish, set_offsets_raw
from tests.replay.shop import LOST, TOTAL, Shop


def test_status_and_gaps_with_and_without_a_file(shop: Shop) -> None:
    """Options are taken before and after the verb; JSON is one document; a file is not needed.

    As a process: the others call what the process calls.
    """
    entry = shop.run("--json", "status").document["streams"][0]
    assert entry["verdict"] == "lost"
    assert entry["lost"] == LOST
    assert entry["lag"] == TOTAL - LOST - 60
    keys = {"partition", "log_start", "committed", "end", "lag", "lag_seconds", "lost"}
    assert keys <= set(entry["partitions"][0])

    gaps = shop.run("gaps", "orders", "--json").document["gaps"]
    assert sum(gap["count"] for gap in gaps) == LOST
    assert {gap["cause"] for gap in gaps} == {"expired"}
    again = shop.run("gaps", "--json", "--config", "backlog.yaml").document["gaps"]
    assert [gap["id"] for gap in again] == [gap["id"] for gap in gaps]

    shown = shop.run("gaps")
    assert gaps[0]["id"] in shown.out
    assert "next: backlogctl plan rebuild orders" in shown.out

    words = ["--cluster", "main", "--group", shop.group]
    assert shop.run("status", *words, "--json").document["streams"][0]["lost"] == LOST
    (shop.directory / "backlog.yaml").unlink()
    words = ["--bootstrap", shop.bootstrap, "--group", shop.group]
    assert shop.run("status", *words, "--json").document["streams"][0]["lost"] == LOST
    free = shop.run("--json", "gaps", *words, "--topic", shop.topic).document["gaps"]
    assert sum(gap["count"] for gap in free) == LOST
    # What is printed works as it is printed: without a stream only `init` does.
    adopt = f"backlogctl init --bootstrap {shop.bootstrap} --group {shop.group}"
    for verb in ("status", "gaps", "doctor"):
        told = shop.run(verb, *words, code=int(verb == "doctor")).out
        assert adopt in told
        assert not re.findall(r"backlogctl (?!init)[a-z]+ .*", told.replace("`backlogctl", "`"))
    assert shop.run(*adopt.split()[1:]).code == 0
    assert shop.run("status", "--json").document["streams"][0]["lost"] == LOST


def test_waived_gap_needs_a_reason(shop: Shop) -> None:
    """A gap is closed with a reason, which stays."""
    gap = shop.call("gaps", "--json").document["gaps"][0]["id"]
    assert shop.call("waive", gap, "--reason", " ", "--json", code=2).error["code"] == "usage"
    waived = shop.call("waive", gap, "--reason", "test data", "--json").document
    assert waived["state"] == "waived"
    assert "test data" in waived["reason"]
    assert shop.call("status", "--json").document["streams"][0]["lost"] < LOST


def test_a_loss_without_a_source_names_no_command_that_would_be_refused(shop: Shop) -> None:
    """What cannot be rebuilt is said, with why."""
    shop.write_config(source=None)
    told = shop.run("gaps").out
    assert "cannot be put back" in told
    assert "plan rebuild" not in told


def test_fault_22_committed_beyond_the_end_is_an_alarm(empty_shop: Shop) -> None:
    """An offset above the log's end is told apart from a loss."""
    publish(empty_shop.properties, empty_shop.topic, {0: 5, 1: 5, 2: 5})
    commit(empty_shop.properties, empty_shop.group, empty_shop.topic, {0: 5, 1: 5, 2: 5})
    set_offsets_raw(empty_shop.properties, empty_shop.group, empty_shop.topic, {1: 50})
    entry = empty_shop.call("status", "--json").document["streams"][0]
    assert entry["verdict"] == "beyond_end"
    assert any("beyond the end" in warning for warning in entry["warnings"])
    assert "beyond the end" in empty_shop.call("gaps").out


def test_nothing_lost_is_refused(empty_shop: Shop) -> None:
    """A plan needs something that is lost."""
    publish(empty_shop.properties, empty_shop.topic, {0: 5, 1: 5, 2: 5})
    commit(empty_shop.properties, empty_shop.group, empty_shop.topic, {0: 5, 1: 5, 2: 5})
    error = empty_shop.call("plan", "rebuild", "orders", "--json", code=5).error
    assert "nothing is lost" in error["message"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["status", "order"], "orders"),
        (["plan", "rebuild", "orders", "--allow", "all"], "surplus"),
        (["plan", "rebuild", "orders", "--since", "yesterday"], "ISO 8601"),
        (["plan", "rebuild", "orders", "--gap", "g-1"], "gap"),
        (["show", "r-1"], "no such recovery"),
        (["gaps", "--state", "gone"], "no such state"),
        (["frobnicate"], "frobnicate"),
        (["approve", "r-1"], "--by"),
        (["status", "--group", "g"], "--group"),
        (["status", "--cluster", "main"], "--group"),
        (["status", "--cluster", "mian", "--group", "g"], "--cluster"),
    ],
)
def test_bad_usage(shop: Shop, words: list[str], told: str) -> None:
    """Exit code 2, the error in words and as a document; never a traceback."""
    said = shop.call(*words, "--json", code=2)
    assert told in json.dumps(said.error)
    assert "Traceback" not in said.err
    people = shop.call(*words, code=2)
    assert people.out == ""
    assert any(line.startswith("error: ") for line in people.err.splitlines()[:2])


def test_wrong_configuration(empty_shop: Shop) -> None:
    """The key is named, and the nearest known one."""
    path = empty_shop.directory / "backlog.yaml"
    path.write_text(path.read_text().replace('"staging"', '"stagging"'))
    error = empty_shop.call("status", "--json", code=2).error
    assert error["code"] == "configuration"
    assert "stagging" in error["message"]
    assert "staging" in error["message"]


def test_no_configuration(empty_shop: Shop) -> None:
    """The hint says how to get one, and `init` writes one that loads."""
    path = empty_shop.directory / "backlog.yaml"
    path.unlink()
    assert "backlogctl init" in empty_shop.call("status", "--json", code=2).error["hint"]
    assert empty_shop.call("init", "--json").document["file"] == "backlog.yaml"
    assert path.exists()
    assert empty_shop.call("init", "--json", code=2).error["code"] == "usage"
    assert empty_shop.call("init", "--force").out.startswith("wrote backlog.yaml")


def test_unreachable_cluster_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The addresses that were tried are in the error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("backlogctl.replay.observe.stream.LOOK_SECONDS", 1.0)
    words = ["--bootstrap", "127.0.0.1:1", "--group", "g", "--topic", "t"]
    assert main(["status", *words, "--json"]) == 1
    error = json.loads(capfd.readouterr().out)["error"]
    assert error["code"] == "unreachable"
    assert "127.0.0.1:1" in json.dumps(error)


def test_unknown_exception_is_one_line(
    empty_shop: Shop, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A bug says that it is one; the traceback comes only when asked for."""

    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("an accident")

    monkeypatch.chdir(empty_shop.directory)
    monkeypatch.setattr("backlogctl.replay.observe.stream.choose_streams", fail)
    assert main(["status"]) == 1
    told = capfd.readouterr().err
    assert "ZeroDivisionError: an accident" in told
    assert "this is a bug" in told
    assert "Traceback" not in told
    monkeypatch.setenv("BACKLOG_DEBUG", "1")
    assert main(["status"]) == 1
    assert "Traceback" in capfd.readouterr().err


def test_fault_59_password_is_masked(empty_shop: Shop) -> None:
    """An error that carries a URL's password does not show it."""
    secret = "hunter2-of-the-shop"
    empty_shop.ledger = "postgresql+psycopg://someone:${env:LEDGER_PASSWORD}@127.0.0.1:1/none"
    empty_shop.environment["LEDGER_PASSWORD"] = secret
    empty_shop.write_config()
    for words in (["recoveries"], ["recoveries", "--json"], ["db", "upgrade"]):
        said = empty_shop.run(*words, code=1, BACKLOG_DEBUG="1")
        assert secret not in said.out + said.err


def test_help_is_quick_and_loads_no_spark() -> None:
    """Neither `--help` nor the verbs that look load what takes a second: not even numpy."""
    program = (
        "import sys; from backlogctl.replay.cli import main; main(['--help']);"
        "import backlogctl.replay.observe.stream, backlogctl.replay.engine.kind, backlogctl.replay.present.terminal, backlogctl.replay.present.status;"
        "heavy = 'alembic fastapi matplotlib numpy pyarrow pyspark uvicorn'.split();"
        "print([m for m in heavy if m in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip().endswith("[]")
    for name in ("plan", "approve", "run", "waive"):
        assert re.search(rf"\b{name}\b", answer.stdout)


def test_watch_samples(shop: Shop) -> None:
    """Two rounds leave two samples and the gaps; it says what it found."""
    said = shop.call("watch", "--rounds", "1", "--json")
    assert said.document["new_gaps"] == 3
    assert "expired" in said.err
    with sqlite3.connect(shop.directory / "ledger.db") as ledger:
        assert ledger.execute("SELECT count(*) FROM backlog_samples").fetchone()[0] >= 1


def test_broker_verbs(empty_shop: Shop) -> None:
    """A broker outlives the command that started it, and is stopped by another."""
    started = empty_shop.run("broker", "start", "--json").document
    try:
        assert started["running"]
        assert started["bootstrap"] in empty_shop.run("broker", "status").out
    finally:
        assert empty_shop.run("broker", "stop", "--json").document["stopped"]
    assert not empty_shop.run("--json", "broker", "status").document["running"]
