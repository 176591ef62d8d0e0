"""`audit sequence` as on-call types it; audits that are killed, and those with fewer rights."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from backlogctl.clock import utc_now
from backlogctl.config import load_config
from backlogctl.errors import Refused
from backlogctl.kafka.admin import create_topic, list_offsets
from backlogctl.kafka.rights import Operation, Resource
from backlogctl.ledger import Ledger
from backlogctl.replay.audits import AUDITS, carrying
from backlogctl.replay.observe.rights import list_seeing
from backlogctl.replay.opening import open_workspace
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.sequenced.producer import SequencedProducer
from backlogctl_delivery.sequenced.sequence import SEQUENCE, Stamp, hash_topic, write_stamp
from tests.conftest import MakeTopic
from tests.kit.kafka import (
    move_log_start,
    properties_of,
    read_all,
    set_offsets_raw,
    wait_until,
)
from tests.kit.secured import PASSWORD, SecuredKafka, start_secured
from tests.kit.shop import CONSUMED, LOCAL_SPARK, PARTITIONS, PROCESSED, SOURCE, Shop, call_main
from tests.spark_backfill.world import ORDERS, fill_table, make_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


# What is there now is old enough.
SETTLED = ("--grace", "1ms")


def write_config(directory: Path, bootstrap: str) -> None:
    """A stream without a source: this audit needs none."""
    document = {
        "ledger": "sqlite:///ledger.db",
        "staging": {"dir": "./staging"},
        "spark": {"master": "local[2]", "conf": {"spark.sql.shuffle.partitions": "2"}},
        "clusters": {"main": {"bootstrap.servers": bootstrap}},
        "streams": {"orders": {"cluster": "main", "topic": "orders", "group": "order-service"}},
    }
    (directory / "backlog.yaml").write_text(json.dumps(document))


def audit(directory: Path, name: str, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the document of one call of the command."""
    shown = ("--json", "--config", str(directory / "backlog.yaml"))
    done = subprocess.run(
        [sys.executable, "-m", "backlogctl.replay.cli", "audit", name, "orders", *words, *shown],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def list_checks(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["check"], one["level"]) for one in document["findings"]]


def publish_sequenced(shop: Shop, count: int, *, leave_out: tuple[int, ...] = ()) -> None:
    """Numbered by hand, in partition 0; what is left out is a producer's silent loss."""
    producer = Producer({**shop.properties, "enable.idempotence": True})
    for number in range(count):
        if number not in leave_out:
            headers: Any = write_stamp(Stamp("shop", 1, hash_topic(shop.topic), 0, number))
            producer.produce(shop.topic, b"v", b"k", 0, headers=headers)
    assert producer.flush(60) == 0


def call(shop: Shop, code: int, *words: str) -> str:
    """What the command says, its lines as one."""
    said = shop.call("audit", "sequence", shop.stream, *words, code=code)
    return " ".join((said.out + said.err).split())


def test_a_hole_is_unknown_until_it_is_settled_and_then_a_loss(empty_shop: Shop) -> None:
    """By the samples of the ledger: the first look takes one, a later one knows its age."""
    publish_sequenced(empty_shop, 40, leave_out=(7, 8, 30))
    told = call(empty_shop, 2, *SETTLED)
    assert "3 messages are missing, and may still come" in told
    assert "no sample shows that what follows was in the log under 1 s ago" in told
    told = call(empty_shop, 1, *SETTLED)
    assert "2 messages (sequence 7 to 8) of producer shop, epoch 1, for partition 0" in told
    assert "3 messages lost" in told
    # A producer that is given its time is not judged.
    call(empty_shop, 2)


