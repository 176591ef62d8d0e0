"""Which holes are told, from round to round; nothing here reads."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    NewPartitions,
    ResourceType,
)

from backlogctl.errors import BacklogError
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import Admin
from backlogctl.monitoring.watch.board import SequenceLook
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.web import sequences
from backlogctl.replay.web.exporter import open_exporter
from backlogctl.replay.web.sequences import Round, SequenceReader, Settled, Settling
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.sequenced.checker import Hole
from backlogctl_delivery.sequenced.producer import SequencedProducer
from backlogctl_delivery.sequenced.sequence import SEQUENCE
from backlogctl_delivery.stamps import RECOVERY_ID
from tests.conftest import MakeTopic
from tests.kit.kafka import move_log_start, properties_of, wait_until
from tests.kit.prometheus import Scraped
from tests.kit.secured import allow_all, deny, start_guarded
from tests.replay.doctor.world import make_workspace

HOLE = Hole("orders", 0, "shop", 1, 3, 9)
GRACE, KEEP = 300.0, 3_600.0


def make_round(now: float, **changed: object) -> Round:
    """Partition 0 is read up to now, and was for long."""
    return replace(Round(now, {0: now}, {0}, ()), **changed)  # type: ignore[arg-type]


@pytest.fixture
def settling() -> Settling:
    return Settling(GRACE, KEEP)


def told(seen: Settled) -> tuple[int, int, int]:
    return seen.lost, seen.suspect, seen.waiting


def test_a_hole_is_told_after_the_grace_and_no_sooner(settling: Settling) -> None:
    assert told(settling.update([HOLE], make_round(1_000))) == (0, 0, 7)
    assert told(settling.update([HOLE], make_round(1_299))) == (0, 0, 7)
    seen = settling.update([HOLE], make_round(1_300))
    assert told(seen) == (7, 0, 0)
    assert seen.holes == (HOLE,)


def test_what_comes_late_closes_its_part_and_the_rest_is_as_old(settling: Settling) -> None:
    settling.update([HOLE], make_round(1_000))
    rest = [replace(HOLE, last=4), replace(HOLE, first=8)]
    assert told(settling.update(rest, make_round(1_300))) == (4, 0, 0)
    assert told(settling.update([], make_round(1_400))) == (0, 0, 0)


def test_the_grace_counts_what_was_read_and_not_the_time(settling: Settling) -> None:
    """A reader that cannot follow has the retry before it."""
    settling.update([HOLE], make_round(1_000))
    assert told(settling.update([HOLE], make_round(9_000, reached={0: 1_100}))) == (0, 0, 7)
    assert told(settling.update([HOLE], make_round(9_000, reached={}))) == (0, 0, 7)


def test_a_hole_at_the_head_is_never_told(settling: Settling) -> None:
    """A retry of a message from before the reading shows numbers whose fellows were not read."""
    settling.update([HOLE], make_round(1_000, warm=()))
    assert told(settling.update([HOLE], make_round(5_000))) == (0, 0, 0)


@pytest.mark.parametrize("reason", [{"blurred": {0}}, {"has_forgotten": True}])
def test_what_may_be_something_else_is_suspect(settling: Settling, reason: object) -> None:
    settling.update([HOLE], make_round(1_000))
    settling.update([HOLE], make_round(1_100, **reason))  # type: ignore[arg-type]
    assert told(settling.update([HOLE], make_round(1_400))) == (0, 7, 0)


def test_an_unreadable_message_does_not_blur_what_is_told(settling: Settling) -> None:
    settling.update([HOLE], make_round(1_000))
    settling.update([HOLE], make_round(1_300))
    assert told(settling.update([HOLE], make_round(1_400, blurred={0}))) == (7, 0, 0)


def test_what_is_told_outlives_a_reader_that_begins_anew(settling: Settling) -> None:
    settling.update([HOLE, replace(HOLE, partition=1)], make_round(1_000, warm={0, 1}))
    settling.update([HOLE], make_round(1_300))
    settling.leave(0)
    assert told(settling.update([], make_round(1_400))) == (7, 0, 0)


def test_a_hole_is_told_for_as_long_as_it_is_news(settling: Settling) -> None:
    settling.update([HOLE], make_round(1_000))
    settling.update([HOLE], make_round(1_300))
    assert told(settling.update([HOLE], make_round(1_300 + KEEP))) == (7, 0, 0)
    assert told(settling.update([HOLE], make_round(1_301 + KEEP))) == (0, 0, 0)


# The sequence check of `watch` on a real broker: what is lost is told, and nothing else is.

GRACE_test_sequence_reading, KEEP_test_sequence_reading = 300.0, 3_600.0


class Lossy(Producer):
    """Takes messages and, while told to, keeps them: the application hears nothing of it."""

    is_losing = False

    def __init__(self, properties: dict[str, Any]) -> None:
        super().__init__(properties)
        self.kept: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def produce(self, *args: Any, **settings: Any) -> None:
        if self.is_losing:
            self.kept.append((args, settings))
        else:
            super().produce(*args, **settings)


@dataclass
class Shop:
    """A numbering producer on a topic, and a clock that the test turns."""

    properties: dict[str, str]
    topic: str
    now: float = 1_000.0
    bare: Lossy = field(init=False)
    producer: SequencedProducer = field(init=False)

    def __post_init__(self) -> None:
        self.bare = Lossy({**self.properties, "linger.ms": 0})
        self.producer = SequencedProducer(self.bare, "shop")

    def send(self, count: int, partition_key: bytes = b"k", **kept: bool) -> None:
        self.bare.is_losing = kept.get("lost", False)
        for _ in range(count):
            self.producer.produce(self.topic, b"v", partition_key)
        self.bare.is_losing = False
        assert self.producer.flush(60) == 0

    def send_kept(self, *extra: tuple[str, bytes]) -> None:
        """What was kept, after all; with more headers it is a recovery's copy."""
        for args, settings in self.bare.kept:
            headers = [*settings["headers"], *extra]
            self.bare.produce(*args, **{**settings, "headers": headers})
        self.bare.kept.clear()
        assert self.bare.flush(60) == 0

    def send_raw(self, header: bytes) -> None:
        self.bare.produce(self.topic, b"v", b"k", 0, headers=[(SEQUENCE, header)])
        assert self.bare.flush(60) == 0


