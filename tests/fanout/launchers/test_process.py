"""Local processes: what dies is started again, what is killed leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backlogctl.config import Config, Consumers
from backlogctl.errors import BacklogError
from backlogctl.fanout.launchers import Fleet, ProcessLauncher, process, supervisor
from tests.fanout.launchers.fleets import (
    CONSUMER,
    kill_all,
    make_fleet,
    no_stop,
    python,
    read_seen,
)
from tests.kit.kafka import run_together, wait_until

Make = Callable[..., ProcessLauncher]

# Has a child that is not in the way of its own end.
PARENT = """\
import os, signal, subprocess, sys
subprocess.Popen([sys.executable, "-I", "-S", "-c", sys.argv[1], *sys.argv[2:]])
signal.sigwait({signal.SIGTERM})
"""
STUBBORN = CONSUMER.replace("place =", "signal.pthread_sigmask(0, [15]); place =")
STUBBORN = STUBBORN.replace("{signal.SIGTERM}", "{signal.SIGUSR1}")
CALLER = """\
import json, os, signal, sys
from pathlib import Path
from backlogctl.config import Consumers
from backlogctl.fanout.launchers import ProcessLauncher
from tests.fanout.launchers.fleets import make_fleet
consumers = Consumers.model_validate(json.loads(sys.argv[2]))
ProcessLauncher(consumers).scale(make_fleet(Path(sys.argv[1])), 3, lambda: None)
os.killpg(os.getpgrp(), signal.SIGKILL)
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return make_fleet(tmp_path)


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    (tmp_path / "seen").mkdir()
    return tmp_path / "seen"


@pytest.fixture
def make(fleet: Fleet, seen: Path, tmp_path: Path) -> Iterator[Make]:
    """Launchers of the fleet, which is stopped at the end."""

    def launch(command: list[str] | None = None, **settings: Any) -> ProcessLauncher:
        settings = {"directory": tmp_path, "stop_within": "30s", **settings}
        command = command or python(CONSUMER, str(seen), "{index}")
        document = {"launcher": "process", "command": command, **settings}
        return ProcessLauncher(Consumers.model_validate(document))

    yield launch
    launch().stop(fleet, no_stop)
    left = read_seen(seen)
    kill_all(left)
    assert not left


def await_seen(seen: Path, count: int) -> set[int]:
    """The consumers that live, once so many have begun: a launcher knows only that they run."""
    wait_until(lambda: len(read_seen(seen)) == count, what=f"{count} consumers have begun")
    return set(read_seen(seen))


def read_state(fleet: Fleet) -> dict[str, Any]:
    return supervisor.read_private(fleet.directory / supervisor.STATE)


def is_locked(fleet: Fleet) -> bool:
    answer = subprocess.run(
        ["flock", "-n", str(fleet.directory / supervisor.LOCK), "true"], check=False
    )
    return answer.returncode != 0


def test_a_killed_consumer_is_started_again_and_counted(
    make: Make, fleet: Fleet, seen: Path
) -> None:
    launcher = make()
    launcher.scale(fleet, 2, no_stop)
    victim = min(await_seen(seen, 2))
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(read_seen(seen)) == 2 and victim not in read_seen(seen))
    wait_until(lambda: launcher.count_running(fleet) == 2)
    restarts = [(c.restarts, c.exit_code) for c in launcher.list_consumers(fleet)]
    assert sorted(restarts, key=str) == [(0, None), (1, -9)]


def test_scaling_keeps_those_that_run(make: Make, fleet: Fleet, seen: Path) -> None:
    make().scale(fleet, 2, no_stop)
    before = await_seen(seen, 2)
    make().scale(fleet, 3, no_stop)
    assert before < await_seen(seen, 3)
    make().scale(fleet, 2, no_stop)
    assert set(read_seen(seen)) == before


def test_thirty_are_started_side_by_side(make: Make, fleet: Fleet) -> None:
    began = time.monotonic()
    make().scale(fleet, 30, no_stop)
    assert time.monotonic() - began < 14  # one after another takes half a second each
    assert make().count_running(fleet) == 30
    began = time.monotonic()
    make().stop(fleet, no_stop)
    assert time.monotonic() - began < 25  # by SIGTERM: without, 30 s


def test_a_killed_supervisor_takes_its_consumers_along(
    make: Make, fleet: Fleet, seen: Path
) -> None:
    launcher = make()
    launcher.scale(fleet, 2, no_stop)
    first = await_seen(seen, 2)
    os.kill(read_state(fleet)["supervisor"]["pid"], signal.SIGKILL)
    wait_until(lambda: not read_seen(seen))
    assert launcher.count_running(fleet) == 0
    launcher.scale(fleet, 2, no_stop)
    assert not first & await_seen(seen, 2)


