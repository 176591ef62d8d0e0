"""How a ledger comes to be, and several processes at one: the database decides."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from backlogctl.errors import ConfigurationError, LedgerError
from backlogctl.ledger import Ledger, open_ledger, schema, upgrade
from backlogctl.ledger.schema import LedgerDatabase, metadata
from backlogctl.values import RecoveryState
from backlogctl_delivery import database
from backlogctl_delivery.database_failures import mask_url
from tests.kernel.ledger.conftest import change
from tests.kit.ledger import LONG_AGO, bring_to, make_chunk, make_gap, make_sample, plan

# What a user reads when the database does not do its part.

SECRET = "hunter2secret"


def test_fault_59_unreachable_database_is_said_without_the_password() -> None:
    with pytest.raises(LedgerError) as caught:
        open_ledger(f"postgresql+psycopg://ada:{SECRET}@127.0.0.1:1/ledger?connect_timeout=2")
    error = caught.value
    assert error.retryable
    assert "cannot be reached" in error.message
    assert "127.0.0.1:1" in error.subject
    assert error.__suppress_context__
    assert SECRET not in f"{error} {error!r} {error.to_json()}"


@pytest.mark.postgres
def test_fault_59_password_is_not_said_when_a_name_is_wrong(pg_url: str) -> None:
    url = pg_url.rsplit("/", 1)[0].replace("postgres@", f"nobody:{SECRET}@") + "/no_such_database"
    with pytest.raises(LedgerError) as caught:
        open_ledger(url)
    assert SECRET not in f"{caught.value} {caught.value!r}"


@pytest.mark.parametrize(
    "url",
    ["nonsense", f"mysql://ada:{SECRET}@host/db", "sqlite://", "sqlite:///:memory:", ""],
)
def test_url_that_is_no_ledger_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_ledger(url)
    assert "sqlite:///backlog.db" in caught.value.hint
    assert SECRET not in f"{caught.value!r}"


def test_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database at all, but long enough to be read as one\n" * 20)
    with pytest.raises(LedgerError) as caught:
        open_ledger(f"sqlite:///{path}")
    assert "not an SQLite database" in caught.value.message
    assert str(path) in caught.value.subject


def test_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError) as caught:
        open_ledger(f"sqlite:///{tmp_path}/nowhere/ledger.db")
    assert "nowhere" in caught.value.subject
    assert caught.value.hint


def test_locked_ledger_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    path = tmp_path / "ledger.db"
    with open_ledger(f"sqlite:///{path}") as ledger:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert ledger.samples.latest("orders") is None  # a reader does not wait for a writer
        with pytest.raises(LedgerError) as caught:
            ledger.samples.add(make_sample())
        assert caught.value.retryable
        assert "locked" in caught.value.message
        other.execute("ROLLBACK")
        ledger.samples.add(make_sample())
        other.close()


def test_url_is_shown_without_secrets() -> None:
    parsed = database.parse_url(f"postgresql://ada:{SECRET}@host/db?password={SECRET}", "ledger")
    assert mask_url(parsed) == "postgresql+psycopg://ada:***@host/db"


def test_tables_made_by_migrations_are_those_of_the_models(raw: Engine) -> None:
    with raw.connect() as connection:
        options = {"version_table": schema.VERSION_TABLE, "compare_type": False}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []


def test_revisions_are_those_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(schema.__file__).parent / "migrations"))
    scripts = list(ScriptDirectory.from_config(config).walk_revisions())
    assert tuple(each.revision for each in reversed(scripts)) == schema.REVISIONS


@pytest.mark.parametrize(
    ("change_made", "what", "ask"),
    [
        (
            "DROP TABLE backlog_kept_pasts",
            "backlog_kept_pasts",
            lambda of: of.samples.kept_pasts("o"),
        ),
        (
            "ALTER TABLE backlog_chunks DROP COLUMN left_out",
            "left_out",
            lambda of: of.chunks.list("r"),
        ),
    ],
    ids=["table", "column"],
)
def test_what_was_added_since_is_made_by_the_command_that_is_named(
    url: str, raw: Engine, change_made: str, what: str, ask: Callable[[Ledger], Any]
) -> None:
    change(raw, change_made)
    with open_ledger(url) as ledger:
        with pytest.raises(LedgerError, match=what) as caught:
            ask(ledger)
        assert caught.value.hint == "run `backlogctl db upgrade`"
        schema.upgrade(url)
        assert ask(ledger) == ()


def test_older_tables_are_refused_until_they_are_upgraded(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "HEAD", "0002")
    database = LedgerDatabase(url)
    with pytest.raises(LedgerError, match="is at revision 0001, not 0002") as caught:
        schema.check_revision(database)
    assert "backlogctl db upgrade" in caught.value.hint
    database.close()


def test_upgrade_twice_is_upgrade_once(empty_url: str) -> None:
    assert upgrade(empty_url) == upgrade(empty_url) == schema.HEAD


def test_two_that_make_the_ledger_at_once_both_have_it(empty_url: str) -> None:
    code = (
        "import sys; from backlogctl_delivery import database; from backlogctl.ledger import *\n"
        "database.BUSY_SECONDS = 60; upgrade(sys.argv[1]); open_ledger(sys.argv[1])"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, empty_url]) for _ in range(3)]
    assert [process.wait(120) for process in both] == [0, 0, 0]


def test_embedded_ledger_makes_itself_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with open_ledger(f"sqlite:///{path}") as ledger:
        assert ledger.gaps.list() == ()
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
        assert set(modes.values()) == {0o600}, modes


@pytest.mark.postgres
def test_postgresql_is_not_made_by_opening(pg_url: str) -> None:
    with pytest.raises(LedgerError) as caught:
        open_ledger(pg_url)
    assert "no tables" in caught.value.message
    assert "backlogctl db upgrade" in caught.value.hint


def test_ledger_of_a_newer_program_is_refused(url: str, raw: Engine) -> None:
    change(raw, f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")
    for verb in (open_ledger, upgrade):
        with pytest.raises(LedgerError) as caught:
            verb(url)
        assert "newer backlogctl" in caught.value.hint


def test_nothing_is_left_of_an_upgrade_that_fails(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alembic import command

    real = command.upgrade

    def fail(config: Config, revision: str) -> None:
        real(config, revision)
        raise RuntimeError("killed")

    monkeypatch.setattr(command, "upgrade", fail)
    with pytest.raises(RuntimeError):
        upgrade(empty_url)
    monkeypatch.undo()
    upgrade(empty_url)
    open_ledger(empty_url).close()


# Each process says it is ready, waits for a line, does its part and prints how it went.
WORKER = """
import json, sys
from datetime import timedelta
from backlogctl.errors import BacklogError
from backlogctl_delivery import database
from backlogctl.ledger import Owner, open_ledger
from backlogctl.values import GapState, RecoveryState
from tests.kit.ledger import LONG_AGO, make_gap, make_sample, plan
database.BUSY_SECONDS = 60  # SQLite's writers take no turns
for line in sys.stdin:
    url, part, argument = json.loads(line)
    with open_ledger(url) as ledger:
        ledger.now()
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            exec(part)
            result = "won"
        except BacklogError as error:
            result = error.to_json()
        print(json.dumps(result), flush=True)