@dataclass
class Watched:
    shop: Shop
    reader: SequenceReader

    def read(self, after: float = 0.0) -> SequenceLook:
        """A round, so much later, that reads all there is."""
        self.shop.now += after
        return self.reader.read(60, threading.Event())


def make_watched(tmp_path: Path, properties: dict[str, str], topic: str) -> Watched:
    workspace = make_sequenced(tmp_path, properties, topic)
    shop = Shop(properties, topic)
    stream = workspace.config.stream("orders")
    return Watched(
        shop,
        SequenceReader(
            stream,
            properties,
            GRACE_test_sequence_reading,
            KEEP_test_sequence_reading,
            lambda: shop.now,
        ),
    )


def make_sequenced(
    tmp_path: Path, properties: dict[str, str], topic: str, **sections: Any
) -> Workspace:
    stream = {"cluster": "main", "topic": topic, "group": "service", "sequence": True}
    return make_workspace(tmp_path, properties, streams={"orders": stream}, **sections)


@pytest.fixture
def watched(properties: dict[str, str], topic: MakeTopic, tmp_path: Path) -> Watched:
    return make_watched(tmp_path, properties, topic(partitions=1))


def begin(watched: Watched) -> None:
    """As after some minutes, in which all was well."""
    watched.read()
    watched.shop.send(5)
    watched.read(GRACE_test_sequence_reading)
    watched.read(1)


def list_missing(look: SequenceLook) -> tuple[int | None, int | None, int]:
    return look.lost, look.suspect, look.waiting


