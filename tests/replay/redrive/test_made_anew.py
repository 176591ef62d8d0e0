"""Topics that are deleted, and made anew under their name, while a redrive is under way: what is
said is true, nothing is sent twice, and what is printed ends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest

from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import make_producer
from backlogctl.spark_backfill.injection import brakes, waves
from backlogctl_delivery.stamps import MESSAGE_ID, find_header
from tests.kit.following import follow
from tests.kit.kafka import delete_topic, read_all, set_config
from tests.kit.shop import PARTITIONS, Shop
from tests.replay.redrive.test_next_commands import (
    AGAIN,
    ALL,
    CANARY,
    CANCEL,
    OPEN,
    READ_BACK,
    RUN,
    TOTAL,
    Story,
    empty,
    story,
)
from tests.replay.redrive.world import KEEP, Letter, keys_of, make_order, publish, read_sent, spring

__all__ = ["empty", "story"]
pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("spark")]
OTHERS = {str(number).encode(): 1 for number in range(TOTAL, 2 * TOTAL)}


class Letters(Story):
    """Thirty orders are dead letters; those that name no place are known by their own."""

    is_named = True

    @property
    def dead(self) -> str:
        return f"{self.shop.topic}.dlt"

    def find_plan(self) -> list[str]:
        words = ["plan", "redrive", "orders", "--from", f"dlq:{self.dead}", "--all"]
        return words if self.is_named else [*words, "--allow", "unnamed"]

    def write(self, numbers: Sequence[int]) -> None:
        """The topic, with one letter for each of these orders."""
        create_topic(self.shop.properties, self.dead, partitions=1, config=KEEP)
        orders = map(make_order, numbers)
        places = [spring(self.shop.topic, one.partition, n) for n, one in enumerate(orders)]
        letters = [
            Letter(order.key, order.value, place if self.is_named else ())
            for order, place in zip(map(make_order, numbers), places, strict=True)
        ]
        publish(self.shop, self.dead, letters)

    def delete(self) -> None:
        delete_topic(self.shop.properties, self.dead)

    def write_anew(self, numbers: Sequence[int]) -> None:
        self.delete()
        self.write(numbers)


@pytest.fixture
def letters(empty_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Letters:
    empty_shop.write_config(source=None)
    set_config(empty_shop.properties, empty_shop.topic, KEEP)
    return Letters(empty_shop, monkeypatch)


def begin(letters: Letters, point: str, change: Callable[[], None]) -> str:
    """A redrive whose letters are changed before its run, or between its canary and the rest."""
    letters.write(range(TOTAL))
    if point == CANARY:
        return letters.kill_at(CANARY, change)
    recovery = letters.approve()
    change()
    return recovery


@pytest.mark.parametrize("point", ["before", CANARY])
def test_fault_122_dead_letters_are_deleted(letters: Letters, point: str) -> None:
    """What was staged needs them no more."""
    recovery = begin(letters, point, letters.delete)
    assert follow(letters.call, recovery) == [RUN]
    assert dict(keys_of(read_sent(letters.shop))) == ALL
    again = letters.shop.call(*letters.find_plan(), "--json", code=2).error
    assert again["subject"] == f"topic {letters.dead}"


@pytest.mark.parametrize("point", ["before", CANARY])
def test_fault_122_dead_letters_are_written_anew(letters: Letters, point: str) -> None:
    """The same letters name the same places: they are known again in the new topic."""
    recovery = begin(letters, point, partial(letters.write_anew, range(TOTAL)))
    assert follow(letters.call, recovery) == [RUN]
    again = letters.shop.call(*letters.find_plan(), "--json", code=5).error
    assert "put back already" in again["message"]
    assert dict(keys_of(read_sent(letters.shop))) == ALL


@pytest.mark.parametrize("point", ["before", CANARY])
def test_fault_122_other_dead_letters_have_the_offsets(letters: Letters, point: str) -> None:
    """Those that were approved are sent; the others are no part of it, and not known by offsets."""
    letters.is_named = False
    recovery = begin(letters, point, partial(letters.write_anew, range(TOTAL, 2 * TOTAL)))
    assert follow(letters.call, recovery) == [RUN]
    assert dict(keys_of(read_sent(letters.shop))) == ALL
    assert follow(letters.call, letters.approve()) == [RUN]
    assert dict(keys_of(read_sent(letters.shop))) == ALL | OTHERS
    assert "put back already" in letters.shop.call(*letters.find_plan(), code=5).err


def make_anew_with_copies(story: Story, *, fill: bool) -> None:
    """Under the ids of what was sent the new topic has messages with another value.

    Args:
        fill: they are at the offsets where those were.
    """
    shop = story.shop
    messages = read_all(shop.properties, shop.topic, range(PARTITIONS))
    delete_topic(shop.properties, shop.topic)
    create_topic(shop.properties, shop.topic, partitions=PARTITIONS, config=KEEP)
    producer = make_producer(shop.properties)
    for message in sorted(messages, key=lambda one: one.offset() or 0):
        headers, place = (
            cast("list[Any]", message.headers() or []),
            cast("int", message.partition()),
        )
        if fill or find_header(headers, MESSAGE_ID):
            producer.produce(shop.topic, b"another", message.key(), place, headers=headers)
    for place in range(PARTITIONS) if fill else ():
        producer.produce(shop.topic, b"where a transaction ended", None, place)
    assert producer.flush(60) == 0


@pytest.mark.parametrize(
    ("point", "fill"), [(CANARY, False), (CANARY, True), (READ_BACK, False), (READ_BACK, True)]
)
def test_fault_122_the_topic_is_made_anew_before_it_is_read_back(
    story: Story, point: str, fill: bool
) -> None:
    """Somebody writes other messages under the same ids: neither a transaction hides what was
    sent, nor was nothing sent."""
    recovery, read_back = story.approve(), brakes.read_canary_back

    def wait_shortly(*words: Any, **options: Any) -> int:
        return read_back(*words, **{**options, "wait": 2.0})

    story.patch.setattr(waves, "read_canary_back", wait_shortly)
    story.at(point, partial(make_anew_with_copies, story, fill=fill))
    assert story.fail(recovery) == "plan_stale"
    told = story.shop.call("show", recovery).out
    assert "recreated since" in told
    assert "nothing was sent" not in told
    copies = read_sent(story.shop)
    assert {one.value for one in copies} == {b"another"}
    assert (len(copies) < TOTAL) is (point == CANARY), "the rest is not sent"
    assert follow(story.call, recovery) == [CANCEL]
    assert read_sent(story.shop) == copies
    story.judge({OPEN})
    told = story.shop.call("status", "orders").out
    assert "next: backlogctl plan" not in told, "the new topic has none of it"


def test_fault_122_the_canary_reads_back_different(story: Story) -> None:
    """What it is compared with is changed: the rest is not sent, and the canary not again."""
    list_staged, changed = brakes._list_staged, list[str]()

    def change(table: Any) -> dict[str, Any]:
        staged = list_staged(table)
        if not changed:
            name, (key, _, headers) = next(iter(staged.items()))
            staged[name] = (key, b"another", headers)
            changed.append(name)
        return staged

    recovery = story.approve()
    story.patch.setattr(brakes, "_list_staged", change)
    assert story.fail(recovery) == "verification_failed"
    assert f"1 different: ['{changed[0]}']" in story.shop.call("show", recovery, "--json").out
    canary = read_sent(story.shop)
    assert 0 < len(canary) < TOTAL
    typed = follow(story.shop.call, recovery)
    expected = (CANCEL, *AGAIN, CANCEL.replace("R", "P"))
    assert len(typed) == len(expected)
    assert all(map(str.startswith, typed, expected))
    assert dict(keys_of(read_sent(story.shop))) == ALL
    (planned,) = story.shop.open().ledger.recoveries.list("orders")[1:]
    assert f"what {recovery} sent" in " ".join(planned.plan["warnings"])
    # The rest is as staged; what the canary sent is not known to be.
    story.judge({OPEN})
    told = " ".join(story.shop.call("gaps", "orders").out.split())
    assert "read back as it should be" in told
    assert "next: backlogctl plan" not in told
