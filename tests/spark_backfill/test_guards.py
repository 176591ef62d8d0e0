"""What a plan refuses, warns of and stands on: no services needed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from backlogctl.errors import Refused
from backlogctl.spark_backfill.evidence import LOST
from backlogctl.spark_backfill.evidence.survivors import LogSpan, measure_holes
from backlogctl.spark_backfill.lost_rows import find_basis, warn_about_rules
from backlogctl.spark_backfill.messages.candidates import SourceAccess
from backlogctl.spark_backfill.messages.rules import MessageRules
from backlogctl.spark_backfill.placing.placement import GapPlacement
from backlogctl.spark_backfill.proof import (
    ZoneShift,
    describe_shift,
    describe_unproved,
    find_shift,
    require_proof,
)
from backlogctl.spark_backfill.request import PriorChunk, Proof, RebuildRequest, Stretch
from backlogctl.spark_backfill.sources.reflection import (
    SQLITE,
    ColumnKind,
    SourceColumn,
    SourceTable,
)
from backlogctl.spark_backfill.verdict import LabelCounts, VerdictBasis, judge_plan
from backlogctl.values import OffsetRange
from tests.spark_backfill import world

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
    proof: Proof = PROVED, spans: tuple[LogSpan, ...] = LOG, **source: Any
) -> VerdictBasis:
    request, rules = open_request(**source)
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
    table = SourceTable("shop", SQLITE, None, "orders", (column,), keys, frozenset())
    access = SourceAccess(cast(Any, None), cast(Any, None), cast(Any, None), table, "UTC", 1)
    warnings: list[str] = []
    warn_about_rules(request, access, rules, warnings)
    return "\n".join(warnings)


def test_rules_that_can_hide_a_lost_message_are_told() -> None:
    request, rules = open_request(mutable=True, consumed=CONSUMED)
    assert "later changes of the same row" in warnings_of(request, rules)
    until = replace(request, until=world.START)
    assert "--until leaves out rows" in warnings_of(until, rules)
    fixed, fixed_rules = open_request(mutable=False, consumed=CONSUMED)
    assert warnings_of(replace(fixed, until=world.START), fixed_rules) == ""
    assert "identity unique" in warnings_of(fixed, fixed_rules, unique=False)


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
    ],
    ids=["none", "few", "right", "a quarter", "no zone", "a batch each hour"],
)
def test_what_is_no_zone_is_not_told(pairs: Pairs) -> None:
    assert find_shift(pairs) is None


def test_it_names_the_key_and_the_offset() -> None:
    told = describe_shift(ZoneShift(timedelta(hours=-8), 20), "shop", "UTC", NOON)
    assert "8 h after those of their messages" in told
    assert "`sources.shop.timezone`" in told
    assert "it is UTC, and the rows look like UTC+08:00" in told
    told = describe_shift(ZoneShift(timedelta(hours=6), 20), "shop", "Asia/Shanghai", NOON)
    assert told.endswith("it is Asia/Shanghai, and the rows look like UTC+02:00")
