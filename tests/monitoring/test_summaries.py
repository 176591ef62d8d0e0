"""A group's totals, words and commands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backlogctl.clock import utc_now
from backlogctl.monitoring.verdict.status import GroupStatus, PartitionStatus, Verdict
from backlogctl.monitoring.verdict.summary import summarize_group

PART = PartitionStatus(2, 0, 800_000, 2_000_000, 1_200_000, 3000.0, 0)


def summarize(*parts: PartitionStatus, **known: object) -> GroupStatus:
    settings: dict[str, object] = {
        "stream": "orders",
        "cluster": "main",
        "topic": "orders",
        "group": "order-service",
        "group_state": "stable",
        "taken_at": utc_now(),
        "written": [True] * len(parts),
        "consumers": 3,
        "has_consumers": True,
        "has_source": True,
    }
    return summarize_group(parts, **{**settings, **known})  # type: ignore[arg-type]


LOSING = replace(
    PART,
    verdict=Verdict.LOSING,
    course=Verdict.LOSING,
    seconds_to_drain=11_400.0,
    seconds_to_loss=6000.0,
    loss_by="time",
    expected_loss=571_234,
    needed_per_second=300.0,
    consumed_per_second=100.0,
    produced_per_second=50.0,
)


def test_a_loss_to_come_is_told_with_what_would_win() -> None:
    idle = [replace(PART, partition=n, lag=0, committed=2_000_000) for n in (0, 1)]
    status = summarize(*idle, LOSING)
    assert status.sentence == (
        "orders/2: 1.2 M behind, drained in 3 h 10 min, retention reaches it in 1 h 40 min at the "
        "earliest: about 570,000 will be lost; 9 consumers would win"
    )
    assert status.next_commands == (
        "backlogctl hold orders --for 6h",
        "backlogctl plan expand orders",
    )
    assert (status.lag, status.seconds_to_drain) == (1_200_000, 11_400.0)
    assert summarize(*idle, LOSING, consumers=None).consumers_to_win is None


def test_what_goes_on_comes_before_what_is_lost() -> None:
    lost = replace(LOSING, verdict=Verdict.LOST, lost=700)
    status = summarize(lost)
    assert (status.verdict, status.course) == (Verdict.LOST, Verdict.LOSING)
    assert status.sentence.startswith("orders/2: 700 messages lost at most; 1.2 M behind")
    assert status.next_commands == (
        "backlogctl hold orders --for 6h",
        "backlogctl plan expand orders",
        "backlogctl plan rebuild orders",
        "backlogctl gaps orders",
    )


def test_one_partition_that_never_drains_leaves_no_time_for_all() -> None:
    stuck = replace(PART, verdict=Verdict.STALL, course=Verdict.STALL)
    assert summarize(LOSING, replace(stuck, partition=1)).seconds_to_drain is None
    # Nor do the few of a partition that keeps up.
    keeps_up = replace(
        PART,
        partition=1,
        seconds_to_drain=None,
        lag=90_000,
        consumed_per_second=9000.0,
        produced_per_second=9000.0,
    )
    assert summarize(LOSING, keeps_up).seconds_to_drain == 11_400.0
    fine = replace(keeps_up, verdict=Verdict.OK, course=Verdict.OK)
    assert summarize(fine).sentence == "orders: 90,000 behind, keeping up"
    # A few messages that come and go do not decide.
    small = replace(stuck, partition=1, lag=7)
    assert summarize(LOSING, small).seconds_to_drain == 11_400.0


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        (
            Verdict.STOP,
            "1.2 M behind, nobody is in the group, and nothing was committed for 10 min",
        ),
        (Verdict.STALL, "1.2 M behind, and the committed offset did not move for 10 min"),
        (Verdict.WARN, "1.2 M behind, and the lag did not fall for 10 min"),
        (Verdict.REWIND, "the committed offset went back; 1.2 M behind"),
        (Verdict.BEYOND_END, "the committed offset 800,000 is beyond the end of the log"),
        (Verdict.LAGGING, "1.2 M behind; too few samples to say more"),
    ],
)
def test_each_verdict_has_its_words(verdict: Verdict, told: str) -> None:
    status = summarize(replace(PART, verdict=verdict, course=verdict))
    assert status.sentence == f"orders/2: {told}"


def test_a_group_that_is_well_and_one_without_a_stream() -> None:
    done = replace(PART, lag=0)
    assert summarize(done).sentence == "orders: nothing unread"
    assert summarize(done).next_commands == ()
    foreign = summarize(LOSING, stream="", group="it's; rm -rf /")
    assert foreign.next_commands == (
        """backlogctl status --cluster main --group 'it'"'"'s; rm -rf /'""",
    )
    assert summarize(done, topic="invoices", stream="").sentence == "invoices: nothing unread"
