"""The whole service: from `prepare` to the business topic, on a real broker."""

from __future__ import annotations

from datetime import timedelta

from confluent_kafka import Producer

from backlogctl_delivery.lookback.admin import count_messages
from backlogctl_delivery.lookback.messages import make_id
from backlogctl_delivery.lookback.producer import LookBackProducer
from backlogctl_delivery.lookback.tables import Database
from sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.delivery.lookback.world import (
    Answerer,
    make_service,
    make_settings,
    read_ids,
    run_instance,
)
from tests.kafka_tools import wait_until


def _count_open(database: Database) -> int:
    return sum(one.messages for one in count_messages(database))


def test_fault_52_a_service_that_hangs_holds_up_no_other_and_two_instances_share_the_work(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str, pg_database: Database, answerer: Answerer
) -> None:
    own, out = topic(4), topic(2)
    settings = make_settings(
        topic=own,
        group=group,
        first_check=timedelta(milliseconds=1),
        services={
            "hangs": make_service(f"{answerer.url}/hang", timeout=timedelta(minutes=5), at_once=2),
            "floods": make_service(f"{answerer.url}/huge", at_once=1),
            "payments": make_service(f"{answerer.url}/ok"),
        },
    )
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    good = [f"good-{number}" for number in range(10)]
    answerer.statuses |= dict.fromkeys(good, "committed")
    for service, ids in (
        ("hangs", [f"bad-{number}" for number in range(10)]),
        ("floods", ["flood"]),
        ("payments", good),
    ):
        sender = LookBackProducer(producer, service, topic=own)
        for biz_id in ids:
            sender.prepare("payment", biz_id, topic=out, key=biz_id, value=b"{}")
    one = run_instance(pg_database, settings, kafka.bootstrap)
    two = run_instance(pg_database, settings, kafka.bootstrap)
    with one as first, two as second:
        wait_until(lambda: len(read_ids(kafka.bootstrap, out)) == len(good))
        wait_until(lambda: _count_open(pg_database) == 11)
    # Each was asked about by one instance, and sent by one.
    assert all(answerer.asked[biz_id] == 1 for biz_id in good)
    assert all(len(ids) == 1 for ids in read_ids(kafka.bootstrap, out).values())
    asked = [
        service.metrics.checks.labels("payments", "committed")._value.get()
        for service in (first, second)
    ]
    assert sum(asked) == len(good)


def test_what_commits_is_forwarded_and_who_falls_silent_is_asked(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str, database: Database, answerer: Answerer
) -> None:
    own, out = topic(3), topic(2)
    settings = make_settings(
        topic=own,
        group=group,
        first_check=timedelta(milliseconds=50),
        services={"payments": make_service(f"{answerer.url}/ok")},
    )
    answerer.statuses |= {"silent": "committed", "silent-gone": "rolled_back"}
    sender = LookBackProducer(
        Producer({"bootstrap.servers": kafka.bootstrap}), "payments", topic=own
    )
    ids = ("told", "told-gone", "silent", "silent-gone")
    for biz_id in ids:
        sender.prepare("payment", biz_id, topic=out, key=biz_id, value=b"{}")
    sender.commit("payment", "told")
    sender.roll_back("payment", "told-gone")
    with run_instance(database, settings, kafka.bootstrap):
        wait_until(lambda: len(read_ids(kafka.bootstrap, out)) == 2)
        wait_until(lambda: _count_open(database) == 0)
    assert read_ids(kafka.bootstrap, out) == {
        one: [make_id(own, "payment", one)] for one in ("told", "silent")
    }
