"""Every command that a finding or a status prints, carried out on brokers: it loses nothing.

Each row of the tables is a situation. What the doctor and `status` print of it is pasted into a
shell, one after the other, and after each the unread messages are still there and writes with
acks=all are taken. What the doctor finds of a topic on three brokers is told here too.
"""

from __future__ import annotations

import json
import shlex
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import typer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from backlogctl.kafka.admin import create_topic, list_offsets
from backlogctl.kafka.clients import Admin, make_admin, make_producer
from backlogctl.kafka.groups import committed_offsets
from backlogctl.kafka.topics import read_metadata
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel
from backlogctl.monitoring.verdict.commands import GroupTrouble, advise_on_group
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.replay.cli import app
from backlogctl.replay.doctor.stream import examine_stream
from backlogctl.replay.engine.kind import Workspace
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.kit.java import run_line
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
from tests.kit.shop import call_main
from tests.replay.doctor.world import SOURCE, list_levels, make_table, make_workspace
from tests.replay.doctor.world import examine as look_at

HOUR, DAY = 3_600_000, 86_400_000
TABLE = "CREATE TABLE orders (order_id TEXT PRIMARY KEY, updated_at TEXT)"
OFTEN = {"flush.messages": "1"}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """Three brokers, one of which makes topics that flush after each message."""
    folder = tmp_path_factory.mktemp("three") / "kafka"
    with EmbeddedKafka.start(folder, brokers=3) as kafka:
        yield kafka


@dataclass(frozen=True)
class Place:
    """A topic of one partition, its group, and how far that had read."""

    properties: Mapping[str, str]
    topic: str
    group: str
    read: int

    def check(self) -> None:
        """What was unread is there, and what is written with acks=all is taken."""
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


