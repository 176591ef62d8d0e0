"""`init --bootstrap` on a real broker with groups of every kind; what it writes is used."""

from __future__ import annotations

import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from backlogctl.config import load_config
from backlogctl.config.template import (
    explain_unwritable,
    name_streams,
    read_client_properties,
    render_discovered,
)
from backlogctl.errors import ConfigurationError
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import make_consumer
from backlogctl.kafka.group_types import read_group_type
from backlogctl.kafka.rights import CLUSTER_NAME, Operation, Resource, Right
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.kit.kafka import properties_of, publish, set_offsets_raw, wait_until
from tests.kit.secured import PASSWORD, start_secured
from tests.kit.shop import call_main
from tests.replay.test_consumers import run_share_consumer

LEDGER = "backlog-recovery-ledger"
ODD = (
    "two words",
    'it\'s "quoted"',
    "two\nlines",
    "ünïcode 😀",
    "1.5e3",
    "a, b",
    "[x]*",
    "bell\x07",
)
REFUSED = ("${env:HOME}",)


@dataclass
class World:
    """A broker with groups of every kind."""

    bootstrap: str
    directory: Path

    def call(self, *words: str, code: int = 0, **environment: str) -> tuple[str, str]:
        """stdout and stderr."""
        found = call_main(words, self.directory, environment)
        assert found[0] == code, found
        return found[1], found[2]

    def init(self, *words: str, code: int = 0) -> tuple[str, str]:
        return self.call("init", "--bootstrap", self.bootstrap, *words, code=code)

    def read_streams(self) -> dict[str, tuple[str, str]]:
        """By name (topic, group), of the file that was written."""
        config = load_config(self.directory / "backlog.yaml")
        return {name: (one.topic, one.group) for name, one in config.streams.items()}


def start_member(bootstrap: str, group: str, topic: str) -> Consumer:
    consumer = make_consumer(properties_of(bootstrap), group_id=group)
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.1) is None and consumer.assignment())
    return consumer


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("init")
    more = {"group.coordinator.rebalance.protocols": "classic,consumer,share"}
    with EmbeddedKafka.start(folder / "kafka", properties=more) as kafka:
        properties = properties_of(kafka.bootstrap)
        for topic in ("orders", "payments", "gone", LEDGER):
            create_topic(properties, topic, partitions=2)
            publish(properties, topic, {0: 10, 1: 10})
        set_offsets_raw(properties, "empty", "orders", {0: 4, 1: 10})
        set_offsets_raw(properties, "several", "orders", {0: 1})
        set_offsets_raw(properties, "several", "payments", {0: 9, 1: 9})
        set_offsets_raw(properties, "several", "gone", {0: 9})
        set_offsets_raw(properties, "internal", LEDGER, {0: 1})
        set_offsets_raw(properties, "internal", "__consumer_offsets", {0: 1})
        for name in (*ODD, *REFUSED):
            set_offsets_raw(properties, name, "payments", {0: 3})
        set_offsets_raw(properties, "active", "payments", {0: 10, 1: 10})
        members = [start_member(kafka.bootstrap, "active", "payments")]
        members.append(start_member(kafka.bootstrap, "never committed", "orders"))
        with run_share_consumer(folder, kafka.bootstrap, "orders"):
            wait_until(lambda: read_group_type(properties, "sharing") == "share")
            yield kafka.bootstrap
        for member in members:
            member.close()


@pytest.fixture
def world(broker: str, tmp_path: Path) -> World:
    return World(broker, tmp_path)


def test_without_a_choice_it_lists_and_writes_nothing(world: World) -> None:
    out, err = world.init(code=2)
    for name in ("empty", "several", "active", "never committed", "two words", "two\\nlines"):
        assert name in out
    assert "sharing: it is a share group" in out
    assert "bell\\u0007" in out
    assert LEDGER not in out
    assert "__consumer_offsets" not in out
    assert "--group NAME" in err
    assert "--all" in err
    assert not (world.directory / "backlog.yaml").exists()


