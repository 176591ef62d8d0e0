"""What a watch keeps of a stream's past for whoever looks next, and how far back samples are read."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from backlogctl.clock import utc_now
from backlogctl.ledger import Ledger
from backlogctl.ledger.samples import KeptPast
from backlogctl.monitoring.offsets.gaps import find_gaps, make_history
from backlogctl.monitoring.offsets.history import StreamHistory, dump_past, parse_past
from backlogctl.monitoring.offsets.pasts import PastReader, keep_past, read_pasts
from backlogctl.monitoring.offsets.rhythm import Rhythm, RhythmBook
from backlogctl.monitoring.offsets.timeline import KnownSamples, read_timeline
from backlogctl.monitoring.watch.look import look_at_stream
from backlogctl.monitoring.watch.loop import watch_streams
from backlogctl.values import Cause, PartitionSample, Sample
from tests.conftest import MakeTopic
from tests.kit.kafka import StreamStub, commit, publish
from tests.monitoring.live_watch import WATCH, make_config
from tests.monitoring.test_gaps import Model

STREAM = StreamStub("orders", "order-service", name="orders")


def take(ago: timedelta, committed: int, high: int) -> Sample:
    return Sample(
        *("orders", "main", "orders", "order-service", "id-1", utc_now() - ago),
        (PartitionSample(0, 0, committed, high, high),),
        "stable",
    )


def follow(model: Model, seconds: int) -> list[Sample]:
    taken = []
    for _ in range(seconds):
        model.pass_second()
        if model.second % 5 == 0:
            taken.append(model.sample())
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


def make_known(ago: timedelta) -> KeptPast:
    """A past that the samples of the ledger do not show."""
    kept = keep_past(STREAM, make_history([take(ago, 7, 900)]), "")
    assert kept is not None
    return kept


def test_only_later_samples_are_gone_through(ledger: Ledger) -> None:
    samples = [take(timedelta(minutes=n), 100 - n, 900) for n in (30, 5, 4, 1)]
    ledger.samples.add_all([(one, False) for one in samples])
    assert read_pasts(ledger, [STREAM])["orders"].history.partitions[0].committed == 99
    ledger.samples.keep_pasts([make_known(timedelta(minutes=3))])
    found = read_pasts(ledger, [STREAM])["orders"]
    marks = found.history.partitions[0]
    # From 7 to 99, and at 7 before: none of the ledger's older samples.
    assert (marks.committed, marks.moved_at) == (99, samples[-1].taken_at)
    assert marks.rests == timedelta(0)
    assert found.known.samples == tuple(samples[1:])
    # An older one, of a watch that has not reached the brokers, does not take its place.
    ledger.samples.keep_pasts([make_known(timedelta(minutes=9))])
    assert read_pasts(ledger, [STREAM])["orders"].history == found.history


def test_what_came_after_the_sample_is_not_its_past(ledger: Ledger) -> None:
    """Others store samples and pasts between a look at many streams and what is made of each."""
    samples = [take(timedelta(minutes=n), 100 - n, 900) for n in (5, 4, 1)]
    ledger.samples.add_all([(one, False) for one in samples])
    ledger.samples.keep_pasts([make_known(timedelta(minutes=2))])
    taken = take(timedelta(minutes=3), 97, 900)
    reader = PastReader(ledger, [STREAM], {"orders": taken})
    found = reader.take(STREAM)
    assert found.known.samples == tuple(samples[:2])
    assert found.history == make_history(samples[:2])
    # Of one that is looked at again, or was not among them, it is what is known now.
    again = reader.take(STREAM)
    assert again.history.partitions[0].committed == 99


def test_many_are_read_some_at_a_time(ledger: Ledger) -> None:
    streams = [StreamStub("orders", "order-service", f"orders-{n}") for n in range(120)]
    at = {one.name: replace(take(timedelta(0), 9, 9), stream=one.name) for one in streams}
    before = [
        (replace(take(timedelta(minutes=1), n, 9), stream=one.name), False)
        for n, one in enumerate(streams)
    ]
    ledger.samples.add_all(before)
    reader = PastReader(ledger, streams, at)
    for number in (0, 60, 1, 119, 61, 2, *range(3, 60), *range(62, 119)):
        found = reader.take(streams[number])
        assert found.history.partitions[0].committed == number
        assert len(found.known.samples) == 1


@pytest.mark.parametrize(
    "kept",
    [
        replace(make_known(timedelta(minutes=3)), group="another"),
        make_known(timedelta(hours=7)),
        replace(make_known(timedelta(minutes=3)), form="of another version"),
        replace(make_known(timedelta(minutes=3)), past="damaged"),
    ],
    ids=["of another group", "too old", "in another form", "damaged"],
)
def test_one_that_does_not_fit_is_left(ledger: Ledger, kept: KeptPast) -> None:
    samples = [take(timedelta(minutes=n), 100 - n, 900) for n in (40, 1)]
    ledger.samples.add_all([(one, False) for one in samples])
    ledger.samples.keep_pasts([kept])
    assert read_pasts(ledger, [STREAM])["orders"].history == make_history(samples)


def test_of_a_topic_that_was_made_anew_nothing_is_known(ledger: Ledger) -> None:
    ledger.samples.keep_pasts([make_known(timedelta(minutes=3))])
    past = read_pasts(ledger, [STREAM])["orders"].history
    anew = find_gaps(past, replace(take(timedelta(0), 2, 5), topic_id="id-2"))
    assert [gap.cause for gap in anew.gaps] == [Cause.TOPIC_RECREATED]
    assert anew.history.partitions[0].committed == 2


def test_one_of_some_hours_ago_goes_on_with_all_samples_since(ledger: Ledger) -> None:
    samples = [take(timedelta(hours=n), 100 - n, 900) for n in (5, 3, 2)]
    ledger.samples.add_all([(one, False) for one in samples])
    ledger.samples.keep_pasts([make_known(timedelta(hours=4))])
    marks = read_pasts(ledger, [STREAM])["orders"].history.partitions[0]
    assert (marks.committed, marks.moved_at) == (98, samples[-1].taken_at)
    assert marks.rests == samples[2].taken_at - samples[1].taken_at


def test_a_rhythm_is_learned_once(ledger: Ledger) -> None:
    away = replace(take(timedelta(0), 10, 50), group_state="empty")
    rhythm = Rhythm(5, 3_600.0, 3_700.0, away.taken_at + timedelta(minutes=20))
    known = ((("main", "orders", "order-service"), "id-1", (10,)), rhythm)
    book, other = RhythmBook(ledger), RhythmBook(ledger)
    book._known["orders"] = known
    assert other.find(STREAM, away) is None
    other.recall("orders", book.dump("orders"))
    assert other.find(STREAM, away) == rhythm
    other.recall("orders", "of another version")
    assert other.find(STREAM, away) == rhythm
    assert other.find(STREAM, replace(away, taken_at=away.taken_at + timedelta(hours=1))) is None


HISTORY = {
    timedelta(days=6): 1,
    timedelta(hours=40): 20,
    timedelta(hours=5): 60,
    timedelta(minutes=50): 90,
    timedelta(minutes=15): 100,
}


@pytest.mark.parametrize(
    ("part", "oldest"),
    [
        (PartitionSample(0, 0, 100, 100, 100), timedelta(minutes=15)),  # all is read
        (PartitionSample(0, 0, 99, 99, 100), timedelta(minutes=50)),  # a transaction is open
        (PartitionSample(0, 0, 60, 100, 100), timedelta(hours=5)),
        (PartitionSample(0, 0, 20, 100, 100), timedelta(hours=40)),
        (PartitionSample(0, 0, 1, 100, 100), timedelta(days=6)),
        (PartitionSample(0, 0, 0, 100, 100), timedelta(minutes=15)),  # no sample is old enough
        (PartitionSample(0, 70, 0, 100, 100), timedelta(hours=5)),  # from the log start on
        (PartitionSample(1, 0, 0, 5, 5), timedelta(minutes=15)),  # it was not there yet
    ],
)
def test_samples_are_read_as_far_back_as_they_date_something(
    ledger: Ledger, part: PartitionSample, oldest: timedelta
) -> None:
    samples = [take(ago, 0, high) for ago, high in HISTORY.items()]
    ledger.samples.add_all([(one, False) for one in samples])
    now = replace(take(timedelta(0), 0, 0), partitions=(part,))
    known = read_timeline(ledger, STREAM, now, known=KnownSamples((), now.taken_at, samples[0]))
    assert known[0] == samples[list(HISTORY).index(oldest)]
    assert known == tuple(samples[-len(known) :])
    # Who keeps them has them for a later sample too.
    kept = read_timeline(ledger, STREAM, now)
    assert kept == tuple(samples[-len(kept) :])
    assert len(kept) >= max(2, len(known))


def test_a_watch_keeps_what_it_has_seen(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger
) -> None:
    name = topic(partitions=2)
    publish(properties, name, {0: 9, 1: 9})
    commit(properties, group, name, {0: 4})
    stream = StreamStub(name, group)
    config = make_config(properties, stream)
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
    # The next one goes on from there, not from the samples.
    other = replace(past, partitions={0: replace(past.partitions[0], rests=timedelta(hours=3))})
    at = kept.taken_at + timedelta(microseconds=1)
    later = replace(kept, taken_at=at)
    ledger.samples.keep_pasts([replace(later, past=dump_past(other))])
    look(1)
    assert seen[-1].partitions[0].rests == timedelta(hours=3)
    told = look_at_stream(ledger, stream, properties, WATCH)
    assert told.observation.history.partitions[0].rests == timedelta(hours=3)
