"""A hole is a loss and nothing else; whatever comes, the checker neither raises nor grows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Message, Producer
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition

from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.sequenced.checker import ChainId, Hole, SequenceChecker, SequenceVerdict
from backlogctl_delivery.sequenced.producer import SequencedProducer
from backlogctl_delivery.sequenced.sequence import (
    SEQUENCE,
    SEQUENCE_END,
    SKIPPED,
    Range,
    Stamp,
    hash_topic,
    write_stamp,
)
from backlogctl_delivery.stamps import RECOVERY_ID, stamp
from tests.conftest import MakeTopic
from tests.kernel.test_sequence import HOSTILE
from tests.kit.kafka import join, read_all

Pairs = list[tuple[str, Any]]


def make_message(
    sequence: int,
    *,
    skipped: tuple[Range, ...] = (),
    is_last: bool = False,
    producer: str = "shop",
    epoch: int = 1,
    partition: int = 0,
    lies_in: int | None = None,
    value: bytes = b"v",
    put_back: bool = False,
    topic: str = "orders",
) -> Message:
    """In topic and partition of its stamp, or in other ones; it lies in `orders`."""
    place = (hash_topic(topic), partition, sequence)
    headers: Pairs = [*write_stamp(Stamp(producer, epoch, *place, skipped, is_last))]
    there = partition if lies_in is None else lies_in
    if put_back:
        headers = stamp(
            headers, message_id="m", recovery_id="r-1", original_time="t", fidelity="original"
        )
    return Message(topic="orders", partition=there, value=value, headers=headers)


def check(checker: SequenceChecker, *sequences: int) -> list[str]:
    return [str(checker.check(make_message(each))) for each in sequences]


def list_ranges(checker: SequenceChecker) -> list[Range]:
    return [(hole.first, hole.last) for hole in checker.list_holes()]


def test_in_order_late_and_again() -> None:
    checker = SequenceChecker()
    assert check(checker, 0, 1, 4) == ["new", "new", "new"]
    assert checker.list_holes() == (Hole("orders", 0, "shop", 1, 2, 3),)
    assert check(checker, 3, 3, 0, 2) == ["late", "repeat", "repeat", "late"]
    assert checker.list_holes() == ()


def test_what_the_consumer_began_with_has_no_hole_before_it() -> None:
    assert (check(late := SequenceChecker(), 7, 8, 10), list_ranges(late)) == (
        ["new"] * 3,
        [(9, 9)],
    )
    check(first := SequenceChecker(reads_from_start=True), 7, 8)
    assert list_ranges(first) == [(0, 6)]


def test_epochs_producers_and_partitions_are_apart() -> None:
    checker = SequenceChecker(reads_from_start=True)
    for named in ({}, {"epoch": 2}, {"producer": "till"}, {"partition": 1}):
        assert checker.check(make_message(0, **named)) is SequenceVerdict.NEW
        assert checker.check(make_message(2, **named)) is SequenceVerdict.NEW
    assert checker.list_holes() == (
        Hole("orders", 0, "shop", 1, 1, 1),
        Hole("orders", 0, "shop", 2, 1, 1),
        Hole("orders", 0, "till", 1, 1, 1),
        Hole("orders", 1, "shop", 1, 1, 1),
    )


def test_what_the_producer_told_is_no_hole_and_may_still_come() -> None:
    checker = SequenceChecker()
    check(checker, 0)
    assert checker.check(make_message(6, skipped=((1, 3), (5, 5)))) is SequenceVerdict.NEW
    assert list_ranges(checker) == [(4, 4)]
    assert check(checker, 2, 2) == ["late", "repeat"]


def test_a_recovery_closes_a_hole_and_opens_none() -> None:
    checker = SequenceChecker()

    def put_back(*sequences: int) -> list[str]:
        return [str(checker.check(make_message(each, put_back=True))) for each in sequences]

    # The first that is read of this producer is an old one: it is no start.
    assert put_back(3) == ["late"]
    check(checker, 100, 101, 104)
    assert put_back(102, 102, 101) == ["late", "repeat", "repeat"]
    assert list_ranges(checker) == [(103, 103)]
    # One from ahead opens no hole, and the original is not taken for a repeat.
    assert put_back(120) == ["late"]
    assert list_ranges(checker) == [(103, 103)]
    assert check(checker, 120) == ["new"]
    assert list_ranges(checker) == [(103, 103), (105, 119)]


def test_a_copy_in_another_partition_fills_its_own_hole_and_none_there() -> None:
    checker = SequenceChecker()
    for partition in (0, 1):
        for sequence in (0, 1, 4):
            checker.check(make_message(sequence, partition=partition))
    copy = make_message(2, partition=0, lies_in=1, put_back=True)
    assert [checker.check(copy), checker.check(copy)] == [
        SequenceVerdict.LATE,
        SequenceVerdict.REPEAT,
    ]
    assert checker.list_holes() == (
        Hole("orders", 0, "shop", 1, 3, 3),
        Hole("orders", 1, "shop", 1, 2, 3),
    )
    # Nobody put this one there: it is in the topic all the same.
    assert checker.check(make_message(3, partition=0, lies_in=1)) is SequenceVerdict.MISPLACED
    assert [hole.partition for hole in checker.list_holes()] == [1]
    # Passed on from another topic, headers and all: it says nothing of this one.
    for passed_on in (make_message(3, partition=1, topic="payments"), make_message(95, topic="x")):
        assert checker.check(passed_on) is SequenceVerdict.FOREIGN
    assert [hole.partition for hole in checker.list_holes()] == [1]
    # From ahead, and an end: its partition has not come so far.
    assert checker.check(make_message(90, lies_in=1, is_last=True)) is SequenceVerdict.MISPLACED
    assert [hole.partition for hole in checker.list_holes()] == [1]
    assert (checker.ended, checker.misplaced) == (frozenset(), 2)


def test_a_copy_that_is_read_before_its_own_partition() -> None:
    checker = SequenceChecker(reads_from_start=True)
    assert checker.check(make_message(1, lies_in=3, put_back=True)) is SequenceVerdict.LATE
    assert checker.list_holes() == ()
    assert check(checker, 0, 3) == ["new", "new"]
    assert list_ranges(checker) == [(2, 2)]


def test_copies_of_partitions_that_are_not_read_displace_nothing() -> None:
    """A consumer that is given partition 3 sees copies for all others, of many producers."""
    checker = SequenceChecker(max_chains=2, max_ranges=1_000)
    for sequence in (0, 2):
        checker.check(make_message(sequence, partition=3))
    for epoch in range(500):
        checker.check(make_message(0, epoch=epoch, partition=1, lies_in=3, put_back=True))
    for sequence in range(0, 10_000, 2):
        checker.check(make_message(sequence, partition=2, lies_in=3, put_back=True))
    assert checker.list_holes() == (Hole("orders", 3, "shop", 1, 1, 1),)
    assert len(checker._copies) <= 2
    assert sum(map(len, checker._copies.values())) == checker._copied_ranges <= 1_000
    assert checker.dropped > 498
    checker.forget("orders")
    assert (len(checker._copies), checker._copied_ranges, checker.list_holes()) == (0, 0, ())


def test_an_end_that_is_marked() -> None:
    checker = SequenceChecker()
    check(checker, 0, 1)
    assert checker.ended == frozenset()
    assert checker.check(make_message(2, is_last=True, value=b"")) is SequenceVerdict.END_MARK
    assert checker.ended == {ChainId("orders", 0, "shop", 1)}
    # A message of the application that is the last is still a message.
    assert checker.check(make_message(3, is_last=True)) is SequenceVerdict.NEW
    assert checker.list_holes() == ()


def test_after_a_rebalance_it_begins_anew() -> None:
    checker = SequenceChecker()
    for partition in (0, 1):
        checker.check(make_message(0, partition=partition))
        checker.check(make_message(5, partition=partition))
    checker.forget("orders", [0])
    assert checker.check(make_message(90)) is SequenceVerdict.NEW
    assert [hole.partition for hole in checker.list_holes()] == [1]
    checker.forget("orders")
    assert checker.list_holes() == ()


def test_the_longest_idle_chains_go_and_are_counted() -> None:
    gone: list[tuple[Hole, ...]] = []
    checker = SequenceChecker(max_chains=3, on_dropped=gone.append)
    for epoch in (1, 2, 3):
        checker.check(make_message(0, epoch=epoch))
        checker.check(make_message(2, epoch=epoch, is_last=True))
    checker.check(make_message(3, epoch=1))
    checker.check(make_message(0, epoch=4))
    assert checker.dropped == 1
    assert gone == [(Hole("orders", 0, "shop", 2, 1, 1),)]
    assert [hole.epoch for hole in checker.list_holes()] == [1, 3]
    assert {chain.epoch for chain in checker.ended} == {1, 3}


def test_ranges_that_were_merged_are_unknown() -> None:
    checker = SequenceChecker(max_ranges=4, max_chains=2)
    assert set(check(checker, *range(0, 20, 2))) == {"new"}
    assert (len(checker.list_holes()), checker.unknown) == (3, 6)
    checker.check(make_message(0, epoch=2))
    checker.check(make_message(0, epoch=3))
    # With the chain that went, its count stays.
    assert (checker.dropped, checker.unknown) == (1, 6)
    with pytest.raises(ValueError, match="keep nothing"):
        SequenceChecker(max_ranges=0)


@given(
    st.integers(1, 30).flatmap(
        lambda count: st.tuples(
            st.permutations(range(count)), st.sets(st.integers(0, count - 1)), st.integers(0, 4)
        )
    )
)
def test_any_order_any_loss_any_repeats(case: tuple[Sequence[int], set[int], int]) -> None:
    order, lost, repeats = case
    checker = SequenceChecker(reads_from_start=True)
    sent = [each for each in order if each not in lost]
    verdicts = check(checker, *sent)
    assert not {"repeat", "unreadable"} & set(verdicts)
    assert set(check(checker, *sent[:repeats])) <= {"repeat"}
    highest = max(sent, default=-1)
    holes = {n for first, last in list_ranges(checker) for n in range(first, last + 1)}
    assert holes == {each for each in lost if each < highest}
    # What is put back from an archive closes them, in whichever partition it lies.
    for each in holes:
        checker.check(make_message(each, partition=1, put_back=True))
    assert {n for first, last in list_ranges(checker) for n in range(first, last + 1)} == holes
    for each in holes:
        checker.check(make_message(each, lies_in=each % 3, put_back=True))
    assert checker.list_holes() == ()


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from([SEQUENCE, SKIPPED, SEQUENCE_END, RECOVERY_ID, "other"]),
                st.none()
                | st.binary(max_size=40)
                | st.sampled_from([b"a:1:0:9", b"a:1:7:9", b"1", b"3-5"]),
            ),
            max_size=5,
        ),
        max_size=10,
    )
)
def test_no_headers_raise(messages: list[Pairs]) -> None:
    checker = SequenceChecker()
    for headers in messages:
        made = Message(topic="orders", partition=0, value=b"v", headers=headers)
        assert isinstance(checker.check(made), SequenceVerdict)
    checker.list_holes()


def test_an_error_in_a_messages_place() -> None:
    error = KafkaError(KafkaError._PARTITION_EOF)
    message = Message(topic="orders", partition=0, error=error)
    assert SequenceChecker().check(message) is SequenceVerdict.NOT_STAMPED


def test_hostile_headers_of_real_messages(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    """Sent over a broker, read by both clients."""
    name = topic(1, config={"max.message.bytes": "20000000"})
    settings = {"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 20_000_000}
    producer = Producer({**settings, "linger.ms": 0, "compression.type": "gzip"})
    for headers in HOSTILE:
        producer.produce(name, b"v", headers=cast(Any, headers))
    producer.produce(name, b"v", headers=[("type", b"\xff")])
    producer.produce(name)
    assert producer.flush(60) == 0

    # A value of text is bytes on its way: one of them was right but for that.
    expected = {"unreadable": len(HOSTILE) - 1, "not_stamped": 2, "foreign": 1}
    by_confluent = read_all({"bootstrap.servers": kafka.bootstrap}, name, [0])
    consumer = KafkaConsumer(
        bootstrap_servers=kafka.bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
        max_partition_fetch_bytes=20_000_000,
    )
    consumer.assign([KafkaPythonPartition(name, 0)])
    by_kafka_python = [next(consumer) for _ in by_confluent]
    consumer.close()
    for messages in (by_confluent, by_kafka_python):
        checker = SequenceChecker()
        assert count(checker, messages) == expected
        assert checker.unreadable == expected["unreadable"]
        assert checker.list_holes() == ()


def count(checker: SequenceChecker, messages: Iterable[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for message in messages:
        verdict = str(checker.check(message))
        found[verdict] = found.get(verdict, 0) + 1
    return found


def test_a_consumer_of_a_group_beside_others_messages(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    """As it is taken in: a group's member, that also reads what nobody stamped."""
    name = topic(2)
    bare = Producer({"bootstrap.servers": kafka.bootstrap})
    producer = SequencedProducer(bare, "shop", mark_end=True)
    for number in range(40):
        producer.produce(name, b"v", b"%d" % number)
        bare.produce(name, b"v", b"%d" % number)
    assert producer.close(60) == 0
    properties = {"bootstrap.servers": kafka.bootstrap}
    consumer = join(properties, group, name)
    checker = SequenceChecker(reads_from_start=True)
    found: dict[str, int] = {}
    while sum(found.values()) < 82:
        message = consumer.poll(60)
        assert message is not None
        if message.error() is None:
            verdict = str(checker.check(message))
            found[verdict] = found.get(verdict, 0) + 1
    consumer.close()
    assert found == {"new": 40, "not_stamped": 40, "end_mark": 2}
    assert (checker.list_holes(), len(checker.ended)) == ((), 2)