def test_the_document_says_what_was_found(world: World) -> None:
    out, _ = world.init("--json", code=2)
    document = json.loads(out)
    assert document["file"] is None
    assert document["error"]["code"] == "usage"
    assert document["unknown"] == []
    groups = {one["group"]: one for one in document["groups"]}
    assert set(ODD) | set(REFUSED) <= groups.keys()
    empty = groups["empty"]
    assert (empty["state"], empty["members"], empty["why_not"]) == ("empty", 0, None)
    assert empty["topics"] == [
        {"topic": "orders", "partitions": 2, "lag": 6, "stream": None, "why_not": None}
    ]
    assert (groups["active"]["state"], groups["active"]["members"]) == ("stable", 1)
    assert groups["active"]["topics"][0]["lag"] == 0
    assert groups["never committed"]["topics"][0]["lag"] is None, "not committed is not zero"
    assert [one["topic"] for one in groups["several"]["topics"]] == ["gone", "orders", "payments"]
    assert groups["internal"]["topics"] == []
    assert groups["internal"]["why_not"]
    assert (groups["sharing"]["type"], groups["sharing"]["topics"]) == ("share", None)
    assert "share group" in groups["sharing"]["why_not"]
    assert all(groups[name]["why_not"] for name in REFUSED)


def test_all_are_written_and_used(world: World) -> None:
    """Each group that can be a stream is one, under a valid name; `status` reads all of them."""
    out, err = world.init("--all")
    assert "next: backlogctl status" in out
    assert "not written: group sharing: it is a share group" in err
    streams = world.read_streams()
    assert {group for _, group in streams.values()} == {
        *ODD,
        *("empty", "several", "active", "never committed"),
    }
    assert sorted(topic for topic, group in streams.values() if group == "several") == [
        *("gone", "orders", "payments")
    ]
    status = json.loads(world.call("status", "--json")[0])
    found = {one["stream"]: one for one in status["streams"]}
    assert found.keys() == streams.keys()
    assert all("error" not in one for one in found.values())
    assert found["orders.empty"]["lag"] == 6
    shown, _ = world.call("status")
    assert all(name in shown for name in streams)


def test_chosen_by_name_and_by_pattern(world: World) -> None:
    """A group's own name is no pattern; what fits is what `fnmatch` says."""
    world.init("--group", "[x]*", "--group", "act*")
    assert world.read_streams() == {
        "payments.active": ("payments", "active"),
        "payments.x": ("payments", "[x]*"),
    }
    world.init("--group", "empty", "--force")
    assert world.read_streams() == {"orders": ("orders", "empty")}
    assert world.call("status", "orders")[0].startswith("orders  read by empty")


def test_a_group_whose_topic_an_outbox_holds_gets_its_source(world: World) -> None:
    """The others are as without a database."""
    kinds = {"Id": "BIGINT PRIMARY KEY", "Added": "TIMESTAMP"}
    names = ("Id", "Version", "Name", "Content", "Retries", "Added", "ExpiresAt", "StatusName")
    columns = ", ".join(f'"{name}" {kinds.get(name, "TEXT")}' for name in names)
    database = sqlite3.connect(world.directory / "shop.db")
    database.execute(f"CREATE TABLE published ({columns})")
    database.execute("""INSERT INTO published ("Id", "Name") VALUES (1, 'orders')""")
    database.commit()
    database.close()
    choice = ("--group", "several", "--database", "sqlite:///shop.db")
    out, err = world.init(*choice)
    assert "published is the source of orders: check what the file says of it" in err
    streams = load_config(world.directory / "backlog.yaml").streams
    source = streams["orders"].source
    assert source is not None
    assert (source.database, source.table) == ("shop", "published")
    assert source.where == {"Name": "orders", "StatusName": "Succeeded"}
    assert streams["orders"].partitioner == "crc32"
    assert streams["payments"].source is None
    assert "FILL_IN" not in (world.directory / "backlog.yaml").read_text()
    out, _ = world.init(*choice, "--force", "--json")
    assert json.loads(out)["outboxes"][0]["topics"] == ["orders"]


