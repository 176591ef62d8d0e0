"""Every command that a finding or a status prints, carried out on brokers: it loses nothing.

Each row of the table is a situation. What the doctor and `status` print of it is pasted into a
shell, one after the other, and after each the unread messages are still there and writes with
acks=all are taken.
"""

from __future__ import annotations

import json
import shlex
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import typer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from backlogctl.kafka.admin import create_topic, list_offsets
from backlogctl.kafka.clients import Admin, make_admin
from backlogctl.kafka.groups import committed_offsets
from backlogctl.kafka.topics import read_metadata
from backlogctl.monitoring.doctor.checks import CheckFinding
from backlogctl.monitoring.verdict.commands import GroupTrouble, advise_on_group
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.replay.cli import app
from backlogctl.replay.doctor.stream import examine_stream
from backlogctl.replay.engine.kind import Workspace
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.kit.java import run_line, write_script
from tests.kit.kafka import (
    commit,
    delete_topic,
    leave_at,
    properties_of,
    publish,
    set_config,
    set_offsets_raw,
    wait_until,
)
from tests.kit.secured import start_secured
from tests.kit.shop import call_main
from tests.replay.doctor.world import SOURCE, make_table, make_workspace

HOUR, DAY = 3_600_000, 86_400_000
TABLE = "CREATE TABLE orders (order_id TEXT PRIMARY KEY, updated_at TEXT)"
OFTEN = {"flush.messages": "1"}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """Three brokers, one of which makes topics that flush after each message."""
    folder = tmp_path_factory.mktemp("three") / "kafka"
    with EmbeddedKafka.start(folder, brokers=3) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with Kafka's tools and `backlogctl`, as they are on a PATH."""
    folder = tmp_path_factory.mktemp("shell")
    for name, tool in (
        ("kafka-configs.sh", "ConfigCommand"),
        ("kafka-topics.sh", "TopicCommand"),
        ("kafka-consumer-groups.sh", "consumer.group.ConsumerGroupCommand"),
    ):
        write_script(folder / name, tool)
    ours = folder / "backlogctl"
    where = f"PYTHONPATH={Path(__file__).parents[3]}"
    ours.write_text(f'#!/bin/sh\n{where} exec {sys.executable} -m backlogctl.replay.cli "$@"\n')
    ours.chmod(0o755)
    return folder


@dataclass(frozen=True)
class Place:
    """A topic of one partition, its group, and how far that had read."""

    properties: Mapping[str, str]
    topic: str
    group: str
    read: int

    def check(self) -> None:
        """What was unread is there, and what is written with acks=all is taken."""
        await_retention(self.properties)
        assert list_offsets(self.properties, self.topic, [0], "earliest")[0] <= self.read
        (at,) = committed_offsets(self.properties, self.group, self.topic, [0]).values()
        assert at is not None
        assert at <= self.read
        publish(self.properties, self.topic, {0: 1})


def await_retention(properties: Mapping[str, str]) -> None:
    """Each broker has looked for expired segments once more."""
    name = f"expires-{uuid.uuid4().hex[:8]}"
    create_topic(properties, name, partitions=3, replication=1, config={"retention.ms": "1000"})
    counts = dict.fromkeys(range(3), 1)
    publish(properties, name, counts, hours_ago=1)
    wait_until(
        lambda: list_offsets(properties, name, counts, "earliest") == counts,
        what="what expires is deleted",
    )


@dataclass(frozen=True)
class Situation:
    """A topic as it should not be.

    Attributes:
        old: so many hours old are four messages, of which the group has read two.
        is_late: they came behind a new one.
        checks: findings that must be there.
        words: findings that are told in words only: no single command is safe.
    """

    name: str
    checks: tuple[str, ...]
    config: Mapping[str, str]
    replication: int = 3
    old: int = 0
    words: tuple[str, ...] = ()
    takes_writes: bool = True
    is_late: bool = False


