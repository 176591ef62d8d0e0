"""The last segments of a topic with several replicas, and how much a deletion frees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from backlogctl.fanout.disk import FreedTally, PartitionBacklog, estimate_freed
from backlogctl.fanout.segments import end_segments, give_segment_ms_back, lower_segment_ms
from backlogctl.kafka.admin import create_topic, delete_records, list_offsets
from backlogctl.kafka.clients import make_producer
from backlogctl.kafka.log_dirs import BrokerLogDirs, LogDirs, read_log_dirs
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.kit.kafka import read_all, wait_until

NUMBERS = range(2)


def read_sizes(properties: Mapping[str, str]) -> dict[tuple[int, int], int]:
    return read_log_dirs(properties, "orders").replica_bytes


def test_fault_124_the_last_segments_end_on_every_replica(tmp_path: Path) -> None:
    with EmbeddedKafka.start(tmp_path, brokers=3) as kafka:
        properties = kafka.client_properties
        topic_id = create_topic(properties, "orders", partitions=2, replication=3)
        producer = make_producer(properties)
        for number in range(2000):
            producer.produce("orders", b"x" * 100, partition=number % 2)
        assert producer.flush(90) == 0
        before = read_sizes(properties)
        assert len(before) == 6
        assert min(before.values()) > 10_000
        told: list[str] = []
        lower_segment_ms(properties, "orders")
        ended = end_segments(
            *(properties, properties, "orders", NUMBERS, "t:roll:orders"),
            look=lambda: None,
            say=told.append,
        )
        assert (ended, told) == ({0: 1000, 1: 1000}, [])
        assert give_segment_ms_back(properties, "orders", topic_id, None) == ""
        ends = list_offsets(properties, "orders", NUMBERS, "latest", "read_committed")
        assert ends == {0: 1001, 1: 1001}, "one marker in each"
        assert len(read_all(properties, "orders", NUMBERS)) == 2000, "which no reader gets"
        delete_records(properties, "orders", ended)
        tally = FreedTally(before)

        def look() -> bool:
            tally.note(read_sizes(properties))
            return tally.is_everywhere

        wait_until(look, 60, "each replica got smaller")
        assert tally.freed > 0.99 * sum(before.values()), "all but the markers, at least"


def test_a_deletion_frees_whole_segments_only() -> None:
    dirs = LogDirs((BrokerLogDirs(1, 5, 10, {0: 1000, 1: 300}),))
    cuts = [PartitionBacklog(0, 50, 0, 100), PartitionBacklog(1, 10, 0, 10)]

    def estimate(segment: int | None, *ended: int) -> tuple[int | None, int | None]:
        found = estimate_freed(dirs, cuts, replication=2, segment_bytes=segment, ended=ended)
        return found.most, found.kept

    assert estimate(200) == (1600, 800)
    assert estimate(200, 0, 1) == (1600, 0)
    assert estimate(None, 1) == (1600, 1000)
    gone = estimate_freed(LogDirs(None, "why"), cuts, replication=2, segment_bytes=9, ended=())
    assert (gone.most, gone.reason) == (None, "why")


def test_what_producers_add_takes_nothing_off_what_is_freed() -> None:
    tally = FreedTally({(1, 0): 100, (2, 0): 100})
    tally.note({(1, 0): 150, (2, 0): 40})
    assert (tally.freed, tally.is_everywhere) == (60, False)
    tally.note({(1, 0): 50})
    assert (tally.freed, tally.is_everywhere) == (160, True)


def test_what_producers_add_may_hide_what_is_freed() -> None:
    """The first look comes when the consumers are back: nothing is not known to be freed."""
    tally = FreedTally({(1, 0): 100})
    tally.note({(1, 0): 100})
    assert (tally.freed, tally.is_hidden) == (0, False)
    tally.note({(1, 0): 150})
    assert (tally.freed, tally.is_hidden) == (0, True)
    tally.note({(1, 0): 140})
    assert (tally.freed, tally.is_hidden) == (10, False)
