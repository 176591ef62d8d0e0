"""Breaks in a producer's numbering, what is said of them, and profiles of real topics."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.errors import UsageError
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import make_producer
from backlogctl.kafka.errors import TopicMissing
from backlogctl.kafka.raw_fetch import FetchedBatches, fetch_batches
from backlogctl.monitoring.producers import reader
from backlogctl.monitoring.producers.findings import (
    Suspicion,
    SuspicionCode,
    describe_limits,
    find_suspicions,
)
from backlogctl.monitoring.producers.profile import (
    BreakKind,
    Folding,
    LogProfile,
    PartitionProfile,
    Sequences,
)
from backlogctl.monitoring.producers.reader import profile_topic
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import OffsetRange
from tests.conftest import MakeTopic
from tests.kit.kafka import move_log_start, properties_of, publish, set_config, wait_until
from tests.monitoring.producers.makers import START_MS, Busy, Log, fold

_STEPS = st.lists(
    st.tuples(
        st.integers(-1, 4),
        st.integers(1, 500),
        st.sampled_from(["data", "data", "commit", "abort", "control"]),
    ),
    max_size=40,
)


@given(_STEPS, st.integers(0, 40), st.integers(0, 2**31 - 1))
def test_no_break_in_a_healthy_log(
    steps: list[tuple[int, int, str]], since: int, first: int
) -> None:
    """Several producers; 3 and 4 are transactional, and 4 has an epoch for each transaction."""
    log, epochs = Log(), dict.fromkeys(range(-1, 5), 0)
    begun: set[int] = set()
    for producer, count, step in steps:
        is_transactional = producer >= 3
        if step == "data":
            start = None if producer in begun or producer == 4 else first
            log.append(
                producer, epochs[producer], count, transactional=is_transactional, sequence=start
            )
            begun.add(producer)
        elif is_transactional:
            log.append(producer, epochs[producer], 1, control=True)
            epochs[producer] += producer == 4
    log.headers = log.headers[since:]
    assert fold([log]).breaks == ()


BREAKS: dict[str, tuple[dict[str, int], dict[str, int], BreakKind, int | None]] = {
    "a jump": ({}, {"sequence": 25}, BreakKind.JUMP, 15),
    "over the last number": ({"sequence": 2**31 - 15}, {"sequence": 3}, BreakKind.JUMP, 8),
    "numbers come again": ({"sequence": 50}, {"sequence": 55}, BreakKind.JUMP, 0),
    "a restart": ({"sequence": 50}, {"sequence": 0}, BreakKind.RESTART, 0),
    "a raised epoch": ({}, {"epoch": 2}, BreakKind.EPOCH, None),
}


@pytest.mark.parametrize(("first", "then", "kind", "left_out"), BREAKS.values(), ids=BREAKS)
def test_a_break(
    first: dict[str, int], then: dict[str, int], kind: BreakKind, left_out: int | None
) -> None:
    log = Log()
    log.append(**first)  # type: ignore[arg-type]
    log.append(**then)  # type: ignore[arg-type]
    log.append(epoch=then.get("epoch", 0))
    (found,) = fold([log]).breaks
    assert (found.kind, found.left_out) == (kind, left_out)
    assert (found.before.epoch, found.after.epoch) == (0, then.get("epoch", 0))
    assert (found.before.offset, found.after.offset) == (9, 10)
    assert found.before.sequence == first.get("sequence", 0) + 9
    assert found.after.sequence == then.get("sequence", 0)


def test_producers_and_partitions_are_apart() -> None:
    one, other = Log(0), Log(1)
    for log in (one, other):
        log.append(1, count=7)
        log.append(2, count=3)
        log.append(1, count=7)
    assert fold([one, other]).breaks == ()


def test_nothing_is_compared_across_missing_offsets() -> None:
    log = Log()
    log.append(count=10)
    log.skip(5)
    log.append(count=10, sequence=15)
    log.append(count=10, sequence=30)
    profile = fold([log])
    assert [one.before.sequence for one in profile.breaks] == [24]
    assert profile.partitions[0].holes == 1


def test_nothing_is_compared_across_what_expired_meanwhile() -> None:
    log = Log()
    log.append(count=10)
    folding = Folding("orders", (OffsetRange(0, 0, 40),))
    folding.add(FetchedBatches(0, tuple(log.headers), 0, None, 10))
    folding.add(FetchedBatches(0, (), 0, OffsetRange(0, 10, 20), 20))
    log.skip(10)
    log.append(count=10, sequence=20)
    folding.add(FetchedBatches(0, tuple(log.headers[-1:]), 0, None, 30))
    profile = folding.freeze()
    assert profile.breaks == ()
    assert profile.partitions[0].passed_over == (OffsetRange(0, 10, 20),)
    assert profile.partitions[0].holes == 0


def test_compacted_topics_have_epochs_only() -> None:
    log = Log()
    log.append(count=10)
    log.append(count=10, sequence=25)
    log.append(epoch=1, count=10)
    assert [one.kind for one in fold([log], is_compacted=True).breaks] == [BreakKind.EPOCH]


def test_too_many_producers_are_forgotten_not_suspected() -> None:
    log, sequences = Log(), Sequences(most=3)
    for turn in range(3):
        for producer in range(5):
            log.append(producer, count=turn + 1)
    for header in log.headers:
        sequences.add(0, header)
    listed, left_out = sequences.list_producers()
    assert sequences.breaks == []
    assert len(listed) == 3
    assert sequences.forgotten == left_out == 12


def test_breaks_are_bounded() -> None:
    log = Log()
    for turn in range(1_200):
        log.append(count=1, sequence=3 * turn)
    profile = fold([log])
    assert len(profile.breaks) == 1_000
    assert profile.breaks_left_out == 199


def test_epochs_of_a_producer() -> None:
    log = Log()
    for epoch in range(40):
        log.append(1, epoch, 5, transactional=True)
        log.append(1, epoch, 1, control=True)
    (producer,) = fold([log]).producers
    assert producer.is_transactional
    assert (producer.batches, producer.messages) == (40, 200)
    assert [one.epoch for one in producer.epochs] == list(range(8, 40))
    assert producer.epochs_left_out == 8
    last = producer.epochs[-1]
    assert (last.first_offset, last.last_offset, last.messages) == (234, 238, 5)
    assert last.first_time is not None


def the_suspicion(profile: LogProfile) -> Suspicion:
    (found,) = find_suspicions(profile)
    return found


def fill(log: Log, batches: int, **settings: object) -> Log:
    for _ in range(batches):
        log.append(**settings)  # type: ignore[arg-type]
    return log


def test_nothing_about_a_topic_without_messages() -> None:
    profile = fold([Log(0), Log(1)])
    assert find_suspicions(profile) == ()
    assert describe_limits(profile) == ()
    assert (profile.messages, profile.first_time) == (0, None)


NORMAL = {
    "healthy": [fill(Log(p), 50) for p in range(3)],
    # A producer without keys fills one partition's batch after another.
    "few batches": [fill(Log(0), 5, count=1_000), *(fill(Log(p), 5) for p in range(1, 4))],
    "small ones now and then": [fill(Log(), 2_000, size=200)],
    "some uncompressed": [fill(fill(Log(), 3), 3, codec="none")],
}


@pytest.mark.parametrize("logs", NORMAL.values(), ids=NORMAL)
def test_what_is_normal_is_not_suspect(logs: list[Log]) -> None:
    assert find_suspicions(fold(logs)) == ()


def test_some_messages_without_a_producer_id() -> None:
    log = fill(fill(Log(0), 3), 2, producer=-1)
    found = the_suspicion(fold([log, fill(Log(1), 5)]))
    assert (found.code, found.partition) == (SuspicionCode.NOT_IDEMPOTENT, 0)
    assert found.sentence.startswith("20 of 100 messages have no producer id")
    assert found.from_time is not None
    assert found.from_time.timestamp() * 1000 == START_MS + 300


def test_all_messages_without_a_producer_id() -> None:
    found = the_suspicion(fold([fill(Log(p), 5, producer=-1) for p in range(2)]))
    assert found.partition is None
    assert found.sentence.startswith("All 100 messages have no producer id")


def test_one_raised_epoch_in_several_partitions_is_told_once() -> None:
    logs = [fill(fill(Log(p), 2), 2, epoch=1) for p in range(3)]
    found = the_suspicion(fold(logs))
    assert (found.code, found.partition, found.producer_id) == (
        SuspicionCode.EPOCH_RESTARTED,
        None,
        1,
    )
    assert [(one.partition, one.start, one.end) for one in found.offsets] == [
        (p, 19, 21) for p in range(3)
    ]
    assert "from 0 to 1 outside of transactions in 3 partitions" in found.sentence
    assert "may be missing" in found.sentence


@pytest.mark.parametrize(
    ("sequence", "told"),
    [
        (40, "goes from 19 to 40, without 20"),
        (0, "begins again at 0 after 19"),
        (5, "goes back to 5 where 20 was next"),
    ],
)
def test_a_break_within_an_epoch(sequence: int, told: str) -> None:
    log = fill(Log(0), 2)
    log.append(sequence=sequence)
    found = the_suspicion(fold([log, fill(Log(1), 3)]))
    assert (found.code, found.partition) == (SuspicionCode.SEQUENCE_JUMP, 0)
    assert told in found.sentence
    assert "in partition 0 at offset 20" in found.sentence


def test_a_hot_partition() -> None:
    logs = [fill(Log(0), 200), *(fill(Log(p), 20) for p in range(1, 4))]
    found = the_suspicion(fold(logs))
    assert (found.code, found.partition) == (SuspicionCode.HOT_PARTITION, 0)
    assert "77% of the messages, 3.1 times its share" in found.sentence


def test_small_batches() -> None:
    log = Log()
    for number in range(2_000):
        log.append(count=1, size=200 if number % 3 else 4_000, at=START_MS + number)
    found = the_suspicion(fold([log]))
    assert found.code is SuspicionCode.SMALL_BATCHES
    assert "(1,333 of 2,000), at 1,001/s" in found.sentence


def test_mixed_codecs() -> None:
    log = fill(fill(fill(Log(), 3), 1, codec="zstd"), 2, codec="none")
    found = the_suspicion(fold([log]))
    assert found.code is SuspicionCode.MIXED_CODECS
    assert "lz4 3 batches, zstd 1 batch." in found.sentence


def test_times_that_are_none() -> None:
    log = Log()
    log.append(at=-1)
    log.append(epoch=1, at=10**17)
    found = the_suspicion(fold([log]))
    assert found.from_time is found.to_time is None
    assert "between … and …" in found.sentence


def test_limits_of_a_profile() -> None:
    log = fill(Log(), 1)
    log.skip(3)
    fill(log, 1)
    assert describe_limits(fold([log])) == (
        "Offsets are missing in 1 place, as after compaction: sequence numbers were not compared "
        "across them.",
    )
    (compacted,) = describe_limits(fold([log], is_compacted=True))
    assert "compacted" in compacted
    told = describe_limits(
        LogProfile(
            "orders",
            None,
            None,
            False,
            (PartitionProfile(0, 0, 9, old_format=2),),
            breaks_left_out=3,
            forgotten=4,
        )
    )
    assert told == (
        "The log has 2 entries of a format from before Kafka 0.11, without producer and sequence: "
        "they are in no figure.",
        "There are very many producers: 4 times one that had been silent for longest was no longer "
        "followed.",
        "3 more breaks in sequence numbers are not listed.",
    )


def test_fault_151_what_was_aborted_is_counted_apart_and_what_is_not_known_too() -> None:
    """A transaction's end counts for its own producer; behind missing offsets it is unknown."""
    log = Log()
    log.append(1, count=5)
    log.append(7, count=4, transactional=True)
    log.append(8, count=3, transactional=True)
    log.append(7, count=1, control=True, commit=False)
    log.append(8, count=1, control=True, commit=True)
    log.append(7, count=2, transactional=True)
    log.skip(1)
    log.append(7, count=1, control=True, commit=False)
    log.append(8, count=6, transactional=True)
    (one,) = fold([log]).partitions
    assert (one.messages, one.committed, one.aborted, one.undecided) == (20, 8, 4, 8)


