"""Bookmarks of real commits, noted while their messages can be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backlogctl.clock import Deadline
from backlogctl.config.streams import Expr, Identity
from backlogctl.errors import BacklogError, ClusterUnreachable
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.clients import Admin, make_admin, make_producer
from backlogctl.kafka.peek import peek_at
from backlogctl.ledger import Ledger
from backlogctl.monitoring.offsets import bookmarks
from backlogctl.monitoring.offsets.bookmarks import Bookmarker
from backlogctl.monitoring.offsets.observation import Observation, observe_stream
from backlogctl.monitoring.offsets.sampler import take_sample
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
)
from tests.kit.transactions import run_transactions
from tests.spark_backfill.injection.doing import open_transaction

Looks = list[dict[int, int]]
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


def read_marks(ledger: Ledger, admin: Admin, stream: StreamStub) -> list[tuple[int, int, int]]:
    """(partition, committed, offset) of each."""
    topic_id, _ = verbs.read_topic_id(admin, stream.topic, Deadline(PATIENT))
    found = ledger.bookmarks.list(stream.name, stream.group, topic_id)
    return [(each.partition, each.committed, each.offset) for each in found]


@dataclass(frozen=True)
class Watched:
    """A group on the shared broker, and the ledger of who watches it."""

    properties: dict[str, str]
    topic: MakeTopic
    group: str
    ledger: Ledger
    admin: Admin

    def set_commits(self, topic: str, commits: Mapping[int, int]) -> None:
        set_offsets_raw(self.properties, self.group, topic, commits)

    def observe(self, stream: Any, **settings: Any) -> Observation:
        return observe_stream(self.ledger, stream, self.admin, **settings)

    def read_marks(self, stream: StreamStub) -> list[tuple[int, int, int]]:
        return read_marks(self.ledger, self.admin, stream)


@pytest.fixture
def here(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger, admin: Admin
) -> Watched:
    return Watched(properties, topic, group, ledger, admin)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """What was asked of the log, one entry for each time."""
    asked: list[dict[int, int]] = []

    def look(*arguments: object) -> object:
        asked.append(dict(arguments[2]))  # type: ignore[call-overload]
        return peek_at(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(bookmarks, "peek_at", look)
    return asked


def test_the_message_at_each_commit_is_noted_once(here: Watched, looks: Looks) -> None:
    name = here.topic(partitions=3)
    stream, bookmarker = RebuiltStub(name, here.group), Bookmarker(here.ledger)
    publish(here.properties, name, {0: 20, 1: 20, 2: 20})
    commit(here.properties, here.group, name, {0: 5, 1: 7})  # partition 2 has no commit
    seen = here.observe(stream, bookmarker=bookmarker)
    assert seen.unmarked is None
    topic_id = seen.sample.topic_id
    first = (
        Bookmark(0, 5, 5, hash_identity(topic_id, b"0-5")),
        Bookmark(1, 7, 7, hash_identity(topic_id, b"1-7")),
    )
    assert here.ledger.bookmarks.list("orders", here.group, topic_id) == first
    here.observe(stream, history=seen.history, bookmarker=bookmarker)
    assert looks == [{0: 5, 1: 7}, {}]
    here.set_commits(name, {1: 9})
    here.observe(stream, history=seen.history, bookmarker=bookmarker)
    assert looks[2:] == [{1: 9}]
    assert here.read_marks(stream) == [(0, 5, 5), (1, 7, 7), (1, 9, 9)]
    # Another process knows from the ledger what was noted.
    observe_stream(here.ledger, stream, here.properties)
    assert looks[3:] == [{}]


@pytest.mark.parametrize("message", ["header:order", "header:absent", "key"])
def test_identity_is_that_of_the_streams_rule(here: Watched, message: str) -> None:
    name = here.topic(partitions=1)
    stream = RebuiltStub(name, here.group, source=make_source(message))
    # The last of several headers is the one that counts, as in a rebuild.
    put(here.properties, name, b"k", headers=[("order", b"old"), ("order", b"\xff7"), ("x", b"1")])
    here.set_commits(name, {0: 0})
    seen = here.observe(stream)
    found = here.ledger.bookmarks.list("orders", here.group, seen.sample.topic_id)
    identity = {"header:order": b"\xff7", "key": b"k"}.get(message)
    assert [each.digest for each in found] == (
        [] if identity is None else [hash_identity(seen.sample.topic_id, identity)]
    )


def test_what_cannot_be_recognised_or_is_our_own_is_left_out(here: Watched, looks: Looks) -> None:
    by_key, by_header = here.topic(partitions=1), here.topic(partitions=1)
    put(here.properties, by_key, None)
    put(here.properties, by_key, b"k", headers=[(MESSAGE_ID, b"ab" * 16)])
    put(here.properties, by_key, b"k")
    put(here.properties, by_header, b"k", headers=[("order", b"7"), ("order", None)])
    bookmarker = Bookmarker(here.ledger)
    stream = RebuiltStub(by_key, here.group)
    for offset in (0, 1):
        here.set_commits(by_key, {0: offset})
        for _ in range(2):
            assert here.observe(stream, bookmarker=bookmarker).unmarked is None
        assert here.read_marks(stream) == []
    assert looks == [{0: 0}, {}, {0: 1}, {}], "it is looked at once"
    here.set_commits(by_key, {0: 2})
    here.observe(stream, bookmarker=bookmarker)
    assert here.read_marks(stream) == [(0, 2, 2)]
    other = RebuiltStub(by_header, here.group, "others", source=make_source("header:order"))
    here.set_commits(by_header, {0: 0})
    here.observe(other)
    assert here.read_marks(other) == []


def test_a_group_at_the_end_is_bookmarked_by_the_next_message(here: Watched, looks: Looks) -> None:
    name = here.topic(partitions=1)
    stream, bookmarker = RebuiltStub(name, here.group), Bookmarker(here.ledger)
    put(here.properties, name, b"a")
    # A message at 1, a control record at 2.
    run_transactions(here.properties, name, f"tx-{name}", (1, True))

    def observe(committed: int) -> list[tuple[int, int, int]]:
        here.set_commits(name, {0: committed})
        assert here.observe(stream, bookmarker=bookmarker).unmarked is None
        return here.read_marks(stream)

    assert observe(3) == []
    assert looks == [{}], "behind the end is nothing to look at"
    assert observe(2) == []
    assert observe(2) == []
    assert looks == [{}, {0: 2}, {}], "control records are read once"
    put(here.properties, name, b"c")
    assert observe(2) == [(0, 2, 3)]
    assert observe(3) == [(0, 2, 3), (0, 3, 3)]


def test_aborted_messages_are_passed_over(here: Watched) -> None:
    name = here.topic(partitions=1)
    stream = RebuiltStub(name, here.group)
    put(here.properties, name, b"a")
    run_transactions(here.properties, name, f"tx-{name}", (2, False))
    put(here.properties, name, b"d")
    here.set_commits(name, {0: 1})
    seen = here.observe(stream)
    assert here.ledger.bookmarks.list("orders", here.group, seen.sample.topic_id) == (
        Bookmark(0, 1, 4, hash_identity(seen.sample.topic_id, b"d")),
    )


def test_an_open_transaction_is_awaited(here: Watched) -> None:
    name = here.topic(partitions=1)
    stream, bookmarker = RebuiltStub(name, here.group), Bookmarker(here.ledger)
    with open_transaction(here.properties, name, 0):
        put(here.properties, name, b"b")
        here.set_commits(name, {0: 0})
        here.observe(stream, bookmarker=bookmarker)
        assert here.read_marks(stream) == []
    await_markers(here.properties, name, {0: 3})
    here.observe(stream, bookmarker=bookmarker)
    assert here.read_marks(stream) == [(0, 0, 1)]


def test_a_message_that_expired_meanwhile_gives_no_bookmark(here: Watched) -> None:
    name = here.topic(partitions=2)
    stream = RebuiltStub(name, here.group)
    publish(here.properties, name, {0: 20, 1: 20})
    here.set_commits(name, {0: 5, 1: 5})
    sample = take_sample(stream, here.admin)
    move_log_start(here.properties, name, {0: 10})
    assert Bookmarker(here.ledger).note(stream, sample, here.admin, Deadline(PATIENT)) is None
    assert here.read_marks(stream) == [(1, 5, 5)]


def test_fault_15_a_topic_that_was_recreated_meanwhile_gives_no_bookmark(here: Watched) -> None:
    name = here.topic(partitions=1)
    stream = RebuiltStub(name, here.group)
    publish(here.properties, name, {0: 20})
    here.set_commits(name, {0: 5})
    sample = take_sample(stream, here.admin)
    delete_topic(here.properties, name)
    verbs.create_topic(here.properties, name, partitions=1)
    publish(here.properties, name, {0: 20})
    Bookmarker(here.ledger).note(stream, sample, here.admin, Deadline(PATIENT))
    assert here.read_marks(stream) == []
    assert here.ledger.bookmarks.list("orders", here.group, sample.topic_id) == ()


def test_neither_message_nor_identity_is_in_the_ledger(here: Watched, tmp_path: Path) -> None:
    name = here.topic(partitions=1)
    put(here.properties, name, b"secret-key", headers=[("order", b"secret-header")])
    here.set_commits(name, {0: 0})
    here.observe(RebuiltStub(name, here.group))
    assert len(here.read_marks(RebuiltStub(name, here.group))) == 1
    files = list(tmp_path.glob("ledger.db*"))
    assert b"backlog_bookmarks" in b"".join(path.read_bytes() for path in files)
    for path in files:
        content = path.read_bytes()
        assert b"secret" not in content
        assert b"secret".hex().encode() not in content


def test_many_partitions_are_one_fetch_and_one_statement(here: Watched, looks: Looks) -> None:
    name = here.topic(partitions=200)
    numbers = range(200)
    publish(here.properties, name, dict.fromkeys(numbers, 3))
    here.set_commits(name, dict.fromkeys(numbers, 1))
    stream = RebuiltStub(name, here.group)
    here.observe(stream)
    assert len(looks) == 1
    assert here.read_marks(stream) == [(number, 1, 1) for number in numbers]


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
    here: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = here.topic(partitions=1)
    publish(here.properties, name, {0: 3})
    here.set_commits(name, {0: 1})
    stream, bookmarker = RebuiltStub(name, here.group), Bookmarker(here.ledger)
    nowhere = make_admin(properties_of("127.0.0.1:1"))
    sample = take_sample(stream, here.admin)
    error = bookmarker.note(stream, sample, nowhere, Deadline(2.0))
    assert isinstance(error, ClusterUnreachable)
    monkeypatch.setattr(bookmarks, "BOOKMARK_SECONDS", 0.0)
    seen = here.observe(stream, bookmarker=bookmarker)
    assert isinstance(seen.unmarked, BacklogError)
    assert here.ledger.samples.latest("orders") == seen.sample
    monkeypatch.undo()
    assert here.observe(stream, bookmarker=bookmarker).unmarked is None
    assert here.read_marks(stream) == [(0, 1, 1)]


def test_a_stream_without_source_has_no_bookmarks(here: Watched, looks: Looks) -> None:
    name = here.topic(partitions=1)
    publish(here.properties, name, {0: 3})
    here.set_commits(name, {0: 1})
    for stream in (StreamStub(name, here.group), RebuiltStub(name, here.group, source=None)):  # type: ignore[arg-type]
        assert here.observe(stream).unmarked is None
        assert here.read_marks(stream) == []
    assert looks == []
