"""Archives, bookmarks, chunks, holds, readings of disks and samples in the ledger."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import DBAPIError

from backlogctl.archive_manifest import ArchivedRange
from backlogctl.errors import InvalidTransition, Refused, UsageError
from backlogctl.ledger import ArchiveRecord, ChunkRecord, CommitMark, Hold, Ledger
from backlogctl.ledger.measurements import KEPT, AuditRecord, DiskReading
from backlogctl.ledger.samples import KeptPast
from backlogctl.values import LOG_START, Bookmark, Cause, ChunkState, Gap, GapState, RecoveryState
from tests.kernel.ledger.conftest import change
from tests.kit.ledger import NOON, bring_to, make_chunk, make_gap, make_sample, plan

S, R = GapState, RecoveryState
SHA = "a" * 64


def record(ledger: Ledger, recovery_id: str, sha256: str = SHA) -> ArchiveRecord:
    return ledger.archives.record(
        recovery_id,
        stream="orders",
        cluster="main",
        topic="orders",
        topic_id="topic-id",
        location="s3a://bucket/it",
        manifest_sha256=sha256,
        messages=90,
        bytes=1234,
        ranges=[ArchivedRange(0, 10, 100, 90, NOON, None)],
    )


def offload(ledger: Ledger) -> Gap:
    """A gap that waits in the archive of an offload that is verified."""
    recovery = bring_to(ledger, plan(ledger), R.APPROVED, R.RUNNING)
    seen = replace(make_gap(10, 100, cause=Cause.DISCARDED), archive=recovery.id)
    gap = ledger.gaps.record(seen)
    for state in (S.PLANNED, S.STAGED):
        ledger.gaps.advance([gap.id], state, recovery.id)
    ledger.recoveries.advance(recovery.id, R.VERIFIED, "ada")
    return ledger.gaps.get(gap.id)


def test_an_archive_comes_back_as_it_went_in(ledger: Ledger) -> None:
    recovery = plan(ledger)
    kept = record(ledger, recovery.id)
    assert kept == record(ledger, recovery.id) == ledger.archives.get(recovery.id)
    assert kept.ranges == (ArchivedRange(0, 10, 100, 90, NOON, None),)
    with pytest.raises(Refused, match="manifest differs"):
        record(ledger, recovery.id, "b" * 64)


def test_a_purged_archive_is_known_still(ledger: Ledger) -> None:
    recovery = plan(ledger)
    record(ledger, recovery.id)
    gone = ledger.archives.mark_purged(recovery.id, "ada")
    assert gone.purged_by == "ada"
    assert ledger.archives.mark_purged(recovery.id, "bob") == gone
    assert ledger.archives.list("orders", with_purged=False) == ()
    assert ledger.archives.list("orders") == (gone,)


def test_no_archive(ledger: Ledger) -> None:
    assert ledger.archives.find("r-1") is None
    for ask in (ledger.archives.get, lambda name: ledger.archives.mark_purged(name, "ada")):
        with pytest.raises(UsageError, match="no such archive"):
            ask("r-1")


def test_an_archived_gap_waits_until_somebody_puts_it_back(ledger: Ledger) -> None:
    gap = offload(ledger)
    assert (gap.state, gap.cause) == (S.STAGED, Cause.DISCARDED)
    assert ledger.gaps.list_waiting("orders") == (gap,)
    taking = plan(ledger, gap.id)
    assert ledger.gaps.get(gap.id).state is S.PLANNED
    assert ledger.gaps.list_waiting() == ()
    bring_to(ledger, taking, R.APPROVED, R.RUNNING)
    for state in (S.STAGED, S.INJECTED, S.VERIFIED):
        ledger.gaps.advance([gap.id], state, taking.id)
    ledger.recoveries.advance(taking.id, R.VERIFIED, "ada")
    with pytest.raises(InvalidTransition):
        plan(ledger, gap.id)


@pytest.mark.parametrize("state", [S.PLANNED, S.STAGED, S.INJECTED])
def test_an_archived_gap_waits_again_where_putting_it_back_is_cancelled(
    ledger: Ledger, state: GapState
) -> None:
    gap = offload(ledger)
    taking = bring_to(ledger, plan(ledger, gap.id), R.APPROVED, R.RUNNING)
    for step in (S.STAGED, S.INJECTED):
        if ledger.gaps.get(gap.id).state is not state:
            ledger.gaps.advance([gap.id], step, taking.id)
    ledger.recoveries.advance(taking.id, R.CANCELLED, "ada")
    assert ledger.gaps.list_waiting() == (gap,)
    again = plan(ledger, gap.id)
    superseding = plan(ledger, gap.id)
    assert ledger.recoveries.get(again.id).state is R.REJECTED
    assert ledger.gaps.get(gap.id).state is S.PLANNED
    assert ledger.recoveries.gap_ids(superseding.id) == (gap.id,)


def test_a_gap_of_another_recovery_is_not_taken(ledger: Ledger) -> None:
    gap = offload(ledger)
    taking = bring_to(ledger, plan(ledger, gap.id), R.APPROVED, R.RUNNING)
    ledger.gaps.advance([gap.id], S.STAGED, taking.id)
    with pytest.raises(InvalidTransition, match=taking.id):
        plan(ledger, gap.id)


def test_an_archived_gap_is_waived_when_its_archive_goes(ledger: Ledger) -> None:
    gap = offload(ledger)
    (waived,) = ledger.gaps.advance([gap.id], S.WAIVED, reason="its archive was purged")
    assert waived.state is S.WAIVED


HORIZON = timedelta(hours=24)
PLACE = ("orders", "orders-service", "topic-id")


def mark(committed: int, partition: int = 0, digest: str = "ab" * 16) -> Bookmark:
    return Bookmark(partition, committed, committed + 2, digest)


def note(ledger: Ledger, at: datetime, *marks: Bookmark) -> None:
    ledger.bookmarks.add(*PLACE, marks, at)


def list_commits(ledger: Ledger, partition: int = 0) -> list[int]:
    return [m.committed for m in ledger.bookmarks.list(*PLACE) if m.partition == partition]


def test_bookmarks_come_back_in_order_and_apart(ledger: Ledger) -> None:
    note(ledger, NOON, mark(7, 1), mark(2**40))
    note(ledger, NOON + timedelta(minutes=1), mark(3), mark(1, 1))
    ledger.bookmarks.add("invoices", "orders-service", "topic-id", [mark(5)], NOON)
    ledger.bookmarks.add("orders", "other", "topic-id", [mark(5)], NOON)
    ledger.bookmarks.add("orders", "orders-service", "recreated", [mark(5)], NOON)
    note(ledger, NOON)
    assert ledger.bookmarks.list(*PLACE) == (mark(3), mark(2**40), mark(1, 1), mark(7, 1))
    assert ledger.bookmarks.list("orders", "orders-service", "recreated") == (mark(5),)


def test_a_commit_that_has_a_bookmark_keeps_it(ledger: Ledger) -> None:
    note(ledger, NOON, mark(7))
    note(ledger, NOON, mark(7, digest="cd" * 16), mark(8, digest="cd" * 16))
    assert ledger.bookmarks.list(*PLACE) == (mark(7), mark(8, digest="cd" * 16))


def test_commits_that_have_one_are_found(ledger: Ledger) -> None:
    note(ledger, NOON, *(mark(100 + number, number) for number in range(0, 1200, 2)))
    commits = {number: 100 + number for number in range(1200)} | {0: 99}
    found = ledger.bookmarks.find_noted(*PLACE, commits)
    assert found == frozenset(range(2, 1200, 2))
    assert ledger.bookmarks.find_noted(*PLACE, {}) == frozenset()
    assert ledger.bookmarks.find_noted("orders", "other", "topic-id", commits) == frozenset()


def test_those_of_an_observation_are_one_statement(ledger: Ledger) -> None:
    statements: list[tuple[str, bool]] = []
    engine = ledger._database.writer
    event.listen(
        engine,
        "before_cursor_execute",
        lambda *call: statements.append((call[2].split()[0], call[5])),
    )
    note(ledger, NOON, *(mark(1, number) for number in range(5000)))
    assert [each for each in statements if each[0] != "BEGIN"] == [("INSERT", True)]
    assert len(ledger.bookmarks.list(*PLACE)) == 5000


def test_thinning_keeps_the_first_and_the_last_of_each_cell(ledger: Ledger) -> None:
    for minute in range(30 * 60):
        note(ledger, NOON - timedelta(minutes=minute), mark(10_000 - minute))
    deleted = ledger.bookmarks.thin(NOON, HORIZON)
    kept = [10_000 - committed for committed in list_commits(ledger)]
    assert deleted == 30 * 60 - len(kept)
    assert [age for age in kept if age <= 60] == list(range(60, -1, -1))
    # 12:00:00.1 is the first of its cell: [0, 5) of the hour's minutes, so 4 and 0 are kept.
    fine = [age for age in kept if 60 < age <= 24 * 60]
    assert {-age % 5 for age in fine} == {0, 4}
    assert len(fine) in (2 * 23 * 12, 2 * 23 * 12 - 1)
    coarse = [age for age in kept if age > 24 * 60]
    assert {-age % 60 for age in coarse[1:]} == {0, 59}
    assert ledger.bookmarks.thin(NOON, HORIZON) == 0


def test_thinning_goes_by_partition_and_keeps_the_newest(ledger: Ledger) -> None:
    old = NOON - timedelta(days=50)
    for number in range(4):
        note(ledger, old + timedelta(seconds=number), mark(number, 0), mark(number, 1))
    note(ledger, old + timedelta(days=48), *(mark(number, 2) for number in range(5)))
    assert ledger.bookmarks.thin(NOON, HORIZON) == 3 + 3 + 3
    assert [list_commits(ledger, number) for number in range(3)] == [[3], [3], [0, 4]]
    assert ledger.bookmarks.thin(NOON, timedelta(days=60)) == 0


@pytest.mark.parametrize("start", [22, 25])
def test_thinning_leaves_those_at_a_recorded_gap(ledger: Ledger, start: int) -> None:
    at = NOON - timedelta(days=40)
    for number in range(20, 30):
        note(ledger, at, mark(number), mark(number, 1))
    end = start + 2
    ledger.gaps.record(make_gap(start, end))
    ledger.gaps.record(make_gap(26, 28, topic_id="recreated"))
    ledger.bookmarks.thin(NOON, HORIZON)
    assert list_commits(ledger) == [start, end, 29]
    assert list_commits(ledger, 1) == [29]
    assert ledger.bookmarks.thin(NOON, HORIZON) == 0


def test_thinning_again_and_again_keeps_what_thinning_once_keeps(ledger: Ledger) -> None:
    for minute in range(0, 6 * 60, 2):
        now = NOON + timedelta(minutes=minute)
        note(ledger, now, mark(minute))
        ledger.bookmarks.thin(now, HORIZON)
    again = list_commits(ledger)
    for minute in range(0, 6 * 60, 2):
        note(ledger, NOON + timedelta(minutes=minute), mark(minute, 1))
    ledger.bookmarks.thin(NOON + timedelta(minutes=6 * 60 - 2), HORIZON)
    assert again == list_commits(ledger, 1)


def test_chunks_are_kept_and_marked_once(ledger: Ledger) -> None:
    recovery = plan(ledger)
    chunks = [make_chunk(slot, number) for slot in (0, 1) for number in (0, 3)]
    ledger.chunks.add_all(recovery.id, reversed(chunks))
    ledger.chunks.add_all(recovery.id, chunks)
    assert ledger.chunks.list(recovery.id) == tuple(
        ChunkRecord(chunk, ChunkState.STAGED) for chunk in chunks
    )
    assert ledger.chunks.mark_injected(recovery.id, 1, 3, 2**40, 2**40 + 499)
    assert ledger.recoveries.get(recovery.id).injected == 500, "in the same transaction"
    assert not ledger.chunks.mark_injected(recovery.id, 1, 3, 1, 2), "the first word stays"
    assert ledger.recoveries.get(recovery.id).injected == 500
    last = ledger.chunks.list(recovery.id)[-1]
    assert (last.state, last.first_offset, last.last_offset) == (
        ChunkState.INJECTED,
        2**40,
        2**40 + 499,
    )
    assert last.injected_at is not None
    with pytest.raises(UsageError, match="no such chunk"):
        ledger.chunks.mark_injected(recovery.id, 9, 9)


def test_chunk_is_not_replaced_by_another(ledger: Ledger, raw: Engine) -> None:
    recovery = plan(ledger)
    chunk = make_chunk(0, 0)
    ledger.chunks.add_all(recovery.id, [chunk])
    with pytest.raises(Refused, match="different content"):
        ledger.chunks.add_all(recovery.id, [make_chunk(0, 1), replace(chunk, sha256="cd" * 32)])
    assert len(ledger.chunks.list(recovery.id)) == 1
    ledger.chunks.mark_injected(recovery.id, 0, 0)
    for statement in (
        "UPDATE backlog_chunks SET sha256 = 'x'",
        "UPDATE backlog_chunks SET state = 'staged'",
        "DELETE FROM backlog_chunks",
    ):
        with pytest.raises(DBAPIError, match="backlog refuses"):
            change(raw, statement)


MS, BYTES = "retention.ms", "retention.bytes"


def hold(
    ledger: Ledger,
    holder: str = "operator",
    *,
    old: str | None = "1000",
    raised: str = "5000",
    until: datetime | None = None,
    topic_id: str = "topic-id",
    seen: tuple[str, ...] | None = None,
) -> Hold:
    return ledger.holds.begin(
        stream="orders",
        cluster="main",
        topic="orders",
        topic_id=topic_id,
        holder=holder,
        old={MS: old, BYTES: None},
        raised={MS: raised, BYTES: "-1"},
        until=until,
        actor="ada",
        seen=seen,
    )


def test_hold_comes_back_as_it_went_in(ledger: Ledger) -> None:
    made = hold(ledger, until=NOON)
    assert ledger.holds.get(made.id) == made
    assert (made.old, made.raised) == ({MS: "1000", BYTES: None}, {MS: "5000", BYTES: "-1"})
    assert (made.until, made.released_at, made.holder) == (NOON, None, "operator")
    assert ledger.holds.list() == ledger.holds.list(stream="orders") == (made,)
    assert ledger.holds.list(stream="invoices") == ledger.holds.list(holder="r-1") == ()
    with pytest.raises(UsageError, match="no such hold"):
        ledger.holds.get("h-1")


def test_second_holder_takes_the_first_values_over(ledger: Ledger) -> None:
    first = hold(ledger)
    second = hold(ledger, "r-1", old="5000", raised="-1")
    assert second.old == {MS: "1000", BYTES: None}
    assert second.raised[MS] == ledger.holds.get(first.id).raised[MS] == "-1", (
        "one topic, one value"
    )
    assert second.earlier == {MS: ("5000",)}
    ledger.holds.release(first.id)
    third = hold(ledger, old="-1", raised="2000")
    assert third.id not in (first.id, second.id)
    assert (third.old[MS], third.raised[MS]) == ("1000", "-1"), "never lower than another needs"
    assert ledger.holds.list_of_topic("main", "orders", "topic-id") == (
        ledger.holds.get(second.id),
        third,
    )


def test_same_holder_moves_the_end_and_keeps_the_first_values(ledger: Ledger) -> None:
    first = hold(ledger, until=NOON)
    later = hold(ledger, old="5000", raised="9000", until=NOON + timedelta(hours=1))
    assert (later.id, later.until) == (first.id, NOON + timedelta(hours=1))
    assert (later.old[MS], later.raised[MS], later.earlier[MS]) == ("1000", "9000", ("5000",))
    again = hold(ledger, old="9000", raised="9000", until=NOON)
    assert (again.until, again.earlier) == (NOON, later.earlier)
    assert len(ledger.holds.list()) == 1


def test_topic_of_the_same_name_with_another_id_has_its_own_values(ledger: Ledger) -> None:
    hold(ledger)
    assert hold(ledger, old="7", topic_id="another").old[MS] == "7"


def test_hold_that_began_while_settings_were_read_is_told(ledger: Ledger) -> None:
    first = hold(ledger, seen=())
    with pytest.raises(Refused) as caught:
        hold(ledger, "r-1", old="5000", seen=())
    assert caught.value.retryable
    assert hold(ledger, "r-1", old="5000", seen=(first.id,)).old[MS] == "1000"


def test_due_and_released_holds(ledger: Ledger) -> None:
    made = hold(ledger, until=NOON)
    hold(ledger, "r-1")
    assert ledger.holds.due(NOON - timedelta(seconds=1)) == ()
    assert [one.id for one in ledger.holds.due(NOON)] == [made.id], "without an end it is never due"
    released = ledger.holds.release(made.id)
    assert released.released_at is not None
    assert ledger.holds.release(made.id) == released
    assert ledger.holds.due(NOON) == ()
    assert len(ledger.holds.list(open_only=False)) == 2
    with pytest.raises(UsageError):
        ledger.holds.release("h-1")


def test_last_of_several_holds_is_not_released_before_kafka_was_given_back(ledger: Ledger) -> None:
    first, second = hold(ledger), hold(ledger, "r-1")
    assert ledger.holds.release_shared(first.id)
    assert ledger.holds.release_shared(first.id), "once more"
    assert not ledger.holds.release_shared(second.id)
    assert ledger.holds.list() == (ledger.holds.get(second.id),)


def read(minutes: float, broker: int = 1, cluster: str = "main") -> DiskReading:
    at = NOON - timedelta(minutes=minutes)
    return DiskReading(cluster, at, broker, 100, 1000, "orders", 7)


def test_readings_come_back_as_they_went_in(ledger: Ledger) -> None:
    unknown = DiskReading("main", NOON, 2, None, None)
    ledger.disks.add([read(5), read(1), unknown, read(1, cluster="other")])
    ledger.disks.add([])
    assert ledger.disks.history("main") == (read(5), read(1), unknown)
    assert ledger.disks.history("main", NOON - timedelta(minutes=1)) == (read(1), unknown)


def test_old_readings_are_thinned_once(ledger: Ledger) -> None:
    ledger.disks.add(read(minutes) for minutes in range(300))
    ledger.disks.add([read(299, broker=2), read(60 * 24 * 40)])
    horizon = timedelta(hours=24)
    assert ledger.disks.thin(NOON, horizon) > 150
    assert ledger.disks.thin(NOON, horizon) == 0
    left = ledger.disks.history("main")
    assert sum(NOON - one.at <= timedelta(hours=1) for one in left) == 61
    assert {one.broker for one in left} == {1, 2}
    assert max(NOON - one.at for one in left) < timedelta(hours=6)


# What audits found: the newest of each name is what holds.

FOUND = AuditRecord("orders", "main", "sequence", NOON, "lost", 7, {"findings": [{"count": 7}]})


def test_the_last_of_each_stream_and_name_holds(ledger: Ledger) -> None:
    assert ledger.audits.list_latest() == ()
    later = replace(FOUND, at=NOON + timedelta(hours=1), verdict="clean", missing=0)
    other = replace(FOUND, audit="producers", verdict="unknown", missing=0)
    elsewhere = replace(FOUND, stream="logs")
    for one in (FOUND, other, elsewhere, later):
        ledger.audits.record(one)
    assert ledger.audits.list_latest() == (elsewhere, other, later)
    assert ledger.audits.list_latest("orders") == (other, later)


def test_old_ones_go(ledger: Ledger) -> None:
    ledger.audits.record(replace(FOUND, audit="producers"))
    for number in range(KEPT + 20):
        ledger.audits.record(replace(FOUND, missing=number))
    with ledger.audits._database.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT audit, count(*), min(missing) FROM backlog_audits GROUP BY audit ORDER BY audit"
        ).all()
    assert [tuple(row) for row in rows] == [("producers", 1, 7), ("sequence", KEPT, 20)]


def test_sample_comes_back_as_it_went_in(ledger: Ledger) -> None:
    first, second = make_sample(NOON, 5, None, 7), make_sample(NOON + timedelta(seconds=30), 6)
    other = make_sample(NOON, 1, stream="invoices")
    for sample in (second, first, other):
        ledger.samples.add(sample)
    assert ledger.samples.history("orders") == (first, second)
    assert ledger.samples.history("orders", since=second.taken_at) == (second,)
    assert ledger.samples.latest("orders") == second
    assert ledger.samples.latest("nothing") is None


def test_samples_of_many_streams(ledger: Ledger) -> None:
    first, second = make_sample(NOON, 5), make_sample(NOON + timedelta(seconds=30), 6)
    other, unasked = make_sample(NOON, 1, stream="invoices"), make_sample(NOON, 1, stream="x")
    ledger.samples.add_all([(one, False) for one in (second, first, other, unasked)])
    asked = ("orders", "invoices", "nothing")
    assert ledger.samples.histories(asked, NOON) == {
        "orders": (first, second),
        "invoices": (other,),
    }
    assert ledger.samples.histories(asked, second.taken_at) == {"orders": (second,)}
    assert {one.stream: one for one in ledger.samples.firsts(asked)} == {
        "orders": first,
        "invoices": other,
    }


def test_of_two_watches_the_newer_past_is_kept(ledger: Ledger) -> None:
    def make(at: datetime, past: str, stream: str = "orders") -> KeptPast:
        return KeptPast(stream, "main", "orders", "order-service", at, "1", past, "")

    minute = timedelta(minutes=1)
    ledger.samples.keep_pasts([make(NOON, "a"), make(NOON, "b", "invoices")])
    ledger.samples.keep_pasts([make(NOON - minute, "older"), make(NOON + minute, "c", "invoices")])
    found = {one.stream: one for one in ledger.samples.kept_pasts(("orders", "invoices", "x"))}
    assert found == {"orders": make(NOON, "a"), "invoices": make(NOON + minute, "c", "invoices")}

    def keep(number: int) -> None:
        for second in range(number, 40, 4):
            ledger.samples.keep_pasts([make(NOON + timedelta(seconds=second), str(second))])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(keep, range(4)))
    assert ledger.samples.kept_pasts(["orders"])[0].past == "39"


def test_a_commit_that_names_the_log_start_marks_nothing(ledger: Ledger) -> None:
    """KafkaJS's; where it has read to is told by its next one."""
    plain = make_sample(NOON, 5)
    (part,) = plain.partitions
    started = replace(part, committed=8, committed_epoch=LOG_START)
    later = replace(plain, taken_at=NOON + timedelta(seconds=30), partitions=(started,))
    ledger.samples.add_all([(plain, False), (later, False)])
    assert ledger.samples.history("orders") == (plain, later)
    assert [mark.max_committed for mark in ledger.samples.committed_marks("orders")] == [5]