_FACTS = {SuspicionCode.HOT_PARTITION, SuspicionCode.MIXED_CODECS, SuspicionCode.SMALL_BATCHES}


def test_a_healthy_busy_topic_is_never_suspect(
    kafka: EmbeddedKafka, topic: MakeTopic, unique: str
) -> None:
    """Producers of each kind, transactions that abort, producers that start again."""
    name, properties = topic(3), properties_of(kafka.bootstrap)
    busy = Busy(properties, name, 3, unique)
    began = datetime.now(UTC)
    busy.work(12)
    span = (datetime.now(UTC) - began).total_seconds()
    whole = profile_topic(properties, name)
    assert whole.messages == busy.sent
    assert sum(one.aborted for one in whole.partitions) == busy.aborted > 0
    assert sum(one.committed for one in whole.partitions) == busy.sent - busy.aborted
    assert not any(one.not_idempotent for one in whole.partitions)
    assert sum(one.control_batches for one in whole.partitions) > 0
    assert len({one.producer_id for one in whole.producers if one.is_transactional}) == 2
    assert {one.code for one in find_suspicions(whole)} <= _FACTS
    assert describe_limits(whole) == ()
    dice = random.Random(11)
    for turn in range(20):
        if turn % 5 == 0:
            busy.work(1)
        since = began + timedelta(seconds=dice.uniform(0, span))
        until = since + timedelta(seconds=dice.uniform(0.001, span))
        profile = profile_topic(properties, name, since, until)
        assert {one.code for one in find_suspicions(profile)} <= _FACTS
    _check_windows(properties, name, dice)