TABLE_OF_SITUATIONS = (
    Situation(
        "one replica",
        ("replication-factor", "flush"),
        {"min.insync.replicas": "1"},
        1,
        words=("replication-factor",),
    ),
    Situation(
        "one replica, and two asked for",
        ("replication-factor", "min-insync-replicas"),
        {"min.insync.replicas": "2", **OFTEN},
        1,
        words=("replication-factor",),
        takes_writes=False,
    ),
    Situation(
        "two replicas",
        ("replication-factor", "min-insync-replicas"),
        {"min.insync.replicas": "1"},
        2,
        words=("replication-factor", "min-insync-replicas"),
    ),
    Situation(
        "two replicas, both asked for",
        ("replication-factor", "min-insync-replicas"),
        {"min.insync.replicas": "2"},
        2,
        words=("replication-factor", "min-insync-replicas"),
    ),
    Situation("all replicas asked for", ("min-insync-replicas",), {"min.insync.replicas": "3"}),
    Situation(
        "four settings at once",
        ("unclean-leader-election", "flush", "message-size", "min-insync-replicas"),
        {
            "unclean.leader.election.enable": "true",
            "max.message.bytes": "600",
            "min.insync.replicas": "1",
            **OFTEN,
        },
    ),
    Situation(
        "short retention", ("retention",), {"retention.ms": str(HOUR), "segment.ms": "600000"}
    ),
    Situation(
        "a long retention, nearly over for what is unread",
        ("retention",),
        {"retention.ms": str(10 * DAY), "segment.ms": str(DAY)},
        old=9 * 24,
    ),
    Situation("large segments", ("segments",), {"retention.ms": str(4 * DAY)}),
    Situation(
        "large segments that keep what has expired",
        ("segments",),
        {"retention.ms": str(4 * DAY)},
        old=5 * 24,
        words=("segments",),
    ),
    Situation(
        "small segments", ("small-segments",), {"segment.ms": "5000", "retention.ms": str(7 * DAY)}
    ),
    Situation(
        "messages that had expired when they came",
        ("expired-on-arrival",),
        {"retention.ms": str(DAY)},
        old=5 * 24,
        is_late=True,
    ),
    Situation(
        "compacted",
        ("compaction",),
        {"cleanup.policy": "compact", "retention.ms": str(7 * DAY), "segment.ms": "600000"},
        old=8 * 24,
    ),
)


@pytest.mark.parametrize("situation", TABLE_OF_SITUATIONS, ids=lambda one: one.name)
def test_a_printed_command_loses_nothing(
    three: EmbeddedKafka, shell: Path, tmp_path: Path, situation: Situation
) -> None:
    properties = properties_of(three.bootstrap)
    place = make_place(properties, situation)
    make_table(tmp_path, TABLE, "CREATE INDEX i ON orders (updated_at)")
    workspace = make_workspace(tmp_path, properties, place.topic, place.group, source=SOURCE)
    findings = {one.check: one for one in examine(workspace)}
    assert set(situation.checks) <= set(findings)
    for name in situation.words:
        assert findings[name].commands == ()
        assert findings[name].mend
    pasted = 0
    for finding in findings.values():
        for command in finding.commands:
            run_line(command, shell, tmp_path)
            place.check()
            pasted += 1
    assert pasted or situation.words
    left = {one.check for one in examine(workspace)}
    mended = set(situation.checks) - set(situation.words)
    assert not mended & left - {"retention", "min-insync-replicas"}


