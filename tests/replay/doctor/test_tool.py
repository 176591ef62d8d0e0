"""Rights, sources, clocks, disk, Java, topics: what stops the tool; `watch` looks too."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from backlogctl.clock import Deadline
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.commit_log import COMMIT_LOG
from backlogctl.kafka.rights import Operation, Resource
from backlogctl.kafka.topics import read_metadata
from backlogctl.monitoring.doctor import facts
from backlogctl.monitoring.doctor.checks import CATALOGUE, CheckFinding, CheckLevel
from backlogctl.monitoring.producers.reader import read_newest_log
from backlogctl.monitoring.watch.loop import watch_streams
from backlogctl.replay.doctor import stream
from backlogctl.replay.doctor import stream as examining
from backlogctl.replay.doctor import tool as host
from backlogctl.replay.doctor.reference import render_page
from backlogctl.replay.doctor.stream import examine_stream, examine_tool, judge_sources
from backlogctl.replay.doctor.tool import list_wanted
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.observe.rights import SEE, list_rights
from backlogctl.replay.web import checkups
from backlogctl.replay.web.exporter import open_exporter
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.kafka import AccessDenied
from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.database import OutboxDatabase
from tests.conftest import MakeTopic
from tests.kit.java import run_line
from tests.kit.kafka import join, properties_of, publish, set_offsets_raw, wait_until
from tests.kit.prometheus import Scraped
from tests.kit.secured import PASSWORD, SecuredKafka, start_secured
from tests.kit.shop import call_main
from tests.replay.doctor.world import SOURCE, examine, list_levels, make_table, make_workspace

TABLE = "CREATE TABLE orders (order_id TEXT PRIMARY KEY, updated_at TEXT)"
INDEX = "CREATE INDEX orders_updated_at ON orders (updated_at)"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A topic and its group."""
    with start_secured(tmp_path_factory.mktemp("secured")) as found:
        create_topic(found.properties, "orders", partitions=1)
        publish(found.properties, "orders", {0: 9})
        set_offsets_raw(found.properties, "service", "orders", {0: 9})
        yield found


@pytest.fixture
def workspace(properties: dict[str, str], topic: MakeTopic, tmp_path: Path) -> Workspace:
    """With a good source."""
    make_table(tmp_path, TABLE, INDEX)
    return make_workspace(tmp_path, properties, topic(), source=SOURCE)


def look_at_tool(workspace: Workspace) -> dict[str, CheckFinding]:
    streams = list(workspace.config.streams.values())
    return {one.check: one for one in examine_tool(workspace, streams).findings}


