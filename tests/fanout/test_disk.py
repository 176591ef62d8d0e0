"""Room on the brokers' disks: figures, and what is not known."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from backlogctl.fanout.disk import (
    DiskCheck,
    PartitionBacklog,
    combine_checks,
    estimate_copy,
    estimate_hold,
    measure_growth,
)
from backlogctl.kafka.log_dirs import BrokerLogDirs, LogDirs
from backlogctl.values import PartitionSample, Sample

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
UNKNOWN = LogDirs(None, "nobody tells")


def disks(*usable: int | None, sizes: dict[int, int] | None = None) -> LogDirs:
    """Brokers with so much room; every one has every partition."""
    return LogDirs(
        tuple(BrokerLogDirs(n, room, 10**15, sizes or {}) for n, room in enumerate(usable))
    )


def test_copy_needs_the_backlogs_share_of_the_bytes() -> None:
    seen = disks(10_000, 5_000, 20_000, sizes={0: 1000, 1: 4000})
    backlog = [PartitionBacklog(0, 50, 100, 200), PartitionBacklog(1, 100, 0, 100)]
    check = estimate_copy(seen, backlog, replication=1)
    assert check == DiskCheck(
        1800, 5_000, True, "each broker needs about 1.8 kB, and the fullest one has 5.0 kB left"
    )
    thrice = estimate_copy(seen, backlog, replication=3)
    assert (thrice.needed_bytes, thrice.enough) == (5400, False)


def test_what_is_not_known_is_not_guessed() -> None:
    backlog = [PartitionBacklog(0, 50, 100, 200)]
    assert estimate_copy(UNKNOWN, backlog, replication=1) == DiskCheck(
        None, None, None, "nobody tells"
    )
    lost = estimate_copy(disks(5000, sizes={1: 1}), backlog, replication=1)
    assert (lost.enough, lost.usable_bytes) == (None, 5000)
    assert "partition 0" in lost.reason
    old = estimate_copy(disks(5000, None, sizes={0: 200}), backlog, replication=2)
    assert (old.needed_bytes, old.usable_bytes, old.enough) == (120, None, None)
    assert "before 3.3" in old.reason


def test_hold_needs_what_is_produced_meanwhile() -> None:
    hour = timedelta(hours=1)
    check = estimate_hold(disks(10**6, 10**6), 100.0, hour, replication=1)
    assert (check.needed_bytes, check.enough) == (216_000, True)
    assert estimate_hold(disks(100, 100), 100.0, hour, replication=1).enough is False
    assert estimate_hold(disks(100), None, hour, replication=1).enough is None
    assert estimate_hold(UNKNOWN, 100.0, hour, replication=1).reason == "nobody tells"


def test_several_needs_share_the_room() -> None:
    yes, no = DiskCheck(600, 1000, True, "a"), DiskCheck(700, 1000, True, "b")
    unknown = DiskCheck(None, 1000, None, "c")
    assert combine_checks(yes).enough is True
    both = combine_checks(yes, no)
    assert (both.needed_bytes, both.enough) == (1300, False)
    assert combine_checks(yes, unknown) == DiskCheck(None, 1000, None, "c")
    assert combine_checks(yes, no, unknown).enough is False


def test_growth_is_measured_between_samples() -> None:
    def sample(seconds: int, *high: int) -> Sample:
        parts = tuple(PartitionSample(n, 0, 0, at, at) for n, at in enumerate(high))
        at = NOON + timedelta(seconds=seconds)
        return Sample("orders", "main", "orders", "g", "id", at, parts)

    seen = disks(1, sizes={0: 1000, 1: 4000})
    assert measure_growth(seen, [sample(0, 50, 50), sample(100, 100, 50)]) == 5.0
    assert measure_growth(seen, [sample(0, 50), sample(10, 100)]) is None, "too short to tell"
    assert measure_growth(seen, [sample(0, 50)]) is None
    other = replace(sample(0, 5), topic_id="other")
    assert measure_growth(seen, [other, sample(100, 5)]) is None
    assert measure_growth(UNKNOWN, [sample(0, 50), sample(100, 100)]) is None
    assert measure_growth(UNKNOWN, [sample(0, 50), sample(100, 50)]) == 0.0


backlogs = st.lists(
    st.builds(
        lambda number, low, held, lag: PartitionBacklog(number, lag, low, low + held),
        st.integers(0, 5),
        st.integers(0, 10**9),
        st.integers(0, 10**9),
        st.integers(0, 2 * 10**9),
    ),
    max_size=6,
    unique_by=lambda part: part.partition,
)
sizes_ = st.fixed_dictionaries({number: st.integers(0, 10**13) for number in range(6)})


@given(
    backlogs, sizes_, st.lists(st.integers(0, 10**14), min_size=1, max_size=5), st.integers(1, 5)
)
def test_estimate_is_bounded_and_never_flatters(
    backlog: list[PartitionBacklog], sizes: dict[int, int], rooms: list[int], replication: int
) -> None:
    seen = disks(*rooms, sizes=sizes)
    check = estimate_copy(seen, backlog, replication=replication)
    assert check.needed_bytes is not None
    assert check.usable_bytes == min(rooms)
    assert check.enough is (check.needed_bytes <= min(rooms))
    whole = sum(sizes[part.partition] for part in backlog)
    share = min(1.0, replication / len(rooms))
    assert 0 <= check.needed_bytes <= whole * share * 1.2 + 1
    # Who has read everything needs nothing; who has read nothing needs all of it.
    nothing = [replace(part, lag=0) for part in backlog]
    assert estimate_copy(seen, nothing, replication=replication).needed_bytes == 0
    further = [replace(part, lag=part.lag + 1000) for part in backlog]
    more = estimate_copy(seen, further, replication=replication).needed_bytes
    assert more is not None
    assert more >= check.needed_bytes
    one_more = estimate_copy(seen, backlog, replication=replication + 1).needed_bytes
    assert one_more is not None
    assert one_more >= check.needed_bytes