def test_times_are_kept_in_utc_and_naive_ones_refused(ledger: Ledger) -> None:
    shanghai = NOON.astimezone(timezone(timedelta(hours=8)))
    ledger.samples.add(make_sample(shanghai))
    kept = ledger.samples.latest("orders")
    assert kept is not None
    assert kept.taken_at == NOON
    assert kept.taken_at.tzinfo is UTC
    with pytest.raises(Exception, match="time zone"):
        ledger.samples.add(make_sample(datetime(2026, 11, 21)))  # noqa: DTZ001 - what is tested


def test_marks_keep_the_highest_and_the_last_commit(ledger: Ledger) -> None:
    def at(minute: int) -> datetime:
        return NOON + timedelta(minutes=minute)

    ledger.samples.add(make_sample(at(0), 10, 3))
    ledger.samples.add(make_sample(at(1), 50, None))
    ledger.samples.add(make_sample(at(2), 20, None))  # rewound
    ledger.samples.add(make_sample(at(0), 15, None))  # late
    ledger.samples.add(make_sample(at(3), None, None))  # vanished
    group = "orders-service"
    assert ledger.samples.committed_marks("orders") == (
        CommitMark("orders", group, "topic-id", 0, 50, 20, at(2)),
        CommitMark("orders", group, "topic-id", 1, 3, 3, at(0)),
    )
    ledger.samples.add(make_sample(at(4), 1, topic_id="z-recreated"))
    assert [mark.topic_id for mark in ledger.samples.committed_marks("orders")] == [
        "topic-id",
        "topic-id",
        "z-recreated",
    ]