@pytest.mark.parametrize("then", ["scale", "stop"])
def test_what_escaped_a_killed_supervisor_is_found(
    make: Make, fleet: Fleet, seen: Path, then: str
) -> None:
    launcher = make(python(PARENT, CONSUMER.replace("{", "{{").replace("}", "}}"), str(seen)))
    launcher.scale(fleet, 1, no_stop)
    (child,) = await_seen(seen, 1)
    os.kill(read_state(fleet)["supervisor"]["pid"], signal.SIGKILL)
    wait_until(lambda: launcher.count_running(fleet) == 0)
    assert read_seen(seen)
    if then == "stop":
        launcher.stop(fleet, no_stop)
        assert not read_seen(seen)
    else:
        launcher.scale(fleet, 1, no_stop)
        wait_until(lambda: read_seen(seen).keys() - {child})
        assert child not in read_seen(seen)


def test_children_of_a_consumer_end_with_it(make: Make, fleet: Fleet, seen: Path) -> None:
    launcher = make(python(PARENT, CONSUMER.replace("{", "{{").replace("}", "}}"), str(seen)))
    launcher.scale(fleet, 1, no_stop)
    (child,) = await_seen(seen, 1)
    os.kill(read_state(fleet)["consumers"][0]["pid"], signal.SIGKILL)
    wait_until(lambda: read_seen(seen).keys() - {child}, what="it is started again")
    assert child not in read_seen(seen)
    launcher.stop(fleet, no_stop)
    assert not read_seen(seen)


def test_who_does_not_hear_sigterm_is_killed_in_time(make: Make, fleet: Fleet, seen: Path) -> None:
    launcher = make(python(STUBBORN, str(seen)), stop_within="1s")
    launcher.scale(fleet, 2, no_stop)
    await_seen(seen, 2)
    began = time.monotonic()
    launcher.stop(fleet, no_stop)
    assert 0.9 < time.monotonic() - began < 14  # after 16 its supervisor is given up
    assert not read_seen(seen)


