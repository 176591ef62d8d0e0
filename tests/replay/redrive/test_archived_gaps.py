"""Gaps that wait in an archive are work for the night, and no alarm by day."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backlogctl.archive_manifest import ArchivedRange
from backlogctl.ledger import ArchiveRecord
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.injection.archived import (
    find_archive_of,
    list_archived,
    suggest_plan,
    suggest_redrive,
)
from backlogctl.replay.kinds.rebuild.losses import explain_unrebuildable, list_repairable
from backlogctl.replay.runbooks.detection import choose_actions
from backlogctl.replay.runbooks.nights import _count_gaps, has_nights
from backlogctl.replay.runbooks.work import list_waiting_work
from backlogctl.values import Cause, Gap, GapState, RecoveryState
from tests.kernel.ledger.makers import NOON, make_gap
from tests.replay.calling import call_main
from tests.replay.makers import open_desk

TOPIC = "topic-id"


@pytest.fixture
def desk(tmp_path: Path) -> Workspace:
    return open_desk(tmp_path)


def wait_in_archive(desk: Workspace) -> Gap:
    """A gap of a stream without a source that waits in the archive of an offload."""
    ledger = desk.ledger
    made = ledger.recoveries.create(
        "offload", "orders", "main", "orders", "service", {}, "f" * 64, (), "op",
        stops_consumers=True, holds_when_failed=True,
    )  # fmt: skip
    ledger.recoveries.advance(made.id, RecoveryState.REJECTED, "op")
    ledger.archives.record(
        made.id, stream="orders", cluster="main", topic="orders", topic_id=TOPIC,
        location="/nowhere", manifest_sha256="a" * 64, messages=80, bytes=1,
        ranges=[ArchivedRange(0, 10, 100, 80, NOON, NOON)],
    )  # fmt: skip
    seen = make_gap(10, 100, cause=Cause.DISCARDED, topic_id=TOPIC)
    gap = ledger.gaps.record(replace(seen, group="service", archive=made.id))
    for state in (GapState.PLANNED, GapState.STAGED):
        ledger.gaps.advance([gap.id], state, made.id)
    return ledger.gaps.get(gap.id)


def record_of(desk: Workspace, gap: Gap) -> ArchiveRecord:
    assert gap.archive is not None
    return desk.ledger.archives.get(gap.archive)


def test_it_is_work_for_the_night(desk: Workspace) -> None:
    stream = desk.config.stream("orders")
    assert not has_nights(desk, stream)
    gap = wait_in_archive(desk)
    assert has_nights(desk, stream)
    assert list_repairable(desk.ledger, stream) == ()
    assert [(each.gap, each.is_held) for each in list_archived(desk.ledger, stream)] == [
        (gap, True)
    ]
    assert list_archived(desk.ledger, stream, "another") == (), "the topic was made anew"
    assert _count_gaps(desk, stream, lambda _: True) == 1
    assert _count_gaps(desk, stream, lambda found: found.detected_at < NOON) == 0
    told = list_waiting_work(desk, ["recover_backlog"]).nightly
    assert told == ("1 gap of orders waits in an archive",)
    assert choose_actions(desk, stream, Verdict.OK, 0, TOPIC) == ("redrive",)
    assert choose_actions(desk, stream, Verdict.OK, 0, "another") == ()


def test_the_verbs_tell_it(desk: Workspace, tmp_path: Path) -> None:
    gap = wait_in_archive(desk)
    code, out, _ = call_main(("gaps", "--no-look"), tmp_path, {})
    assert code == 0
    assert f"backlogctl plan redrive orders --from archive:{gap.archive}" in out
    code, out, _ = call_main(("waive", gap.id, "--reason", "nobody needs it"), tmp_path, {})
    assert code == 0
    waived = desk.ledger.gaps.get(gap.id)
    assert waived.state is GapState.WAIVED
    assert "nobody needs it" in waived.reason
    assert list_archived(desk.ledger, desk.config.stream("orders")) == ()


def test_why_not(desk: Workspace) -> None:
    stream, gap = desk.config.stream("orders"), wait_in_archive(desk)
    record = record_of(desk, gap)
    lost = replace(gap, archive=None, cause=Cause.EXPIRED)
    command = f"backlogctl plan redrive orders --from archive:{gap.archive}"
    for one in (gap, lost):
        assert suggest_redrive(desk.ledger, one) == command, "the archive has the same offsets"
        assert f"`{command}` puts them back" in explain_unrebuildable(
            desk.ledger, one, stream, TOPIC
        )
    beyond = replace(lost, end=101)
    assert "no source table" in explain_unrebuildable(desk.ledger, beyond, stream)
    assert find_archive_of(beyond, [record]) is None
    assert suggest_plan(desk.ledger, beyond) == "backlogctl plan rebuild orders"
    assert "deleted since" in explain_unrebuildable(desk.ledger, gap, stream, "another")
    desk.ledger.archives.mark_purged(record.recovery_id, "op")
    assert "was purged" in explain_unrebuildable(desk.ledger, gap, stream)
    assert "no source table" in explain_unrebuildable(desk.ledger, lost, stream)
    assert "not on record" in explain_unrebuildable(
        desk.ledger, replace(gap, archive="r-1"), stream
    )
