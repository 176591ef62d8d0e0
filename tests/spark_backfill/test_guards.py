"""What a plan refuses, and what an injection waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from backlogctl.clock import Deadline, format_time
from backlogctl.errors import (
    BacklogError,
    ClusterUnreachable,
    KafkaFailure,
    Paused,
    Refused,
    VerificationFailed,
)
from backlogctl.kafka import markers
from backlogctl.kafka.clients import make_admin, outlast
from backlogctl.manifests import MESSAGE_BYTES
from backlogctl.partitioners import PARTITIONERS
from backlogctl.spark_backfill.basis import find_basis, warn_about_rules
from backlogctl.spark_backfill.comparison import LogMessage, RebuiltMessage
from backlogctl.spark_backfill.evidence.injected import LOST
from backlogctl.spark_backfill.evidence.survivors import LogSpan, measure_holes
from backlogctl.spark_backfill.injection import brakes
from backlogctl.spark_backfill.injection.brakes import (
    CombinedBrakes,
    InjectionProgress,
    LiveLagBrake,
    await_group_past,
)
from backlogctl.spark_backfill.injection.job import (
    MAX_TRANSACTION_SECONDS,
    Rate,
    await_visible,
    choose_pace,
    choose_slots,
)
from backlogctl.spark_backfill.injection.verification import VerificationResult
from backlogctl.spark_backfill.messages.candidates import SourceAccess
from backlogctl.spark_backfill.messages.rules import MessageRules
from backlogctl.spark_backfill.messages.staging import ChunkLimits, fit_chunks
from backlogctl.spark_backfill.messages.windows import Bounds, describe_older
from backlogctl.spark_backfill.placing.placement import GapPlacement
from backlogctl.spark_backfill.proof import (
    ZoneShift,
    describe_shift,
    describe_unproved,
    find_shift,
    require_proof,
    suspect_clocks,
    suspect_partitions,
)
from backlogctl.spark_backfill.request import PriorChunk, Proof, RebuildRequest, Stretch
from backlogctl.spark_backfill.sources.databases import ColumnKind, SourceColumn
from backlogctl.spark_backfill.sources.reflection import SourceTable
from backlogctl.spark_backfill.verdict import LabelCounts, VerdictBasis, judge_plan
from backlogctl.values import Chunk, OffsetRange
from tests.spark_backfill import world

if TYPE_CHECKING:
    pass


PROVED = Proof(200, 200, 200, 200, 200, mutable=False)
NOTHING = Proof(0, 0, 0, 0, 0, mutable=False)
CONSUMED = {"database": "shop", "table": "processed", "column": "order_id"}
LOG = (LogSpan(0, 10, 30, records=20, records_before_ours=20),)


def open_request(**source: Any) -> tuple[RebuildRequest, MessageRules]:
    stream = world.make_stream("orders", **source)
    assert stream.source is not None
    gaps = (world.make_gap("orders", 0, 0, 10),)
    request = world.make_request("localhost:1", stream, "sqlite:///shop.db", gaps, Path("/staging"))
    return request, MessageRules(stream, stream.source, (), (), 3, (0,), 1000, "UTC")


def basis_of(
    proof: Proof = PROVED,
    spans: tuple[LogSpan, ...] = LOG,
    topic_config: Mapping[str, str] | None = None,
    **source: Any,
) -> VerdictBasis:
    request, rules = open_request(**source)
    request = replace(request, topic_config=topic_config or {})
    counts = LabelCounts({LOST: {0: 10}}, 0, 0, 0)
    named = rules.source.consumed is not None and not rules.source.mutable
    placement = GapPlacement(cast(Any, None), {0: None}, consumed=named)
    ranges = (OffsetRange(0, 0, 10),)
    holes = measure_holes(spans, (), ())
    return find_basis(request, rules, ranges, spans, holes, counts, proof, placement)


@pytest.mark.parametrize(("survivors", "sampled"), [(20, 0), (20, 7), (0, 7)])
def test_survivors_of_which_none_is_compared_prove_nothing(survivors: int, sampled: int) -> None:
    proof = replace(NOTHING, sampled=sampled)
    with pytest.raises(Refused, match="not proved") as caught:
        require_proof(proof, frozenset(), "stream orders", survivors=survivors)
    assert "--allow proof" in caught.value.hint
    require_proof(proof, frozenset({"proof"}), "stream orders", survivors=survivors)


def test_where_nothing_survives_a_plan_is_not_exact() -> None:
    require_proof(NOTHING, frozenset(), "stream orders", survivors=0)
    basis = basis_of(NOTHING, (LogSpan(0, 10, 10),), mutable=False, consumed=CONSUMED)
    assert (basis.blurred, basis.unproved) == ((), "nothing survives to compare with")
    assert "no message survives" in basis.holes
    counts = LabelCounts({LOST: {0: 10}}, 0, 0, 0)
    verdict = judge_plan({0: 10}, counts.to_tally(), basis)
    assert verdict.kind == "short"
    assert any("the rules are not proved" in reason for reason in verdict.reasons)


def test_a_proof_allowed_by_name_is_told() -> None:
    assert describe_unproved(PROVED) == ""
    half = replace(PROVED, matched=100)
    assert describe_unproved(half) == "only 100 of 200 surviving messages agree"
    with pytest.raises(Refused, match="only 100 of 200"):
        require_proof(half, frozenset(), "stream orders", survivors=200)


def test_rules_that_fail_on_one_survivor_are_not_proved() -> None:
    most = replace(PROVED, matched=199)
    require_proof(most, frozenset(), "stream orders", survivors=200)
    basis = basis_of(most, mutable=False, consumed=CONSUMED)
    verdict = judge_plan({0: 10}, LabelCounts({LOST: {0: 10}}, 0, 0, 0).to_tally(), basis)
    assert (verdict.kind, verdict.reasons) == (
        "short",
        (
            "the rules are not proved: 199 of 200 surviving messages agree, so lost ones may differ "
            "too",
        ),
    )


def test_consumed_is_sharp_for_rows_that_do_not_change_only() -> None:
    named = basis_of(mutable=False, consumed=CONSUMED)
    assert (named.blurred, named.evidence) == ((), {0: "consumed"})
    tally = LabelCounts({LOST: {0: 4}}, 0, 0, 0).to_tally()
    times = basis_of(mutable=False)
    assert (times.blurred, times.evidence) == ((0,), {0: "samples"})
    verdict = judge_plan({0: 4}, tally, times)
    assert (verdict.kind, "watch" in verdict.reasons[0]) == ("short", True)
    mutable = basis_of(mutable=True, consumed=CONSUMED)
    assert mutable.blurred == (0,)
    assert judge_plan({0: 4}, tally, mutable).kind == "covering"


def warnings_of(request: RebuildRequest, rules: MessageRules, *, unique: bool = True) -> str:
    column = SourceColumn("order_id", ColumnKind.INTEGER)
    keys = (frozenset({"order_id"}),) if unique else ()
    table = SourceTable("shop", "sqlite", None, "orders", (column,), keys, frozenset())
    access = SourceAccess(cast(Any, None), cast(Any, None), cast(Any, None), table, "UTC", 1)
    warnings: list[str] = []
    warn_about_rules(request, access, rules, warnings)
    return "\n".join(warnings)


def test_fault_19_what_compaction_removed_cannot_be_counted() -> None:
    assert basis_of().holes == ""
    compacted = basis_of(topic_config={"cleanup.policy": "compact,delete"})
    assert compacted.holes == "the topic is compacted"


def test_rules_that_can_hide_a_lost_message_are_told() -> None:
    request, rules = open_request(mutable=True, consumed=CONSUMED)
    assert "later changes of the same row" in warnings_of(request, rules)
    until = replace(request, until=world.START)
    assert "--until leaves out rows" in warnings_of(until, rules)
    fixed, fixed_rules = open_request(mutable=False, consumed=CONSUMED)
    assert warnings_of(replace(fixed, until=world.START), fixed_rules) == ""
    assert "no unique column" in warnings_of(fixed, fixed_rules, unique=False)


def test_a_time_column_of_text_is_ordered_by_its_time() -> None:
    stream = world.make_stream("orders")
    assert stream.source is not None
    order = (
        SourceColumn("updated_at", ColumnKind.TEXT),
        SourceColumn("order_id", ColumnKind.INTEGER),
    )
    rules = MessageRules(stream, stream.source, order, order, 3, (0,), 1000, "UTC")
    assert rules.order_names() == ("time", "o1")


def test_rows_that_were_not_looked_at_may_have_changed() -> None:
    request, rules = open_request(mutable=True, consumed=CONSUMED)
    named = LabelCounts({LOST: {0: 4}, "consumed": {0: 3}}, 0, 0, 0)
    none = LabelCounts({LOST: {0: 4}}, 0, 0, 0)

    def describe(counts: LabelCounts = none, **changes: Any) -> str:
        placement = GapPlacement(cast(Any, None), {0: None})
        ranges = (OffsetRange(0, 0, 10),)
        return find_basis(
            replace(request, **changes), rules, ranges, LOG, measure_holes(LOG, (), ()), counts,
            PROVED, placement,
        ).unread  # fmt: skip

    assert describe() == ""
    assert "3 rows that `consumed` names" in describe(named)
    assert "--until" in describe(until=world.START)
    begun = request.gaps[0].first_time
    assert begun is not None
    assert describe(since=begun) == ""
    assert "--since is later" in describe(since=begun + timedelta(seconds=1))
    fixed, fixed_rules = open_request(mutable=False, consumed=CONSUMED)
    assert fixed_rules.fidelity == "original"
    basis = basis_of(mutable=False, consumed=CONSUMED)
    assert basis.unread == ""
    assert fixed.until is None


def test_fault_112_rows_may_be_older_than_those_that_are_read() -> None:
    minute = timedelta(minutes=1)
    gaps = (world.make_gap("orders", 0, 0, 10), world.make_gap("orders", 1, 0, 10))
    read = Bounds(world.START - 10 * minute, None)
    assert describe_older(gaps, read, 10 * minute) == ""
    told = describe_older(gaps, read, 11 * minute)
    assert "up to 11 min before" in told
    assert "from 2026-11-20T11:50:00.000000Z on" in told
    assert describe_older(gaps, Bounds(None, None), 11 * minute) == "", "all rows are read"
    undated = (gaps[0], replace(gaps[1], first_time=None))
    assert describe_older(undated, read, 11 * minute) == "", "nothing says when it began"
    since = read.lower
    assert "11 min before" in describe_older(undated, read, 11 * minute, since)
    assert describe_older(gaps, read, timedelta(days=900_000)) != "", "no date is that old"


def test_holes_are_seen_although_an_earlier_recovery_wrote_where_the_log_begins() -> None:
    """The oldest message is ours; of 6,000 offsets of others a fifth are control records."""
    span = LogSpan(0, 1000, 9000, records=6600, records_before_ours=0, ours=1800, first_ours=1000)
    chunk = PriorChunk("r-1", 0, 0, 1800, 1000, 2998)
    stretch = Stretch(0, 1000, 3000, 2000)
    found = measure_holes([span], [chunk], [stretch])
    assert (found.offsets, found.missing, found.share) == (6000, 1200, 0.2)
    # Where its chunks lie is not known: nothing below them shows any.
    unknown = measure_holes([span], [PriorChunk("r-1", 0, 0)], [])
    assert (unknown.offsets, unknown.share) == (0, 0.0)


# A constant shift between messages and rows is told as a wrong zone; anything else is not.

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
Pairs = list[tuple[datetime, datetime]]


def make_pairs(shift: timedelta, delays: list[float]) -> Pairs:
    """Rows a minute apart, each message so many seconds after its row, the rows read wrongly."""
    rows = [NOON + timedelta(minutes=n) for n in range(len(delays))]
    return [(r + timedelta(seconds=d), r - shift) for r, d in zip(rows, delays, strict=True)]


@pytest.mark.parametrize("minutes", [480, -480, 345, 30, -210])
def test_another_zone_is_found(minutes: int) -> None:
    shift = timedelta(minutes=minutes)
    pairs = make_pairs(shift, [0.1, 2, 5, 0.4, 60, 1])
    assert find_shift(pairs) == ZoneShift(shift, 6)


def test_some_rows_that_changed_since_hide_nothing() -> None:
    pairs = make_pairs(timedelta(hours=8), [1] * 20)
    changed = [(log, row + timedelta(days=3)) for log, row in pairs[:6]]
    assert find_shift([*changed, *pairs[6:]]) == ZoneShift(timedelta(hours=8), 20)


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        make_pairs(timedelta(hours=8), [1] * 4),
        make_pairs(timedelta(0), [1] * 20),
        make_pairs(timedelta(minutes=15), [1] * 20),
        make_pairs(timedelta(minutes=67), [1] * 20),
        make_pairs(timedelta(hours=1), [n * 180.0 for n in range(20)]),
        make_pairs(timedelta(days=7), [1] * 20),
    ],
    ids=["none", "few", "right", "a quarter", "no zone", "a batch each hour", "further than zones"],
)
def test_what_is_no_zone_is_not_told(pairs: Pairs) -> None:
    assert find_shift(pairs) is None


@pytest.mark.parametrize(
    ("late", "source", "told"),
    [
        (300, {}, "6 of 6 compared rows are dated later than their messages in the log, by up to 5 min"),
        (4, {}, ""),
        (-300, {}, ""),
        (300, {"mutable": True}, ""),
        (300, {"sent_time": True}, ""),
        (900, {"sent_time": True}, "6 of 6 compared rows"),
    ],
)  # fmt: skip
def test_rows_dated_behind_their_messages_are_told(
    late: int, source: dict[str, Any], told: str
) -> None:
    made = world.make_stream("orders", **{"mutable": False, **source}).source
    assert made is not None
    times = [
        (int(log.timestamp() * 1000), format_time(row))
        for log, row in make_pairs(timedelta(seconds=-late), [0.0] * 6)
    ]
    found = suspect_clocks(times, made)
    assert found.startswith(told)
    assert bool(found) == bool(told)


def test_the_partitioner_that_fits_is_told() -> None:
    def look(partitioner: str, then: int, now: int = 5, number: int = 40, moved: int = 40) -> str:
        keys = pa.array([str(n).encode() for n in range(number)], pa.binary())
        rebuilt = PARTITIONERS["murmur2"](keys, now).tolist()
        there = PARTITIONERS[partitioner](keys, then).tolist()
        pairs = [
            (
                LogMessage(key, at if n < moved else made, 1, key, b"", ()),
                RebuiltMessage(key, made, key, b"", (), None),
            )
            for n, (key, at, made) in enumerate(zip(keys.to_pylist(), there, rebuilt, strict=True))
        ]
        return suspect_partitions(pairs, "murmur2", now)

    assert "where `partitioner: murmur2` puts them among 3 partitions" in look("murmur2", 3)
    assert "where `partitioner: crc32` puts them among 5 partitions" in look("crc32", 5)
    assert look("crc32", 5, moved=20) == "", "the others say that it is not crc32"
    assert look("murmur2", 5) == look("crc32", 5, number=4) == ""
    assert look("murmur2", 7) == "", "no rule that is known"


def test_it_names_the_key_and_the_offset() -> None:
    told = describe_shift(ZoneShift(timedelta(hours=-8), 20), "shop", "UTC", NOON)
    assert "8 h after those of their messages" in told
    assert "`sources.shop.timezone`" in told
    assert "it is UTC, and the rows look like UTC+08:00" in told
    told = describe_shift(ZoneShift(timedelta(hours=6), 20), "shop", "Asia/Shanghai", NOON)
    assert told.endswith("it is Asia/Shanghai, and the rows look like UTC+02:00")


START = InjectionProgress(injected=0, skipped=0, total=10)
NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
AWAY = ClusterUnreachable("no broker answered")


def answers(*items: Any) -> Callable[..., Any]:
    """A call that gives or raises one item after another, the last one for ever."""
    left = list(items)

    def call(*_: Any, **__: Any) -> Any:
        item = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(item, Exception):
            raise item
        return item

    return call


@pytest.fixture
def brake(monkeypatch: pytest.MonkeyPatch) -> LiveLagBrake:
    """A lag brake that looks again at once."""
    monkeypatch.setattr(brakes, "_LOOK_AGAIN", 0.01)
    monkeypatch.setattr(brakes, "read_group_state", answers(SimpleNamespace(is_active=False)))
    return LiveLagBrake(make_admin(NOWHERE), "g", "orders", 1, max_lag=5)


def test_fault_11_brokers_that_are_away_hold_the_injection_and_do_not_fail_it(
    monkeypatch: pytest.MonkeyPatch, brake: LiveLagBrake
) -> None:
    monkeypatch.setattr(brakes, "list_offsets", answers(AWAY, AWAY, {0: 7}))
    CombinedBrakes([brake], patience=20).check(START)


def test_fault_11_brokers_that_stay_away_pause_it(
    monkeypatch: pytest.MonkeyPatch, brake: LiveLagBrake
) -> None:
    monkeypatch.setattr(brakes, "list_offsets", answers(AWAY))
    with pytest.raises(Paused, match="the lag of group g cannot be read"):
        CombinedBrakes([brake], patience=0.05).check(START)


def test_our_own_messages_are_no_lag_while_their_markers_are_being_written(
    monkeypatch: pytest.MonkeyPatch, brake: LiveLagBrake
) -> None:
    monkeypatch.setattr(brakes, "read_group_state", answers(SimpleNamespace(is_active=True)))
    monkeypatch.setattr(brakes, "committed_offsets", answers({0: 0}))
    # (last stable offset, high watermark) before, with a chunk's end hidden, and with all of it.
    stable, high = [0, 51, 102], 102

    def list_offsets(_: Any, __: str, partitions: Any, ___: str, level: str = "") -> Any:
        return dict.fromkeys(partitions, stable[0] if level == "read_committed" else high)

    monkeypatch.setattr(brakes, "list_offsets", list_offsets)
    assert brake.look(START) == ""
    after = InjectionProgress(injected=100, skipped=0, total=100, slots={0: 100}, chunks={0: 1})
    stable.pop(0)
    assert brake.look(after) == ""
    stable.pop(0)
    time.sleep(0.02)
    assert brake.look(after) == ""


def test_an_answer_that_does_not_pass_by_itself_fails_it(
    monkeypatch: pytest.MonkeyPatch, brake: LiveLagBrake
) -> None:
    monkeypatch.setattr(brakes, "list_offsets", answers(KafkaFailure("access denied")))
    with pytest.raises(KafkaFailure, match="access denied"):
        CombinedBrakes([brake]).check(START)


def test_fault_11_the_canary_waits_for_brokers_that_are_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(brakes, "read_group_state", answers(AWAY, SimpleNamespace(is_active=True)))
    monkeypatch.setattr(brakes, "committed_offsets", answers(AWAY, {0: 3}, {0: 4}))
    looks: list[int] = []
    await_group_past(NOWHERE, "g", "orders", 0, 4, 30.0, lambda: looks.append(1), patience=30.0)
    assert looks
    monkeypatch.setattr(brakes, "read_group_state", answers(AWAY))
    with pytest.raises(ClusterUnreachable):
        await_group_past(NOWHERE, "g", "orders", 0, 4, 30.0, lambda: None, patience=0.0)


def test_fault_07_what_an_open_transaction_hides_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(markers, "list_offsets", answers({0: 4, 1: 9}, AWAY, {0: 7, 1: 9}))
    await_visible(make_admin(NOWHERE), "orders", {0: 7, 1: 9}, 30.0)
    monkeypatch.setattr(markers, "list_offsets", answers({0: 4, 1: 9}))
    with pytest.raises(Paused, match=r"\(\[0\] readable to 4, needed to 7\)"):
        await_visible(make_admin(NOWHERE), "orders", {0: 7, 1: 9}, 0.1)


def test_only_errors_that_pass_are_outlasted() -> None:
    assert outlast(Deadline(30), answers(AWAY, 5)) == 5
    with pytest.raises(ClusterUnreachable):
        outlast(Deadline(0), answers(AWAY, 5))
    with pytest.raises(BacklogError, match="denied"):
        outlast(Deadline(30), answers(KafkaFailure("denied"), 5))


# The rate of an injection.


def chunks(slot: int, *counts: int) -> list[Chunk]:
    """Chunks of a slot that hold so many messages each."""
    return [
        Chunk(slot=slot, number=n, count=count, bytes=1, sha256="", path="", ids_path="")
        for n, count in enumerate(counts)
    ]


def test_without_a_rate_all_slots_with_chunks_left_go_as_fast_as_they_can() -> None:
    assert choose_slots({0: chunks(0, 9), 1: [], 2: chunks(2, 9)}, Rate()) == [0, 2]
    assert choose_pace(chunks(0, 100)[0], Rate(), 3, 2) is None


def test_a_wave_holds_what_the_rate_allows_in_one_transaction_and_always_one_chunk() -> None:
    left = {0: chunks(0, 40), 1: chunks(1, 40, 40), 2: chunks(2, 40)}
    assert choose_slots(left, Rate(15)) == [1]
    assert choose_slots(left, Rate(20)) == [1, 0]
    assert choose_slots(left, Rate(1)) == [1]


@pytest.mark.parametrize("parallelism", [1, 2, 8, 64])
@pytest.mark.parametrize("width", [1, 2, 12])
@pytest.mark.parametrize("rate", [300, 1000, 50_000])
def test_a_wave_takes_the_time_that_its_rate_says(width: int, parallelism: int, rate: int) -> None:
    count = int(rate * MAX_TRANSACTION_SECONDS / width)
    pace = choose_pace(chunks(0, count)[0], Rate(rate), width, parallelism)
    assert pace is not None
    at_once = min(width, parallelism)
    # Rounds of `at_once` chunks, each as long as its pace says; the last may be smaller.
    seconds = -(-width // at_once) * count / pace
    assert seconds == pytest.approx(width * count / rate, rel=0.35)
    assert count / pace <= MAX_TRANSACTION_SECONDS + 1e-9


def test_a_chunk_is_never_so_slow_that_its_transaction_stays_open() -> None:
    assert choose_pace(chunks(0, 100)[0], Rate(1), 1, 1) == 100 / MAX_TRANSACTION_SECONDS


def test_bytes_and_messages_hold_whichever_takes_longer() -> None:
    small, large = chunks(0, 10)[0], replace(chunks(0, 10)[0], bytes=10_000)
    rate = Rate(10, 1000 + 10 * MESSAGE_BYTES)
    assert rate.measure(small) == 1.0  # by messages
    assert rate.measure(large) == pytest.approx((10_000 + 3_000) / 4_000)
    assert choose_pace(large, rate, 1, 1) == pytest.approx(10 / 3.25)
    assert choose_slots({0: [large], 1: [large]}, rate) == [0]


@pytest.mark.parametrize("slots", [1, 3])
def test_chunks_fit_a_rate_of_bytes(slots: int) -> None:
    """Whatever their messages are, none takes longer than a transaction may."""
    limits = fit_chunks(None, slots, 60_000.0)
    most = limits.bytes + limits.messages * MESSAGE_BYTES
    assert most / 60_000.0 <= MAX_TRANSACTION_SECONDS / slots + 0.1
    assert fit_chunks(None, slots) == ChunkLimits()
    assert fit_chunks(None, slots, 1e12) == ChunkLimits()


# What a verification result says.


def result(**changes: Any) -> VerificationResult:
    """Ten messages, all matched."""
    counts: dict[str, Any] = {
        "staged": 10,
        "found": 10,
        "matched": 10,
        "missing": 0,
        "doubled": 0,
        "different": 0,
        "unexpected": 0,
        "ids": {},
        "start_offsets": {0: 5},
        "end_offsets": {0: 20},
    }
    return VerificationResult(**{**counts, **changes})


def test_fault_37_nothing_staged_is_not_exact() -> None:
    assert result().is_exact
    nothing = result(staged=0, found=0, matched=0)
    assert not nothing.is_exact
    with pytest.raises(VerificationFailed, match="nothing was staged"):
        nothing.require_exact("topic orders")


def test_messages_that_retention_may_have_removed_are_told_as_such() -> None:
    gone = result(matched=9, missing=1, ids={"missing": ("a",)}, removed={0: (5, 8)})
    with pytest.raises(VerificationFailed, match=r"1 missing: a.*retention.*\[0\] 5 to 8"):
        gone.require_exact("topic orders")
    # What was removed below everything of ours changes nothing.
    result(removed={0: (5, 8)}).require_exact("topic orders")