def _check_windows(properties: dict[str, str], name: str, dice: random.Random) -> None:
    """200 windows of offsets, of headers that were read once."""
    ends = list_offsets(properties, name, range(3), "latest")
    headers: dict[int, list[FetchedBatches]] = {p: [] for p in range(3)}
    for one in fetch_batches(properties, name, [OffsetRange(p, 0, ends[p]) for p in range(3)]):
        headers[one.partition].append(one)
    for _ in range(200):
        ranges = []
        for partition, end in ends.items():
            start = dice.randrange(end)
            ranges.append(OffsetRange(partition, start, dice.randrange(start, end) + 1))
        folding = Folding(name, tuple(ranges))
        for window in ranges:
            found = tuple(
                header
                for fetched in headers[window.partition]
                for header in fetched.headers
                if header.last_offset >= window.start and header.base_offset < window.end
            )
            folding.add(FetchedBatches(window.partition, found, 0, None, window.end))
        profile = folding.freeze()
        assert profile.breaks == ()
        assert {one.code for one in find_suspicions(profile)} <= _FACTS


def test_a_range_of_times(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name, properties = topic(2), properties_of(kafka.bootstrap)
    for hours in (5, 3, 1):
        publish(properties, name, {0: 10, 1: 10}, hours_ago=hours)
    now = datetime.now(UTC)
    middle = profile_topic(properties, name, now - timedelta(hours=4), now - timedelta(hours=2))
    assert [(one.start, one.end, one.messages) for one in middle.partitions] == [(10, 20, 10)] * 2
    assert middle.first_time is not None
    assert abs((now - middle.first_time).total_seconds() - 3 * 3600) < 60
    late = profile_topic(properties, name, since=now)
    assert (late.messages, late.batches) == (0, 0)
    early = profile_topic(properties, name, until=now - timedelta(hours=4))
    assert early.messages == 20
    # Another producer each time, as after a restart: that is no break.
    assert find_suspicions(profile_topic(properties, name)) == ()


def test_times_in_the_wrong_order() -> None:
    now = datetime.now(UTC)
    with pytest.raises(UsageError, match="not after its start"):
        profile_topic({"bootstrap.servers": "localhost:1"}, "orders", now, now)


def test_no_such_topic(properties: dict[str, str], unique: str) -> None:
    with pytest.raises(TopicMissing):
        profile_topic(properties, f"no-{unique}")


def test_an_empty_topic_and_an_idle_partition(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name, properties = topic(3), properties_of(kafka.bootstrap)
    empty = profile_topic(properties, name)
    assert (empty.messages, empty.bytes) == (0, 0)
    assert find_suspicions(empty) == ()
    publish(properties, name, {0: 5, 2: 5})
    profile = profile_topic(properties, name)
    assert [one.messages for one in profile.partitions] == [5, 0, 5]
    assert profile.partitions[1].first_time is None
    assert find_suspicions(profile) == ()


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_producers_that_are_not_idempotent(
    kafka: EmbeddedKafka, topic: MakeTopic, acks: str
) -> None:
    """Their acks cannot be seen."""
    name, properties = topic(1), properties_of(kafka.bootstrap)
    publish(properties, name, {0: 30})
    producer = make_producer(properties, {"enable.idempotence": False, "acks": acks})
    for _ in range(10):
        producer.produce(name, b"value", partition=0)
    producer.flush(30)
    wait_until(lambda: list_offsets(properties, name, [0], "latest") == {0: 40})
    profile = profile_topic(properties, name)
    assert sum(one.not_idempotent for one in profile.partitions) * 4 == profile.messages
    (found,) = find_suspicions(profile)
    assert found.code is SuspicionCode.NOT_IDEMPOTENT
    assert "10 of 40 messages" in found.sentence


def test_a_compacted_topic(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    """Real compaction takes whole batches away; seen as compacted or, later, by the holes."""
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.bytes": "1048576",
        "segment.ms": "1000",
        "delete.retention.ms": "1",
    }
    name, properties = topic(1, config), properties_of(kafka.bootstrap)
    keeping, rewriting = make_producer(properties, {}), make_producer(properties, {})

    def roll_and_count() -> bool:
        for number in range(3):
            rewriting.produce(name, os.urandom(10), f"again-{number}", 0)
            rewriting.flush(30)
        keeping.produce(name, b"value", f"kept-{os.urandom(4).hex()}", 0)
        keeping.flush(30)
        return profile_topic(properties, name).partitions[0].holes > 0

    wait_until(roll_and_count, what="compaction leaves holes")
    profile = profile_topic(properties, name)
    assert profile.is_compacted
    assert find_suspicions(profile) == ()
    assert "compacted" in describe_limits(profile)[0]
    set_config(properties, name, {"cleanup.policy": "delete"})
    later = profile_topic(properties, name)
    assert not later.is_compacted
    assert find_suspicions(later) == ()
    assert "Offsets are missing" in describe_limits(later)[0]


def test_retention_moves_on_while_it_reads(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name, properties = topic(1), properties_of(kafka.bootstrap)
    publish({**properties, "compression.type": "none"}, name, {0: 150}, value=os.urandom(100_000))
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        # The second look comes after the first answer: about 40 messages.
        if looks == 2:
            move_log_start(properties, name, {0: 120})

    profile = profile_topic(properties, name, look=look)
    (part,) = profile.partitions
    (gone,) = part.passed_over
    assert gone.end == 120
    assert part.messages < 150
    assert find_suspicions(profile) == ()
    assert f"{gone.count} offsets expired or were deleted" in describe_limits(profile)[0]


def test_progress_is_told(
    kafka: EmbeddedKafka, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "TICK_SECONDS", 0.0)
    name, properties = topic(1), properties_of(kafka.bootstrap)
    publish(properties, name, {0: 20})
    said: list[str] = []
    profile_topic(properties, name, say=said.append)
    assert said[0].startswith(f"topic {name}: 20 of 20 offsets, ")
    assert said[0].endswith("/s, 0 s left")
