"""Many streams of a real cluster, read at once: the same as each read alone."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, ClusterUnreachable, LedgerError
from backlogctl.kafka.admin import alter_topic_config
from backlogctl.kafka.bulk import BulkReader
from backlogctl.kafka.log_dirs import LogDirs, read_log_dirs
from backlogctl.ledger import Ledger
from backlogctl.ledger.samples import Samples
from backlogctl.monitoring.offsets import bulk_look
from backlogctl.monitoring.offsets.bulk_look import BulkLooker, read_facts, take_samples
from backlogctl.monitoring.offsets.commits import CommitFeed
from backlogctl.monitoring.offsets.lag import (
    FirstMessage,
    judge_tails,
    list_places,
    list_unread,
    read_firsts,
)
from backlogctl.monitoring.offsets.sampler import take_sample
from backlogctl.monitoring.offsets.timeline import WINDOW
from backlogctl.monitoring.verdict.status import GroupStatus
from backlogctl.monitoring.watch import look, loop
from backlogctl.monitoring.watch.loop import watch_streams
from backlogctl.values import LOG_START, PartitionSample, Sample
from tests.conftest import MakeTopic
from tests.kit.kafka import (
    StreamStub,
    await_markers,
    commit,
    join,
    leave_at,
    move_log_start,
    publish,
    set_offsets_raw,
    wait_until,
)
from tests.kit.transactions import run_transactions
from tests.monitoring.live_watch import make_config

READ, OUTSIDE, LOSING, MARKED, UNREAD = "read", "outside", "losing", "marked", "unread"


@pytest.fixture
def streams(
    properties: dict[str, str], topic: MakeTopic, group: str, unique: str
) -> list[StreamStub]:
    """One that reads, with epochs in its commits; one that a tool set; one that lost; one behind a
    control record; one that never committed."""
    places = {name: (topic(partitions=2), f"{group}-{name}") for name in (READ, OUTSIDE, LOSING)}
    places |= {name: (topic(partitions=1), f"{group}-{name}") for name in (MARKED, UNREAD)}
    for name in (READ, OUTSIDE, LOSING):
        publish(properties, places[name][0], {0: 10, 1: 4})
    publish(properties, places[UNREAD][0], {0: 3})
    commit(properties, places[READ][1], places[READ][0], {0: 10, 1: 2})
    set_offsets_raw(properties, places[OUTSIDE][1], places[OUTSIDE][0], {0: 3})
    leave_at(properties, places[LOSING][1], places[LOSING][0], {0: 2, 1: 4})
    move_log_start(properties, places[LOSING][0], {0: 7})
    end = run_transactions(properties, places[MARKED][0], f"tx-{unique}", (5, True))
    await_markers(properties, places[MARKED][0], {0: end})
    leave_at(properties, places[MARKED][1], places[MARKED][0], {0: end - 1})
    join(properties, places[UNREAD][1], places[UNREAD][0]).close()
    return [StreamStub(*place, name=name) for name, place in places.items()]


def test_the_same_samples_as_one_by_one(
    properties: dict[str, str], streams: list[StreamStub]
) -> None:
    gone = StreamStub("no-such-topic", streams[0].group, name="gone")
    with closing(BulkReader(properties)) as reader:
        found = take_samples(reader, [*streams, gone], timedelta(0))
    assert found.keys() == {one.name for one in streams}, "what is left out is asked alone"
    for stream in streams:
        alone = take_sample(stream, properties)
        together = found[stream.name]
        assert replace(together, taken_at=alone.taken_at, took=0.0) == replace(alone, took=0.0)
    assert [part.committed_epoch for part in found[READ].partitions] == [0, 0]
    assert [part.committed for part in found[OUTSIDE].partitions] == [3, None]
    assert found[OUTSIDE].group_state == "simple"
    assert found[UNREAD].partitions[0].committed is None


def test_a_commit_that_names_the_log_start_is_told_as_such(
    properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    """As KafkaJS commits it, where it goes on there."""
    from kafka import KafkaConsumer
    from kafka.structs import OffsetAndMetadata, TopicPartition

    name = topic(1)
    publish(properties, name, {0: 9})
    client = KafkaConsumer(
        bootstrap_servers=properties["bootstrap.servers"], group_id=group, enable_auto_commit=False
    )
    client.assign([TopicPartition(name, 0)])
    stream = StreamStub(name, group, name="started")
    with closing(CommitFeed(properties, [stream])) as feed:

        def is_followed() -> bool:
            feed.read(Deadline(30))
            return feed.take(stream) is not None

        wait_until(is_followed, what="the commit log is followed")
        for offset in (5, -1, -2):
            client.commit({TopicPartition(name, 0): OffsetAndMetadata(offset, "", -1)})
        feed.read(Deadline(30))
        followed = feed.take(stream)
    assert followed is not None
    # -1 is the log end, as other clients say "none".
    assert [commit.offset for commit in followed[0]] == [5, LOG_START]
    client.close()
    move_log_start(properties, name, {0: 4})
    with closing(BulkReader(properties)) as reader:
        together = take_samples(reader, [stream], timedelta(0))["started"]
    for seen in (together, take_sample(stream, properties)):
        (part,) = seen.partitions
        assert (part.committed, part.at_start) == (4, True)
    move_log_start(properties, name, {0: 9})
    (part,) = take_sample(stream, properties).partitions
    assert (part.committed, part.at_start) == (9, False), "of an empty log it is known"


def test_a_commit_beyond_the_end_is_looked_at_alone(
    properties: dict[str, str], streams: list[StreamStub]
) -> None:
    ahead = streams[0]
    set_offsets_raw(properties, ahead.group, ahead.topic, {0: 500})
    with closing(BulkReader(properties)) as reader:
        found = take_samples(reader, streams, timedelta(0))
    assert ahead.name not in found
    assert len(found) == len(streams) - 1


def watch_once(
    properties: dict[str, str], streams: list[StreamStub], ledger: Ledger
) -> tuple[dict[str, GroupStatus], dict[str, BacklogError | None]]:
    config = make_config(properties, *streams)
    seen: dict[str, GroupStatus] = {}
    told: dict[str, BacklogError | None] = {}
    watch_streams(
        *(config, ledger, timedelta(seconds=30), threading.Event()),
        on_status=lambda status: seen.update({status.stream: status}),
        on_outage=lambda what, error: told.update({what: error}),
        rounds=1,
    )
    return seen, told


def test_a_pass_says_the_same_as_looks_one_by_one(
    properties: dict[str, str],
    streams: list[StreamStub],
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def note(stream: StreamStub, *rest: Any) -> Sample:
        asked.append(stream.name)
        return take_sample(stream, *rest)

    monkeypatch.setattr("backlogctl.monitoring.offsets.observation.take_sample", note)
    sizes: list[str] = []

    def note_sizes(properties: dict[str, str], name: str, limit: Deadline) -> LogDirs:
        sizes.append(name)
        return read_log_dirs(properties, name, limit)

    monkeypatch.setattr(look, "read_log_dirs", note_sizes)
    by_size = next(one.topic for one in streams if one.name == READ)
    alter_topic_config(properties, by_size, {"retention.bytes": "100000"})
    gone = StreamStub("no-such-topic", streams[0].group, name="gone")
    seen, told = watch_once(properties, [*streams, gone], ledger)
    assert asked == ["gone"]
    assert sizes == [], "those of all topics were asked for at once"
    assert told.keys() == {"stream gone"}, "the others go on"
    assert {name: status.lag for name, status in seen.items()} == {
        READ: 2, OUTSIDE: None, LOSING: 3, MARKED: 0, UNREAD: None,
    }  # fmt: skip
    assert seen[LOSING].lost == 5
    assert {one.stream: (one.start, one.end) for one in ledger.gaps.list() if one.end} == {
        LOSING: (2, 7)
    }
    for stream in streams:
        assert len(ledger.samples.history(stream.name)) == 1, "they are stored"
    with monkeypatch.context() as patch:
        patch.setattr(bulk_look, "LEAST_STREAMS", 100)
        alone, _ = watch_once(properties, streams, ledger)
    assert set(asked[1:]) == {one.name for one in streams}
    assert sizes == [by_size]
    for name, status in alone.items():
        shown = (status.verdict, status.lag, status.lost, status.undecided, status.possible)
        other = seen[name]
        assert shown == (other.verdict, other.lag, other.lost, other.undecided, other.possible)


def test_a_broker_that_is_away_makes_no_cluster_that_is_away(
    properties: dict[str, str],
    streams: list[StreamStub],
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody answers for all streams at once, and each can be asked."""

    def fail(*_: object) -> None:
        raise ClusterUnreachable("broker 3 does not answer", subject="cluster main")

    monkeypatch.setattr(bulk_look, "take_samples", fail)
    seen, told = watch_once(properties, streams, ledger)
    assert seen.keys() == {one.name for one in streams}
    assert told == {}