def test_fault_41_a_hole_is_as_old_as_the_ledgers_clock_says(
    empty_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples have its time: a host that is ahead of it by more than the grace judges no earlier."""
    there = Ledger.now
    monkeypatch.setattr(Ledger, "now", lambda ledger: there(ledger) - timedelta(minutes=10))
    publish_sequenced(empty_shop, 40, leave_out=(7, 8))
    for _ in range(2):
        assert "2 messages are missing" in call(empty_shop, 2)


def test_fault_152_a_hole_that_no_table_has_is_sent_again_and_closed(empty_shop: Shop) -> None:
    """By the commands that are printed, one after the other."""
    shop = empty_shop
    path = shop.directory / "backlog.yaml"
    document = json.loads(path.read_text())
    del document["streams"]["orders"]["source"]
    path.write_text(json.dumps(document))
    publish_sequenced(shop, 40, leave_out=(7, 8, 30))
    call(shop, 2, *SETTLED)
    found = shop.call("audit", "sequence", shop.stream, *SETTLED, "--json", code=1).document
    assert {one["check"]: one["commands"] for one in found["findings"]} == {
        "hole": ["backlogctl doctor orders", "backlogctl gaps orders"]
    }
    said = shop.call("gaps", shop.stream).out
    commands = re.findall(r"`backlogctl (waive [^ ]+ --reason) ...`", " ".join(said.split()))
    assert [command.split()[1] for command in commands] == found["gaps"]
    for command in commands:
        shop.call(*command.split(), "sent again by hand")
    found = shop.call("audit", "sequence", shop.stream, *SETTLED, "--json").document
    assert list_checks(found) == [("put-back", "noted")]
    assert "backlogctl waive" not in shop.call("gaps", shop.stream).out


def test_a_complete_topic_and_one_without_stamps(empty_shop: Shop) -> None:
    assert "none of 0 messages has a legible stamp" in call(empty_shop, 2)
    publish_sequenced(empty_shop, 40)
    call(empty_shop, 0, *SETTLED)
    # Retention takes the head away: that is no hole.
    move_log_start(empty_shop.properties, empty_shop.topic, {0: 17})
    call(empty_shop, 0, *SETTLED)


def test_hostile_stamps_and_those_in_another_partition_are_counted(empty_shop: Shop) -> None:
    publish_sequenced(empty_shop, 5)
    producer = Producer(empty_shop.properties)
    for value in (b"shop:1:0a1b2c3d:0:-1", b"shop:1:0a1b2c3d:0:five", b"\xff" * 900_000):
        producer.produce(empty_shop.topic, b"v", b"k", 0, headers=[(SEQUENCE, value)])
    elsewhere: Any = write_stamp(Stamp("shop", 1, hash_topic(empty_shop.topic), 0, 3))
    producer.produce(empty_shop.topic, b"v", b"k", 1, headers=elsewhere)
    foreign: Any = write_stamp(Stamp("shop", 1, hash_topic("payments"), 0, 90))
    producer.produce(empty_shop.topic, b"v", b"k", 0, headers=foreign)
    assert producer.flush(60) == 0
    told = call(empty_shop, 2, *SETTLED)
    assert "stamp of this topic" not in told, "five are there"
    assert "3 messages are stamped in a way that cannot be read" in told
    assert "1 message in another partition than the stamp says" in told
    assert "1 message with the stamp of another topic" in told


def test_only_stamps_of_another_topic_are_none_of_this_one(empty_shop: Shop) -> None:
    foreign: Any = write_stamp(Stamp("shop", 1, hash_topic("payments"), 0, 90))
    producer = Producer(empty_shop.properties)
    producer.produce(empty_shop.topic, b"v", b"k", 0, headers=foreign)
    assert producer.flush(60) == 0
    told = call(empty_shop, 2, *SETTLED)
    assert "none of 1 message has a legible stamp of this topic" in told
    assert "1 message with the stamp of another topic" in told


class Tills:
    """Producers that start again, write beside each other, and abort some transactions."""

    def __init__(self, shop: Shop, unique: str) -> None:
        self._shop, self._unique = shop, unique
        self.starts = self.aborted = 0

    def work(self) -> None:
        """Two of one id at once; then both are gone, the second without a word."""
        settings = {"transactional.id": self._unique, "linger.ms": 1}
        plain = SequencedProducer(
            Producer({**self._shop.properties, "enable.idempotence": True}), "till"
        )
        ending = SequencedProducer(Producer({**self._shop.properties, **settings}), "till")
        ending.init_transactions(90)
        for turn in range(4):
            ending.begin_transaction()
            for number in range(6):
                plain.produce(self._shop.topic, b"v", b"%d" % number)
                ending.produce(self._shop.topic, b"v", b"%d" % number)
            assert ending.flush(90) == 0
            if turn % 2:
                ending.commit_transaction(90)
            else:
                ending.abort_transaction(90)
                self.aborted += 6
        assert plain.flush(90) == 0
        self.starts += 2


def test_restarts_and_producers_beside_each_other_lose_nothing(
    empty_shop: Shop, unique: str
) -> None:
    tills = Tills(empty_shop, unique)
    for _ in range(20):
        tills.work()
    call(empty_shop, 0, *SETTLED)
    found = empty_shop.call("audit", "sequence", empty_shop.stream, *SETTLED, "--json").document
    assert found["findings"] == []
    assert len({(one["producer"], one["epoch"]) for one in found["tables"]["producers"]}) == 40
    assert found["figures"]["messages"] == 20 * 36
    found = empty_shop.call("audit", "producers", empty_shop.stream, "--json").document
    figures = {name: found["figures"][name] for name in ("messages", "committed", "aborted")}
    assert figures == {"messages": 20 * 48, "committed": 20 * 36, "aborted": tills.aborted}
    assert found["figures"]["undecided"] == 0
    assert {one["level"] for one in found["findings"]} <= {"noted"}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("looks", [3, 100])
def test_a_busy_topic_is_never_suspect(empty_shop: Shop, unique: str, looks: int) -> None:
    """While it is written, with no grace at all."""
    tills, stopping = Tills(empty_shop, unique), threading.Event()

    def work() -> None:
        while not stopping.is_set():
            tills.work()

    with ThreadPoolExecutor(1) as aside:
        working = aside.submit(work)
        try:
            for name in ("sequence", "producers") * looks:
                words = SETTLED if name == "sequence" else ()
                said = empty_shop.call(
                    "audit", name, empty_shop.stream, *words, "--json", code=None
                )
                levels = {(one["check"], one["level"]) for one in said.document["findings"]}
                assert {level for _, level in levels} <= {"noted"} or levels == {
                    ("not-stamped", "unknown")
                }, said.out
        finally:
            stopping.set()
        working.result(90)
    assert tills.starts > 2
    assert empty_shop.open().ledger.gaps.list(empty_shop.stream) == ()


def test_in_a_compacted_topic_nothing_is_told(empty_shop: Shop, topic: MakeTopic) -> None:
    """Real compaction takes numbered messages away, and nothing of it is on record as a loss."""
    shop = replace(
        empty_shop,
        topic=topic(
            PARTITIONS,
            {
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0.01",
                "segment.ms": "100",
                "delete.retention.ms": "1",
            },
        ),
    )
    shop.write_config()
    producer = SequencedProducer(Producer(shop.properties), "till")

    def is_compacted() -> bool:
        for _ in range(3):
            producer.produce(shop.topic, b"v", b"the same", 0)
        assert producer.flush(60) == 0
        return len(read_all(shop.properties, shop.topic, [0])) < shop.read_ends()[0] - 3

    wait_until(is_compacted, 120, "compaction took some")
    call(shop, 2, *SETTLED)
    found = shop.call("audit", "sequence", shop.stream, *SETTLED, "--json", code=2).document
    assert list_checks(found) == [("compacted", "unknown")]
    assert (found["missing"], found["gaps"], found["next_commands"]) == (0, [], [])


def test_hostile_headers_end_no_audit(empty_shop: Shop) -> None:
    """None of them is shown as it is, taken for an identity, or for what a recovery wrote."""
    shop = empty_shop
    identity = {"row": "order_id", "message": "header:order-id"}
    shop.write_config(source={**SOURCE, **CONSUMED, "identity": identity})
    sent = utc_now() - timedelta(hours=1)
    fill_table(shop.url, ORDERS, [{**make_order(1), "updated_at": sent}])
    fill_table(shop.url, PROCESSED, [{"order_id": 1}], "processed")
    hostile: list[tuple[str, bytes | None]] = [
        ("order-id", None),
        ("order-id", b"\xff\xfe"),
        ("order-id", b"\x1b[2J1"),
        ("order-id", b"1" * 400_000),
        ("", b""),
        ("\x1b]0;title\x07", b"\x1b[31m"),
        (SEQUENCE, b"\x1b[2J:1:0:0:0"),
    ]
    producer = Producer(shop.properties)
    at = round(sent.timestamp() * 1000)
    for header in hostile:
        headers: Any = [header, header]
        producer.produce(shop.topic, b"v", b"\x1b[2J", 0, timestamp=at, headers=headers)
    good: Any = [("order-id", b"1")]
    producer.produce(shop.topic, b"v", b"1", 0, timestamp=at, headers=good)
    assert producer.flush(60) == 0
    set_offsets_raw(shop.properties, shop.group, shop.topic, shop.read_ends())
    for one in AUDITS:
        words = () if one.name == "producers" else SETTLED
        said = shop.call("audit", one.name, shop.stream, *words, code=None)
        assert said.code in (0, 1, 2)
        assert "error:" not in said.err, said.err
        assert "\x1b" not in said.out + said.err
        found = shop.call("audit", one.name, shop.stream, *words, "--json", code=None).document
        # Counts are of rows that are between the first and the last message.
        read = range(2) if one.name == "counts" else [len(hostile) + 1]
        assert found["figures"]["messages"] in read, found
        # Three name an identity that no row has: bytes, a text, and a very long one.
        assert found["missing"] == (3 if one.name == "consumed" else 0)


_LOSSY = """
import sys, time
from confluent_kafka import Producer
from backlogctl_delivery.sequenced.producer import SequencedProducer

settings = {"bootstrap.servers": sys.argv[1], "acks": "0", "enable.idempotence": False,
            "linger.ms": 0, "reconnect.backoff.ms": 50}
producer = SequencedProducer(Producer(settings, logger=__import__("logging").getLogger("x")), "till")
number = 0
while True:
    producer.produce("orders", b"%d" % number, b"k", 0)
    producer.poll(0)
    number += 1
    print(number, flush=True)
    time.sleep(0.0005)
"""


def test_what_acks_0_lost_when_the_broker_was_killed_is_found(tmp_path: Path) -> None:
    with EmbeddedKafka.start(tmp_path / "kafka") as kafka:
        properties = properties_of(kafka.bootstrap)
        create_topic(properties, "orders", partitions=1, config={"retention.ms": "-1"})
        write_config(tmp_path, kafka.bootstrap)
        till = subprocess.Popen(
            [sys.executable, "-c", _LOSSY, kafka.bootstrap], stdout=subprocess.PIPE, text=True
        )
        try:
            assert till.stdout is not None
            wait_until(lambda: _end(properties) > 200, what="the till writes")
            # Stopped, it takes what is sent and answers nothing; killed, that is gone.
            os.kill(kafka.pid, signal.SIGSTOP)
            told = int(till.stdout.readline())
            while int(till.stdout.readline()) < told + 1000:
                pass
            kafka.kill()
            kafka.restart()
            end = _end(properties)
            wait_until(lambda: _end(properties) > end + 200, what="the till writes again")
        finally:
            till.kill()
            till.wait()
            assert till.stdout is not None
            till.stdout.close()
        assert audit(tmp_path, "sequence", *SETTLED)[0] == 2
        code, document = audit(tmp_path, "sequence", *SETTLED)
        assert code == 1, document
        assert document["missing"] > 0
        assert {check for check, level in list_checks(document) if level == "lost"} == {"hole"}
        code, document = audit(tmp_path, "producers")
        assert (code, list_checks(document)[0]) == (2, ("not-idempotent", "unknown"))


def _end(properties: dict[str, str]) -> int:
    return list_offsets(properties, "orders", [0], "latest")[0]


def end_half_way(shop: Shop, number: signal.Signals) -> tuple[int, str, set[Path]]:
    """Once its copy of the table has a folder: the exit code, what it said, and the folders."""
    before = list_folders(shop)
    process = shop.start("audit", "consumed", shop.stream)
    wait_until(
        lambda: bool(list_folders(shop) - before) or process.poll() is not None,
        seconds=240,
        what="it reads the table",
    )
    process.send_signal(number)
    out, err = process.communicate(timeout=400)
    assert (out, "Traceback" in err) == ("", False), err
    assert shop.open().ledger.audits.list_latest() == ()
    return process.returncode, err, list_folders(shop)


def list_folders(shop: Shop) -> set[Path]:
    return set(shop.directory.glob("staging/audit-*"))


def test_an_audit_that_is_ended_leaves_nothing(shop: Shop) -> None:
    code, _, left = end_half_way(shop, signal.SIGKILL)
    assert (code, len(left)) == (-signal.SIGKILL, 1)
    for number in (signal.SIGTERM, signal.SIGINT):
        code, said, left = end_half_way(shop, number)
        assert (code, left) == (130, set())
        assert "interrupted" in said


GROUP = "order-service"
MISSING = ((Resource.TOPIC, Operation.READ), (Resource.GROUP, Operation.DESCRIBE))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A broker with a topic and a group that has read all of it."""
    with start_secured(tmp_path_factory.mktemp("secured")) as found:
        create_topic(found.properties, "orders", partitions=1, config={"retention.ms": "-1"})
        producer = Producer(found.properties)
        at = round((utc_now() - timedelta(hours=1)).timestamp() * 1000)
        for number in range(30):
            producer.produce("orders", b"{}", b"%d" % number, 0, timestamp=at)
        assert producer.flush(60) == 0
        set_offsets_raw(found.properties, GROUP, "orders", {0: 30})
        yield found


@pytest.fixture
def secured_shop(
    secured: SecuredKafka, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with backlog.yaml, a table of orders, and one of those that were handled."""
    del spark
    monkeypatch.setenv("TOOL_PASSWORD", PASSWORD)
    url = f"sqlite:///{tmp_path}/shop.db"
    sent = utc_now() - timedelta(hours=1)
    rows = [{**make_order(number), "updated_at": sent} for number in range(30)]
    fill_table(url, ORDERS, rows)
    fill_table(url, PROCESSED, [{"order_id": number} for number in range(30)], "processed")
    document = {
        "ledger": "sqlite:///ledger.db",
        "staging": {"dir": "./staging"},
        "spark": LOCAL_SPARK,
        "clusters": {"main": {}},
        "sources": {"shop": {"url": url}},
        "streams": {
            "orders": {
                "cluster": "main",
                "topic": "orders",
                "group": GROUP,
                "source": {**SOURCE, **CONSUMED},
            }
        },
    }
    (tmp_path / "backlog.yaml").write_text(json.dumps(document))
    return tmp_path


def log_in(secured_shop: Path, secured: SecuredKafka, user: str) -> None:
    path = secured_shop / "backlog.yaml"
    document = json.loads(path.read_text())
    document["clusters"]["main"] = secured.login(user, "${env:TOOL_PASSWORD}")
    path.write_text(json.dumps(document))


def audit_as(secured_shop: Path, name: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the document; nothing else was said that is not for people."""
    code, out, err = call_main(("audit", name, "orders", "--json"), secured_shop, {})
    assert "Traceback" not in err
    assert PASSWORD not in out + err
    assert list(secured_shop.glob("staging/audit-*")) == []
    return code, json.loads(out)


def list_recorded(secured_shop: Path) -> set[str]:
    workspace = open_workspace(load_config(secured_shop / "backlog.yaml"))
    return {one.audit for one in workspace.ledger.audits.list_latest("orders")}


def test_audits_need_the_rights_of_see(secured: SecuredKafka, secured_shop: Path) -> None:
    """They read all, and are on record."""
    log_in(secured_shop, secured, "auditor")
    config = load_config(secured_shop / "backlog.yaml")
    rights = list_seeing(config.stream("orders"))
    secured.add_user("auditor", rights)
    for one in AUDITS:
        _, document = audit_as(secured_shop, one.name)
        assert "error" not in document, document
        assert document["figures"]["messages"] == 30, document
    assert list_recorded(secured_shop) == {one.name for one in AUDITS}


@pytest.mark.parametrize(("resource", "operation"), MISSING)
def test_a_missing_right_is_named(
    secured: SecuredKafka, secured_shop: Path, resource: Resource, operation: Operation
) -> None:
    """Before Spark starts; of who writes, a group's rights say nothing."""
    user = f"without-{resource.name}"
    log_in(secured_shop, secured, user)
    rights = list_seeing(load_config(secured_shop / "backlog.yaml").stream("orders"))
    (lacking,) = (r for r in rights if (r.resource, r.operation) == (resource, operation))
    secured.add_user(user, [right for right in rights if right != lacking])
    free = {"producers"} if resource is Resource.GROUP else set()
    for one in AUDITS:
        code, document = audit_as(secured_shop, one.name)
        if one.name not in free:
            assert (code, document["error"]["code"]) == (Refused.exit_code, "refused")
            assert str(lacking) in document["error"]["message"]
    assert list_recorded(secured_shop) == free


@pytest.mark.parametrize("name", ["sequence", "consumed", "counts"])
def test_what_is_refused_only_when_spark_reads_is_one_error(
    secured: SecuredKafka, secured_shop: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As with a login that cannot be asked for its rights."""
    user = f"unasked-{name}"
    log_in(secured_shop, secured, user)
    rights = list_seeing(load_config(secured_shop / "backlog.yaml").stream("orders"))
    secured.add_user(user, [right for right in rights if right.operation is not Operation.READ])
    monkeypatch.setattr(carrying, "require_rights", lambda *said: ["its rights are unknown"])
    code, document = audit_as(secured_shop, name)
    assert (code, document["error"]["code"]) == (2, "kafka"), document
    assert "Not authorized" in document["error"]["message"], document
    assert list_recorded(secured_shop) == set()
