"""The command line: options, exit codes, errors, one document with --json; `archive`."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backlogctl.kafka.admin import read_topic_id
from backlogctl.kafka.clients import make_admin
from backlogctl.replay.cli import main
from backlogctl.replay.engine.archives import clear_staging, find_archive
from backlogctl.values import GapState
from tests.kit.kafka import commit, publish, set_offsets_raw
from tests.kit.recoveries import change_ledger, read_actions
from tests.kit.shop import (
    DONE,
    LOST,
    PARTITIONS,
    TOTAL,
    Shop,
    count_by_partition,
    list_states,
    offload,
)
from tests.spark_backfill.world import make_gap, make_order, publish_orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    gaps = shop.call("gaps", "orders", "--json").document["gaps"]
    assert sum(gap["count"] for gap in gaps) == LOST
    assert {gap["cause"] for gap in gaps} == {"expired"}
    again = shop.call("gaps", "--json", "--config", "backlog.yaml").document["gaps"]
    assert [gap["id"] for gap in again] == [gap["id"] for gap in gaps]

    shown = shop.run("gaps")
    assert gaps[0]["id"] in shown.out
    assert "next: backlogctl plan rebuild orders" in shown.out

    words = ["--cluster", "main", "--group", shop.group]
    assert shop.call("status", *words, "--json").document["streams"][0]["lost"] == LOST
    (shop.directory / "backlog.yaml").unlink()
    words = ["--bootstrap", shop.bootstrap, "--group", shop.group]
    assert shop.call("status", *words, "--json").document["streams"][0]["lost"] == LOST
    free = shop.call("--json", "gaps", *words, "--topic", shop.topic).document["gaps"]
    assert sum(gap["count"] for gap in free) == LOST
    # What is printed works as it is printed: without a stream only `init` does.
    adopt = f"backlogctl init --bootstrap {shop.bootstrap} --group {shop.group}"
    for verb in ("status", "gaps", "doctor"):
        told = shop.call(verb, *words, code=int(verb == "doctor")).out
        assert adopt in told
        assert not re.findall(r"backlogctl (?!init)[a-z]+ .*", told.replace("`backlogctl", "`"))
    assert shop.call(*adopt.split()[1:]).code == 0
    assert shop.call("status", "--json").document["streams"][0]["lost"] == LOST


def test_a_stream_without_its_topic_does_not_hide_the_gaps_of_others(shop: Shop) -> None:
    path = shop.directory / "backlog.yaml"
    config = json.loads(path.read_text())
    config["streams"]["gone"] = {**config["streams"]["orders"], "topic": f"{shop.topic}-gone"}
    path.write_text(json.dumps(config))
    found = shop.call("gaps", "--json", code=1).document
    assert sum(gap["count"] for gap in found["gaps"]) == LOST
    assert "what gone lost since the last look is unknown" in " ".join(found["warnings"])
    assert "next: backlogctl plan rebuild orders" in shop.call("gaps", code=1).out
    assert shop.call("gaps", "gone", "--json", code=1).error["code"] == "topic_missing"


def test_where_a_group_that_was_left_begins_again_is_told(shop: Shop) -> None:
    """Its commit is below the log start: with `latest` it would skip what is put back, too."""
    unread = f"{TOTAL - LOST - DONE} unread messages would be skipped"
    entry = shop.call("status", "--json").document["streams"][0]
    (told,) = [text for text in entry["warnings"] if "auto.offset.reset" in text]
    assert unread in told
    commit(shop.properties, shop.group, shop.topic, shop.read_ends())
    entry = shop.call("status", "--json").document["streams"][0]
    assert "auto.offset.reset" not in " ".join(entry["warnings"])


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
    told = shop.call("gaps").out
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
        said = empty_shop.call(*words, code=1, BACKLOG_DEBUG="1")
        assert secret not in said.out + said.err


def test_help_is_quick_and_loads_no_spark() -> None:
    """Neither `--help` nor the verbs that look load what takes a second: not even numpy."""
    program = (
        "import sys; from backlogctl.replay.cli import main; main(['--help']);"
        "import backlogctl.replay.observe.stream, backlogctl.replay.engine.kind, backlogctl.replay.present.terminal, backlogctl.replay.present.status, backlogctl.replay.consumers.members;"
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
        assert started["bootstrap"] in empty_shop.call("broker", "status").out
    finally:
        assert empty_shop.run("broker", "stop", "--json").document["stopped"]
    assert not empty_shop.call("--json", "broker", "status").document["running"]


UNREAD = TOTAL - DONE


@pytest.fixture
def offloaded(empty_shop: Shop, spark: SparkSession) -> tuple[Shop, str]:
    """A shop of which all that was unread lies in an archive, and its id."""
    shop = empty_shop
    publish_orders(shop.bootstrap, shop.topic, [make_order(number) for number in range(TOTAL)])
    commit(shop.properties, shop.group, shop.topic, count_by_partition(range(DONE)))
    return shop, offload(shop, spark)


def find_folder(shop: Shop, archive: str) -> Path:
    return shop.directory / "staging" / "archives" / archive


def close_gaps(shop: Shop, archive: str) -> None:
    """As if all of it was put back."""
    ledger = shop.open().ledger
    ids = [gap.id for gap in ledger.gaps.list()]
    for state in (GapState.INJECTED, GapState.VERIFIED):
        ledger.gaps.advance(ids, state, archive)


def test_seen_and_looked_into(offloaded: tuple[Shop, str]) -> None:
    shop, archive = offloaded
    listed = shop.call("archive", "list", "--json").document["archives"]
    assert [(one["id"], one["messages"], one["waiting"]) for one in listed] == [
        (archive, UNREAD, UNREAD)
    ]
    assert listed[0]["expires_at"] is None
    assert "not while needed" in shop.call("archive", "list").out
    shown = shop.call("archive", "show", archive, "--json").document
    handled = count_by_partition(range(DONE))
    assert [item["start"] for item in shown["ranges"]] == [handled[n] for n in range(PARTITIONS)]
    assert {item["holes"] for item in shown["ranges"]} == {0}
    assert {gap["stage"] for gap in shown["gaps"]} == {"waiting"}
    told = shop.call("archive", "show", archive).out
    assert f"{UNREAD} messages" in told
    assert f"backlogctl plan redrive orders --from archive:{archive}" in told

    first = shop.call(
        "archive", "peek", archive, "--partition", "1", "--offset", "30", "-n", "2", "--json"
    ).document["messages"]
    assert [(one["partition"], one["offset"]) for one in first] == [(1, 30), (1, 31)]
    order = shop.call("archive", "peek", archive, "--key", str(TOTAL - 1), "--json").document
    value = json.loads(order["messages"][0]["value"]["text"])
    assert value["order_id"] == TOTAL - 1
    assert len(order["messages"]) == 1
    assert "no such message" in shop.call("archive", "peek", archive, "--key", "nobody").out

    shop.write_config(mask=["user_id", "key"])
    masked = shop.call("archive", "peek", archive, "-n", "3").out
    assert '"user_id": "***"' in masked
    assert masked.count("hidden by `mask`") == 3
    missing = shop.call("archive", "show", "r-20000101-0001", "--json", code=2).error
    assert "no such archive" in missing["message"]
    check_changes_are_named(shop, archive)


def check_changes_are_named(shop: Shop, archive: str) -> None:
    good = shop.call("archive", "verify", archive, "--json").document
    assert good["good"]
    assert good["messages"] == UNREAD
    files = sorted(find_folder(shop, archive).glob("partition=*/*.parquet"))
    raw = bytearray(files[0].read_bytes())
    raw[len(raw) // 2] ^= 1
    files[0].write_bytes(raw)
    files[1].unlink()
    (files[2].parent / "other.parquet").write_bytes(b"x")
    bad = shop.call("archive", "verify", archive, "--json", code=1).document
    assert not bad["good"]
    assert [Path(path).name for path in bad["corrupt"]] == [files[0].name]
    assert [Path(path).name for path in bad["missing"]] == [files[1].name]
    assert [Path(path).name for path in bad["unexpected"]] == ["other.parquet"]
    told = shop.call("archive", "verify", archive, code=1).out
    assert files[1].name in told
    (find_folder(shop, archive) / "manifest.json").write_text("{}")
    refused = shop.call("archive", "verify", archive, "--json", code=1).error
    assert refused["code"] == "staging"


def test_purge_loses_nothing_unless_allowed(offloaded: tuple[Shop, str]) -> None:
    shop, archive = offloaded
    refused = shop.call("archive", "purge", archive, "--json", code=5).error
    assert f"{UNREAD} messages" in refused["message"]
    assert "--allow lose" in refused["hint"]
    assert find_folder(shop, archive).exists()
    shop.call("archive", "purge", archive, "--allow", "all", "--json", code=2)
    done = shop.call("archive", "purge", archive, "--allow", "lose", "--json").document
    assert done["files"] > PARTITIONS
    assert done["bytes"] > 0
    assert not find_folder(shop, archive).exists()
    workspace = shop.open()
    gaps = workspace.ledger.gaps.list()
    assert {gap.state for gap in gaps} == {GapState.WAIVED}
    assert all(archive in gap.reason for gap in gaps)
    assert "archive purged" in read_actions(workspace, archive)
    shown = shop.call("archive", "show", archive, "--json").document
    assert shown["purged_by"].startswith("os:")
    assert sum(item["messages"] for item in shown["ranges"]) == UNREAD, "the counts stay"
    for verb in ("peek", "verify", "purge"):
        gone = shop.call("archive", verb, archive, "--json", code=5).error
        assert "it was purged" in gone["message"]


def test_purge_leaves_what_is_not_of_the_archive(offloaded: tuple[Shop, str]) -> None:
    shop, archive = offloaded
    close_gaps(shop, archive)
    outside = shop.directory / "precious"
    outside.mkdir()
    (outside / "file.parquet").write_text("x")
    folder = find_folder(shop, archive)
    path = folder / "manifest.json"
    own = path.read_text()
    path.write_text(own.replace(archive, "r-20000101-0001"))
    refused = shop.call("archive", "purge", archive, "--json", code=5).error
    assert refused["code"] == "foreign_archive", "one of another offload is not deleted"
    assert path.exists()
    path.write_text(own)
    (folder / "notes.txt").write_text("mine")
    (folder / "partition=7").symlink_to(outside)
    shop.call("archive", "purge", archive)
    assert (outside / "file.parquet").exists()
    assert (folder / "notes.txt").exists()
    assert not list(folder.glob("partition=*/*.parquet"))[1:]


def test_archives_expire_after_all_is_put_back(offloaded: tuple[Shop, str]) -> None:
    shop, archive = offloaded
    workspace = shop.open()
    age_gaps(shop)
    assert clear_staging(workspace) == (), "its gaps wait"
    assert list_states(workspace) == ["staged"]
    close_gaps(shop, archive)
    assert clear_staging(workspace) == (), "kept for a while"
    expires = find_archive(workspace, archive).expires_at
    assert expires is not None
    age_gaps(shop)
    assert clear_staging(workspace) == (archive,)
    assert not find_folder(shop, archive).exists()
    assert clear_staging(workspace) == ()
    assert workspace.ledger.archives.get(archive).purged_at is not None


def test_an_archive_that_an_open_gap_needs_is_kept(empty_shop: Shop, spark: SparkSession) -> None:
    """The group was set back over a known gap: its messages are the archive's, not the gap."""
    shop = empty_shop
    publish_orders(shop.bootstrap, shop.topic, [make_order(number) for number in range(TOTAL)])
    ledger = shop.open().ledger
    topic_id, _ = read_topic_id(make_admin(shop.properties), shop.topic)
    older = make_gap(shop.topic, 0, 3, 8, group=shop.group, topic_id=topic_id)
    ledger.gaps.record(older)
    archive = offload(shop, spark)
    kept = [gap for gap in ledger.gaps.list() if gap.archive]
    for state in (GapState.INJECTED, GapState.VERIFIED):
        ledger.gaps.advance([gap.id for gap in kept], state, archive)
    age_gaps(shop)
    assert clear_staging(shop.open()) == ()
    refused = shop.call("archive", "purge", archive, "--json", code=5).error
    assert "5 messages" in refused["message"]
    assert "only in this archive" in refused["message"]


