"""A stream whose consumers a recovery has stopped is never `ok`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import ClusterUnreachable, KafkaFailure
from backlogctl.kafka import peek
from backlogctl.ledger import BurndownSample, Ledger
from backlogctl.monitoring.verdict.status import UNLIMITED, GroupStatus, Unseen, Verdict
from backlogctl.monitoring.watch import look
from backlogctl.monitoring.watch.look import with_stopped_warning
from backlogctl.values import Recovery, RecoveryState

# What a look does where the brokers tell less than it asks.


def test_without_the_right_to_read_settings_the_rest_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise KafkaFailure("not authorized to read its settings", subject="topic orders")

    monkeypatch.setattr(look, "describe_topic", refuse)
    unseen: list[Unseen] = []
    found = look._read_settings(None, "orders", Deadline(1.0), unseen)  # type: ignore[arg-type]
    assert found is None
    assert look._find_retention(found) is UNLIMITED
    assert [one.what for one in unseen] == ["retention"]

    def leave(*_: Any) -> None:
        raise ClusterUnreachable("no broker answered", subject="cluster", retryable=True)

    monkeypatch.setattr(look, "describe_topic", leave)
    with pytest.raises(ClusterUnreachable):
        look._read_settings(None, "orders", Deadline(1.0), unseen)  # type: ignore[arg-type]


def test_a_timestamp_that_is_none_is_not_known() -> None:
    assert peek._to_time(1_700_000_000_000) is not None
    assert peek._to_time(1_700_000_000_000_000) is None, "microseconds"
    assert peek._to_time(2**63 - 1) is None


S = RecoveryState
TEMPORARY = "orders.recovery.r"


def make_status(verdict: Verdict = Verdict.OK) -> GroupStatus:
    return GroupStatus(
        stream="orders",
        cluster="main",
        topic="orders",
        group="order-service",
        group_state="stable",
        taken_at=utc_now(),
        verdict=verdict,
        partitions=(),
        lag=0,
        lag_seconds=None,
        lost=0,
        seconds_to_drain=None,
        seconds_to_loss=None,
        loss_by=None,
        expected_loss=None,
        consumed_per_second=None,
        produced_per_second=None,
        sentence="orders: nothing unread",
        next_commands=("backlogctl status orders",),
    )


def begin(ledger: Ledger, *steps: str) -> Recovery:
    """An expansion that runs and has begun these steps."""
    made = ledger.recoveries.create(
        "expand", "orders", "main", "orders", "order-service", {}, "0" * 64, (), "ada",
        stops_consumers=True, holds_when_failed=True,
    )  # fmt: skip
    ledger.recoveries.approve(
        made.id, by="ada", identity="os:ada@x", plan_hash=made.plan_hash,
        expires_at=utc_now() + timedelta(hours=1),
    )  # fmt: skip
    for step in steps:
        ledger.steps.start(made.id, step)
    return ledger.recoveries.advance(made.id, S.RUNNING, "ada")


def test_without_a_recovery_that_has_stopped_them_it_is_what_it_is(ledger: Ledger) -> None:
    seen = make_status()
    assert with_stopped_warning(ledger, seen) == seen
    begin(ledger, "check_source")
    assert with_stopped_warning(ledger, seen) == seen


def test_nobody_works_on_it(ledger: Ledger) -> None:
    recovery = begin(ledger, "check_source", "stop_consumers")
    told = with_stopped_warning(ledger, make_status())
    assert told.verdict is Verdict.STOP
    assert told.sentence.startswith(
        f"orders: nothing unread; its consumers are stopped by expand {recovery.id}, which is "
        "running, and on which nobody works"
    )
    assert told.next_commands == (f"backlogctl show {recovery.id}", "backlogctl status orders")
    assert with_stopped_warning(ledger, make_status(Verdict.LOST)).verdict is Verdict.LOST


def test_what_is_only_in_the_temporary_topic_is_said(ledger: Ledger) -> None:
    recovery = begin(ledger, "check_source", "create_topic", "stop_consumers")
    ledger.temporary_topics.announce(recovery.id, "main", TEMPORARY, 20)
    with ledger.leases.hold(recovery.id):
        told = with_stopped_warning(ledger, make_status())
        assert told.verdict is Verdict.WARN
        assert f"how many messages are only in {TEMPORARY} is not known" in told.sentence
        ledger.burndown.add(
            BurndownSample(
                recovery_id=recovery.id,
                at=utc_now(),
                step="drain",
                source_lag=5,
                temporary_lag=249_456,
                relayed=300_000,
                handled=50_544,
                consumers=20,
            )
        )
        told = with_stopped_warning(ledger, make_status())
        assert f"249,456 messages only in {TEMPORARY} at " in told.sentence


def test_a_layout_that_is_restored_is_told_no_more(ledger: Ledger) -> None:
    recovery = begin(ledger, "stop_consumers", "restore")
    ledger.steps.complete(recovery.id, "restore", {})
    seen = make_status()
    assert with_stopped_warning(ledger, seen) == seen