def test_each_right_that_is_missing_is_found(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the line that grants it; what cannot be read is unknown, and the rest is judged."""
    make_table(tmp_path, TABLE, INDEX)
    by_name = {"sasl.password": "${env:DOCTOR_PASSWORD}"}
    monkeypatch.setenv("DOCTOR_PASSWORD", PASSWORD)
    everyone = make_workspace(tmp_path, {**secured.properties, **by_name}, source=SOURCE)
    wanted = list_wanted(everyone, everyone.config.stream("orders"))
    assert list(wanted) == ["see", "watch", "hold", "rebuild", "redrive", "doctor"]
    every = list(dict.fromkeys(right for rights in wanted.values() for right in rights))
    all_rights = secured.add_user("all-rights", every)
    whole = examine(make_workspace(tmp_path, {**all_rights, **by_name}, source=SOURCE))
    assert not {"rights", "unread"} & set(whole)

    without = [
        one
        for one in every
        if (one.resource, one.operation)
        not in (
            (Resource.TOPIC, Operation.ALTER_CONFIGS),
            (Resource.CLUSTER, Operation.DESCRIBE_CONFIGS),
        )
        and (one.name, one.operation) != (COMMIT_LOG, Operation.READ)
    ]
    login = {**secured.add_user("some-rights", without), **by_name}
    workspace = make_workspace(tmp_path, login, source=SOURCE)
    stream = workspace.config.stream("orders")
    found = [
        (one.check, one.level, one.found)
        for one in examine_stream(workspace, stream).findings
        if one.check in ("rights", "unread")
    ]
    assert found == [
        (
            "rights",
            CheckLevel.STOPS,
            "hold: the tool may not ALTER_CONFIGS on topic orders (to raise its retention)",
        ),
        (
            "unread",
            CheckLevel.UNKNOWN,
            next(text for check, _, text in found if check == "unread"),
        ),
        (
            "rights",
            CheckLevel.UNKNOWN,
            "watch: the tool may not READ on topic __consumer_offsets (to see each commit of the "
            "group; without it all is known by samples only)",
        ),
        (
            "rights",
            CheckLevel.UNKNOWN,
            "doctor: the tool may not DESCRIBE_CONFIGS on the cluster (to read the brokers' "
            "settings)",
        ),
    ]
    assert "the brokers' settings could not be read" in found[1][2]


def test_without_any_right_nothing_is_called_well(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCTOR_PASSWORD", PASSWORD)
    secured.add_user("nobody", [])
    login = {**secured.login("nobody"), "sasl.password": "${env:DOCTOR_PASSWORD}"}
    make_workspace(tmp_path, login)
    code, out, _ = call_main(("doctor", "orders", "--json"), tmp_path, {})
    document = json.loads(out)
    assert (code, document["result"]) == (1, 1)
    stream = next(one for one in document["examinations"] if one["about"] == "stream")
    levels = {(one["check"], one["level"]) for one in stream["findings"]}
    assert {("rights", "stops"), ("unread", "unknown")} <= levels
    assert not any(one["level"] in ("loses", "warns") for one in stream["findings"])


def test_a_login_that_only_watches_is_asked_for_nothing_else(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for rights of recoveries, nor for their database, disk and Java."""
    monkeypatch.setenv("DOCTOR_PASSWORD", PASSWORD)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    by_name = {"sasl.password": "${env:DOCTOR_PASSWORD}"}
    everyone = make_workspace(tmp_path, {**secured.properties, **by_name})
    stream = everyone.config.stream("orders")
    seeing = list_rights(everyone.kinds, SEE, everyone.config, stream)
    login = {**secured.add_user("watcher", seeing), **by_name}
    make_workspace(tmp_path, login, source=SOURCE, jobs=["see"])
    found = run_doctor(tmp_path)
    # Of a cluster with one broker.
    assert set(found) == {"replication-factor", "flush"}
    make_workspace(tmp_path, login, source=SOURCE)
    found = run_doctor(tmp_path)
    assert {"rights", "unread", "sources", "spark"} <= set(found)
    assert found["rights"]["level"] == "stops"
    assert "name `jobs` without" in found["rights"]["mend"]


def test_a_command_for_a_cluster_with_logins_names_the_login(
    secured: SecuredKafka, shell: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(secured.properties, "bills", partitions=1)
    set_offsets_raw(secured.properties, "service", "bills", {0: 0})
    monkeypatch.setenv("PASSWORD", secured.properties["sasl.password"])
    login = {**secured.properties, "sasl.password": "${env:PASSWORD}"}
    (tmp_path / "admin.properties").write_text(secured.write_java_properties())
    workspace = make_workspace(tmp_path, login, "bills")
    commands = [line for one in examine(workspace).values() for line in one.commands]
    assert any("flush.messages=1" in line for line in commands)
    for line in commands:
        run_line(line, shell, tmp_path)
    assert "flush" not in examine(workspace)


def test_headers_that_may_not_be_read_are_said(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCTOR_PASSWORD", PASSWORD)
    by_name = {"sasl.password": "${env:DOCTOR_PASSWORD}"}
    everyone = make_workspace(tmp_path, {**secured.properties, **by_name})
    seeing = list_rights(everyone.kinds, SEE, everyone.config, everyone.config.stream("orders"))
    reading = (Resource.TOPIC, "orders", Operation.READ)
    others = [one for one in seeing if (one.resource, one.name, one.operation) != reading]
    login = secured.add_user("no-reader", others)
    with pytest.raises(AccessDenied, match="`Read` on topic orders must be granted"):
        read_newest_log(make_admin(login), login, "orders", (0,), None, Deadline(30))
    workspace = make_workspace(tmp_path, {**login, **by_name})
    found = examine_stream(workspace, workspace.config.stream("orders")).findings
    unread = [one.found for one in found if one.check == "unread"]
    assert any("the headers of its newest batches could not be read" in one for one in unread)


def test_requests_that_a_login_cannot_ask_for_are_unknown(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCTOR_PASSWORD", PASSWORD)
    theirs = {"sasl.password": "${env:DOCTOR_PASSWORD}", "ssl.cipher.suites": "DEFAULT"}
    found = look_at_tool(make_workspace(tmp_path, {**secured.properties, **theirs}))["requests"]
    assert found.level is CheckLevel.UNKNOWN
    assert "cannot be asked for with this login" in found.found


def run_doctor(directory: Path) -> dict[str, dict[str, str]]:
    """Its findings by check, of several the worst."""
    _, out, _ = call_main(("doctor", "--json"), directory, {})
    found: dict[str, dict[str, str]] = {}
    for each in json.loads(out)["examinations"]:
        for one in each["findings"]:
            found.setdefault(one["check"], one)
    return found


def test_nothing_is_found_in_a_good_tool(workspace: Workspace) -> None:
    assert look_at_tool(workspace) == {}


@pytest.mark.parametrize(("ahead", "level"), [(-20, CheckLevel.WARNS), (400, CheckLevel.STOPS)])
def test_a_clock_that_is_off(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, ahead: int, level: CheckLevel
) -> None:
    """This host's, against the controller's."""
    monkeypatch.setattr(facts, "time", SimpleNamespace(time=lambda: time.time() - ahead))
    finding = look_at_tool(workspace)["clock"]
    assert finding.level is level
    word = "ahead of" if ahead > 0 else "behind"
    assert f"{word} this host's" in finding.found


def test_brokers_that_are_older_than_what_was_tested(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "TESTED_KAFKA", (99, 0))
    finding = look_at_tool(workspace)["versions"]
    assert finding.level is CheckLevel.WARNS
    assert "its brokers speak as Kafka 4." in finding.found


def test_a_full_disk(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "LEAST_FREE", 10**18)
    finding = look_at_tool(workspace)["staging-disk"]
    assert finding.level is CheckLevel.STOPS
    assert "are free, and a rebuild of what is lost may need" in finding.found


@pytest.mark.parametrize(
    ("version", "check", "level"),
    [("11.0.2", "spark", CheckLevel.STOPS), ("25", "versions", CheckLevel.WARNS)],
)
def test_a_java_that_is_not_tested(
    workspace: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    check: str,
    level: CheckLevel,
) -> None:
    java = tmp_path / "jdk/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert look_at_tool(workspace)[check].level is level


def test_jars_that_are_not_there_yet(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKLOG_CACHE", str(tmp_path / "cache"))
    finding = look_at_tool(workspace)["spark"]
    assert finding.level is CheckLevel.WARNS
    assert not (tmp_path / "cache").exists()


def test_sources_that_cannot_be_read_or_have_no_index(
    kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic()
    make_table(tmp_path, "CREATE TABLE other (x TEXT)")
    finding = examine(make_workspace(tmp_path, properties, name, source=SOURCE))["sources"]
    assert finding.level is CheckLevel.STOPS
    make_table(tmp_path, TABLE)
    finding = examine(make_workspace(tmp_path, properties, name, source=SOURCE))["sources"]
    assert finding.level is CheckLevel.WARNS
    assert "no index begins with its time column updated_at" in finding.found
    make_table(tmp_path, *finding.commands)
    assert "sources" not in examine(make_workspace(tmp_path, properties, name, source=SOURCE))
    wrong = {**SOURCE, "time_column": "changed_at"}
    finding = examine(make_workspace(tmp_path, properties, name, source=wrong))["sources"]
    assert "has no column 'changed_at'" in finding.found


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"primary_key": "state"}, "primary_key"),
        ({"order_by": ["updated_at", "state"]}, "order_by"),
        ({"where": {"state": "open"}}, "where"),
        ({"message": {"key": "state", "value": {"json": ["order_id"]}}}, "message.key"),
        ({"message": {"key": "order_id", "value": {"json": ["state"]}}}, "message.value.json"),
        ({"message": {"key": "order_id", "value": {"column": "state"}}}, "message.value.column"),
        ({"identity": {"row": "state", "message": "key"}}, "identity.row"),
        (
            {"consumed": {"database": "shop", "table": "orders", "column": "state"}},
            "consumed.column",
        ),
    ],
)
def test_a_column_that_a_rule_names_and_the_table_has_not_stops_a_rebuild(
    tmp_path: Path, wrong: dict[str, Any], place: str
) -> None:
    make_table(tmp_path, TABLE)
    workspace = make_workspace(
        tmp_path, properties_of("127.0.0.1:1"), "orders", source={**SOURCE, **wrong}
    )
    found = [*judge_sources(workspace.config, workspace.config.stream("orders"))]
    (finding,) = [one for one in found if one.level is CheckLevel.STOPS]
    assert f"`streams.orders.source.{place}`" in finding.found
    assert "has no column 'state'" in finding.found


def test_a_topic_that_is_not_there_stops_a_recovery(
    properties: dict[str, str], tmp_path: Path
) -> None:
    found = examine(make_workspace(tmp_path, properties, "nowhere"))
    assert found["unread"].level is CheckLevel.STOPS
    assert "check `topic` and `cluster` of the stream" in found["unread"].mend


def test_a_cluster_that_is_away_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (examining, host):
        monkeypatch.setattr(module, "_SECONDS", 3.0)
    make_workspace(tmp_path, {"bootstrap.servers": "127.0.0.1:1"})
    code, out, _ = call_main(("doctor", "--json"), tmp_path, {})
    document = json.loads(out)
    assert (code, document["result"]) == (2, 2)
    findings = [one for each in document["examinations"] for one in each["findings"]]
    assert {one["level"] for one in findings} == {"unknown"}


def test_a_ledger_that_cannot_be_opened_stops_no_look(
    properties: dict[str, str], topic: MakeTopic, tmp_path: Path
) -> None:
    make_workspace(tmp_path, properties, topic())
    config = tmp_path / "backlog.yaml"
    config.write_text(config.read_text().replace(f"{tmp_path}/ledger.db", "/dev/null/ledger.db"))
    code, out, _ = call_main(("doctor", "--json"), tmp_path, {})
    tool, stream = json.loads(out)["examinations"]
    assert code == 1
    assert [(one["check"], one["level"]) for one in tool["findings"]] == [("ledger", "stops")]
    assert stream["name"] == "orders"


def test_a_client_file_needs_no_cluster_and_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "producer.properties").write_text("acks=1\n")
    code, out, err = call_main(("doctor", "--client", "producer.properties"), tmp_path, {})
    assert code == 1, err
    assert "producer in producer.properties" in out
    assert "acks=all" in out
    (tmp_path / "producer.properties").write_text("acks=all\n")
    code, out, _ = call_main(("doctor", "--client", "producer.properties"), tmp_path, {})
    assert (code, "nothing here loses messages" in out) == (0, True)


WATCH = {"interval": "500ms", "window": "2s", "doctor": "1h"}


def test_what_watch_finds_is_in_metrics_and_on_the_page(
    properties: dict[str, str], topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    name, group = topic(partitions=1), f"group-{unique}"
    publish(properties, name, {0: 20})
    workspace = make_workspace(tmp_path, properties, name, group, watch=WATCH)
    member = join(properties, group, name, client_id="worker-1")
    first = member.poll(30)
    assert first is not None
    member.commit(message=first, asynchronous=False)
    stop = threading.Event()
    with open_exporter(workspace, "127.0.0.1:0", "--listen", lambda *_: None) as exporter:
        loop = threading.Thread(
            target=watch_streams,
            args=(workspace.config, workspace.ledger, timedelta(milliseconds=500), stop),
            kwargs={"window": timedelta(seconds=2), "on_status": exporter.board.put_stream},
        )
        loop.start()
        try:

            def read() -> Scraped:
                member.poll(0)  # it stays in the group, and commits nothing
                return Scraped(httpx.get(f"{exporter.url}/metrics", timeout=30).text)

            wait_until(lambda: read().find("backlog_member_partitions"), what="members are asked")
            wait_until(lambda: read().find("backlog_doctor_findings"), what="the doctor looked")
            got = read()
            page = httpx.get(f"{exporter.url}/streams/orders", timeout=30).text
        finally:
            stop.set()
            loop.join(60)
            member.close()
    assert got.value("backlog_member_partitions", stream="orders", client_id="worker-1") == 1
    found = {"stream": "orders", "check": "replication-factor", "level": "loses"}
    assert got.value("backlog_doctor_findings", **found) == 1
    assert "worker-1" in page
    assert "replication factor 1, min.insync.replicas 1" in page


def test_a_look_that_fails_ends_no_others(
    properties: dict[str, str],
    topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A bug in one look is in the log; the next look is made all the same."""

    def fail(*_: object) -> tuple[CheckFinding, ...]:
        raise ZeroDivisionError

    monkeypatch.setattr(checkups, "examine_tool", fail)
    workspace: Workspace = make_workspace(tmp_path, properties, topic(), watch=WATCH)
    with open_exporter(workspace, "127.0.0.1:0", "--listen", lambda *_: None) as exporter:
        wait_until(lambda: "orders" in exporter.board.seen.checkups, what="the stream is looked at")
        assert "" not in exporter.board.seen.checkups
    assert "a checkup of the tool failed" in caplog.text


def test_what_no_stream_is_about_is_with_the_tool(
    properties: dict[str, str], tmp_path: Path
) -> None:
    """Outboxes and look-back: `backlogctl doctor` without a stream says the same."""
    url = f"sqlite:///{tmp_path}/shop.db"
    database = OutboxDatabase(url)
    OutboxAdmin(database).create()
    database.close()
    workspace = make_workspace(
        tmp_path,
        properties,
        streams={},
        sources={"shop": {"url": url}},
        outboxes={"shop": {"cluster": "main"}},
        watch=WATCH,
    )
    with open_exporter(workspace, "127.0.0.1:0", "--listen", lambda *_: None) as exporter:

        def read() -> Scraped:
            return Scraped(httpx.get(f"{exporter.url}/metrics", timeout=30).text)

        wait_until(
            lambda: read().find("backlog_doctor_findings", check="outbox-locks"),
            what="the doctor looked",
        )
        assert read().value("backlog_doctor_findings", check="outbox-locks", stream="") == 1
        assert "it is in SQLite" in httpx.get(f"{exporter.url}/", timeout=30).text


PAGE = Path(__file__).parents[3] / "docs" / "doctor.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render_page(), (
        "run: python -m backlogctl.replay.doctor.reference > docs/doctor.md"
    )


def test_every_check_has_a_heading() -> None:
    headings = [line.removeprefix("### ") for line in PAGE.read_text().splitlines()]
    assert not set(CATALOGUE) - set(headings)


def test_every_finding_names_a_check() -> None:
    root = PAGE.parents[1]
    files = [*(root / "monitoring/doctor").glob("*.py"), *(root / "replay").rglob("doctor/*.py")]
    named = {
        name for file in files for name in re.findall(r'"([a-z-]+)", CheckLevel', file.read_text())
    }
    assert named - set(CATALOGUE) == set()
    assert len(named) > 30


GOOD = {"min.insync.replicas": "2"}


def test_brokers_that_go_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One, then so many that writes are refused, then the leader."""
    monkeypatch.setattr(stream, "_SECONDS", 8.0)  # reads of those that are gone
    with EmbeddedKafka.start(tmp_path / "kafka", brokers=3) as kafka:
        properties = properties_of(kafka.bootstrap)
        create_topic(properties, "orders", partitions=1, replication=3, config=GOOD)
        create_topic(properties, "loose", partitions=1, replication=2)
        (leader, *others) = read_metadata(properties, "orders").topics["orders"].partitions[0].isrs
        # The first broker holds the controller.
        victims = [number for number in (3, 2) if number in (leader, *others)]
        workspace = make_workspace(tmp_path, properties)
        kafka.kill(victims[0])
        finding = await_under_replicated(workspace, CheckLevel.WARNS)
        assert "fewer replicas" in finding.found
        kafka.kill(victims[1])
        finding = await_under_replicated(workspace, CheckLevel.STOPS)
        assert "writes with acks=all are refused" in finding.found


def await_under_replicated(workspace: Workspace, level: CheckLevel) -> CheckFinding:
    """The controller notices after a session time-out; until then reads may fail."""
    found: list[CheckFinding] = []

    def is_so() -> bool:
        finding = examine(workspace).get("under-replicated")
        found[:] = [finding] if finding is not None else []
        return bool(found) and found[0].level is level

    wait_until(is_so, 180, what=f"it {level}")
    return found[0]


def test_brokers_that_are_set_wrong(tmp_path: Path) -> None:
    wrong = {
        "transaction.max.timeout.ms": "10000",
        "transaction.state.log.replication.factor": "3",
        "offsets.retention.minutes": "60",
        "offsets.topic.replication.factor": "1",
        "group.consumer.migration.policy": "disabled",
        "broker.rack": "cellar",
    }
    with EmbeddedKafka.start(tmp_path / "kafka", brokers=2, properties=wrong) as kafka:
        properties = properties_of(kafka.bootstrap)
        create_topic(properties, "orders", partitions=1, replication=2)
        found = examine(make_workspace(tmp_path, properties))
        assert list_levels(found) == {
            "min-insync-replicas": CheckLevel.LOSES,
            "offsets-retention": CheckLevel.LOSES,
            "transactions": CheckLevel.STOPS,
            "replication-factor": CheckLevel.WARNS,
            "brokers": CheckLevel.WARNS,
            "racks": CheckLevel.WARNS,
            "commit-log": CheckLevel.LOSES,
        }