def test_thinning_keeps_less_with_age_and_always_the_newest(ledger: Ledger) -> None:
    for minute in range(0, 30 * 60, 4):
        ledger.samples.add(make_sample(NOON - timedelta(minutes=minute), minute))
    ledger.samples.add(make_sample(NOON - timedelta(days=9), 1, stream="asleep"))
    assert ledger.samples.thin(NOON, HORIZON) > 0
    ages = [NOON - sample.taken_at for sample in ledger.samples.history("orders")]
    hour = timedelta(hours=1)
    assert len([age for age in ages if age <= hour]) == 16
    # One in 5 minutes, of samples 4 minutes apart.
    assert len([age for age in ages if hour < age <= HORIZON]) in (276, 277)
    assert len([age for age in ages if age > HORIZON]) in (6, 7)
    assert ledger.samples.latest("asleep") is not None
    assert ledger.samples.thin(NOON, HORIZON) == 0
    assert ledger.samples.committed_marks("orders")[0].max_committed == 1000


def test_samples_older_than_the_horizon_still_date_a_loss(ledger: Ledger) -> None:
    for days in (3, 7, 34, 36):
        ledger.samples.add(make_sample(NOON - timedelta(days=days)))
        ledger.samples.add(make_sample(NOON - timedelta(days=days) + timedelta(minutes=9)))
    ledger.samples.add(make_sample(NOON))
    assert ledger.samples.thin(NOON, HORIZON) == 2 + 3
    ages = [(NOON - sample.taken_at).days for sample in ledger.samples.history("orders")]
    assert ages == [34, 7, 3, 0]
    ledger.samples.add(make_sample(NOON - timedelta(days=50)))
    assert ledger.samples.thin(NOON, timedelta(days=60)) == 0


def test_fault_22_a_commit_beyond_the_end_raises_no_mark(ledger: Ledger) -> None:
    ledger.samples.add(make_sample(NOON, 10, 5000))
    ledger.samples.add(make_sample(NOON + timedelta(minutes=1), 5000, 5000))
    marks = ledger.samples.committed_marks("orders")
    assert [mark.max_committed for mark in marks] == [10, 1000]
    assert [mark.last_committed for mark in marks] == [5000, 5000]


def test_thinning_again_and_again_does_not_eat_the_timeline(ledger: Ledger) -> None:
    for minute in range(0, 10 * 60, 4):
        ledger.samples.add(make_sample(NOON + timedelta(minutes=minute)))
        if minute % 20 == 0:
            ledger.samples.thin(NOON + timedelta(minutes=minute), HORIZON)
    end = NOON + timedelta(hours=10)
    ledger.samples.thin(end, HORIZON)
    times = [sample.taken_at for sample in ledger.samples.history("orders")]
    assert max(b - a for a, b in pairwise(times)) <= timedelta(minutes=64)