REPLICAS = (
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
)
RETENTION = (
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


@dataclass(frozen=True)
class Mending:
    """A situation on the brokers, and what is printed of it."""

    situation: Situation
    place: Place
    workspace: Workspace
    directory: Path
    commands: tuple[str, ...]

    @classmethod
    def begin(cls, situation: Situation, properties: Mapping[str, str], directory: Path) -> Mending:
        directory.mkdir()
        place = make_place(properties, situation)
        make_table(directory, TABLE, "CREATE INDEX i ON orders (updated_at)")
        workspace = make_workspace(directory, properties, place.topic, place.group, source=SOURCE)
        findings = {one.check: one for one in examine(workspace)}
        assert set(situation.checks) <= set(findings), situation.name
        for name in situation.words:
            assert findings[name].commands == (), situation.name
            assert findings[name].mend, situation.name
        commands = [command for one in findings.values() for command in one.commands]
        assert commands or situation.words, situation.name
        return cls(situation, place, workspace, directory, tuple(commands))

    def end(self) -> None:
        """All that a command mends is mended."""
        left = {one.check for one in examine(self.workspace)}
        mended = set(self.situation.checks) - set(self.situation.words)
        assert not mended & left - {"retention", "min-insync-replicas"}, self.situation.name


@pytest.mark.parametrize("situations", [REPLICAS, RETENTION], ids=["replicas", "retention"])
def test_a_printed_command_loses_nothing(
    three: EmbeddedKafka, shell: Path, tmp_path: Path, situations: tuple[Situation, ...]
) -> None:
    """Of all situations the first command, then of all the second, and so on."""
    properties = properties_of(three.bootstrap)
    mendings = [
        Mending.begin(one, properties, tmp_path / f"{number}")
        for number, one in enumerate(situations)
    ]
    for turn in range(max(len(one.commands) for one in mendings)):
        pasted = [one for one in mendings if turn < len(one.commands)]
        for one in pasted:
            run_line(one.commands[turn], shell, one.directory)
        await_retention(properties)
        for one in pasted:
            one.place.check()
    for one in mendings:
        one.end()


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


def test_a_group_goes_on_where_its_log_was_cut_back(
    three: EmbeddedKafka, shell: Path, tmp_path: Path
) -> None:
    """By an unclean election: 40 messages are gone, and the 20 that came since are unread."""
    properties, name = properties_of(three.bootstrap), f"topic-{uuid.uuid4().hex[:8]}"
    admin, group = make_admin(properties), f"group-{uuid.uuid4().hex[:8]}"
    config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    new = NewTopic(name, 1, replica_assignment=[[2, 3]], config=config)
    admin.create_topics([new])[name].result(60)
    wait_until(lambda: find_isr(admin, name) == (2, {2, 3}), what="both replicas are in sync")
    publish(properties, name, {0: 60})
    three.kill(3)
    wait_until(lambda: find_isr(admin, name) == (2, {2}), what="one replica is left")
    publish(properties, name, {0: 40})
    make_workspace(tmp_path, properties, name, group)
    commit(properties, group, name, {0: 90})
    call_main(("status", "orders"), tmp_path, {})
    three.kill(2)
    three.restart(3)
    try:
        wait_until(lambda: find_isr(admin, name) == (3, {3}), what="who was behind leads")
        publish(properties, name, {0: 20})
        assert list_offsets(properties, name, [0], "latest") == {0: 80}
        paste_status(shell, tmp_path, "the log was cut back, and what the group had read of it")
        assert committed_offsets(properties, group, name, [0]) == {0: 60}
    finally:
        three.restart(2)


def find_isr(admin: Admin, topic: str) -> tuple[int, set[int]]:
    found = read_metadata(admin, topic).topics[topic].partitions
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


# What is found of a topic, and nothing else.

GOOD = {"min.insync.replicas": "2"}


@pytest.fixture
def look(three: EmbeddedKafka, tmp_path: Path) -> Callable[..., dict[str, CheckFinding]]:
    """Makes a topic that its group has read, and examines it."""

    def make(*, replication: int = 3, **config: str) -> dict[str, CheckFinding]:
        name = f"topic-{uuid.uuid4().hex[:8]}"
        properties = properties_of(three.bootstrap)
        settings = {**GOOD, **{key.replace("_", "."): value for key, value in config.items()}}
        create_topic(properties, name, partitions=2, replication=replication, config=settings)
        if int(settings["min.insync.replicas"]) <= replication:
            publish(properties, name, {0: 5, 1: 5})
            set_offsets_raw(properties, "service", name, {0: 5, 1: 5})
        return look_at(make_workspace(tmp_path, properties, name))

    return make


def test_nothing_is_found_where_all_is_well(look: Callable[..., dict[str, CheckFinding]]) -> None:
    assert look() == {}


@pytest.mark.parametrize(
    ("replication", "config", "expected"),
    [
        (1, {"min_insync_replicas": "1"}, {"replication-factor": "loses", "flush": "loses"}),
        (
            1,
            {"min_insync_replicas": "1", "flush_messages": "1"},
            {"replication-factor": "loses"},
        ),
        (
            1,
            {"min_insync_replicas": "2", "flush_messages": "1"},
            {
                "replication-factor": "loses",
                "min-insync-replicas": "stops",
                "under-replicated": None,
            },
        ),
        (
            2,
            {"min_insync_replicas": "1"},
            {"replication-factor": "warns", "min-insync-replicas": "loses"},
        ),
        (2, {}, {"replication-factor": "warns", "min-insync-replicas": "stops"}),
        (3, {"min_insync_replicas": "1"}, {"min-insync-replicas": "loses"}),
        (3, {"min_insync_replicas": "3"}, {"min-insync-replicas": "stops"}),
        (
            3,
            {"unclean_leader_election_enable": "true"},
            {"unclean-leader-election": "loses"},
        ),
        (3, {"flush_messages": "1"}, {"flush": "warns"}),
        (3, {"flush_ms": "1000"}, {"flush": "warns"}),
        (
            3,
            {"retention_ms": "3600000", "segment_ms": "600000"},
            {"retention": "loses"},
        ),
        (3, {"retention_ms": str(2 * DAY), "segment_ms": str(DAY)}, {"retention": "warns"}),
        (3, {"retention_ms": str(4 * DAY)}, {"segments": "warns"}),
        (3, {"retention_ms": str(8 * DAY)}, {"offsets-retention": "warns"}),
        (3, {"retention_ms": "-1"}, {"offsets-retention": "warns"}),
        (3, {"cleanup_policy": "compact"}, {"compaction": "loses"}),
        (3, {"max_message_bytes": "600"}, {"message-size": "warns"}),
        (3, {"max_message_bytes": "500"}, {"message-size": "stops"}),
    ],
)
def test_each_misconfiguration_is_found(
    look: Callable[..., dict[str, CheckFinding]],
    replication: int,
    config: dict[str, str],
    expected: dict[str, str | None],
) -> None:
    """And nothing else is."""
    found = list_levels(look(replication=replication, **config))
    found.pop("under-replicated", None)
    assert found == {name: level for name, level in expected.items() if level}


def test_a_finding_says_what_was_read_and_what_mends_it(
    look: Callable[..., dict[str, CheckFinding]], three: EmbeddedKafka
) -> None:
    (finding,) = look(unclean_leader_election_enable="true").values()
    assert finding.found == "unclean.leader.election.enable is true"
    assert finding.commands == (
        f"kafka-configs.sh --bootstrap-server {three.bootstrap} --alter --entity-type topics "
        f"--entity-name {finding.subject.removeprefix('topic ')} --add-config "
        "unclean.leader.election.enable=false",
    )
    assert finding.to_json()["page"] == "docs/doctor.md#unclean-leader-election"


def test_messages_from_the_future(three: EmbeddedKafka, tmp_path: Path) -> None:
    properties = properties_of(three.bootstrap)
    name = f"topic-{uuid.uuid4().hex[:8]}"
    config = {**GOOD, "message.timestamp.after.max.ms": str(365 * DAY)}
    create_topic(properties, name, partitions=1, replication=3, config=config)
    producer = make_producer(properties)
    producer.produce(name, b"later", timestamp=int(time.time() * 1000) + DAY)
    assert producer.flush(30) == 0
    set_offsets_raw(properties, "service", name, {0: 1})
    finding = look_at(make_workspace(tmp_path, properties, name))["future-timestamps"]
    assert finding.level is CheckLevel.WARNS
    assert "ahead of this host's clock" in finding.found