def test_what_cannot_be_chosen_is_said(world: World) -> None:
    assert "no group has this name" in world.init("--group", "nobody-*", code=2)[1]
    assert "it is a share group" in world.init("--group", "sharing", code=5)[1]
    assert "exclude each other" in world.init("--group", "empty", "--all", code=2)[1]
    assert "goes with --bootstrap" in world.call("init", "--all", code=2)[1]
    assert "does not take this name" in world.init("--group", "*{env*", code=5)[1]
    assert not (world.directory / "backlog.yaml").exists()


def test_a_file_is_kept_without_force(world: World) -> None:
    path = world.directory / "backlog.yaml"
    path.write_text("mine")
    assert "--force" in world.init("--all", code=2)[1]
    assert path.read_text() == "mine"
    world.init("--group", "empty", "--force")
    assert world.read_streams()
    out, _ = world.init("other.yaml", "--group", "empty")
    assert "next: backlogctl status --config other.yaml" in out


class Terminal:
    """`init` in a terminal of 80 columns."""

    def __init__(self, world: World) -> None:
        self._leader, follower = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "backlogctl.replay.cli", "init", "--bootstrap", world.bootstrap],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            cwd=world.directory,
            env={
                **os.environ,
                "COLUMNS": "80",
                "TERM": "dumb",
                "PYTHONPATH": str(Path(__file__).parents[2]),
            },
        )
        os.close(follower)
        self._said = ""

    def hear(self, pattern: str) -> str:
        """Waits until it has said that; gives what came before."""
        end = time.monotonic() + 60
        while not re.search(pattern, self._said):
            assert time.monotonic() < end, self._said
            try:
                self._said += os.read(self._leader, 10_000).decode()
            except OSError:
                break
        assert re.search(pattern, self._said), self._said
        before, self._said = re.split(pattern, self._said, maxsplit=1)
        return before

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def close(self) -> int:
        code = self.process.wait(60)
        os.close(self._leader)
        return code


QUESTION = r"or all: "


def test_a_person_chooses_from_the_table(world: World) -> None:
    """A wrong answer is asked again; numbers, names, patterns and quoted names are taken."""
    terminal = Terminal(world)
    table = terminal.hear(QUESTION)
    assert "never committed" in table
    assert "…" not in table
    for wrong, told in (
        ("99", "99 is not in the table"),
        ("nobody", "no group has this name"),
        ("sharing", "it is a share group"),
        ("'open", "a quote is not closed"),
    ):
        terminal.type(f"{wrong}\n")
        terminal.hear(told)
        terminal.hear(QUESTION)
    (number,) = re.findall(r"(\d+) +(?:group: )?active ", table)
    terminal.type(f"{number}, emp*, 'two words'\n")
    terminal.hear("wrote backlog.yaml: 3 streams")
    assert terminal.close() == 0
    assert world.read_streams() == {
        "orders": ("orders", "empty"),
        "payments.active": ("payments", "active"),
        "payments.two-words": ("payments", "two words"),
    }


def test_a_person_may_leave(world: World) -> None:
    """Ctrl-D at the question writes nothing, and is no bug."""
    terminal = Terminal(world)
    terminal.hear(QUESTION)
    terminal.type("\x04")
    terminal.hear("interrupted")
    assert terminal.close() == 130
    assert not (world.directory / "backlog.yaml").exists()


