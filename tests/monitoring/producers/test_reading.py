"""Profiles of real topics, in which nothing is wrong that is not there."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta

import pytest

from backlogctl.errors import UsageError
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import make_producer
from backlogctl.kafka.errors import TopicMissing
from backlogctl.kafka.raw_fetch import FetchedBatches, fetch_batches
from backlogctl.monitoring.producers import reader
from backlogctl.monitoring.producers.findings import SuspicionCode, describe_limits, find_suspicions
from backlogctl.monitoring.producers.profile import Folding
from backlogctl.monitoring.producers.reader import profile_topic
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import OffsetRange
from tests.conftest import MakeTopic
from tests.kafka_tools import move_log_start, properties_of, publish, set_config, wait_until
from tests.monitoring.producers.producing import Busy

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
