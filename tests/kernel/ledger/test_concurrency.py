"""Several processes at one ledger: the database decides, and the other one is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from backlogctl.ledger import Ledger
from backlogctl.values import RecoveryState
from tests.kernel.ledger.makers import LONG_AGO, bring_to, make_chunk, make_gap, plan

# Each process says it is ready, waits for a line, does its part and prints how it went.
WORKER = """
import json, sys
from datetime import timedelta
from backlogctl.errors import BacklogError
from backlogctl_delivery import database
from backlogctl.ledger import Owner, open_ledger
from backlogctl.values import GapState, RecoveryState
from tests.kernel.ledger.makers import LONG_AGO, make_gap, make_sample, plan
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
        worker.communicate(timeout=60)


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
    assert ledger.recoveries.next_id(LONG_AGO) == "r-20200101-0091"


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
