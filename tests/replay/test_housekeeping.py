"""Staged messages do not stay for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from backlogctl.replay.engine.archives import REMOVED, clear_staging
from backlogctl.replay.engine.kind import Workspace
from backlogctl.values import RecoveryState
from tests.replay.makers import (
    change_ledger,
    find_detail,
    open_desk,
    read_actions,
    store_approved,
    store_plan,
)

S = RecoveryState
WAYS = {
    S.VERIFIED: (S.RUNNING, S.VERIFIED),
    S.CANCELLED: (S.RUNNING, S.CANCELLED),
    S.PAUSED: (S.RUNNING, S.PAUSED),
    S.FAILED: (S.RUNNING, S.FAILED),
    S.APPROVED: (),
}


@pytest.fixture
def desk(tmp_path: Path) -> Workspace:
    return open_desk(tmp_path, staging={"dir": "./staging", "keep": "30d"})


def stage(desk: Workspace, recovery_id: str) -> Path:
    directory = desk.staging_of(recovery_id)
    for name in ("messages", "ids"):
        path = directory / name / "slot=00000" / "chunk=000000.parquet"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"12345678")
    (directory / "manifest.json").write_text("{}")
    return directory


def age(desk: Workspace, days: int) -> None:
    """As if everything in the record had happened so long ago."""
    change_ledger(desk, "DROP TRIGGER IF EXISTS backlog_events_no_update")
    change_ledger(
        desk,
        "UPDATE backlog_events SET at = strftime('%Y-%m-%dT%H:%M:%f', 'now', :ago) || '000Z'",
        ago=f"-{days} days",
    )


@pytest.mark.parametrize("state", WAYS)
def test_only_what_came_to_its_end_loses_its_messages(
    desk: Workspace, state: RecoveryState
) -> None:
    recovery = store_approved(desk).id
    for step in WAYS[state]:
        desk.ledger.recoveries.advance(recovery, step, "op")
    directory = stage(desk, recovery)
    age(desk, 29)
    assert clear_staging(desk) == ()
    age(desk, 31)
    ended = state in (S.VERIFIED, S.CANCELLED)
    assert clear_staging(desk) == ((recovery,) if ended else ())
    assert (directory / "messages").exists() is not ended
    assert (directory / "manifest.json").exists()
    assert list(directory.glob("ids/*/*.parquet")), "the evidence stays"
    if ended:
        told = find_detail(desk, recovery, REMOVED)
        assert (told["files"], told["bytes"], told["keep_days"]) == (1, 8, 30)
        assert clear_staging(desk) == (), "once"
        assert read_actions(desk, recovery).count(REMOVED) == 1


def test_superseded_and_rejected_plans_lose_theirs(desk: Workspace) -> None:
    old = store_plan(desk).id
    new = store_plan(desk).id
    desk.ledger.recoveries.advance(new, S.REJECTED, "op")
    assert desk.ledger.recoveries.get(old).state is S.REJECTED
    for recovery in (old, new):
        stage(desk, recovery)
    age(desk, 31)
    assert clear_staging(desk) == (old, new)


def test_what_cannot_be_removed_fails_nothing(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recovery = store_plan(desk).id
    desk.ledger.recoveries.advance(recovery, S.REJECTED, "op")
    stage(desk, recovery)
    age(desk, 31)

    def refuse(_: Path) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr("backlogctl.replay.engine.archives.shutil.rmtree", refuse)
    assert clear_staging(desk) == ()
    assert "not yours" in caplog.text
    assert REMOVED not in read_actions(desk, recovery)
