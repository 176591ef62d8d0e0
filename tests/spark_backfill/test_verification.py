"""What a verification result says."""

from __future__ import annotations

from typing import Any

import pytest

from backlogctl.errors import VerificationFailed
from backlogctl.spark_backfill.injection.verification import VerificationResult


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
