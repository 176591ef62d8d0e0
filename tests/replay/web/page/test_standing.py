"""The page of an expansion that failed says how things stand, and asks no broker for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from backlogctl.ledger import BurndownSample
from backlogctl.replay.engine.cancelling import STANDING
from backlogctl.replay.engine.values import Readers, Reads
from backlogctl.replay.kinds import KINDS
from backlogctl.values import Recovery, RecoveryState
from tests.replay.expand_makers import make_expand_plan
from tests.replay.web.page.night import ACTOR, NOW, Night
from tests.replay.web.page.visits import read, strip


def fail_in_the_drain(night: Night) -> Recovery:
    """A drain that failed three minutes ago with 28,400 messages only in the temporary topic."""
    recovery = night.approve(night.plan(make_expand_plan()))
    night.ledger.recoveries.advance(recovery.id, RecoveryState.RUNNING, ACTOR)
    for step in ("check_source", "hold_retention", "stop_consumers", "create_topic", "canary"):
        night.ledger.steps.start(recovery.id, step)
        night.ledger.steps.complete(recovery.id, step)
    night.ledger.steps.start(recovery.id, "drain")
    topic = recovery.plan["temporary"]["topic"]
    night.ledger.temporary_topics.announce(recovery.id, "main", topic, 30)
    night.ledger.temporary_topics.record_id(recovery.id, "an-id")
    for second in range(0, 61, 2):
        relayed, handled = second * 14_000, second * 13_500
        left = 1_200_000 - relayed
        at = NOW - timedelta(seconds=240 - second)
        night.ledger.burndown.add(
            BurndownSample(recovery.id, at, "drain", left, relayed - handled, relayed, handled, 30)
        )
    detail = {
        "code": "consumer_came_back",
        "message": "a consumer came back while its backlog is relayed: order-service at 10.0.0.7",
    }
    night.ledger.recoveries.advance(recovery.id, RecoveryState.FAILED, ACTOR, detail)
    return recovery


def test_a_failed_expansion_says_who_is_stopped_and_what_is_only_in_its_topic(
    quiet: Night,
) -> None:
    recovery = fail_in_the_drain(quiet)
    words = strip(read(quiet, f"/recoveries/{recovery.id}"))
    assert "reads unknown" in words
    assert "stopped the 3 consumers of group service" in words
    assert "only in the temporary topic unknown; 30,000 at 2026-11-21 06:37:00" in words
    assert f"`backlogctl show {recovery.id}` does" in words
    assert f"next backlogctl run {recovery.id}" in words


def test_what_the_run_saw_when_it_ended_is_shown(quiet: Night) -> None:
    recovery = fail_in_the_drain(quiet)
    leave_on_record(quiet, recovery)
    words = strip(read(quiet, f"/recoveries/{recovery.id}"))
    assert "reads nobody" in words
    assert "at most 30,000 messages, in topic" in words
    assert "looked at 2026-11-21 06:40:00 UTC" in words
    quiet.ledger.recoveries.advance(recovery.id, RecoveryState.RUNNING, ACTOR)
    assert "reads nobody" not in strip(read(quiet, f"/recoveries/{recovery.id}"))


def leave_on_record(night: Night, recovery: Recovery) -> None:
    """What a run that ended writes down: nobody reads, as the brokers said."""
    standing = KINDS.find(recovery).describe_standing(
        night.workspace, night.ledger.recoveries.get(recovery.id), ask=False
    )
    assert standing.only_there is not None
    seen = replace(
        standing,
        readers=Readers(Reads.NOBODY, 0, 0),
        only_there=replace(standing.only_there, messages=30_000),
        problem="",
    )
    night.ledger.events.append(recovery.id, ACTOR, STANDING, seen.to_json())