"""
RunAtOnce = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def run_at_once() -> Iterator[RunAtOnce]:
    """Runs a part of a program in three processes at once, each with an argument of its own."""
    command = [sys.executable, "-c", WORKER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    workers = [subprocess.Popen(command, text=True, **pipes) for _ in range(3)]  # type: ignore[call-overload]

    def run(url: str, part: str, *arguments: str) -> list[Any]:
        chosen = workers[: len(arguments)]
        for worker, argument in zip(chosen, arguments, strict=True):
            worker.stdin.write(json.dumps([url, part, argument]) + "\n")
            worker.stdin.flush()
        for worker in chosen:
            assert worker.stdout.readline() == "ready\n"
        for worker in chosen:
            worker.stdin.write("\n")
            worker.stdin.flush()
        return [json.loads(worker.stdout.readline()) for worker in chosen]

    yield run
    for worker in workers:
        worker.communicate(timeout=400)


APPROVE = """
r = ledger.recoveries.get(argument)
ledger.recoveries.approve(r.id, "op", "op@host", r.plan_hash, ledger.now() + timedelta(hours=1))
"""


def test_fault_44_two_approve_the_same_plan_at_once(
    ledger: Ledger, url: str, run_at_once: RunAtOnce
) -> None:
    recovery = plan(ledger)
    results = run_at_once(url, APPROVE, recovery.id, recovery.id)
    assert results.count("won") == 1
    told = next(result for result in results if result != "won")
    assert told["code"] == "invalid_transition"
    assert "approved by op" in told["message"]
    assert [event.action for event in ledger.events.list(recovery.id)] == ["planned", "approved"]


@pytest.mark.parametrize("shared", ["topic", "group"])
def test_fault_44_two_approve_plans_of_one_topic_or_group_at_once(
    ledger: Ledger, url: str, run_at_once: RunAtOnce, shared: str
) -> None:
    plans = [plan(ledger, stream=name, **{shared: "same"}).id for name in ("a", "b", "c")]
    results = run_at_once(url, APPROVE, *plans)
    assert results.count("won") == 1
    winner = plans[results.index("won")]
    for told in (result for result in results if result != "won"):
        assert told["code"] == "invalid_transition"
        assert f"recovery {winner} of the same {shared} same is approved" in told["message"]


def test_fault_44_two_start_at_once(ledger: Ledger, url: str, run_at_once: RunAtOnce) -> None:
    recovery = bring_to(ledger, plan(ledger), RecoveryState.APPROVED)
    start = "ledger.recoveries.advance(argument, RecoveryState.RUNNING, 'op')"
    results = run_at_once(url, start, recovery.id, recovery.id)
    assert results.count("won") == 1
    told = next(result for result in results if result != "won")
    assert "is running" in told["message"]


def test_fault_44_two_runners_take_the_lease_at_once(
    ledger: Ledger, url: str, run_at_once: RunAtOnce
) -> None:
    recovery = plan(ledger)
    take = "ledger.leases.acquire(argument, Owner.current())"
    results = run_at_once(url, take, *[recovery.id] * 3)
    assert results.count("won") == 1
    assert all(result == "won" or result["code"] == "lease_held" for result in results)


def test_plans_of_one_gap_made_at_once_supersede_each_other(
    ledger: Ledger, url: str, run_at_once: RunAtOnce
) -> None:
    gap = ledger.gaps.record(make_gap())
    assert run_at_once(url, "plan(ledger, argument)", *[gap.id] * 3) == ["won"] * 3
    states = [recovery.state for recovery in ledger.recoveries.list()]
    assert sorted(states) == ["planned", "rejected", "rejected"]
    live = ledger.recoveries.list(states=[RecoveryState.PLANNED])[0]
    assert ledger.recoveries.gap_ids(live.id) == (gap.id,)


def test_gaps_recorded_at_once_are_recorded_once(
    ledger: Ledger, url: str, run_at_once: RunAtOnce
) -> None:
    part = "for end in range(1, 40): ledger.gaps.record(make_gap(0, end * int(argument)))"
    assert run_at_once(url, part, "1", "2", "3") == ["won"] * 3
    assert [(gap.start, gap.end) for gap in ledger.gaps.list()] == [(0, 39 * 3)]


def test_events_and_progress_of_many_writers_are_all_there(
    ledger: Ledger, url: str, run_at_once: RunAtOnce
) -> None:
    recovery = plan(ledger)
    ledger.chunks.add_all(recovery.id, [make_chunk(0, number) for number in range(30)])
    part = (
        "for n in range(30): ledger.events.append(argument, 'op', 'wave');"
        " ledger.chunks.mark_injected(argument, 0, n); ledger.recoveries.next_id(LONG_AGO)"
    )
    assert run_at_once(url, part, *[recovery.id] * 3) == ["won"] * 3
    assert len(ledger.events.list(recovery.id)) == 91
    assert ledger.events.find_break(recovery.id) is None
    assert ledger.recoveries.get(recovery.id).injected == 30 * 500, "each chunk counts once"
    assert ledger.recoveries.next_id(LONG_AGO).startswith("r-20200101-0091-")


def test_ledger_is_used_on_both_sides_of_a_fork(ledger: Ledger) -> None:
    recovery = plan(ledger)
    child = os.fork()
    if child == 0:  # no test runner in here: only what is tested, and out
        try:
            ledger.events.append(recovery.id, "child", "wave")
            os._exit(0)
        finally:
            os._exit(1)
    ledger.events.append(recovery.id, "parent", "wave")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ledger.events.append(recovery.id, "parent", "wave")
    assert len(ledger.events.list(recovery.id)) == 4
    assert ledger.events.find_break(recovery.id) is None