def test_a_silent_loss_is_told_when_no_retry_can_come(watched: Watched) -> None:
    shop = watched.shop
    shop.send(4)
    shop.send(2, lost=True)
    shop.send(1)
    # It begins at the log's end: what was lost before is the audit's.
    first = watched.read()
    assert (first.checked, first.lost, first.behind) == (0, None, 0)
    shop.send(5)
    assert watched.read(GRACE_test_sequence_reading).lost is None
    assert list_missing(watched.read(1)) == (0, 0, 0)
    shop.send(3, lost=True)
    shop.send(2)
    assert list_missing(watched.read(1)) == (0, 0, 3)
    look = watched.read(GRACE_test_sequence_reading)
    assert list_missing(look) == (3, 0, 0)
    assert (look.checked, look.behind, look.unreadable) == (7, 0, 0)
    assert look.holes == (
        f"3 messages (sequence 12 to 14) of producer shop, epoch {shop.producer.epoch}, for "
        "partition 0",
    )
    # A recovery puts them back: they are there.
    shop.send_kept((RECOVERY_ID, b"r-1"))
    assert list_missing(watched.read(1)) == (0, 0, 0)


def test_a_retry_within_the_grace_is_no_loss(watched: Watched) -> None:
    begin(watched)
    watched.shop.send(3, lost=True)
    watched.shop.send(2)
    assert watched.read(1).waiting == 3
    watched.shop.send_kept()
    assert list_missing(watched.read(GRACE_test_sequence_reading)) == (0, 0, 0)
    assert list_missing(watched.read(GRACE_test_sequence_reading)) == (0, 0, 0)


def test_aborted_transactions_and_the_ends_of_transactions_are_no_loss(watched: Watched) -> None:
    begin(watched)
    shop = watched.shop
    sending = SequencedProducer(
        Producer({**shop.properties, "transactional.id": f"tx-{shop.topic}", "linger.ms": 0}),
        "transactional",
    )
    sending.init_transactions(60)
    for aborts in (False, True, False, True, False):
        sending.begin_transaction()
        for _ in range(3):
            sending.produce(shop.topic, b"v", b"k")
        assert sending.flush(60) == 0
        if aborts:
            sending.abort_transaction(60)
        else:
            sending.commit_transaction(60)
    assert list_missing(watched.read(1)) == (0, 0, 0)
    look = watched.read(GRACE_test_sequence_reading)
    assert list_missing(look) == (0, 0, 0)
    assert look.behind == 0  # though a control record is the last of the log


def test_an_open_transaction_hides_what_may_be_missing(watched: Watched) -> None:
    """What lies behind it was not read, so nothing is told, and it says how far that is."""
    begin(watched)
    shop = watched.shop
    shop.send(2, lost=True)
    shop.send(1)
    hanging = Producer({**shop.properties, "transactional.id": f"open-{shop.topic}"})
    hanging.init_transactions(60)
    hanging.begin_transaction()
    hanging.produce(shop.topic, b"v", b"k", 0)
    assert hanging.flush(60) == 0
    shop.send_kept()
    assert list_missing(watched.read(1)) == (0, 0, 2)
    look = watched.read(GRACE_test_sequence_reading)
    assert list_missing(look) == (0, 0, 2)
    assert look.behind == 3
    hanging.abort_transaction(60)
    assert list_missing(watched.read(1)) == (0, 0, 0)


def test_what_is_missing_beside_an_unreadable_stamp_is_suspect(watched: Watched) -> None:
    begin(watched)
    watched.shop.send(1, lost=True)
    for value in (b"shop:1:-1", b"shop:1:five", b"\xff" * 900_000):
        watched.shop.send_raw(value)
    watched.shop.send(1)
    watched.read(1)
    look = watched.read(GRACE_test_sequence_reading)
    assert list_missing(look) == (0, 1, 0)
    assert look.unreadable == 3


def test_it_goes_on_where_retention_passed_it(watched: Watched) -> None:
    begin(watched)
    shop = watched.shop
    shop.send(2, lost=True)
    shop.send(1)
    watched.read(1)
    assert watched.read(GRACE_test_sequence_reading).lost == 2
    watched.reader.close()  # nothing is fetched ahead
    shop.send(9)
    move_log_start(shop.properties, shop.topic, {0: 14})
    wait_until(lambda: watched.read(1).behind == 0, what="it reads on")
    shop.send(2)
    # The head is no loss, and what was told stays so.
    assert list_missing(watched.read(GRACE_test_sequence_reading)) == (2, 0, 0)