def test_a_range_without_data_grows_and_is_not_cut() -> None:
    """What was read before a commit within it is still known to a group that is set back."""
    part = PartitionSample(0, 0, 5, 40, 40)
    sample = Sample("s", "main", "t", "g", "id", datetime.now(UTC), (part,))
    unread = list_unread(sample, "read_committed", {0: (3, 20)})
    assert [(one.first, one.start) for one in unread] == [(3, 20)]
    assert list_places("t", unread) == [("t", 0, 20)]
    assert judge_tails("t", unread, {("t", 0, 20): FirstMessage(31)}).empty == {0: (3, 31)}
    assert judge_tails("t", unread, {}).empty == {0: (3, 20)}, "as it was"


def test_first_messages_are_read_once_for_as_long_as_nobody_reads(
    properties: dict[str, str],
    streams: list[StreamStub],
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted: list[int] = []

    def count(_: Any, places: Any, *rest: Any) -> Any:
        wanted.append(len(places))
        return read_firsts(properties, places, *rest)

    monkeypatch.setattr(bulk_look, "read_firsts", count)
    with closing(BulkLooker(ledger, properties)) as looker:
        first = looker.look(streams, Deadline(60.0))
        again = looker.look(streams, Deadline(60.0))
    assert [sum(wanted[:2]), sum(wanted[2:])] == [4, 1], "an empty place may get a message"
    assert again.firsts == first.firsts
    assert first.facts == replace(read_facts(ledger, []), skew=first.facts.skew)


def test_a_ledger_that_cannot_store_gets_the_samples_with_the_next_ones(
    properties: dict[str, str],
    streams: list[StreamStub],
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_all, calls = Samples.add_all, 0

    def fail_once(samples: Samples, taken: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise LedgerError("the disk is full", subject="ledger")
        add_all(samples, taken)

    monkeypatch.setattr(Samples, "add_all", fail_once)
    told: list[str] = []
    config = make_config(properties, *streams, commit_log=False)
    watch_streams(
        *(config, ledger, timedelta(seconds=0.1), threading.Event()),
        on_outage=lambda what, error: told.append(f"{what}: {error is None}"),
        rounds=2,
    )
    assert told == ["storing samples: False", "storing samples: True"]
    for stream in streams:
        assert len(ledger.samples.history(stream.name)) == 2


def test_passes_longer_than_their_interval_are_told(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SLOW_SECONDS", 0.0)
    config: Any = SimpleNamespace(clusters={}, streams={"orders": None})
    told: list[tuple[str, BacklogError | None]] = []
    outages = loop.Outages(lambda *what: told.append(what))
    judging = loop._Judging(WINDOW, look.HORIZON)
    watcher = loop._StreamWatcher(config, ledger, WINDOW, judging, outages, None, None)
    for took in (42.0, 29.0, 42.0, 43.0, 44.0, 3.0):
        watcher.note_pass(took, 30.0)
    ((what, error), (_, ended)) = told
    assert what == "passes within the interval"
    assert ended is None
    assert "a pass over 1 stream took 43 s, longer than the interval of 30 s" in str(error)
