"""Bookmarks of a topic that may not be read: a broker with rules of access."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]

from backlog.errors import BacklogError, KafkaFailure
from backlog.kafka import admin as verbs
from backlog.ledger import open_ledger
from monitoring.observing import observe_stream
from monitoring.watcher import watch_streams
from tests.guarded import allow_all, deny, start_guarded
from tests.kafka_tools import (
    properties_of,
    publish,
    set_offsets_raw,
    wait_until,
)
from tests.monitoring.test_bookmarking import PATIENT, RebuiltStub, read_marks


def test_the_watch_says_once_that_it_may_not_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with open_ledger(url) as ledger, start_guarded(tmp_path) as guarded:
        properties = properties_of(guarded.addresses)
        verbs.create_topic(properties, "orders", partitions=1)
        publish(properties, "orders", {0: 3})
        set_offsets_raw(properties, "service", "orders", {0: 1})
        deny(guarded, ResourceType.TOPIC, "orders", AclOperation.READ)
        # What reads without joining needs nothing of the group that it names.
        deny(guarded, ResourceType.GROUP, "backlogctl-reader", AclOperation.DESCRIBE)
        deny(guarded, ResourceType.GROUP, "backlogctl-reader", AclOperation.READ)
        stream = RebuiltStub("orders", "service")
        cluster = SimpleNamespace(client_properties=lambda: properties)
        config = SimpleNamespace(clusters={"main": cluster}, streams={"orders": stream})
        told: list[tuple[str, BacklogError | None]] = []
        seen: list[object] = []
        stop = threading.Event()
        thread = threading.Thread(
            target=watch_streams,
            args=(config, ledger, timedelta(seconds=0.2), stop, seen.append),
            kwargs={"on_outage": lambda *what: told.append(what)},
        )
        wait_until(
            lambda: isinstance(observe_stream(ledger, stream, guarded).unmarked, KafkaFailure),
            what="the broker knows the rules",
        )
        thread.start()
        try:
            wait_until(lambda: len(seen) >= 3)
            ((what, error),) = told
            assert what == "bookmarks of stream orders"
            assert error is not None
            assert "access denied" in str(error)
            allow_all(guarded, ResourceType.TOPIC, "orders")
            wait_until(lambda: len(told) > 1)
            assert told[1:] == [("bookmarks of stream orders", None)]
            assert read_marks(ledger, guarded, stream) == [(0, 1, 1)]
        finally:
            stop.set()
            thread.join(PATIENT)