def test_partitions_that_are_added_are_read_from_their_start(
    watched: Watched, admin: Admin
) -> None:
    begin(watched)
    shop = watched.shop
    for future in admin.create_partitions([NewPartitions(shop.topic, 2)]).values():
        future.result(60)
    sending = SequencedProducer(shop.bare, "other", partitioner=lambda *_: 1)
    wait_until(lambda: len(shop.bare.list_topics(shop.topic).topics[shop.topic].partitions) == 2)
    for _ in range(4):
        sending.produce(shop.topic, b"v", b"k")
    assert sending.flush(60) == 0
    before = watched.read().checked
    assert before == 5 + 4


def test_a_compacted_topic_is_refused(
    properties: dict[str, str], topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=1, config={"cleanup.policy": "compact"})
    watched = make_watched(tmp_path, properties, name)
    with pytest.raises(BacklogError, match="it is compacted"):
        watched.read()


def test_it_shows_what_it_found_and_survives_a_topic_that_is_away(
    kafka: EmbeddedKafka,
    unique: str,
    admin: Admin,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sequences, "GRACE", timedelta(0))
    name, properties = f"late-{unique}", properties_of(kafka.bootstrap)
    workspace = make_sequenced(tmp_path, properties, name, watch={"interval": "300ms"})
    said: list[tuple[str, BacklogError | None]] = []
    with open_exporter(workspace, "127.0.0.1:0", "", lambda *what: said.append(what)) as exporter:

        def see() -> SequenceLook:
            return exporter.board.seen.sequences.get("orders", SequenceLook("main"))

        def scrape() -> Scraped:
            return Scraped(httpx.get(f"{exporter.url}/metrics", timeout=30).text)

        wait_until(lambda: see().trouble, what="the topic is not there")
        got = scrape()
        assert got.value("backlog_sequence_up", stream="orders") == 0
        assert not got.find("backlog_sequence_missing_messages")
        assert not got.find("backlog_sequence_behind_messages")
        create_topic(admin, name, partitions=1)
        try:
            wait_until(lambda: see().behind == 0, what="it is read")
            shop = Shop(properties, name)
            # With a grace of nothing the round after the first one judges.
            shop.send(1)
            wait_until(lambda: see().lost == 0, what="all is there")
            shop.send(3, lost=True)
            shop.send(1)
            wait_until(lambda: see().lost == 3, what="the loss is told")
            got = scrape()
            page = httpx.get(f"{exporter.url}/streams/orders", timeout=30).text
        finally:
            admin.delete_topics([name])
    place = {"cluster": "main", "stream": "orders"}
    assert got.value("backlog_sequence_missing_messages", **place, certainty="lost") == 3
    assert got.value("backlog_sequence_up", **place) == 1
    assert got.value("backlog_sequence_checked_messages_total", **place) >= 2
    assert "3 messages lost" in page
    assert "of producer shop" in page
    assert "backlogctl audit sequence orders" in page
    about = [error for what, error in said if what == "the sequence check of orders"]
    assert about[0] is not None
    assert about[1] is None


def test_a_right_that_is_missing_is_said_and_nothing_is_lost_by_it(tmp_path: Path) -> None:
    with start_guarded(tmp_path) as guarded:
        properties = properties_of(guarded.addresses)
        create_topic(properties, "orders", partitions=1)
        deny(guarded, ResourceType.GROUP, "backlogctl-reader", AclOperation.READ)
        watched = make_watched(tmp_path, properties, "orders")
        begin(watched)
        watched.shop.send(2, lost=True)
        watched.shop.send(1)
        deny(guarded, ResourceType.TOPIC, "orders", AclOperation.READ)

        def fails() -> bool:
            try:
                watched.shop.send(1)
                watched.read(1)
            except BacklogError as error:
                return "access denied" in str(error)
            return False

        wait_until(fails, what="the broker knows the rule")
        assert watched.reader.tell_trouble("denied").behind is None
        allow_all(guarded, ResourceType.TOPIC, "orders")

        def answers() -> bool:
            try:
                return watched.read(1).behind == 0
            except BacklogError:
                return False

        wait_until(answers, what="it may read again")
        # It went on where it was: the hole is one, and the rest was read.
        assert list_missing(watched.read(GRACE_test_sequence_reading)) == (2, 0, 0)
