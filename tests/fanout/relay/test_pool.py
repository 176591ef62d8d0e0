"""The relay's processes: started again where they die, stopped between two transactions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from backlogctl.errors import KafkaFailure, LeaseHeld, Refused
from backlogctl.fanout.relay.interface import SourceRange
from backlogctl.fanout.relay.pool import RelayPool
from tests.fanout.relay.conftest import MakeWorld
from tests.fanout.relay.doing import await_commits, check_copied, fill, filling, keep_calling
from tests.fanout.relay.test_fencing import pool_of, run_on
from tests.kafka_tools import delete_group, wait_until


def test_a_process_that_is_killed_is_started_again(make_world: MakeWorld, tmp_path: Path) -> None:
    here = make_world(partitions=3)
    fill(here.properties, here.source, {0: 2000, 1: 2000, 2: 2000})
    with (
        here.guarded() as task,
        filling(here.properties, here.source, 3),
        pool_of(task, [SourceRange(p, 0) for p in range(3)], tmp_path, count=2) as pool,
    ):
        pool.start()

        def has_begun() -> bool:
            pool.check()
            return len(pool.positions) == 3

        wait_until(has_begun)
        before = dict(pool.positions)
        killed = pool.pids[0]  # it has partitions 0 and 2
        os.kill(killed, signal.SIGKILL)

        def has_gone_on() -> bool:
            pool.check()
            return all(at.committed > before[p].committed for p, at in pool.positions.items())

        wait_until(has_gone_on)
        assert killed not in pool.pids
        assert sorted(pool.positions) == [0, 1, 2]
        # Between two transactions: nothing is open when its markers are written.
        pool.stop()
        assert not pool.pids
        assert pool.is_done
        assert here.commits() == {p: at.committed for p, at in pool.positions.items()}
        wait_until(lambda: not here.has_open_transactions(), 10.0)  # by itself after 15 s
    with here.guarded() as task, pool_of(task, here.ranges(), tmp_path) as again:
        again.start()
        run_on(again)
    assert check_copied(here) == []
    assert (tmp_path / "relay.log").read_text() == ""


RUNNER = """
import json, sys, time
from pathlib import Path
from backlogctl.fanout.relay.interface import RelayTask, SourceRange
from backlogctl.fanout.relay.pool import RelayPool

told = json.loads(sys.stdin.readline())
told["group_metadata"] = told["group_metadata"].encode("latin-1")
pool = RelayPool(RelayTask(**told), [SourceRange(0, 0), SourceRange(1, 0)], Path(sys.argv[1]))
pool.start()
while len(pool.positions) < 2:
    time.sleep(0.02)
print(json.dumps(pool.pids), flush=True)
time.sleep(600)
"""


def test_fault_01_the_processes_end_with_a_runner_that_is_killed(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    here = make_world(partitions=2)
    fill(here.properties, here.source, {0: 500, 1: 500})
    with here.guarded() as task:
        runner = subprocess.Popen(
            [sys.executable, "-c", RUNNER, str(tmp_path / "relay.log")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with runner:
            assert runner.stdin is not None
            assert runner.stdout is not None
            told = {**asdict(task), "group_metadata": task.group_metadata.decode("latin-1")}
            runner.stdin.write(json.dumps(told) + "\n")
            runner.stdin.flush()
            pids = json.loads(runner.stdout.readline())
            assert len(pids) == 2
            runner.kill()
        wait_until(lambda: not any(is_running(pid) for pid in pids))
    with here.guarded() as task, pool_of(task, here.ranges(), tmp_path) as again:
        again.start()
        run_on(again)
    assert check_copied(here) == []


def is_running(pid: int) -> bool:
    """Whether the process is there, and no zombie that its new parent has not reaped."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_failure_that_would_come_again_is_raised(make_world: MakeWorld, tmp_path: Path) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 5})
    delete_group(here.properties, here.group)
    with here.guarded() as task, pool_of(task, here.ranges(), tmp_path) as pool:
        pool.start()
        with pytest.raises(Refused, match="no committed offset"):
            keep_calling(pool.check)


def test_a_relay_is_not_started_without_the_lease(make_world: MakeWorld, tmp_path: Path) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 5})
    mine = [True]

    def confirm() -> None:
        if not mine[0]:
            raise LeaseHeld("another runner has it")

    with here.guarded() as task:
        log = tmp_path / "relay.log"
        pool = RelayPool(task, [SourceRange(0, 0)], log, before_start=confirm)
        try:
            pool.start()
            await_commits(here, {0: 5})
            mine[0] = False
            os.kill(pool.pids[0], signal.SIGKILL)
            with pytest.raises(LeaseHeld):
                keep_calling(pool.check)
            assert pool.pids == ()
        finally:
            pool.kill()
        mine[0] = False
        with pytest.raises(LeaseHeld):
            RelayPool(task, [SourceRange(0, 0)], log, before_start=confirm).start()


def test_one_that_does_not_stop_is_killed(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backlogctl.fanout.relay.pool.STOP_SECONDS", 0.5)
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 5})
    with here.guarded() as task, pool_of(task, [SourceRange(0, 0)], tmp_path) as pool:
        pool.start()
        await_commits(here, {0: 5})
        os.kill(pool.pids[0], signal.SIGSTOP)
        with pytest.raises(KafkaFailure, match=r"did not stop within 0\.5 s"):
            pool.stop()
        assert pool.pids == ()
