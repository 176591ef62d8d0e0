"""Whose commits they are; no Kafka."""

from __future__ import annotations

import pytest

from fanout.relay.commits import CommitWithMetadata
from fanout.relay.counters import Counters, write_counters
from replay.kinds.expand.source import find_overwritten

OURS = write_counters(Counters("r-1", 5, 50, {0: 5}), 4)
OTHERS = write_counters(Counters("r-2", 5, 50, {0: 5}), 4)


@pytest.mark.parametrize("metadata", [None, "", "{", "[]", "7", '"r"', OTHERS])
def test_a_commit_that_moved_without_our_counters_is_somebody_elses(metadata: str | None) -> None:
    commits = {
        0: CommitWithMetadata(15, OURS),
        1: CommitWithMetadata(20, metadata),
        2: CommitWithMetadata(30, metadata),  # where it was when the consumers were stopped
    }
    assert find_overwritten(commits, {"0": 10, "1": 10, "2": 30}, "r-1") == [1]


def test_a_relay_that_met_control_records_only_has_counted_none_and_lost_none() -> None:
    nothing = write_counters(Counters("r-1"), 4)
    assert find_overwritten({0: CommitWithMetadata(15, nothing)}, {"0": 10}, "r-1") == []
