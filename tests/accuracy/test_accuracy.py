"""`make accuracy` in small; the simulation is what it says, and the oracle can fail."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.ledger import open_ledger, upgrade
from backlogctl.monitoring.watch.look import HORIZON
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Bookmark, Sample
from backlogctl_delivery.sequenced.clients import hash_murmur2
from tests.accuracy.measure import run_scenario
from tests.accuracy.planning import Measured, Method, find_broken, list_handled
from tests.accuracy.scenarios import (
    BEGIN,
    PARTITIONS,
    SCENARIOS,
    Judgement,
    Scenario,
    Shape,
    Staged,
    judge,
    list_lost,
)
from tests.accuracy.traffic import Traffic, simulate
from tests.accuracy.watching import (
    CLUSTER,
    GROUP,
    STREAM,
    Placed,
    Sampling,
    place,
    thin_bookmarks,
    thin_samples,
    watch,
)
from tests.kit.services import Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make_measured(
    scenario: str = "tight", verdict: str = "exact", *, missed: int = 0, doubled: int = 0
) -> Measured:
    judgement = Judgement(
        lost=900, staged=900 - missed + doubled, missed=missed, gone=0, doubled=doubled,
        unsent=0, misplaced=0, altered=0,
        unlisted=0 if verdict == "within" else missed + doubled,
    )  # fmt: skip
    return Measured(scenario, *BEST, verdict, judgement, 0, "", (), 1.0)


BEST = (Sampling.ALWAYS, Method.BOOKMARKS)


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("long", BEST),
        ("control", BEST),
        # Rows that are gone make counting wrong: the plan has to see it.
        ("deleted", (Sampling.AFTERWARDS, Method.COUNTING)),
    ],
)
def test_a_plan_misses_and_doubles_no_more_than_is_promised(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    postgres: Postgres,
    tmp_path: Path,
    name: str,
    plan: tuple[Sampling, Method],
) -> None:
    found = list(
        run_scenario(
            spark, kafka.bootstrap, postgres, SCENARIOS[name],
            seed=7, shape=Shape(2_400), plans=[plan], scratch=tmp_path,
        )
    )  # fmt: skip
    assert find_broken(found) == []
    (measured,) = found
    assert measured.judgement.lost > 500
    assert measured.judgement.misplaced == 0
    assert measured.evidence


def test_a_broken_promise_is_seen() -> None:
    good = make_measured()
    assert find_broken([good]) == []
    assert "says exact" in find_broken([make_measured(missed=1)])[0]
    assert "1 missed" in find_broken([make_measured(verdict="within", missed=1)])[0]
    assert "3 doubled" in find_broken([make_measured("loose", "within", doubled=3)])[0]
    assert find_broken([make_measured("loose", "within", doubled=2)]) == []
    assert "refused" in find_broken([make_measured(verdict="refused")])[0]


SMALL = Shape(900)
seeds = st.integers(0, 2**32 - 1)


def place_by(traffic: Traffic, sampling: Sampling) -> Placed:
    return place(traffic, watch(traffic, sampling, "topic", "topic-id").bookmarks, "topic-id")


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        ("tight", Sampling.ALWAYS),
        ("tight", Sampling.TEN_MINUTES),
        ("tight", Sampling.AFTERWARDS),
        ("one", Sampling.ALWAYS),
        ("one", Sampling.AFTERWARDS),
        ("control", Sampling.ALWAYS),
        ("control", Sampling.TEN_MINUTES),
    ],
)
@given(seed=seeds)
def test_in_order_exactly_the_lost_rows_are_taken(name: str, sampling: Sampling, seed: int) -> None:
    traffic = simulate(SCENARIOS[name], SMALL, seed)
    assert place_by(traffic, sampling).likely == list_lost(traffic)


@pytest.mark.parametrize("name", ["loose", "long"])
@given(seed=seeds)
def test_out_of_order_only_such_rows_are_missed_and_what_is_doubled_shows(
    name: str, seed: int
) -> None:
    """A row that is held up may be missed itself; the bookmark of one is off by its places, and
    then the partition has more rows than it lost offsets."""
    traffic = simulate(SCENARIOS[name], SMALL, seed)
    likely, lost = place_by(traffic, Sampling.ALWAYS).likely, list_lost(traffic)
    held_up = traffic.events.sent - traffic.events.created > 1_000_000
    assert len(lost - likely) <= held_up.sum()
    for number, (start, end) in traffic.list_lost().items():
        here = {event for event in likely if traffic.events.partition[event] == number}
        if len(here) <= end - start:
            assert len(here - lost) <= held_up.sum()


@given(seed=seeds)
def test_rows_that_are_gone_are_never_said_to_be_exact(seed: int) -> None:
    """Where counting may be wrong, the plan has rows that it lists."""
    traffic = simulate(SCENARIOS["deleted"], SMALL, seed)
    placed = place_by(traffic, Sampling.AFTERWARDS)
    if placed.likely != list_lost(traffic):
        assert placed.listed


SMALLER = Shape(600)
scenarios = st.sampled_from(list(SCENARIOS.values()))


def stage_all(traffic: Traffic, events: list[int]) -> list[Staged]:
    return [Staged(event, int(traffic.events.partition[event]), True) for event in events]


@given(scenarios, seeds)
def test_each_message_is_handled_lost_or_there_and_only_one_of_them(
    scenario: Scenario, seed: int
) -> None:
    traffic = simulate(scenario, SMALLER, seed)
    handled = set(list_handled(traffic))
    lost = {
        int(event)
        for number, (start, end) in traffic.list_lost().items()
        for event in traffic.logs[number].event[start:end]
        if event >= 0
    }
    there = {
        int(event)
        for number, log in enumerate(traffic.logs)
        for event in log.event[
            max(
                traffic.find_low(number, traffic.end), traffic.find_committed(number, traffic.end)
            ) :
        ]
        if event >= 0
    }
    sent = set(np.flatnonzero(traffic.events.sent >= 0).tolist())
    assert handled | lost | there == sent
    assert len(handled) + len(lost) + len(there) == len(sent)
    assert list_lost(traffic) <= lost


@given(scenarios, seeds)
def test_keys_go_where_javas_clients_send_them(scenario: Scenario, seed: int) -> None:
    events = simulate(scenario, SMALLER, seed).events
    for event in range(0, len(events), 37):
        key = events.key_of(event)
        if key is not None:
            placed = (hash_murmur2(key.encode()) & 0x7FFFFFFF) % PARTITIONS
            assert placed == events.partition[event]


@given(scenarios, seeds)
def test_the_oracle_counts_what_is_wrong(scenario: Scenario, seed: int) -> None:
    traffic = simulate(scenario, SMALLER, seed)
    lost, handled = sorted(list_lost(traffic)), list_handled(traffic)
    assert len(lost) > 2
    assert judge(traffic, stage_all(traffic, lost)).is_faultless
    short = judge(traffic, stage_all(traffic, lost[1:]))
    assert (short.missed, short.unlisted) == (1, 1)
    assert judge(traffic, stage_all(traffic, lost[1:]), {lost[0]}).unlisted == 0
    assert judge(traffic, stage_all(traffic, [*lost, lost[0]])).doubled == 1
    assert judge(traffic, stage_all(traffic, [*lost, handled[0]])).doubled == 1
    keyed = next(event for event in lost if traffic.events.key[event] >= 0)
    others = stage_all(traffic, [event for event in lost if event != keyed])
    assert judge(traffic, [Staged(keyed, -1, True), *others]).misplaced == 1
    other = [Staged(lost[0], int(traffic.events.partition[lost[0]]), False)]
    assert judge(traffic, other + stage_all(traffic, lost[1:])).altered == 1


def test_the_oracle_counts_rows_that_were_never_sent_and_those_that_are_gone() -> None:
    unsent = simulate(SCENARIOS["unsent"], Shape(3_000), 7)
    never = int(np.flatnonzero(unsent.events.sent < 0)[0])
    judged = judge(unsent, stage_all(unsent, [*list_lost(unsent), never]))
    assert (judged.unsent, judged.doubled, judged.is_faultless) == (1, 0, False)
    deleted = simulate(SCENARIOS["deleted"], Shape(3_000), 7)
    there = [event for event in list_lost(deleted) if not deleted.events.deleted[event]]
    judged = judge(deleted, stage_all(deleted, there))
    assert judged.missed == judged.gone > 0
    assert judged.unlisted == 0


def test_a_seed_is_the_same_traffic() -> None:
    first, again, other = (simulate(SCENARIOS["loose"], SMALLER, seed) for seed in (7, 7, 8))
    assert first.events.ids == again.events.ids
    assert first.list_lost() == again.list_lost()
    assert first.events.ids != other.events.ids


@pytest.mark.parametrize("name", SCENARIOS)
def test_samples_never_go_back_and_bookmarks_are_at_the_commits(name: str) -> None:
    traffic = simulate(SCENARIOS[name], SMALLER, 7)
    watched = watch(traffic, Sampling.ALWAYS, "topic", "topic-id")
    for before, after in pairwise(watched.history):
        assert before.taken_at < after.taken_at
        for old, new in zip(before.partitions, after.partitions, strict=True):
            assert (old.low, old.committed or 0, old.lso, old.high) <= (
                new.low, new.committed or 0, new.lso, new.high,
            )  # fmt: skip
            assert new.committed is not None
            assert max(new.low, new.committed) <= new.lso <= new.high
    gaps = {gap.partition: gap for gap in watched.gaps}
    marks = {(mark.partition, mark.committed) for mark in watched.bookmarks}
    assert gaps
    assert marks >= {(gap.partition, gap.start) for gap in gaps.values()}
    for gap in watched.gaps:
        assert gap.first_time is not None
        assert gap.last_time is not None


def test_without_early_samples_no_loss_is_dated() -> None:
    traffic = simulate(SCENARIOS["tight"], SMALLER, 7)
    late = watch(traffic, Sampling.AFTERWARDS, "topic", "topic-id")
    assert not late.is_dated
    assert not late.bookmarks
    assert len(late.history) == 1
    ten = watch(traffic, Sampling.TEN_MINUTES, "topic", "topic-id")
    assert not ten.is_dated
    assert {(mark.partition, mark.committed) for mark in ten.bookmarks} == {
        (gap.partition, gap.start) for gap in ten.gaps
    }


def test_the_past_is_thinned_as_the_ledger_thins_it(tmp_path: Path) -> None:
    now = BEGIN + timedelta(hours=3)
    times = [BEGIN + timedelta(minutes=minute) for minute in range(0, 181, 3)]
    samples = [Sample(STREAM, CLUSTER, "topic", GROUP, "topic-id", at, (), "", 0.0) for at in times]
    marks = [(at, Bookmark(i % 2, i, i, "digest")) for i, at in enumerate(times)]
    url = f"sqlite:///{tmp_path}/ledger.db"
    upgrade(url)
    with open_ledger(url) as ledger:
        for sample, (at, mark) in zip(samples, marks, strict=True):
            ledger.samples.add(sample)
            ledger.bookmarks.add(STREAM, GROUP, "topic-id", [mark], at)
        ledger.samples.thin(now, HORIZON)
        ledger.bookmarks.thin(now, HORIZON)
        kept = ledger.samples.history(STREAM)
        assert [item.taken_at for item in thin_samples(samples, now)] == [
            item.taken_at for item in kept
        ]
        assert thin_bookmarks(marks, now) == ledger.bookmarks.list(STREAM, GROUP, "topic-id")
    assert 21 <= len(kept) < len(samples)
