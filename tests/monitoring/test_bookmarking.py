"""Bookmarks of real commits, noted while their messages can be read."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    ResourceType,
)

from backlogctl.clock import Deadline
from backlogctl.config.streams import Expr, Identity
from backlogctl.errors import BacklogError, ClusterUnreachable, KafkaFailure
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.clients import Admin, make_admin, make_producer
from backlogctl.kafka.peek import peek_at
from backlogctl.ledger import Ledger, open_ledger
from backlogctl.monitoring.offsets import bookmarks
from backlogctl.monitoring.offsets.bookmarks import Bookmarker
from backlogctl.monitoring.offsets.observation import observe_stream
from backlogctl.monitoring.offsets.sampler import take_sample
from backlogctl.monitoring.watch.loop import watch_streams
from backlogctl.values import Bookmark
from backlogctl_delivery.stamps import MESSAGE_ID, hash_identity
from tests.conftest import MakeTopic
from tests.kit.kafka import (
    StreamStub,
    await_markers,
    commit,
    delete_topic,
    move_log_start,
    properties_of,
    publish,
    set_offsets_raw,
    wait_until,
)
from tests.kit.secured import allow_all, deny, start_guarded

PATIENT = 90.0  # seconds; what is awaited comes at once where the machine has time


def make_source(message: str) -> SimpleNamespace:
    return SimpleNamespace(identity=Identity(row=Expr(column="id"), message=message))


@dataclass(frozen=True)
class RebuiltStub(StreamStub):
    """A stream with a source, as bookmarks need it."""

    source: SimpleNamespace = field(default_factory=lambda: make_source("key"))


def put(
    properties: Mapping[str, str],
    topic: str,
    *keys: bytes | None,
    headers: list[tuple[str, bytes | None]] | None = None,
) -> None:
    producer = make_producer(properties)
    for key in keys:
        producer.produce(topic, b"v", key, 0, headers=list(headers or ()))
    assert producer.flush(PATIENT) == 0


def put_transaction(properties: Mapping[str, str], topic: str, *keys: bytes, abort: bool) -> None:
    producer = make_producer(properties, transactional_id=f"tx-{topic}")
    producer.init_transactions(PATIENT)
    producer.begin_transaction()
    for key in keys:
        producer.produce(topic, b"v", key, 0)
    assert producer.flush(PATIENT) == 0
    if abort:
        producer.abort_transaction(PATIENT)
    else:
        producer.commit_transaction(PATIENT)


def read_marks(ledger: Ledger, admin: Admin, stream: StreamStub) -> list[tuple[int, int, int]]:
    """(partition, committed, offset) of each."""
    topic_id, _ = verbs.read_topic_id(admin, stream.topic, Deadline(PATIENT))
    found = ledger.bookmarks.list(stream.name, stream.group, topic_id)
    return [(each.partition, each.committed, each.offset) for each in found]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, int]]:
    """What was asked of the log, one entry for each time."""
    asked: list[dict[int, int]] = []

    def look(*arguments: object) -> object:
        asked.append(dict(arguments[2]))  # type: ignore[call-overload]
        return peek_at(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(bookmarks, "peek_at", look)
    return asked


def test_the_message_at_each_commit_is_noted_once(
    properties: dict[str, str],
    topic: MakeTopic,
    group: str,
    ledger: Ledger,
    admin: Admin,
    looks: list[dict[int, int]],
) -> None:
    name = topic(partitions=3)
    stream, bookmarker = RebuiltStub(name, group), Bookmarker(ledger)
    publish(properties, name, {0: 20, 1: 20, 2: 20})
    commit(properties, group, name, {0: 5, 1: 7})  # partition 2 has no commit
    seen = observe_stream(ledger, stream, admin, bookmarker=bookmarker)
    assert seen.unmarked is None
    topic_id = seen.sample.topic_id
    first = (
        Bookmark(0, 5, 5, hash_identity(topic_id, b"0-5")),
        Bookmark(1, 7, 7, hash_identity(topic_id, b"1-7")),
    )
    assert ledger.bookmarks.list("orders", group, topic_id) == first
    observe_stream(ledger, stream, admin, marks=seen.marks, bookmarker=bookmarker)
    assert looks == [{0: 5, 1: 7}, {}]
    set_offsets_raw(properties, group, name, {1: 9})
    observe_stream(ledger, stream, admin, marks=seen.marks, bookmarker=bookmarker)
    assert looks[2:] == [{1: 9}]
    assert read_marks(ledger, admin, stream) == [(0, 5, 5), (1, 7, 7), (1, 9, 9)]
    # Another process knows from the ledger what was noted.
    observe_stream(ledger, stream, properties)
    assert looks[3:] == [{}]


@pytest.mark.parametrize("message", ["header:order", "header:absent", "key"])
def test_identity_is_that_of_the_streams_rule(
    properties: dict[str, str],
    topic: MakeTopic,
    group: str,
    ledger: Ledger,
    admin: Admin,
    message: str,
) -> None:
    name = topic(partitions=1)
    stream = RebuiltStub(name, group, source=make_source(message))
    # The last of several headers is the one that counts, as in a rebuild.
    put(properties, name, b"k", headers=[("order", b"old"), ("order", b"\xff7"), ("x", b"1")])
    set_offsets_raw(properties, group, name, {0: 0})
    seen = observe_stream(ledger, stream, admin)
    found = ledger.bookmarks.list("orders", group, seen.sample.topic_id)
    identity = {"header:order": b"\xff7", "key": b"k"}.get(message)
    assert [each.digest for each in found] == (
        [] if identity is None else [hash_identity(seen.sample.topic_id, identity)]
    )


def test_what_cannot_be_recognised_or_is_our_own_is_left_out(
    properties: dict[str, str],
    topic: MakeTopic,
    group: str,
    ledger: Ledger,
    admin: Admin,
    looks: list[dict[int, int]],
) -> None:
    by_key, by_header = topic(partitions=1), topic(partitions=1)
    put(properties, by_key, None)
    put(properties, by_key, b"k", headers=[(MESSAGE_ID, b"ab" * 16)])
    put(properties, by_key, b"k")
    put(properties, by_header, b"k", headers=[("order", b"7"), ("order", None)])
    bookmarker = Bookmarker(ledger)
    stream = RebuiltStub(by_key, group)
    for offset in (0, 1):
        set_offsets_raw(properties, group, by_key, {0: offset})
        for _ in range(2):
            assert observe_stream(ledger, stream, admin, bookmarker=bookmarker).unmarked is None
        assert read_marks(ledger, admin, stream) == []
    assert looks == [{0: 0}, {}, {0: 1}, {}], "it is looked at once"
    set_offsets_raw(properties, group, by_key, {0: 2})
    observe_stream(ledger, stream, admin, bookmarker=bookmarker)
    assert read_marks(ledger, admin, stream) == [(0, 2, 2)]
    other = RebuiltStub(by_header, group, "others", source=make_source("header:order"))
    set_offsets_raw(properties, group, by_header, {0: 0})
    observe_stream(ledger, other, admin)
    assert read_marks(ledger, admin, other) == []


def test_a_group_at_the_end_is_bookmarked_by_the_next_message(
    properties: dict[str, str],
    topic: MakeTopic,
    group: str,
    ledger: Ledger,
    admin: Admin,
    looks: list[dict[int, int]],
) -> None:
    name = topic(partitions=1)
    stream, bookmarker = RebuiltStub(name, group), Bookmarker(ledger)
    put(properties, name, b"a")
    put_transaction(properties, name, b"b", abort=False)  # b at 1, a control record at 2
    await_markers(properties, name, {0: 3})

    def observe(committed: int) -> list[tuple[int, int, int]]:
        set_offsets_raw(properties, group, name, {0: committed})
        assert observe_stream(ledger, stream, admin, bookmarker=bookmarker).unmarked is None
        return read_marks(ledger, admin, stream)

    assert observe(3) == []
    assert looks == [{}], "behind the end is nothing to look at"
    assert observe(2) == []
    assert observe(2) == []
    assert looks == [{}, {0: 2}, {}], "control records are read once"
    put(properties, name, b"c")
    assert observe(2) == [(0, 2, 3)]
    assert observe(3) == [(0, 2, 3), (0, 3, 3)]


def test_aborted_messages_are_passed_over(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger, admin: Admin
) -> None:
    name = topic(partitions=1)
    stream = RebuiltStub(name, group)
    put(properties, name, b"a")
    put_transaction(properties, name, b"b", b"c", abort=True)
    await_markers(properties, name, {0: 4})
    put(properties, name, b"d")
    set_offsets_raw(properties, group, name, {0: 1})
    seen = observe_stream(ledger, stream, admin)
    assert ledger.bookmarks.list("orders", group, seen.sample.topic_id) == (
        Bookmark(0, 1, 4, hash_identity(seen.sample.topic_id, b"d")),
    )


def test_an_open_transaction_is_awaited(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger, admin: Admin
) -> None:
    name = topic(partitions=1)
    stream, bookmarker = RebuiltStub(name, group), Bookmarker(ledger)
    producer = make_producer(properties, transactional_id=f"tx-{name}")
    producer.init_transactions(PATIENT)
    producer.begin_transaction()
    producer.produce(name, b"v", b"a", 0)
    assert producer.flush(PATIENT) == 0
    put(properties, name, b"b")
    set_offsets_raw(properties, group, name, {0: 0})
    observe_stream(ledger, stream, admin, bookmarker=bookmarker)
    assert read_marks(ledger, admin, stream) == []
    producer.abort_transaction(PATIENT)
    await_markers(properties, name, {0: 3})
    observe_stream(ledger, stream, admin, bookmarker=bookmarker)
    assert read_marks(ledger, admin, stream) == [(0, 0, 1)]


def test_a_message_that_expired_meanwhile_gives_no_bookmark(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger, admin: Admin
) -> None:
    name = topic(partitions=2)
    stream = RebuiltStub(name, group)
    publish(properties, name, {0: 20, 1: 20})
    set_offsets_raw(properties, group, name, {0: 5, 1: 5})
    sample = take_sample(stream, admin)
    move_log_start(properties, name, {0: 10})
    assert Bookmarker(ledger).note(stream, sample, admin, Deadline(PATIENT)) is None
    assert read_marks(ledger, admin, stream) == [(1, 5, 5)]


def test_fault_15_a_topic_that_was_recreated_meanwhile_gives_no_bookmark(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger, admin: Admin
) -> None:
    name = topic(partitions=1)
    stream = RebuiltStub(name, group)
    publish(properties, name, {0: 20})
    set_offsets_raw(properties, group, name, {0: 5})
    sample = take_sample(stream, admin)
    delete_topic(properties, name)
    verbs.create_topic(properties, name, partitions=1)
    publish(properties, name, {0: 20})
    Bookmarker(ledger).note(stream, sample, admin, Deadline(PATIENT))
    assert read_marks(ledger, admin, stream) == []
    assert ledger.bookmarks.list("orders", group, sample.topic_id) == ()


def test_neither_message_nor_identity_is_in_the_ledger(
    properties: dict[str, str],
    topic: MakeTopic,
    group: str,
    ledger: Ledger,
    admin: Admin,
    tmp_path: Path,
) -> None:
    name = topic(partitions=1)
    put(properties, name, b"secret-key", headers=[("order", b"secret-header")])
    set_offsets_raw(properties, group, name, {0: 0})
    observe_stream(ledger, RebuiltStub(name, group), admin)
    assert len(read_marks(ledger, admin, RebuiltStub(name, group))) == 1
    files = list(tmp_path.glob("ledger.db*"))
    assert b"backlog_bookmarks" in b"".join(path.read_bytes() for path in files)
    for path in files:
        content = path.read_bytes()
        assert b"secret" not in content
        assert b"secret".hex().encode() not in content


def test_many_partitions_are_one_fetch_and_one_statement(
    properties: dict[str, str],
    topic: MakeTopic,
    group: str,
    ledger: Ledger,
    admin: Admin,
    looks: list[dict[int, int]],
) -> None:
    name = topic(partitions=200)
    numbers = range(200)
    publish(properties, name, dict.fromkeys(numbers, 3))
    set_offsets_raw(properties, group, name, dict.fromkeys(numbers, 1))
    stream = RebuiltStub(name, group)
    observe_stream(ledger, stream, admin)
    assert len(looks) == 1
    assert read_marks(ledger, admin, stream) == [(number, 1, 1) for number in numbers]


def test_a_consumer_that_is_kept_reads_the_same_place_again(
    properties: dict[str, str], topic: MakeTopic
) -> None:
    name, other, own = topic(partitions=2), topic(partitions=1), make_admin(properties)
    publish(properties, name, {0: 5, 1: 5})
    publish(properties, other, {0: 5})
    for _ in range(3):
        limit = Deadline(PATIENT)
        found = peek_at(own, name, {0: 1, 1: 4}, 2, limit)
        assert {p: [m.offset for m in ms] for p, ms in found.items()} == {0: [1, 2], 1: [4]}
        found = peek_at(own, other, {0: 3}, 1, limit)
        assert [message.key for message in found[0]] == [b"0-3"]


def test_fault_28_a_failure_costs_the_bookmarks_and_not_the_sample(
    properties: dict[str, str],
    topic: MakeTopic,
    group: str,
    ledger: Ledger,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = topic(partitions=1)
    publish(properties, name, {0: 3})
    set_offsets_raw(properties, group, name, {0: 1})
    stream, bookmarker = RebuiltStub(name, group), Bookmarker(ledger)
    nowhere = make_admin(properties_of("127.0.0.1:1"))
    sample = take_sample(stream, admin)
    error = bookmarker.note(stream, sample, nowhere, Deadline(2.0))
    assert isinstance(error, ClusterUnreachable)
    monkeypatch.setattr(bookmarks, "BOOKMARK_SECONDS", 0.0)
    seen = observe_stream(ledger, stream, admin, bookmarker=bookmarker)
    assert isinstance(seen.unmarked, BacklogError)
    assert ledger.samples.latest("orders") == seen.sample
    monkeypatch.undo()
    assert observe_stream(ledger, stream, admin, bookmarker=bookmarker).unmarked is None
    assert read_marks(ledger, admin, stream) == [(0, 1, 1)]


def test_a_stream_without_source_has_no_bookmarks(
    properties: dict[str, str],
    topic: MakeTopic,
    group: str,
    ledger: Ledger,
    admin: Admin,
    looks: list[dict[int, int]],
) -> None:
    name = topic(partitions=1)
    publish(properties, name, {0: 3})
    set_offsets_raw(properties, group, name, {0: 1})
    for stream in (StreamStub(name, group), RebuiltStub(name, group, source=None)):  # type: ignore[arg-type]
        assert observe_stream(ledger, stream, admin).unmarked is None
        assert read_marks(ledger, admin, stream) == []
    assert looks == []


# Bookmarks of a topic that may not be read: a broker with rules of access.


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