def test_a_killed_caller_leaves_a_fleet_that_is_found(
    make: Make, fleet: Fleet, seen: Path, tmp_path: Path
) -> None:
    command = python(CONSUMER, str(seen))
    document = {"launcher": "process", "command": command, "directory": str(tmp_path)}
    caller = subprocess.run(
        [sys.executable, "-c", CALLER, str(tmp_path), json.dumps(document)],
        start_new_session=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert caller.returncode == -signal.SIGKILL
    before = await_seen(seen, 3)
    assert make().count_running(fleet) == 3
    make().scale(fleet, 3, no_stop)
    assert set(read_seen(seen)) == before


def test_a_supervisor_that_hangs_is_replaced(
    make: Make, fleet: Fleet, seen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = make(stop_within="500ms")
    launcher.scale(fleet, 1, no_stop)
    monkeypatch.setattr(process, "_SUPERVISOR_WITHIN", 0.5)
    # A machine that stands still is no reason to give up here.
    monkeypatch.setattr(process, "_SUPERVISOR_TRIES", 100)
    for _ in range(2):
        os.kill(read_state(fleet)["supervisor"]["pid"], signal.SIGSTOP)
        launcher.scale(fleet, 2, no_stop)
        assert launcher.count_running(fleet) == 2
        await_seen(seen, 2)
    os.kill(read_state(fleet)["supervisor"]["pid"], signal.SIGSTOP)
    launcher.stop(fleet, no_stop)
    assert not read_seen(seen)


def test_another_callers_last_word_counts(make: Make, fleet: Fleet) -> None:
    launcher = make()

    def ask_for_two() -> None:
        document = supervisor.read_private(fleet.directory / supervisor.WANTED)
        if document["count"] != 2:
            supervisor.write_private(fleet.directory / supervisor.WANTED, {**document, "count": 2})

    with pytest.raises(BacklogError, match="another process asked for 2 consumers"):
        launcher.scale(fleet, 3, ask_for_two)
    launcher.scale(fleet, 3, no_stop)
    assert launcher.count_running(fleet) == 3


def test_callers_at_once_share_one_supervisor(make: Make, fleet: Fleet, seen: Path) -> None:
    run_together(*[lambda: make().scale(fleet, 4, no_stop)] * 6)
    assert make().count_running(fleet) == 4
    await_seen(seen, 4)
    # One that is started by hand does not get the lock.
    with (fleet.directory / supervisor.LOCK).open() as lock:
        program = [sys.executable, "-I", "-S", supervisor.__file__, str(fleet.directory)]
        second = subprocess.run(
            [*program, str(lock.fileno())],
            pass_fds=(lock.fileno(),),
            capture_output=True,
            text=True,
            check=False,
        )
    assert second.returncode == 1
    assert "another supervisor" in second.stderr
    make().stop(fleet, no_stop)
    assert not is_locked(fleet)


def test_consumers_that_end_at_once_are_an_error_with_their_last_lines(
    make: Make, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "import sys; print('no broker at all'); print('really not', file=sys.stderr); sys.exit(3)"
    )
    with monkeypatch.context() as patch:
        patch.setattr(process, "_SETTLED", 60.0)  # however slowly they start
        with pytest.raises(BacklogError, match="no broker at all\n  really not") as caught:
            make(python(text)).scale(fleet, 2, no_stop)
    assert "exit code 3" in caught.value.message
    assert re.search(r"ended at once [3-9] times", caught.value.message)
    assert str(fleet.directory) in caught.value.hint
    # The cause was mended: the next one needs no stop before.
    make().scale(fleet, 2, no_stop)
    assert make().count_running(fleet) == 2


def test_a_command_that_is_not_there_is_an_error(make: Make, fleet: Fleet, tmp_path: Path) -> None:
    with pytest.raises(BacklogError, match=r"No such file.*no-such-program"):
        make(["no-such-program"]).scale(fleet, 1, no_stop)
    with pytest.raises(BacklogError, match="no directory /nowhere"):
        make(directory=Path("/nowhere")).scale(fleet, 1, no_stop)
    (tmp_path / "file").touch()
    with pytest.raises(BacklogError, match="cannot be started"):
        make().scale(make_fleet(tmp_path / "file"), 1, no_stop)


def test_fault_59_a_secret_in_the_last_lines_is_masked(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_SETTLED", 60.0)  # however slowly it starts
    program = python("import os, sys; sys.exit('denied: ' + os.environ['KEY'])")
    consumers = {"launcher": "process", "command": program, "environment": {"KEY": "${env:KEY}"}}
    stream = {"cluster": "c", "topic": "t", "group": "g", "consumers": consumers}
    whole = {"clusters": {"c": {"bootstrap.servers": "h"}}, "streams": {"s": stream}}
    config = Config.from_text(json.dumps(whole), tmp_path, {"KEY": "hunter2-of-the-shop"})
    found = config.stream("s").consumers
    assert found is not None
    try:
        with pytest.raises(BacklogError) as caught:
            ProcessLauncher(found).scale(fleet, 1, no_stop)
    finally:
        ProcessLauncher(found).stop(fleet, no_stop)
    assert "denied: ***" in str(caught.value)
    assert "hunter2" not in f"{caught.value} {caught.value!r}"


def test_a_recycled_pid_is_never_taken_for_ours(make: Make, fleet: Fleet) -> None:
    make().scale(fleet, 1, no_stop)
    state = read_state(fleet)
    make().stop(fleet, no_stop)
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            state["consumers"][0]["pid"] = state["supervisor"]["pid"] = other.pid
            supervisor.write_private(fleet.directory / supervisor.STATE, state)
            assert make().count_running(fleet) == 0
            make().stop(fleet, no_stop)
            make().scale(fleet, 1, no_stop)
            assert other.poll() is None
        finally:
            other.kill()


def test_logs_are_of_the_owner_and_bounded_at_a_start(make: Make, fleet: Fleet) -> None:
    fleet.directory.mkdir(mode=0o700)
    log = supervisor.log_of(fleet.directory, 0)
    log.write_text("x" * (supervisor.LOG_LIMIT + 1))
    log.chmod(0o600)
    text = "import signal; print('started', flush=True); signal.sigwait({15})"
    make(python(text)).scale(fleet, 1, no_stop)
    wait_until(lambda: log.read_text() == "started\n")
    assert log.with_suffix(".log.1").exists()
    make().stop(fleet, no_stop)
    make(python(text)).scale(fleet, 1, no_stop)
    wait_until(lambda: log.read_text() == "started\n" * 2)
    assert fleet.directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in fleet.directory.iterdir()} == {0}


def test_consumers_inherit_neither_locks_nor_stdin(
    make: Make, fleet: Fleet, tmp_path: Path
) -> None:
    text = (
        "import os, signal; print(sorted(os.readlink(f'/proc/self/fd/{n}') for n in os.listdir("
        "'/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')), flush=True);"
        "signal.sigwait({15})"
    )
    with (tmp_path / "callers.lock").open("w") as own:
        os.set_inheritable(own.fileno(), True)
        make(python(text)).scale(fleet, 1, no_stop)
    log = supervisor.log_of(fleet.directory, 0)
    wait_until(log.read_text)
    assert set(eval(log.read_text())) == {"/dev/null", str(log)}
    pid = read_state(fleet)["supervisor"]["pid"]
    held = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    assert not any("callers.lock" in name for name in held)
    assert "/dev/null" in held


def test_a_fleet_whose_directory_is_removed_ends(
    make: Make, fleet: Fleet, seen: Path, tmp_path: Path
) -> None:
    make().scale(fleet, 2, no_stop)
    await_seen(seen, 2)
    # At once: its supervisor writes there.
    shutil.rmtree(fleet.directory.rename(tmp_path / "removed"))
    wait_until(lambda: not read_seen(seen))
    make().stop(fleet, no_stop)  # nothing is left to do
    assert not fleet.directory.exists()