def test_an_archive_that_another_streams_gap_needs_is_kept(offloaded: tuple[Shop, str]) -> None:
    """Two groups read the topic: what the other one lost lies only here, too."""
    shop, archive = offloaded
    ledger, record = shop.open().ledger, shop.open().ledger.archives.get(archive)
    close_gaps(shop, archive)
    item = record.ranges[0]
    for stream, cluster in (("orders-there", "another"), ("audit", record.cluster)):
        age_gaps(shop)
        assert find_archive(shop.open(), archive).expires_at is not None
        place = (shop.topic, item.partition, item.start, item.end)
        words: dict[str, Any] = {"stream": stream, "group": stream, "cluster": cluster}
        ledger.gaps.record(replace(make_gap(*place, topic_id=record.topic_id), **words))
    (gap,) = find_archive(shop.open(), archive).elsewhere
    assert (gap.stream, gap.cluster) == ("audit", record.cluster)
    assert clear_staging(shop.open()) == ()
    refused = shop.call("archive", "purge", archive, "--json", code=5).error
    assert gap.id in refused["message"]
    assert "audit" in refused["hint"]


def age_gaps(shop: Shop) -> None:
    workspace = shop.open()
    change_ledger(workspace, "UPDATE backlog_gaps SET changed_at = '2026-01-01T00:00:00.000000Z'")
    change_ledger(workspace, "UPDATE backlog_archives SET made_at = '2026-01-01T00:00:00.000000Z'")


def test_fault_21_a_mistyped_group_leaves_no_gap(shop: Shop) -> None:
    typo = f"tpyo-{shop.group}"
    shop.write_config(group=typo)
    (entry,) = shop.call("status", "--json").document["streams"]
    assert (entry["verdict"], entry["lag"], entry["lost"]) == ("unknown", None, None)
    (warning,) = entry["warnings"]
    assert f"group {typo} does not exist on this cluster (never_committed)" in warning
    refused = shop.call("plan", "rebuild", "orders", "--json", code=5).error
    assert refused["subject"] == f"group {typo}"
    assert "is unknown" in refused["message"]
    assert "is its name right?" in refused["hint"]
    words = ("--bootstrap", shop.bootstrap, "--group", typo, "--topic", shop.topic)
    (entry,) = shop.call("status", *words, "--json").document["streams"]
    assert entry["verdict"] == "unknown"
    assert shop.open().ledger.gaps.list() == ()
    # From the first commit on it is a group like any other.
    set_offsets_raw(shop.properties, typo, shop.topic, {0: 1})
    shop.call("status")
    assert {gap.group for gap in shop.open().ledger.gaps.list()} == {typo}
