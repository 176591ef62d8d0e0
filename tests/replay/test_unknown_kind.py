"""A recovery of a kind that this program does not know is refused by one function, everywhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from backlogctl.clock import utc_now
from backlogctl.errors import Refused
from backlogctl.replay.cli import main, shared
from backlogctl.replay.engine.kind import Workspace
from backlogctl.values import Recovery, RecoveryState
from tests.replay.makers import open_desk, store_plan

S = RecoveryState
WORDS = "does not know the kind mystery"
# Every verb that takes a recovery, and the states in which it would be carried out.
VERBS = (
    ("show", ()),
    ("approve", ("--by", "Ada")),
    ("reject", ("--reason", "no")),
    ("run", ()),
    ("pause", ()),
    ("resume", ()),
    ("cancel", ("--wait", "0")),
    ("report", ()),
)
STATES = tuple(S)


def store_mystery(desk: Workspace, state: RecoveryState = S.PLANNED) -> Recovery:
    """A recovery that a newer program planned and perhaps runs."""
    made = desk.ledger.recoveries.create(
        "mystery",
        "orders",
        "main",
        "orders",
        "service",
        {"version": 7, "riddle": True},
        "hash",
        (),
        actor="newer",
        stops_consumers=True,
        holds_when_failed=True,
    )
    if state is S.REJECTED:
        return desk.ledger.recoveries.advance(made.id, state, "newer")
    if state is not S.PLANNED:
        expires = utc_now().replace(year=2100)
        desk.ledger.recoveries.approve(made.id, "newer", "newer", "hash", expires)
        for each in (S.RUNNING, state):
            if each is not desk.ledger.recoveries.get(made.id).state and state is not S.APPROVED:
                desk.ledger.recoveries.advance(made.id, each, "newer")
    return desk.ledger.recoveries.get(made.id)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    return open_desk(tmp_path)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("name", "words"), VERBS, ids=[name for name, _ in VERBS])
def test_every_verb_refuses_it(
    desk: Workspace,
    name: str,
    words: tuple[str, ...],
    state: RecoveryState,
    capfd: pytest.CaptureFixture[str],
) -> None:
    recovery = store_mystery(desk, state)
    assert main([name, recovery.id, *words, "--json"]) == 5
    said = json.loads(capfd.readouterr().out)["error"]
    assert WORDS in said["message"]
    assert said["subject"] == f"recovery {recovery.id}"
    assert "use the version of backlogctl that planned it" in said["hint"]
    assert desk.ledger.recoveries.get(recovery.id).state is state, "nothing was changed"


@pytest.mark.parametrize("state", STATES)
def test_it_is_listed_and_hides_nothing(
    desk: Workspace, state: RecoveryState, capfd: pytest.CaptureFixture[str]
) -> None:
    mystery = store_mystery(desk, state)
    known = store_plan(desk)
    assert main(["recoveries", "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capfd.readouterr().out)["recoveries"]}
    assert (rows[mystery.id]["verdict"], rows[mystery.id]["kind"]) == ("unknown", "mystery")
    assert WORDS in rows[mystery.id]["problem"]
    assert rows[known.id]["verdict"] == "exact"
    os.environ.pop("BACKLOG_CONFIG", None)
    shared.SESSION = shared.Session()
    assert main(["recoveries"]) == 0
    assert "mystery" in capfd.readouterr().out


@pytest.mark.parametrize("state", [S.APPROVED, S.RUNNING, S.PAUSED, S.FAILED])
def test_it_is_in_the_way_of_others_as_its_traits_say(
    desk: Workspace, state: RecoveryState
) -> None:
    """The ledger knows that it stops the consumers, and that a failed one holds."""
    from backlogctl.replay.engine.guards import refuse_active

    store_mystery(desk, state)
    with pytest.raises(Refused, match=f"is {state}"):
        refuse_active(desk, desk.config.stream("orders"))


def test_the_registry_is_the_one_that_refuses(desk: Workspace) -> None:
    recovery = store_mystery(desk)
    for ask in (desk.kind_of, desk.plan_of):
        with pytest.raises(Refused, match=WORDS):
            ask(recovery)
