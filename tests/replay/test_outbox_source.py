"""An outbox is the source of a rebuild: what its sender sent and nobody read comes back once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka import Message
from sqlalchemy.orm import Session

from backlogctl.kafka.admin import list_offsets
from backlogctl.replay.observe.stream import note_stream
from backlogctl.values import Recovery
from backlogctl_delivery import stamps
from backlogctl_delivery.idempotent.sql import Marks
from backlogctl_delivery.outbox.database import messages
from backlogctl_delivery.stamps import MESSAGE_ID, find_header
from tests.delivery.kit import FAST, read_id
from tests.delivery.kit import Shop as Application
from tests.kit.kafka import join, read_all, set_config, wait_until
from tests.kit.shop import PARTITIONS, Shop
from tests.spark_backfill.world import place_key

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("spark")]

MARKS = "payments_handled"
EFFECTS = sa.table("payments", sa.column("message_id", sa.String))
ORDERS, STEPS = 100, ("created", "paid", "shipped")
# Messages without a key go to all partitions, not to one for some time.
SPREAD = {"sticky.partitioning.linger.ms": 0}
HANDLED = 30  # of each partition, before the consumer stops
Sent = tuple[bytes | None, bytes | None, Any, int]


@dataclass
class Story:
    """An application with an outbox, and a consumer that handles each message once."""

    shop: Shop
    application: Application
    marks: Marks
    sent: dict[str, Sent] = field(default_factory=dict)

    def add_orders(self, numbers: Sequence[int], *, keyed: bool = True) -> None:
        """Of each order several messages, one after the other, many orders in one transaction.

        A sender waits for the acknowledgement of one before it sends the next: in the log they
        stand far apart.
        """
        with Session(self.application.engine) as session, session.begin():
            for number in numbers:
                for step in STEPS:
                    self.application.outbox.add(
                        session,
                        topic=self.shop.topic,
                        key=f"order-{number}" if keyed else None,
                        value=f"{step} {number}",
                        headers=[("step", step), ("step", None), ("raw", b"\xff")],
                    )

    def send(self) -> None:
        """By two senders, whose claims are small."""
        number = len(self.application.list_rows())
        sending = self.application.sending
        with sending(FAST, SPREAD), sending(FAST, SPREAD):
            self.application.await_sent(number)
        for message in self.read():
            if (id_ := read_id(message)) and not is_put_back(message):
                self.sent[id_] = describe(message)
        assert len(self.sent) == number

    def handle(self, most: int | None = None) -> None:
        """Handles what the group has not committed: all, or so much of each partition."""
        shop = self.shop
        ends = {p: min(end, most or end) for p, end in shop.read_ends().items()}
        consumer = join(shop.properties, shop.group, shop.topic, enable_auto_commit="false")
        last: dict[int, Message] = {}
        wait_until(lambda: self._handle_some(consumer, ends, last), what=f"{ends} are read")
        for message in last.values():
            consumer.commit(message=message, asynchronous=False)
        consumer.close()

    def _handle_some(
        self, consumer: Any, ends: Mapping[int, int], last: dict[int, Message]
    ) -> bool:
        for message in consumer.consume(500, 0.2):
            assert message.error() is None
            if message.offset() >= ends[message.partition()]:
                continue
            with (
                self.application.engine.begin() as connection,
                self.marks.handle_once(connection, message) as attempt,
            ):
                if attempt.is_first:
                    connection.execute(sa.insert(EFFECTS).values(message_id=attempt.message_id))
            last[message.partition()] = message
        return all(max(item.offset, 0) >= ends[item.partition] for item in _positions(consumer))

    def expire(self, *, keyed: bool) -> dict[int, int]:
        """Retention takes what is old, and nothing of what is sent from now on."""
        shop, starts = self.shop, self.shop.read_ends()
        set_config(shop.properties, shop.topic, {"segment.ms": "1"})
        # One message for each partition: it begins the segment that all others are in.
        keys = {place_key(str(n).encode(), PARTITIONS): str(n) for n in range(20)}
        self.application.add(shop.topic, *keys.values())
        self.send()
        set_config(shop.properties, shop.topic, {"segment.ms": "600000"})
        self.add_orders(range(ORDERS, 2 * ORDERS), keyed=keyed)
        self.send()
        set_config(shop.properties, shop.topic, {"retention.bytes": "1"})
        wait_until(lambda: self.read_starts() == starts, what="retention took what is old")
        set_config(shop.properties, shop.topic, {"retention.bytes": "-1"})
        return starts

    def lose(self, *, watched: bool, keyed: bool = True) -> set[str]:
        """The ids of what was sent, not handled, and expired.

        Args:
            watched: whether `watch` looked when the consumer had stopped.
        """
        self.add_orders(range(ORDERS), keyed=keyed)
        self.send()
        self.handle(HANDLED)
        lost = set(self.sent) - set(self.count_effects())
        if watched:
            workspace = self.shop.open()
            note_stream(workspace, workspace.config.stream(self.shop.stream))
        starts = self.expire(keyed=keyed)
        assert len(lost) == sum(starts.values()) - PARTITIONS * HANDLED
        return lost

    def check_put_back(self, ids: set[str]) -> None:
        """Exactly these, each as it was sent, and where."""
        found = [message for message in self.read() if is_put_back(message)]
        assert Counter(read_id(message) for message in found) == Counter(ids)
        for message in found:
            key, value, headers, partition = describe(message)
            sent = self.sent[str(read_id(message))]
            assert (key, value, headers[: len(sent[2])], partition) == sent

    def name_marks(self) -> None:
        """The consumer's marks are the evidence of what it handled."""
        consumed = {"database": "shop", "table": MARKS, "column": "message_id"}
        self.shop.write_config(source={"outbox": "shop", "consumed": consumed})

    def read_starts(self) -> dict[int, int]:
        shop = self.shop
        return list_offsets(shop.properties, shop.topic, range(PARTITIONS), "earliest")

    def read(self) -> list[Message]:
        return read_all(self.shop.properties, self.shop.topic, range(PARTITIONS))

    def run(self) -> Recovery:
        """Plans, approves and runs."""
        recovery = self.shop.plan()
        self.shop.call("approve", recovery.id, "--by", "Ada")
        document = self.shop.call("run", recovery.id, "--json").document
        assert document["state"] == "verified"
        return recovery

    def count_effects(self) -> Counter[str]:
        with self.application.engine.connect() as connection:
            return Counter(connection.scalars(sa.select(EFFECTS.c.message_id)))


