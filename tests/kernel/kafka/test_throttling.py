"""What brokers say about quotas, added up, and when it is told."""

from __future__ import annotations

import pytest

from backlogctl.errors import KafkaFailure
from backlogctl.kafka.throttling import ThrottleClock, Throttling, mention_quota


def test_what_several_brokers_say_at_once_counts_once() -> None:
    clock = ThrottleClock()
    clock.note(1000.0)
    assert clock.told == pytest.approx(1000.0)
    clock.note(10.0)
    assert clock.told == pytest.approx(1000.0)
    clock.note(1500.0)
    assert 1500.0 <= clock.told < 1600.0
    # All of it is still to come.
    assert 0.0 <= clock.passed < 100.0


@pytest.mark.parametrize(
    ("throttled", "seconds", "is_told"),
    [(0.0, 0.0, False), (0.9, 1.0, False), (9.0, 100.0, False), (10.0, 100.0, True)],
)
def test_only_a_real_part_of_the_time_is_told(
    throttled: float, seconds: float, is_told: bool
) -> None:
    half = Throttling(throttled / 2, seconds / 2)
    told = (half + half).describe("the relays")
    assert ("throttled the relays for 10 s of the 100 s" in told) is is_told
    assert ("quota" in told) is is_told


def test_a_failure_tells_of_a_second_or_more() -> None:
    assert mention_quota(KafkaFailure("it failed"), 0.9, 6000).message == "it failed"
    failure = mention_quota(KafkaFailure("it failed", hint="so"), 1.0, 6000, " of 1 MB")
    assert failure.message == (
        "it failed; brokers throttled this client for 1.0 s in a transaction of 1 MB, which may "
        "take 6 s"
    )
    assert failure.hint.startswith("raise the client quotas")
    assert failure.hint.endswith("; so")
