"""`audit sequence` as on-call types it: real losses are found, and told with what is not known."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from backlogctl.kafka.admin import create_topic, list_offsets
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.sequenced.sequence import SEQUENCE, Stamp, write_stamp
from tests.kafka_tools import move_log_start, properties_of, wait_until
from tests.replay.shop import Shop

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
            headers: Any = write_stamp(Stamp("shop", 1, 0, number))
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
    assert "3 messages are missing near the end of the log" in told
    told = call(empty_shop, 1, *SETTLED)
    assert "2 messages (sequence 7 to 8) of producer shop, epoch 1, for partition 0" in told
    assert "3 messages lost" in told
    # A producer that is given its time is not judged.
    call(empty_shop, 2)


def test_a_complete_topic_and_one_without_stamps(empty_shop: Shop) -> None:
    assert "none of 0 messages is stamped" in call(empty_shop, 2)
    publish_sequenced(empty_shop, 40)
    call(empty_shop, 0, *SETTLED)
    # Retention takes the head away: that is no hole.
    move_log_start(empty_shop.properties, empty_shop.topic, {0: 17})
    call(empty_shop, 0, *SETTLED)


def test_hostile_stamps_and_those_in_another_partition_are_counted(empty_shop: Shop) -> None:
    publish_sequenced(empty_shop, 5)
    producer = Producer(empty_shop.properties)
    for value in (b"shop:1:0:-1", b"shop:1:0:five", b"\xff" * 900_000):
        producer.produce(empty_shop.topic, b"v", b"k", 0, headers=[(SEQUENCE, value)])
    elsewhere: Any = write_stamp(Stamp("shop", 1, 0, 3))
    producer.produce(empty_shop.topic, b"v", b"k", 1, headers=elsewhere)
    assert producer.flush(60) == 0
    told = call(empty_shop, 2, *SETTLED)
    assert "3 messages are stamped in a way that cannot be read" in told
    assert "1 message in another partition than the stamp says" in told


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
