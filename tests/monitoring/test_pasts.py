"""What a watch keeps of a stream's past for whoever looks next, and how far back samples are read."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backlogctl.clock import utc_now
from backlogctl.ledger import Ledger
from backlogctl.ledger.samples import KeptPast
from backlogctl.monitoring.offsets.gaps import find_gaps, make_history
from backlogctl.monitoring.offsets.history import StreamHistory, dump_past, parse_past
from backlogctl.monitoring.offsets.observation import read_pasts
from backlogctl.monitoring.offsets.rhythm import Rhythm, RhythmBook
from backlogctl.monitoring.offsets.timeline import read_timeline
from backlogctl.monitoring.watch.loop import watch_streams
from backlogctl.values import PartitionSample, Sample
from tests.conftest import MakeTopic
from tests.kit.kafka import StreamStub, commit, publish
from tests.monitoring.test_gaps import Model
from tests.monitoring.test_observing import ClusterStub, ConfigStub

NOW = utc_now()
STREAM = StreamStub("orders", "order-service", name="orders")


def take(ago: timedelta, committed: int, high: int) -> Sample:
    return Sample(
        *("orders", "main", "orders", "order-service", "id-1", NOW - ago),
        (PartitionSample(0, 0, committed, high, high),),
        "stable",
    )


def follow(model: Model, seconds: int) -> list[Sample]:
    taken = []
    for _ in range(seconds):
        model.pass_second()
        if model.second % 5 == 0:
            part = PartitionSample(0, model.low, model.committed, model.high, model.high)
            sample = Sample(
                *("orders", "main", "orders", "order-service", "id-1", model.now), (part,), "stable"
            )
            taken.append(sample)
    return taken


@pytest.mark.parametrize("cut", [1, 20, 63])
def test_it_goes_on_as_if_it_had_seen_all(cut: int) -> None:
    """Of a group that loses: its pace, what it went past, and what is not decided yet."""
    samples = follow(Model(), 600)
    before, after = samples[:cut], samples[cut:]
    kept = parse_past(dump_past(make_history(before)))
    assert kept == make_history(before)
    assert make_history(after, kept) == make_history(samples)


def test_commits_of_the_log_that_came_after_the_sample_are_kept() -> None:
    model = Model()
    past = StreamHistory()
    for sample in follow(model, 300):
        commits = [one for one in model.log if one.at > sample.taken_at - timedelta(seconds=5)]
        past = find_gaps(past, sample, {0: commits}).history
    assert parse_past(dump_past(past)) == past


def keep(ledger: Ledger, ago: timedelta, past: str, group: str = "order-service") -> None:
    ledger.samples.keep_pasts([KeptPast("orders", "main", "orders", group, NOW - ago, past, "")])


def make_known(ago: timedelta) -> str:
    """A past that the samples of the ledger do not show."""
    return dump_past(make_history([take(ago, 7, 900)]))


def test_only_later_samples_are_gone_through(ledger: Ledger) -> None:
    samples = [take(timedelta(minutes=n), 100 - n, 900) for n in (30, 5, 4, 1)]
    ledger.samples.add_all([(one, False) for one in samples])
    assert read_pasts(ledger, [STREAM])["orders"].history.partitions[0].committed == 99
    keep(ledger, timedelta(minutes=3), make_known(timedelta(minutes=3)))
    found = read_pasts(ledger, [STREAM])["orders"]
    marks = found.history.partitions[0]
    # From 7 to 99, and at 7 before: none of the ledger's older samples.
    assert (marks.committed, marks.moved_at) == (99, samples[-1].taken_at)
    assert marks.rests == timedelta(0)
    assert [one.taken_at for one in found.samples] == [one.taken_at for one in samples[1:]]


@pytest.mark.parametrize(
    ("ago", "past", "group"),
    [
        (timedelta(minutes=3), make_known(timedelta(minutes=3)), "another"),
        (timedelta(hours=7), make_known(timedelta(hours=7)), "order-service"),
        (
            timedelta(minutes=3),
            '{"partitions": {"0": {"pace": "of another version"}}}',
            "order-service",
        ),
    ],
    ids=["of another group", "too old", "in another form"],
)
def test_one_that_does_not_fit_is_left(
    ledger: Ledger, ago: timedelta, past: str, group: str
) -> None:
    samples = [take(timedelta(minutes=n), 100 - n, 900) for n in (40, 1)]
    ledger.samples.add_all([(one, False) for one in samples])
    keep(ledger, ago, past, group)
    assert read_pasts(ledger, [STREAM])["orders"].history == make_history(samples)


def test_one_of_some_hours_ago_goes_on_with_all_samples_since(ledger: Ledger) -> None:
    samples = [take(timedelta(hours=n), 100 - n, 900) for n in (5, 3, 2)]
    ledger.samples.add_all([(one, False) for one in samples])
    keep(ledger, timedelta(hours=4), make_known(timedelta(hours=4)))
    marks = read_pasts(ledger, [STREAM])["orders"].history.partitions[0]
    assert (marks.committed, marks.moved_at) == (98, samples[-1].taken_at)
    assert marks.rests == timedelta(hours=1)


def test_a_rhythm_is_learned_once(ledger: Ledger) -> None:
    away = replace(take(timedelta(0), 10, 50), group_state="empty")
    rhythm = Rhythm(5, 3_600.0, 3_700.0, NOW + timedelta(minutes=20))
    known = ((("main", "orders", "order-service"), "id-1", (10,)), rhythm)
    book, other = RhythmBook(ledger), RhythmBook(ledger)
    book._known["orders"] = known
    assert other.find(STREAM, away) is None
    other.recall("orders", book.dump("orders"))
    assert other.find(STREAM, away) == rhythm
    other.recall("orders", "of another version")
    assert other.find(STREAM, away) == rhythm
    assert other.find(STREAM, replace(away, taken_at=NOW + timedelta(hours=1))) is None


@pytest.mark.parametrize(
    ("committed", "oldest"),
    [
        (100, timedelta(minutes=15)),  # all is read
        (60, timedelta(hours=5)),  # written within six hours
        (20, timedelta(hours=40)),  # and within two days
        (0, timedelta(days=6)),
        (-1, timedelta(minutes=15)),  # no sample is old enough: none but the window's is read
    ],
)
def test_samples_are_read_as_far_back_as_they_date_something(
    ledger: Ledger, committed: int, oldest: timedelta
) -> None:
    ends = {
        timedelta(days=6): 0,
        timedelta(hours=40): 20,
        timedelta(hours=5): 60,
        timedelta(minutes=15): 100,
    }
    samples = [take(ago, 0, high) for ago, high in ends.items()]
    ledger.samples.add_all([(one, False) for one in samples])
    now = take(timedelta(0), committed, 100)
    alone = read_timeline(ledger, STREAM, now)
    assert alone[0].taken_at == NOW - oldest
    past = read_pasts(ledger, [STREAM])["orders"]
    known = read_timeline(ledger, STREAM, now, known=(past.samples, past.since, past.first))
    assert known[-len(alone) :] == alone


def test_a_watch_keeps_what_it_has_seen(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger
) -> None:
    name = topic(partitions=2)
    publish(properties, name, {0: 9, 1: 9})
    commit(properties, group, name, {0: 4})
    stream = StreamStub(name, group)
    config: Any = ConfigStub(
        {"main": ClusterStub(properties["bootstrap.servers"])}, {"orders": stream}
    )
    seen: list[StreamHistory] = []

    def look(rounds: int) -> None:
        watch_streams(
            *(config, ledger, timedelta(milliseconds=10), threading.Event()),
            lambda observation: seen.append(observation.history),
            rounds=rounds,
        )

    look(2)
    (kept,) = ledger.samples.kept_pasts(["orders"])
    assert (kept.topic, kept.group, kept.taken_at) == (name, group, seen[-1].taken_at)
    past = parse_past(kept.past)
    assert past is not None
    assert past.partitions[0] == seen[-1].partitions[0]
    assert past.partitions[0].committed == 4
    # The next one goes on from there.
    commit(properties, group, name, {0: 6})
    look(1)
    assert seen[-1].partitions[0].ends[0] == past.partitions[0].ends[0]
    assert datetime.now(UTC) - seen[-1].partitions[0].ends[0][0] < timedelta(minutes=5)