def test_a_cluster_with_logins_and_narrow_rights(tmp_path: Path) -> None:
    """The password is a variable in the file; what may not be seen is unknown."""
    with start_secured(tmp_path) as secured:
        for topic in ("orders", "hidden"):
            create_topic(secured.properties, topic, partitions=1)
            publish(secured.properties, topic, {0: 5})
        for group in ("service", "private"):
            set_offsets_raw(secured.properties, group, "orders", {0: 2})
        set_offsets_raw(secured.properties, "service", "hidden", {0: 2})
        seeing = [
            Right(Resource.TOPIC, "orders", operation, "look")
            for operation in (Operation.DESCRIBE, Operation.READ, Operation.DESCRIBE_CONFIGS)
        ]
        seeing.append(Right(Resource.GROUP, "service", Operation.DESCRIBE, "look"))
        whole = Right(Resource.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE, "list groups")
        narrow = write_properties(tmp_path / "narrow.properties", secured.add_user("ann", seeing))
        wide = secured.add_user("bob", [*seeing, whole])
        wide_file = write_properties(tmp_path / "wide.properties", wide)
        words = ("init", "--client-properties", str(narrow))

        code, out, err = call_main((*words, "--json"), tmp_path, {})
        document = json.loads(out)
        assert code == 2
        assert [one["group"] for one in document["groups"]] == ["service"]
        assert "may be more groups" in document["unknown"][0]
        assert [one["topic"] for one in document["groups"][0]["topics"]] == ["orders"]

        words = ("init", "--client-properties", str(wide_file))
        code, out, err = call_main((*words, "--json"), tmp_path, {})
        groups = {one["group"]: one for one in json.loads(out)["groups"]}
        assert groups["private"]["topics"] is None
        assert "unknown" in groups["private"]["why_not"]
        assert call_main((*words, "--group", "private"), tmp_path, {})[0] == 5

        code, out, err = call_main((*words, "--all"), tmp_path, {})
        assert code == 0, err
        assert "export KAFKA_SASL_PASSWORD=" in out
        assert "left out, since backlogctl sets them itself: group.id" in err
        text = (tmp_path / "backlog.yaml").read_text()
        assert PASSWORD not in text + out + err
        assert 'sasl.password: "${env:KAFKA_SASL_PASSWORD}"' in text
        code, _, err = call_main(("status",), tmp_path, {})
        assert code == 2
        assert "KAFKA_SASL_PASSWORD is not set" in err
        code, out, err = call_main(("status",), tmp_path, {"KAFKA_SASL_PASSWORD": PASSWORD})
        assert code == 0, err
        assert "orders  read by service" in out


def write_properties(path: Path, properties: dict[str, str]) -> Path:
    lines = [f"{name} = {value}" for name, value in properties.items()]
    path.write_text("\n".join(["# of the application", *lines, "group.id=mine", ""]))
    return path


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sasl.password", "line 1: it is not `name=value`"),
        ("client.id=a\nclient.id=b", "line 2: `client.id` stands twice"),
        ("ssl.truststore.location=hunter2", "line 1: ssl.truststore.location: unknown"),
        ("plugin.library.paths=hunter2", "loads or runs code"),
        ("sasl.mechanism=GSSAPI", "Kerberos"),
        ("client.id=a", "bootstrap.servers: is required"),
    ],
)
def test_a_wrong_properties_file_is_refused_by_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "client.properties"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_client_properties(path)
    assert told in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_references_and_paths_of_a_properties_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "client.properties"
    path.write_text(
        "bootstrap.servers=a:1\nsasl.password=${env:MINE}\nssl.key.password=x=y \n"
        "ssl.ca.location=ca.pem\n"
    )
    found = read_client_properties(path, "b:2")
    assert found.properties == {
        "bootstrap.servers": "b:2",
        "sasl.password": "${env:MINE}",
        "ssl.key.password": "${env:KAFKA_SSL_KEY_PASSWORD}",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
    }
    assert found.values == {"KAFKA_SSL_KEY_PASSWORD": "x=y"}
    assert "x=y" not in repr(found)


def test_names_are_valid_and_unique(tmp_path: Path) -> None:
    """Whatever groups and topics are called, the file has them all, as they are."""
    long = "t" * 249
    places = [("b b", "t"), ("b-b", "t"), ("a", "t"), ("x", "t.a"), ("y", long), ("z", long)]
    places += [("\n", "u"), ("??", "u"), ("??", "1"), ("true", "null")]
    streams = name_streams(place for place in places if not explain_unwritable(place[0]))
    assert len({one.name for one in streams}) == len(streams) == len(places) - 1
    path = tmp_path / "backlog.yaml"
    path.write_text(render_discovered({"bootstrap.servers": "a:1"}, streams))
    loaded = load_config(path).streams
    assert {(one.topic, one.group) for one in loaded.values()} == {
        (one.topic, one.group) for one in streams
    }
