"""What a plan refuses, warns of and stands on: no services needed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from backlog.errors import Refused
from backlog.values import OffsetRange
from spark_backfill.evidence import LOST
from spark_backfill.evidence.survivors import LogSpan
from spark_backfill.guards import find_basis, warn_about_rules
from spark_backfill.messages.candidates import SourceAccess
from spark_backfill.messages.rules import MessageRules
from spark_backfill.proof import describe_unproved, require_proof
from spark_backfill.request import Proof, RebuildRequest
from spark_backfill.sources.reflection import SQLITE, ColumnKind, SourceColumn, SourceTable
from spark_backfill.tally import LabelCounts
from spark_backfill.verdict import VerdictBasis, judge_plan
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
    return find_basis(request, rules, (OffsetRange(0, 0, 10),), spans, counts, proof)


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
    assert (basis.sharp, basis.unproved) == (True, "nothing survives to compare with")
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
    assert basis_of(mutable=False, consumed=CONSUMED).sharp
    assert not basis_of(mutable=False).sharp
    mutable = basis_of(mutable=True, consumed=CONSUMED)
    assert not mutable.sharp
    verdict = judge_plan({0: 4}, LabelCounts({LOST: {0: 4}}, 0, 0, 0).to_tally(), mutable)
    assert "watch" in verdict.reasons[0]
    request, rules = open_request(mutable=True)
    sharp = replace(request, start_spread=timedelta(seconds=1))
    counts = LabelCounts({LOST: {0: 4}}, 0, 0, 0)
    assert find_basis(sharp, rules, (), LOG, counts, PROVED).sharp


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
