"""What is told of a profile."""

from __future__ import annotations

import pytest

from backlogctl.monitoring.producers.findings import (
    Suspicion,
    SuspicionCode,
    describe_limits,
    find_suspicions,
)
from backlogctl.monitoring.producers.profile import LogProfile, PartitionProfile
from tests.monitoring.producers.makers import START_MS, Log, fold


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


def test_nothing_about_a_healthy_topic() -> None:
    assert find_suspicions(fold([fill(Log(p), 50) for p in range(3)])) == ()


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


def test_a_hot_partition_needs_more_than_a_few_batches() -> None:
    """A producer without keys fills one partition's batch after another."""
    few = [fill(Log(0), 5, count=1_000), *(fill(Log(p), 5) for p in range(1, 4))]
    assert find_suspicions(fold(few)) == ()


def test_small_batches() -> None:
    log = Log()
    for number in range(2_000):
        log.append(count=1, size=200 if number % 3 else 4_000, at=START_MS + number)
    found = the_suspicion(fold([log]))
    assert found.code is SuspicionCode.SMALL_BATCHES
    assert "(1,333 of 2,000), at 1,001/s" in found.sentence


def test_small_batches_now_and_then_cost_nothing() -> None:
    log = Log()
    for number in range(2_000):
        log.append(count=1, size=200, at=START_MS + number * 100)
    assert find_suspicions(fold([log])) == ()


def test_mixed_codecs() -> None:
    log = fill(fill(fill(Log(), 3), 1, codec="zstd"), 2, codec="none")
    found = the_suspicion(fold([log]))
    assert found.code is SuspicionCode.MIXED_CODECS
    assert "lz4 3 batches, zstd 1 batch." in found.sentence


def test_an_uncompressed_batch_beside_others_is_normal() -> None:
    assert find_suspicions(fold([fill(fill(Log(), 3), 3, codec="none")])) == ()


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