def test_a_command_for_a_cluster_with_logins_names_the_login(
    shell: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_secured(tmp_path) as secured:
        create_topic(secured.properties, "orders", partitions=1)
        set_offsets_raw(secured.properties, "service", "orders", {0: 0})
        monkeypatch.setenv("PASSWORD", secured.properties["sasl.password"])
        login = {**secured.properties, "sasl.password": "${env:PASSWORD}"}
        (tmp_path / "admin.properties").write_text(secured.write_java_properties())
        workspace = make_workspace(tmp_path, login)
        commands = [line for one in examine(workspace) for line in one.commands]
        assert any("flush.messages=1" in line for line in commands)
        for line in commands:
            run_line(line, shell, tmp_path)
        assert "flush" not in {one.check for one in examine(workspace)}


@pytest.mark.parametrize(
    ("retention", "minutes_old", "held"),
    [(HOUR, 59, None), (DAY, 13, None), (DAY, 13, "3d")],
    ids=["lost within a minute", "lost tomorrow", "held already"],
)
def test_a_hold_outlasts_the_loss_that_it_is_for(
    kafka: EmbeddedKafka,
    shell: Path,
    tmp_path: Path,
    retention: int,
    minutes_old: float,
    held: str | None,
) -> None:
    """It is given back when it ends: one that ends before the loss, or before another, helps
    nobody."""
    properties = properties_of(kafka.bootstrap)
    name, group = f"topic-{uuid.uuid4().hex[:8]}", f"group-{uuid.uuid4().hex[:8]}"
    config = {"retention.ms": str(retention)}
    create_topic(properties, name, partitions=1, replication=1, config=config)
    publish(properties, name, {0: 9}, hours_ago=minutes_old / 60)
    leave_at(properties, group, name, {0: 4})
    make_workspace(tmp_path, properties, name, group, watch={"horizon": "7d"})
    if held is not None:
        run_line(f"backlogctl hold orders --for {held}", shell, tmp_path)
    (before,) = read_entry(tmp_path, "status")["streams"]
    assert before["verdict"] == "losing"
    run_line(before["next_commands"][0], shell, tmp_path)
    (hold,) = read_entry(tmp_path, "hold")["holds"]
    lasts = datetime.fromisoformat(hold["until"]) - datetime.fromisoformat(before["taken_at"])
    needed = before["seconds_to_loss"] if held is None else 3 * 24 * 3600
    assert lasts.total_seconds() >= needed


def read_entry(directory: Path, *words: str) -> dict[str, Any]:
    code, out, err = call_main((*words, "orders", "--json"), directory, {})
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def test_commands_of_a_verdict_change_nothing_but_retention() -> None:
    """And each can be typed."""
    harmless = (
        *("status", "gaps", "hold", "plan expand", "plan rebuild"),
        *("consumers status", "transactions list"),
    )
    for verdict, consumers, source in product(Verdict, (True, False), (True, False)):
        trouble = GroupTrouble(verdict, "orders", "main", "service", consumers, source, 20.0)
        lines = advise_on_group(trouble)
        assert lines or verdict in (Verdict.OK, Verdict.LAGGING, Verdict.WARN)
        for line in lines:
            program, *words = shlex.split(line)
            assert program == "backlogctl"
            assert line.removeprefix("backlogctl ").startswith(harmless)
            command: Any = typer.main.get_command(app)
            while hasattr(command, "commands"):
                command = command.get_command(None, words.pop(0))
            command.make_context(line, words)  # refuses what the command does not take


@pytest.mark.parametrize(
    ("anew", "sampled", "why", "goes_on_at"),
    [
        (False, True, "the offset was set wrong: the group's last own commit was 4", 4),
        (False, False, "no sample shows why", 0),
        (True, True, "the topic was made anew", 0),
    ],
    ids=["set wrong", "nobody looked before", "made anew"],
)
def test_a_group_beyond_the_end_goes_on_where_nothing_is_skipped(
    kafka: EmbeddedKafka,
    shell: Path,
    tmp_path: Path,
    anew: bool,
    sampled: bool,
    why: str,
    goes_on_at: int,
) -> None:
    """The other partition stays where it is."""
    properties = properties_of(kafka.bootstrap)
    name, group = f"topic-{uuid.uuid4().hex[:8]}", f"group-{uuid.uuid4().hex[:8]}"
    create_topic(properties, name, partitions=2, replication=1)
    publish(properties, name, {0: 9, 1: 9})
    make_workspace(tmp_path, properties, name, group)
    if sampled:
        set_offsets_raw(properties, group, name, {0: 4, 1: 7})
        call_main(("status", "orders"), tmp_path, {})
    if anew:
        delete_topic(properties, name)
        create_topic(properties, name, partitions=2, replication=1)
        publish(properties, name, {0: 9, 1: 9})
    set_offsets_raw(properties, group, name, {0: 1000, 1: 7})
    paste_status(shell, tmp_path, why)
    assert committed_offsets(properties, group, name, [0, 1]) == {0: goes_on_at, 1: 7}


def test_a_group_goes_on_where_its_log_was_cut_back(shell: Path, tmp_path: Path) -> None:
    """By an unclean election: 40 messages are gone, and the 20 that came since are unread."""
    with EmbeddedKafka.start(tmp_path / "kafka", brokers=3) as kafka:
        properties = properties_of(kafka.bootstrap)
        admin = make_admin(properties)
        config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        new = NewTopic("orders", 1, replica_assignment=[[2, 3]], config=config)
        admin.create_topics([new])["orders"].result(60)
        wait_until(lambda: find_isr(admin) == (2, {2, 3}), what="both replicas are in sync")
        publish(properties, "orders", {0: 60})
        kafka.kill(3)
        wait_until(lambda: find_isr(admin) == (2, {2}), what="one replica is left")
        publish(properties, "orders", {0: 40})
        make_workspace(tmp_path, properties)
        commit(properties, "service", "orders", {0: 90})
        call_main(("status", "orders"), tmp_path, {})
        kafka.kill(2)
        kafka.restart(3)
        wait_until(lambda: find_isr(admin) == (3, {3}), what="who was behind leads")
        publish(properties, "orders", {0: 20})
        assert list_offsets(properties, "orders", [0], "latest") == {0: 80}
        paste_status(shell, tmp_path, "the log was cut back, and what the group had read of it")
        assert committed_offsets(properties, "service", "orders", [0]) == {0: 60}


def find_isr(admin: Admin) -> tuple[int, set[int]]:
    found = read_metadata(admin, "orders").topics["orders"].partitions
    return (found[0].leader, set(found[0].isrs)) if 0 in found else (-1, set())


def paste_status(shell: Path, directory: Path, why: str) -> None:
    """Carries out what `status orders` prints; it never prints itself."""
    (entry,) = read_entry(directory, "status")["streams"]
    assert entry["verdict"] == "beyond_end"
    assert why in " ".join(entry["ways"])
    assert "backlogctl status orders" not in entry["next_commands"]
    assert entry["next_commands"]
    for command in entry["next_commands"]:
        run_line(command, shell, directory)


def make_place(properties: Mapping[str, str], situation: Situation) -> Place:
    name, group = f"topic-{uuid.uuid4().hex[:8]}", f"group-{uuid.uuid4().hex[:8]}"
    config = {"min.insync.replicas": "2", **situation.config}
    # What is old when it comes would be deleted at once.
    begin = {**config, "retention.ms": "-1"}
    create_topic(properties, name, partitions=1, replication=situation.replication, config=begin)
    if not situation.takes_writes:
        set_offsets_raw(properties, group, name, {0: 0})
        return Place(properties, name, group, 0)
    if situation.is_late:
        publish(properties, name, {0: 1})
    if situation.old:
        publish(properties, name, {0: 4}, hours_ago=situation.old)
    publish(properties, name, {0: 4})
    set_offsets_raw(properties, group, name, {0: 2})
    if "retention.ms" in config:
        set_config(properties, name, {"retention.ms": config["retention.ms"]})
    return Place(properties, name, group, 2)


def examine(workspace: Workspace) -> tuple[CheckFinding, ...]:
    return examine_stream(workspace, workspace.config.stream("orders")).findings
