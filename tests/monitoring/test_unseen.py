"""A user who may see little: what is unknown is said, everywhere (fault 85)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.rights import Operation, Resource, Right
from backlogctl.ledger import Ledger
from backlogctl.monitoring.metrics.groups import write_groups
from backlogctl.monitoring.verdict.status import GroupStatus
from backlogctl.monitoring.watch.board import Board
from backlogctl.monitoring.watch.look import look_at_stream
from backlogctl.monitoring.watch.loop import watch_streams
from backlogctl.replay.web.app import HealthCheck
from tests.kafka_tools import publish, set_offsets_raw, wait_until
from tests.monitoring.test_bookmarking import RebuiltStub
from tests.secured import SecuredKafka, start_secured

STREAM = RebuiltStub("orders", "service")
WATCH = SimpleNamespace(window=timedelta(minutes=10), horizon=timedelta(hours=24))
# Offsets and commits, and nothing else.
LITTLE = (
    Right(Resource.TOPIC, "orders", Operation.DESCRIBE, "read offsets"),
    Right(Resource.GROUP, "service", Operation.DESCRIBE, "read commits"),
)
SETTINGS = Right(Resource.TOPIC, "orders", Operation.DESCRIBE_CONFIGS, "read retention")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A topic whose retention goes by time and by size, and a group that is behind."""
    config = {"retention.ms": "3600000", "retention.bytes": "1000000"}
    with start_secured(tmp_path_factory.mktemp("secured")) as found:
        create_topic(found.properties, "orders", partitions=1, config=config)
        publish(found.properties, "orders", {0: 9})
        set_offsets_raw(found.properties, "service", "orders", {0: 2})
        yield found


def look(ledger: Ledger, properties: dict[str, str]) -> GroupStatus:
    return look_at_stream(ledger, STREAM, properties, WATCH, Deadline(30.0)).status


def test_fault_85_a_loss_forecast_that_cannot_be_made_is_unknown(
    secured: SecuredKafka, ledger: Ledger
) -> None:
    status = look(ledger, secured.add_user("little", LITTLE))
    assert status.lag == 7
    assert {one.what for one in status.unseen} == {"retention", "bookmarks"}
    assert status.seconds_to_loss is None
    told = status.to_json()["unseen"]
    assert "access denied" in json.dumps(told)
    lines = write_groups([status])["backlog_unseen"]
    text = lines.decode()
    assert 'what="retention"} 1' in text


def test_fault_85_ages_and_disks_too(secured: SecuredKafka, ledger: Ledger) -> None:
    status = look(ledger, secured.add_user("more", [*LITTLE, SETTINGS]))
    assert {one.what for one in status.unseen} == {"oldest", "disks", "bookmarks"}


def test_who_may_see_all_is_told_nothing(secured: SecuredKafka, ledger: Ledger) -> None:
    rights = [
        *LITTLE,
        SETTINGS,
        Right(Resource.TOPIC, "orders", Operation.READ, "read ages"),
        Right(Resource.CLUSTER, "kafka-cluster", Operation.DESCRIBE, "read disks"),
    ]
    assert look(ledger, secured.add_user("all", rights)).unseen == ()


def test_the_watch_says_it_once_and_is_degraded(secured: SecuredKafka, ledger: Ledger) -> None:
    properties = secured.add_user("watcher", LITTLE)
    cluster = SimpleNamespace(client_properties=lambda: properties)
    config: Any = SimpleNamespace(clusters={"main": cluster}, streams={"orders": STREAM})
    board = Board()
    told: list[tuple[str, BacklogError | None]] = []
    stop = threading.Event()
    thread = threading.Thread(
        target=watch_streams,
        args=(config, ledger, timedelta(seconds=0.2), stop),
        kwargs={
            "on_status": board.put_stream,
            "on_outage": lambda *what: told.append(what),
            "on_round": board.note_round,
        },
    )
    thread.start()
    try:
        wait_until(lambda: board.seen.version >= 3)
    finally:
        stop.set()
        thread.join(60)
    assert sorted(what for what, _ in told) == [
        "bookmarks of stream orders",
        "retention of stream orders",
    ]
    answers = SimpleNamespace(answers=lambda: True)
    ready = HealthCheck(board, answers, timedelta(seconds=30), (), ()).check_readiness()
    assert ready.code == 200
    assert ready.body["status"] == "degraded"
    assert any("retention" in text for text in ready.body["unseen"]["orders"])
