"""Ledgers of older revisions are upgraded with what they hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from backlog.errors import InvalidTransition
from backlog.ledger import Ledger, StepRecord, open_ledger, schema, upgrade
from backlog.ledger.database import Database
from backlog.ledger.events import GENESIS
from backlog.values import RecoveryState as S
from tests.backlog.ledger.conftest import change, upgrade_to
from tests.backlog.ledger.makers import approve, plan

AT = "2026-11-21T12:00:00.000000Z"
WAYS = {
    "planned": (),
    "running": ("approved", "running"),
    "failed": ("approved", "running", "failed"),
    "verified": ("approved", "running", "verified"),
    "cancelled": ("approved", "cancelled"),
}


@pytest.fixture
def old(empty_url: str) -> Iterator[Engine]:
    """A plain engine on the database, whatever its tables are."""
    engine = create_engine(empty_url)
    yield engine
    engine.dispose()


def store(engine: Engine, name: str, kind: str, state: str, topic: str = "") -> str:
    """A recovery as a program of revision 0001 or 0002 left it."""
    change(
        engine,
        "INSERT INTO backlog_recoveries (id, kind, stream, cluster, topic, group_id, state,"
        " plan_hash, plan, created_at, approved_by, approved_hash, approval_expires_at, detail,"
        f" events_head) VALUES ('{name}', '{kind}', '{name}', 'main', '{topic or name}',"
        f" '{topic or name}-service', 'planned', 'h', '{{}}', '{AT}', 'ada', 'h', '{AT}', '{{}}',"
        f" '{GENESIS}')",
    )
    for step in WAYS[state]:
        change(engine, f"UPDATE backlog_recoveries SET state = '{step}' WHERE id = '{name}'")
    return name


def note(ledger: Ledger, recovery: str, *actions: str) -> None:
    for action in actions:
        ledger.events.append(recovery, "ada", action, {"of": action})


def test_first_revision(empty_url: str, old: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade_to("0001", empty_url, monkeypatch)
    waiting = store(old, "waiting", "rebuild", "failed", topic="orders")
    active = store(old, "active", "rebuild", "running", topic="orders")
    assert upgrade(empty_url) == schema.HEAD
    with open_ledger(empty_url) as after:
        assert {one.id for one in after.recoveries.list()} == {waiting, active}
        assert after.steps.start(active, "hold").attempts == 1
        assert after.holds.list() == ()
        with pytest.raises(InvalidTransition, match=f"recovery {active}"):
            after.recoveries.advance(waiting, S.RUNNING, "ada")


@pytest.mark.parametrize("state", WAYS)
@pytest.mark.parametrize(
    ("kind", "trait"), [("rebuild", False), ("expand", True), ("of-tomorrow", True)]
)
def test_traits_are_those_of_the_kind_and_never_change(
    empty_url: str,
    old: Engine,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    kind: str,
    trait: bool,
) -> None:
    upgrade_to("0002", empty_url, monkeypatch)
    name = store(old, "orders", kind, state)
    upgrade(empty_url)
    with open_ledger(empty_url) as after:
        found = after.recoveries.get(name)
        assert (found.kind, found.state) == (kind, S(state))
        assert (found.stops_consumers, found.holds_when_failed) == (trait, trait)
        (figure,) = after.figures.recoveries()
        assert figure.stops_consumers is trait
        for column in ("stops_consumers", "holds_when_failed"):
            with pytest.raises(DBAPIError, match="never change"):
                change(old, f"UPDATE backlog_recoveries SET {column} = NOT {column}")
        other = plan(after, stream="other", topic="orders")
        if state == "running" or (state == "failed" and trait):
            with pytest.raises(InvalidTransition, match="recovery orders of the same topic"):
                approve(after, other)
        else:
            assert approve(after, other).state is S.APPROVED


def test_indexes_refuse_two_that_are_active(
    empty_url: str, old: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade_to("0002", empty_url, monkeypatch)
    store(old, "first", "expand", "failed", topic="orders")
    second = store(old, "second", "rebuild", "planned", topic="orders")
    upgrade(empty_url)
    with pytest.raises(IntegrityError):
        change(old, f"UPDATE backlog_recoveries SET state = 'approved' WHERE id = '{second}'")


def test_steps_that_were_only_events_are_rows(
    empty_url: str, old: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade_to("0002", empty_url, monkeypatch)
    again = store(old, "again", "rebuild", "failed")
    done = store(old, "done", "rebuild", "verified")
    expand = store(old, "expand", "expand", "running")
    new = store(old, "new", "rebuild", "planned")
    with Ledger(Database(empty_url)) as before:
        note(before, again, "running", "stage started", "stage completed", "read back started")
        note(before, done, "wave 1", "inject completed", "stage started")
        note(before, again, "taken over", "stage started", "stage completed", "read back started")
        kept = before.steps.start(expand, "hold")
        note(before, expand, "hold started", "canary started", "hold completed")
        lines, others = before.events.list(again), before.events.list(done)
    upgrade(empty_url)
    with open_ledger(empty_url) as after:
        assert after.steps.list(again) == (
            StepRecord(
                *(again, "stage", lines[1].at, lines[5].at, lines[2].at, 2),
                detail={"of": "stage completed"},
            ),
            StepRecord(again, "read back", lines[3].at, lines[7].at, None, 2),
        )
        started = others[2].at
        assert after.steps.list(done) == (StepRecord(done, "stage", started, started, None, 1),)
        assert after.steps.list(expand) == (kept,)
        assert after.steps.list(new) == ()
        assert after.events.list(again) == lines
        assert after.events.verify_chain(again)
        assert after.steps.start(again, "stage").attempts == 3
