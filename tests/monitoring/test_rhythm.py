"""Jobs that come by, on a simulated clock: nothing of theirs is a loss, and when they come is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from backlogctl.ledger import Ledger
from backlogctl.ledger.samples import list_thinned
from backlogctl.monitoring.offsets.gaps import find_gaps, make_history
from backlogctl.monitoring.offsets.rhythm import RhythmBook, learn_rhythm
from backlogctl.monitoring.verdict.status import GroupStatus, Retention, Verdict
from backlogctl.monitoring.watch.look import StreamContext, assess_stream, look_at_stream
from backlogctl.values import PartitionSample, Sample
from tests.kit.kafka import StreamStub, publish, set_offsets_raw
from tests.monitoring.live_watch import WATCH, look

START = datetime(2026, 11, 16, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
TICK, THIN_EACH, LOOK_EACH = timedelta(seconds=30), timedelta(hours=1), timedelta(minutes=10)
HORIZON = timedelta(hours=24)
WELL = (Verdict.OK, Verdict.LAGGING)


@dataclass(frozen=True)
class Job:
    """When it comes, for how long it reads, and what it leaves; two partitions are written evenly,
    one of them once in a while."""

    comes: Callable[[datetime], bool]
    leaves: int = 0
    retention: timedelta = 7 * DAY
    rate: float = 10.0
    joins: bool = True

    def run(self, days: float) -> Iterator[Sample]:
        """A sample each half minute."""
        at, commits = START, [0, 0]
        while at < START + days * DAY:
            at += TICK
            seconds = (at - START).total_seconds()
            ends = [int(seconds * self.rate), int(seconds // 5_400)]
            kept = max(0.0, seconds - self.retention.total_seconds())
            lows = [int(kept * self.rate), int(kept // 5_400)]
            here = self.comes(at)
            if here:
                commits = [
                    max(old, end - self.leaves) for old, end in zip(commits, ends, strict=True)
                ]
            yield Sample(
                *("orders", "main", "orders", "job", "id-1", at),
                tuple(
                    PartitionSample(number, lows[number], commits[number], end, end)
                    for number, end in enumerate(ends)
                ),
                ("stable" if here else "empty") if self.joins else "simple",
            )


def is_hourly(at: datetime) -> bool:
    """Five minutes past, for between one and four minutes."""
    return 300 <= at.timestamp() % 3_600 < 360 + 60 * Random(at.hour).randint(0, 3)


def is_nightly(at: datetime) -> bool:
    """About half past two, for half an hour."""
    begins = 2 * 3_600 + 1_800 + 60 * Random(at.day).randint(0, 20)
    return begins <= at.timestamp() % 86_400 < begins + 1_800


def watch(job: Job, days: float) -> Iterator[tuple[GroupStatus, list[Sample]]]:
    """What is told every ten minutes, from samples thinned as the ledger thins them; that no sample
    is a gap, or a doubt that stays."""
    known: list[Sample] = []
    history = make_history(())
    for sample in job.run(days):
        judged = find_gaps(history, sample)
        history = judged.history
        assert not judged.gaps, sample
        known.append(sample)
        since = (sample.taken_at - START).total_seconds()
        if since % THIN_EACH.total_seconds() == 0:
            rows = [(number, one.taken_at, "") for number, one in enumerate(known)]
            young = [row for row in rows if sample.taken_at - row[1] > timedelta(hours=1)]
            gone = set(list_thinned(young, sample.taken_at, HORIZON))
            known = [one for number, one in enumerate(known) if number not in gone]
        if since % LOOK_EACH.total_seconds() == 0:
            around = StreamContext(
                retention=Retention(job.retention), rhythm=learn_rhythm(known, "unknown")
            )
            yield assess_stream(sample, "unknown", known[:-1], (), around), known


@pytest.mark.parametrize(
    ("job", "known_after"),
    [
        (Job(is_hourly), 6 * HOUR),
        (Job(is_hourly, joins=False), 6 * HOUR),
        (Job(is_hourly, retention=6 * HOUR), 6 * HOUR),
        (Job(is_nightly), 5 * DAY),
    ],
    ids=["hourly", "hourly, assigns", "hourly, kept for 6 h", "nightly"],
)
def test_a_week_of_a_job_has_no_false_word(job: Job, known_after: timedelta) -> None:
    promised: list[tuple[datetime, int]] = []
    learned = 0
    for status, known in watch(job, 7):
        for part in known[-1].partitions[:1]:
            kept = [one for one in promised if one[0] >= known[-1].taken_at]
            assert all(
                (part.committed or 0) >= end for due, end in promised if due < known[-1].taken_at
            )
            promised = kept
        if status.rhythm is not None:
            learned += 1
            promised.append((status.rhythm.due, known[-1].partitions[0].high))
        if known[-1].taken_at - START > known_after:
            assert status.verdict in WELL, status.sentence
    assert learned > 100


def test_what_is_said_of_it() -> None:
    *_, (status, _) = watch(Job(is_hourly, retention=6 * HOUR), 0.99)
    assert status.verdict is Verdict.LAGGING
    assert status.rhythm is not None
    assert 3_000 < status.rhythm.every_at_least <= status.rhythm.every_at_most < 4_200
    assert "behind, its job is away; it came 13 times, every " in status.sentence
    assert "and is due within " in status.sentence
    assert "; retention reaches it in " in status.sentence
    assert status.to_json()["rhythm"]["times"] == 12
    assert status.seconds_to_loss is None


def test_of_one_that_has_read_all_nothing_is_due() -> None:
    *_, (_, known) = watch(Job(is_hourly), 0.5)
    around = StreamContext(rhythm=learn_rhythm(known, "unknown"))
    assert around.rhythm is not None
    parts = tuple(replace(part, committed=part.high) for part in known[-1].partitions)
    told = assess_stream(replace(known[-1], partitions=parts), "unknown", (), (), around)
    assert (told.verdict, told.rhythm) == (Verdict.OK, None)


def test_a_job_that_comes_too_late_loses_and_it_is_told_before() -> None:
    """It comes each hour; half an hour later all of it would be gone, since retention was lowered."""
    told = []
    for _, known in watch(Job(is_hourly), 0.8):
        rhythm = learn_rhythm(known, "unknown")
        around = StreamContext(retention=Retention(HOUR / 2), rhythm=rhythm)
        told.append(assess_stream(known[-1], "unknown", known[:-1], (), around))
    late = told[-30:]
    assert any(one.rhythm is not None and (one.seconds_to_loss or 0) > 0 for one in late)
    for one in late:
        if one.rhythm is not None and one.seconds_to_loss is not None:
            assert one.seconds_to_loss <= (one.rhythm.due - one.taken_at).total_seconds()


def test_one_that_is_late_has_stopped() -> None:
    ends = START + 10 * HOUR
    job = Job(lambda at: at < ends and is_hourly(at))
    told = [status for status, _ in watch(job, 0.6)]
    by_hour = {n: [one for one in told if one.taken_at - START > n * HOUR] for n in (10, 12)}
    assert any(one.rhythm is not None for one in by_hour[10])
    assert {one.verdict for one in by_hour[12]} == {Verdict.STOP}


@pytest.mark.parametrize(
    "job",
    [
        Job(lambda at: is_hourly(at) and at.hour not in (3, 4, 5, 11, 12)),
        Job(is_hourly, leaves=3_000),
        Job(lambda at: False),
        Job(lambda at: True),
    ],
    ids=["irregular", "leaves some", "never", "always"],
)
def test_no_rhythm_is_made_up(job: Job) -> None:
    found = [status.rhythm for status, _ in watch(job, 0.6)]
    assert found[-1] is None


def test_it_is_learned_from_the_ledger_and_anew_after_a_visit(ledger: Ledger) -> None:
    stream = StreamStub("orders", "job", name="orders")
    samples = list(Job(is_hourly).run(0.4))
    ledger.samples.add_all([(one, False) for one in samples[::10]])
    book = RhythmBook(ledger)
    away = samples[-1]
    assert away.group_state == "empty"
    first = book.find(stream, away)
    assert first is not None
    assert first.due > away.taken_at
    assert book.find(stream, away) is first


def test_status_tells_it_of_a_real_group(
    properties: dict[str, str], topic: Callable[..., str], group: str, ledger: Ledger
) -> None:
    """Its last visit is twenty minutes ago; what came since is unread."""
    name = topic(partitions=1, config={"retention.ms": "86400000"})
    publish(properties, name, {0: 60})
    set_offsets_raw(properties, group, name, {0: 52})
    stream = StreamStub(name, group)
    now = look_at_stream(ledger, stream, properties, WATCH).observation.sample
    for minutes in range(360, 0, -5):
        reached = 52 - 5 * ((minutes + 39) // 60)  # it came each hour, and read all
        end = reached + 5 * (minutes % 60 != 20)
        part = replace(now.partitions[0], committed=reached, lso=end, high=end)
        ledger.samples.add(
            replace(now, taken_at=now.taken_at - timedelta(minutes=minutes), partitions=(part,))
        )
    told = look(ledger, properties, stream)
    assert told.rhythm is not None
    assert (told.verdict, told.lag) == (Verdict.LAGGING, 8)
    assert ", its job is away; it came 5 times, every 1 h, and is due within " in told.sentence
