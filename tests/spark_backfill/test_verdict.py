"""The verdict: exact only where every partition agrees."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.spark_backfill.request import Stretch
from backlogctl.spark_backfill.verdict import Tally, VerdictBasis, count_expected, judge_plan
from backlogctl.values import OffsetRange

SHARP = VerdictBasis()
counts = st.dictionaries(st.integers(0, 5), st.integers(0, 50), max_size=6)


def tally(rebuilt: dict[int, int], **other: dict[int, int]) -> Tally:
    return Tally(rebuilt, other.get("surviving", {}), other.get("quarantined", {}))


def test_equality_in_every_partition_is_exact() -> None:
    verdict = judge_plan({0: 3, 2: 5}, tally({0: 3, 2: 5}), SHARP)
    assert (verdict.kind, verdict.reasons) == ("exact", ())


def test_fault_37_a_total_that_matches_proves_nothing() -> None:
    verdict = judge_plan({0: 10, 1: 10}, tally({0: 9, 1: 11}), SHARP)
    assert verdict.kind == "surplus"
    assert [p.surplus for p in verdict.partitions] == [0, 1]
    assert [p.shortfall for p in verdict.partitions] == [1, 0]


@given(expected=counts, rebuilt=counts, quarantined=counts)
def test_exact_means_equal_everywhere(
    expected: dict[int, int], rebuilt: dict[int, int], quarantined: dict[int, int]
) -> None:
    verdict = judge_plan(expected, tally(rebuilt, quarantined=quarantined), SHARP)
    numbers = {*expected, *rebuilt}
    equal = all(expected.get(p, 0) == rebuilt.get(p, 0) for p in numbers)
    clean = not any(quarantined.values())
    assert (verdict.kind == "exact") == (equal and clean)
    assert (verdict.kind == "surplus") == any(
        rebuilt.get(p, 0) > expected.get(p, 0) for p in numbers
    )
    for item in verdict.partitions:
        assert item.expected + item.surplus == item.rebuilt + item.shortfall
        assert item.surplus == 0 or item.shortfall == 0
        assert item.collapsed <= item.shortfall


@given(expected=counts, moves=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1))
def test_errors_that_cancel_out_between_partitions_are_never_exact(
    expected: dict[int, int], moves: list[tuple[int, int]]
) -> None:
    rebuilt = dict(expected)
    for source, target in moves:
        if rebuilt.get(source, 0):
            rebuilt[source] -= 1
            rebuilt[target] = rebuilt.get(target, 0) + 1
    assert sum(rebuilt.values()) == sum(expected.values())
    moved = any(rebuilt.get(p, 0) != expected.get(p, 0) for p in {*rebuilt, *expected})
    assert (judge_plan(expected, tally(rebuilt), SHARP).kind == "exact") != moved


@pytest.mark.parametrize(
    "basis",
    [
        replace(SHARP, blurred=(0,)),
        replace(SHARP, bounded=True),
        replace(SHARP, holes="the topic is compacted"),
        replace(SHARP, spread=True),
        replace(SHARP, ragged="among 900 survivors are 3 rows without a message"),
        replace(SHARP, unproved="nothing survives to compare with"),
    ],
)
def test_weak_evidence_is_never_exact(basis: VerdictBasis) -> None:
    verdict = judge_plan({0: 4}, tally({0: 4}), basis)
    assert verdict.kind == "short"
    assert len(verdict.reasons) == 1


def test_fault_19_and_20_the_unexplained_rest_is_at_most_that_many() -> None:
    verdict = judge_plan(
        {0: 10}, tally({0: 8}), replace(SHARP, holes="2 control or aborted records")
    )
    assert "at most 2, control records included" in verdict.reasons[0]


def test_one_mutable_row_may_stand_for_several_messages() -> None:
    basis = replace(SHARP, collapsible=True)
    verdict = judge_plan({0: 10, 1: 4}, tally({0: 6}, quarantined={0: 1}), basis)
    assert [p.collapsed for p in verdict.partitions] == [3, 0]
    surviving = judge_plan({1: 4}, tally({}, surviving={1: 2}), basis)
    assert (surviving.partitions[0].collapsed, surviving.kind) == (2, "short")


def test_uncertain_rows_make_it_exact_within_that_many() -> None:
    verdict = judge_plan({0: 4}, tally({0: 4}), replace(SHARP, uncertain={0: 2}))
    assert verdict.kind == "within"
    assert verdict.partitions[0].uncertain == 2
    assert "2 rows at the edges" in verdict.reasons[0]
    short = judge_plan({0: 4}, tally({0: 3}), replace(SHARP, uncertain={0: 2}))
    assert short.kind == "short"


def test_restated_rows_cover_the_loss_however_many_there_are() -> None:
    basis = replace(SHARP, collapsible=True, blurred=(0, 1))
    assert judge_plan({0: 4, 1: 4}, tally({0: 9, 1: 1}), basis).kind == "covering"
    # Nothing of partition 1 is sent, and nothing of it survives: not even a newer state.
    assert judge_plan({0: 4, 1: 4}, tally({0: 9}), basis).kind == "short"
    assert judge_plan({0: 4}, tally({0: 9}, quarantined={0: 1}), basis).kind == "short"


def test_control_records_of_earlier_recoveries_are_no_messages() -> None:
    stretches = [Stretch(0, 4, 8, 4), Stretch(1, 0, 5, 5)]
    assert count_expected([OffsetRange(0, 0, 10)], stretches) == {0: 9}
    assert count_expected([OffsetRange(0, 0, 7)], stretches) == {0: 7}


def test_ranges_that_overlap_count_once() -> None:
    ranges = [
        OffsetRange(0, 0, 10),
        OffsetRange(0, 5, 12),
        OffsetRange(0, 6, 8),
        OffsetRange(1, 3, 3),
        OffsetRange(0, 20, 21),
    ]
    assert count_expected(ranges) == {0: 13, 1: 0}


def test_rows_that_edge_takes_in_or_leaves_out_are_no_surplus_and_no_shortfall() -> None:
    """100 were lost; 6 rows may be lost or not, 3 of them likely."""
    basis = VerdictBasis(uncertain={0: 6})
    for rebuilt, forced in ((100, 0), (103, 3), (97, -3)):
        verdict = judge_plan({0: 100}, replace(tally({0: rebuilt}), forced={0: forced}), basis)
        assert verdict.kind == "within"
        (part,) = verdict.partitions
        assert (part.rebuilt, part.surplus, part.shortfall) == (rebuilt, 0, 0)
    more = judge_plan({0: 100}, replace(tally({0: 105}), forced={0: 3}), basis)
    assert (more.kind, more.partitions[0].surplus) == ("surplus", 2)


def test_gaps_whose_errors_cancel_out_in_a_partition_are_never_exact() -> None:
    verdict = judge_plan({0: 200}, tally({0: 200}), VerdictBasis(uneven=(0,)))
    assert verdict.kind == "short"
    assert "more or fewer rows than messages" in verdict.reasons[0]


def test_covering_needs_every_row_that_changed() -> None:
    restated = VerdictBasis(collapsible=True)
    assert judge_plan({0: 100}, tally({0: 40}), restated).kind == "covering"
    hidden = replace(restated, unread="3 rows that `consumed` names are not sent")
    verdict = judge_plan({0: 100}, tally({0: 40}), hidden)
    assert (verdict.kind, "consumed" in " ".join(verdict.reasons)) == ("short", True)
    # A row that survives does not stand for a hundred messages that nothing was made of.
    lonely = judge_plan({0: 100, 1: 5}, tally({1: 5}, surviving={0: 1}), restated)
    assert lonely.kind == "short"
    few = judge_plan({0: 2, 1: 5}, tally({1: 5}, surviving={0: 4}), restated)
    assert few.kind == "covering"
