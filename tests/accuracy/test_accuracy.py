"""`make accuracy` in small: what the best evidence promises, and `exact` only where it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.accuracy.measure import run_scenario
from tests.accuracy.oracle import Judgement
from tests.accuracy.planning import Measured, Method
from tests.accuracy.promises import find_broken
from tests.accuracy.scenarios import SCENARIOS, Shape
from tests.accuracy.watching import Sampling
from tests.services import Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make_measured(
    scenario: str = "tight", verdict: str = "exact", *, missed: int = 0, doubled: int = 0
) -> Measured:
    judgement = Judgement(
        lost=900, staged=900 - missed + doubled, missed=missed, gone=0, doubled=doubled,
        unsent=0, misplaced=0, altered=0, unlisted=missed + doubled,
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