def _positions(consumer: Any) -> list[Any]:
    return list(consumer.position(consumer.assignment()))


def describe(message: Message) -> Sent:
    headers: Any = message.headers()
    return (message.key(), message.value(), headers, message.partition() or 0)


def is_put_back(message: Message) -> bool:
    return find_header(message.headers(), MESSAGE_ID) is not None  # type: ignore[arg-type]


@pytest.fixture
def story(request: pytest.FixtureRequest, empty_shop: Shop) -> Iterator[Story]:
    shop = empty_shop
    if request.param == "postgres":
        shop.url = str(request.getfixturevalue("pg_url"))
    shop.write_config(source={"outbox": "shop"})
    with Application(shop.url, shop.bootstrap) as application:
        made = Story(shop, application, Marks(MARKS))
        made.marks.create_tables(application.engine)
        with application.engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE payments (message_id VARCHAR(32))"))
        yield made


@pytest.mark.parametrize(
    ("story", "evidence"),
    [
        ("postgres", "bookmarks"),
        ("postgres", "marks"),
        ("sqlite", "bookmarks"),
        ("sqlite", "counting"),
    ],
    indirect=["story"],
)
def test_what_nobody_read_comes_back_once(story: Story, evidence: str) -> None:
    if evidence == "marks":
        story.name_marks()
    lost = story.lose(watched=evidence == "bookmarks")
    outcome = story.run().plan["outcome"]
    assert outcome["verdict"] == ("short" if evidence == "counting" else "exact")
    assert outcome["fidelity"] == "original"
    # The order of the rows is that of the log, whatever was sent and marked together.
    assert outcome["displacement"] == (None if evidence == "marks" else 0)
    assert outcome["proof"]["matched"] == outcome["proof"]["compared"] > 0
    story.check_put_back(lost)
    story.handle()
    assert story.count_effects() == Counter(dict.fromkeys(story.sent, 1))


@pytest.mark.parametrize("story", ["sqlite"], indirect=True)
@pytest.mark.parametrize("marked", [True, False])
def test_messages_without_a_key_come_back_once_where_they_were(story: Story, marked: bool) -> None:
    if marked:
        story.name_marks()
    lost = story.lose(watched=True, keyed=False)
    outcome = story.run().plan["outcome"]
    assert (outcome["verdict"], outcome["counts"]["rebuilt"]) == ("exact", len(lost))
    story.check_put_back(lost)
    story.handle()
    assert story.count_effects() == Counter(dict.fromkeys(story.sent, 1))


@pytest.mark.parametrize("story", ["sqlite"], indirect=True)
def test_what_is_gone_from_the_table_is_told_as_missing(story: Story) -> None:
    """Purged rows, rows whose headers somebody broke, and rows that were never sent. A stamp among a
    row's headers is a recovery's of before: it does not come along."""
    lost = story.lose(watched=True)
    purged, broken, *left = sorted(lost)
    stamped = json.dumps([[stamps.RECOVERY_ID, "eA=="]])[:-1] + ", "
    row, headers = messages.c.message_id, messages.c.headers
    with story.application.engine.begin() as connection:
        connection.execute(messages.delete().where(row == purged))
        connection.execute(messages.update().where(row == broken).values(headers="[["))
        with_stamp = sa.literal(stamped) + sa.func.substr(headers, 2)
        connection.execute(messages.update().where(row == left[0]).values(headers=with_stamp))
    story.application.add(story.shop.topic, "order-1", "order-2")
    outcome = story.run().plan["outcome"]
    assert outcome["verdict"] == "short"
    counts = outcome["counts"]
    assert (counts["rebuilt"], counts["quarantined"], counts["shortfall"]) == (len(left), 1, 2)
    assert "headers are no JSON list" in str(outcome["quarantine"])
    story.check_put_back(set(left))


@pytest.mark.parametrize("story", ["sqlite"], indirect=True)
def test_rows_whose_offset_nobody_told_are_not_counted_as_handled(story: Story) -> None:
    """They sort before all others: as many handled ones would come back for them."""
    lost = story.lose(watched=False)
    row, offset = messages.c.message_id, messages.c.sent_offset
    with story.application.engine.begin() as connection:
        untold = messages.update().where(row.in_(sorted(lost)[::10]))
        connection.execute(untold.values({offset: None}))
    outcome = story.shop.plan().plan["outcome"]
    assert outcome["verdict"] == "surplus"
    assert outcome["counts"]["rebuilt"] >= len(lost)
    assert any("with NULL in sent_offset" in reason for reason in outcome["reasons"])
