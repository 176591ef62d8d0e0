"""How many consumers a stream wants, by its verdict; and what KEDA's own Kafka scaler gets wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from backlogctl.monitoring.verdict.status import GroupStatus, PartitionStatus, Verdict
from backlogctl.monitoring.watch.scaler import (
    ScalingUnknown,
    WantedConsumers,
    choose_consumers,
    count_useful,
)
from tests.monitoring.test_metrics import make_status

WINDOW = 600.0
INTERVAL = timedelta(seconds=30)
REPLICAS = 3
WITHIN = 60.0  # seconds; a busy machine may let a call wait
OK, WARN, STALL, LOSING = Verdict.OK, Verdict.WARN, Verdict.STALL, Verdict.LOSING


def make_lag(number: int, lag: int | None, **changes: Any) -> PartitionStatus:
    """A partition of which so many offsets are unread, and to which nothing was written lately."""
    told: dict[str, Any] = {
        "partition": number,
        "log_start": 0,
        "committed": None if lag is None else 5000 - lag,
        "end": 5000,
        "lag": lag,
        "lag_seconds": 0.0 if lag == 0 else 5.0,
        "lost": None if lag is None else 0,
        "produced_per_second": 0.0,
        **changes,
    }
    return PartitionStatus(**told)


def make_seen(*parts: PartitionStatus, state: str = "stable") -> GroupStatus:
    return replace(make_status("order-service", stream="orders", parts=parts), group_state=state)


def choose(
    parts: Sequence[PartitionStatus], state: str = "stable", most: int | None = None
) -> WantedConsumers:
    return choose_consumers(make_seen(*parts, state=state), REPLICAS, most, WINDOW)


def spread(lags: Sequence[int | None], **changes: Any) -> list[PartitionStatus]:
    return [make_lag(number, lag, **changes) for number, lag in enumerate(lags)]


# By the verdict.


def test_nothing_unread_and_nothing_written_needs_nobody() -> None:
    assert choose(spread([0] * 12)) == WantedConsumers(
        0, False, "nothing is unread, and nothing was written for 10 min"
    )


@pytest.mark.parametrize("rate", [2.5, None])
def test_what_is_written_to_keeps_its_consumers(rate: float | None) -> None:
    """A sample in which a group has just read all says nothing of the next second."""
    wanted = choose(spread([0] * 12, produced_per_second=rate))
    assert (wanted.consumers, wanted.is_active) == (REPLICAS, False)


def test_a_lag_that_is_being_read_takes_no_more_than_in_normal_times() -> None:
    assert choose(spread([7] * 12)) == WantedConsumers(REPLICAS, True, "as many as in normal times")


@pytest.mark.parametrize(
    "changes",
    [
        {"course": WARN},
        {"course": LOSING},
        {"lag_seconds": WINDOW + 1},
        # Its age is not known: what is not known must not take consumers away.
        {"lag_seconds": None},
    ],
)
def test_a_backlog_takes_as_many_as_are_of_use(changes: dict[str, Any]) -> None:
    wanted = choose(spread([4000] * 12, **changes))
    assert (wanted.consumers, wanted.is_active) == (12, True)
    assert wanted.why == "there is a backlog, and more than 12 do not help"


def test_a_backlog_that_falls_keeps_them_until_it_is_gone() -> None:
    """The verdict is `ok` as soon as the lag falls; with fewer consumers it would grow again."""
    falling = {"course": OK, "consumed_per_second": 900.0, "produced_per_second": 100.0}
    assert choose(spread([4000] * 12, lag_seconds=1200.0, **falling)).consumers == 12
    assert choose(spread([4000] * 12, lag_seconds=20.0, **falling)).consumers == REPLICAS


def test_a_small_lag_that_stays_is_no_backlog() -> None:
    """A message that is always a little late: the group keeps up, whatever the age of its oldest."""
    busy = {"consumed_per_second": 100.0, "produced_per_second": 100.0}
    assert choose(spread([500] * 12, lag_seconds=None, **busy)).consumers == REPLICAS


def test_consumers_that_stand_still_are_not_helped_by_more() -> None:
    """A message that fails again and again: KEDA scales out for it, but for `excludePersistentLag`."""
    assert choose(spread([4000] * 12, course=STALL, lag_seconds=4000.0)).consumers == REPLICAS
    blocked = spread([10] * 12, course=Verdict.BLOCKED, lag_seconds=4000.0)
    assert choose(blocked).consumers == REPLICAS
    # The others' backlog counts without it.
    parts = [make_lag(0, 900_000, course=STALL), *spread([0, 400, 400, 400, 400], course=WARN)[1:]]
    assert choose(parts).consumers == 4


@pytest.mark.parametrize(
    ("lags", "count"),
    [
        ([], 0),
        ([0, 0], 0),
        ([1], 1),
        ([100] * 12, 12),
        ([100, 101, 99, 102], 4),  # one more or less makes none of them hot
        ([800, *[18] * 11], 3),  # 80 % in one: five of the small ones are read meanwhile
        ([800, 200], 2),
        ([1000, 10, 10], 1),
        ([1000, 0, 0, 1000], 2),
    ],
)
def test_a_hot_partition_is_not_drained_sooner_by_more(lags: list[int], count: int) -> None:
    assert count_useful(lags) == count


def test_no_more_than_partitions_with_something_to_read() -> None:
    parts = spread([4000, 4000, *[0] * 10], course=LOSING)
    assert choose(parts) == WantedConsumers(
        2, True, "as many as in normal times; only 2 partitions to read"
    )
    assert choose(spread([4000] * 12, course=LOSING), most=5).consumers == 5
    assert choose(spread([1] * 12), most=2).why.endswith("`consumers.max_consumers` is 2")


# What KEDA's own scaler gets wrong.


def test_never_committed_with_nobody_there_needs_a_first_consumer() -> None:
    """With none it would never commit; of how much is unread nothing is said."""
    for state in ("empty", "dead"):
        wanted = choose(spread([None] * 12), state=state)
        assert (wanted.consumers, wanted.is_active) == (REPLICAS, True)


def test_never_committed_with_members_is_unknown() -> None:
    with pytest.raises(ScalingUnknown) as caught:
        choose(spread([0, None, None]))
    assert str(caught.value) == (
        "stream orders: what is unread of partition 1, and of 1 more partition is not known: the "
        "group has no committed offset there: none to 5,000, by `auto.offset.reset`"
    )
    # Whoever reads by assignment is not seen.
    with pytest.raises(ScalingUnknown):
        choose(spread([0, None, None]), state="simple")
    with pytest.raises(ScalingUnknown):
        choose(spread([0, None, None]), state="")


def test_a_backlog_beside_it_is_not_held_up() -> None:
    """As many as can be needed, so never fewer than with the offset that is missing."""
    parts = [make_lag(0, None), *spread([0, 4000, 4000, 10, 10], course=LOSING)[1:]]
    assert choose(parts).consumers == 5


def test_never_committed_in_an_empty_log_is_nothing() -> None:
    """Retention deleted all: wherever its clients begin, they find nothing (KEDA counts to the end)."""
    parts = spread([None] * 12, log_start=5000)
    assert choose(parts) == choose(spread([0] * 12))


def test_a_commit_beyond_the_end_is_no_negative_lag() -> None:
    beyond = {"committed": 9000, "course": Verdict.BEYOND_END, "verdict": Verdict.BEYOND_END}
    parts = [make_lag(0, None, **beyond), make_lag(1, 300)]
    with pytest.raises(ScalingUnknown, match="its commit 9,000 is beyond the end of the log"):
        choose(parts)
    assert choose(parts, state="empty").is_active


def test_a_leader_that_does_not_answer_is_no_lag_of_zero() -> None:
    parts = [make_lag(0, None, committed=100), make_lag(1, 0)]
    for state in ("stable", "empty"):
        with pytest.raises(ScalingUnknown, match="what is unread of partition 0 is not known"):
            choose(parts, state=state)


def test_a_share_group_has_no_offsets() -> None:
    with pytest.raises(ScalingUnknown, match="share group"):
        choose(spread([None, None]), state="share")
