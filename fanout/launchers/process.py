"""Consumers as processes of this machine, kept running by one supervisor for each fleet.

The supervisor and what it knows outlive this process: files in the fleet's directory say what is
wanted and what runs, and any later `ProcessLauncher` goes on with them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.config import Consumers, Ramp, mask_secrets
from backlogctl.config.consumers import fill_in
from backlogctl.errors import BacklogError
from backlogctl.fanout.launchers import supervisor
from backlogctl.fanout.launchers.interface import (
    CheckStop,
    Fleet,
    Launcher,
    cut_tail,
    find_inherited,
)
from backlogctl.fanout.launchers.manual import ManualLauncher
from backlogctl_delivery.visible import join_words

# More consumers in steps, so that what they write to survives.

_TICK = 0.05


def ramp_up(
    launcher: Launcher,
    fleet: Fleet,
    count: int,
    ramp: Ramp,
    check_stop: CheckStop,
    on_step: Callable[[int], None],
    *,
    max_consumers: int | None = None,
) -> int:
    """Starts consumers from what runs up to `count`, `ramp.step` at a time.

    A step begins `ramp.every` after the one before it began, or once that has ended. People are
    asked once, for all of them.

    Args:
        on_step: called after each step with how many run.
        max_consumers: never more than this.

    Returns:
        How many were asked for: `count`, or `max_consumers`.

    Raises:
        BacklogError: what the launcher or `check_stop` raises.
    """
    wanted = count if max_consumers is None else min(count, max_consumers)
    running = min(launcher.count_running(fleet) or 0, wanted)
    step = wanted if isinstance(launcher, ManualLauncher) else ramp.step
    while True:
        check_stop()
        pause = Deadline(ramp.every.total_seconds())
        running = min(running + step, wanted)
        launcher.scale(fleet, running, check_stop)
        on_step(running)
        if running == wanted:
            return wanted
        while not pause.expired:
            check_stop()
            time.sleep(pause.remaining(_TICK))


_PROCESS_TICK = 0.02
_SETTLED = 0.5  # seconds that a consumer must have run to be counted as started
_QUICK_ENDS = 3
_KEEPS_ENDING = 2
_SUPERVISOR_TRIES = 3
_SUPERVISOR_WITHIN = 15.0  # beyond the time that consumers have to end
_TAIL_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """One consumer as its supervisor reports it; `exit_code` is of its last end."""

    index: int
    pid: int | None  # None while it does not run
    restarts: int
    exit_code: int | None
    log: Path


class ProcessLauncher:
    name = "process"

    def __init__(self, consumers: Consumers) -> None:
        self._consumers = consumers
        self._stop_within = consumers.stop_within.total_seconds()

    def scale(self, fleet: Fleet, count: int, check_stop: CheckStop) -> None:
        """Makes `count` processes run; returns when each has run for half a second.

        A running supervisor keeps the environment that it was started with: changed variables are
        taken up by a stop and a start.

        Raises:
            BacklogError: the command cannot be started, or keeps ending at once.
        """
        if count == 0:
            self.stop(fleet, check_stop)
            return
        self._check_directory(fleet)
        try:
            fleet.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._want(fleet, count)
        except OSError as error:
            raise BacklogError(
                f"its consumers cannot be started: {error.strerror}",
                subject=f"directory {fleet.directory}",
                hint="its launcher keeps its state there; see `staging.dir`",
            ) from error
        limit = Deadline(self._stop_within + _SUPERVISOR_WITHIN)
        tries = 0
        while True:
            if self._supervise(fleet):
                tries += 1
            check_stop()
            state = _read_state(fleet)
            request = _follow(fleet, count)
            if state.get("request") == request:
                failing = _find_failing(fleet, state, _QUICK_ENDS, count)
                if failing is not None:
                    raise BacklogError(
                        failing.why,
                        subject=f"stream {fleet.stream}, group {fleet.group}",
                        hint=failing.hint,
                    )
                if _has_settled(state, count):
                    return
                limit = Deadline(self._stop_within + _SUPERVISOR_WITHIN)
            elif tries > _SUPERVISOR_TRIES:
                raise self._fail_supervisor(fleet, "it keeps ending")
            elif limit.expired:
                # It hangs; its consumers end with it, and the next one starts others.
                self._kill_supervisor(state)
                limit = Deadline(self._stop_within + _SUPERVISOR_WITHIN)
            time.sleep(_PROCESS_TICK)

    def stop(self, fleet: Fleet, check_stop: CheckStop) -> None:
        """Ends every process of the fleet: SIGTERM, then SIGKILL after `stop_within`."""
        if not fleet.directory.is_dir():
            return
        self._want(fleet, 0)
        limit = Deadline(self._stop_within + _SUPERVISOR_WITHIN)
        while True:
            with _locked(fleet) as lock:
                if lock is not None:
                    # No supervisor lives; what one of them may have left is ended here.
                    supervisor.end_leftovers(_real(fleet), self._stop_within, check_stop)
                    (fleet.directory / supervisor.STATE).unlink(missing_ok=True)
                    return
            check_stop()
            _follow(fleet, 0)
            if limit.expired:
                self._kill_supervisor(_read_state(fleet))
            time.sleep(_PROCESS_TICK)

    def count_running(self, fleet: Fleet) -> int | None:
        """How many processes live, by pid and start time."""
        return sum(consumer.pid is not None for consumer in self.list_consumers(fleet))

    def explain(self, fleet: Fleet) -> str | None:
        """The first consumer that ended at once twice: exit code, last lines."""
        failing = _find_failing(fleet, _read_state(fleet), _KEEPS_ENDING)
        return None if failing is None else f"{failing.why}\n  {failing.hint}"

    def describe(self, fleet: Fleet) -> str:
        command = join_words(fill_in(self._command, {**fleet.placeholders, "index": "N"}))
        within = f"{self._stop_within:g} s"
        return f"local processes `{command}`, ended with SIGTERM, with SIGKILL after {within}"

    def logs(self, fleet: Fleet) -> str:
        return str(fleet.directory)

    def check(self, original: Fleet, recovery: Fleet | None, count: int) -> tuple[str, ...]:
        return ()

    def list_consumers(self, fleet: Fleet) -> list[ConsumerState]:
        """The fleet's consumers, also those that wait for their next start."""
        return [
            ConsumerState(
                consumer["index"],
                consumer["pid"] if _lives(consumer) else None,
                consumer["restarts"],
                consumer["exit_code"],
                supervisor.log_of(fleet.directory, consumer["index"]),
            )
            for consumer in _read_state(fleet).get("consumers", [])
        ]

    @property
    def _command(self) -> tuple[str, ...]:
        assert self._consumers.command is not None  # the configuration was checked
        return self._consumers.command

    @property
    def _place(self) -> Path:
        return self._consumers.directory or Path.cwd()

    def _check_directory(self, fleet: Fleet) -> None:
        if not self._place.is_dir():
            raise BacklogError(
                f"its consumers cannot be started: there is no directory {self._place}",
                subject=f"stream {fleet.stream}",
                hint="see `consumers.directory`",
            )

    def _want(self, fleet: Fleet, count: int) -> None:
        """Writes what should run for the supervisor; without secrets, since the file stays."""
        document = {
            "request": uuid.uuid4().hex,
            "count": count,
            "command": list(self._command),
            "words": dict(fleet.placeholders),
            "directory": str(self._place),
            "stop_within": self._stop_within,
        }
        supervisor.write_private(fleet.directory / supervisor.WANTED, document)

    def _supervise(self, fleet: Fleet) -> bool:
        """Starts a supervisor where none lives; whether it did."""
        with _locked(fleet) as lock:
            if lock is None:
                return False
            environment = {**self._consumers.reveal_environment(), **fleet.variables}
            program = [sys.executable, "-I", "-S", str(Path(supervisor.__file__).absolute())]
            mode = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            log = os.open(fleet.directory / supervisor.OWN_LOG, mode, 0o600)
            try:
                # The lock goes along with its open file: nobody can take it in between.
                started = subprocess.run(
                    [*program, str(_real(fleet)), str(lock)],
                    env={**find_inherited(), **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(lock,),
                    start_new_session=True,
                    check=False,
                )
            finally:
                os.close(log)
            if started.returncode:
                raise self._fail_supervisor(fleet, f"exit code {started.returncode}")
            return True

    def _fail_supervisor(self, fleet: Fleet, why: str) -> BacklogError:
        log = fleet.directory / supervisor.OWN_LOG
        return BacklogError(
            f"the supervisor of its consumers could not be started, {why}:\n  {_read_tail(log)}",
            subject=f"stream {fleet.stream}",
            hint=f"its log is {log}",
        )

    def _kill_supervisor(self, state: dict[str, Any]) -> None:
        known = state.get("supervisor")
        if known and supervisor.find_start(known["pid"]) == known["started"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(known["pid"], signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class _Failing:
    """Why a consumer does not stay, without secrets, and where to look."""

    why: str
    hint: str


def _find_failing(
    fleet: Fleet, state: dict[str, Any], ends: int, count: int | None = None
) -> _Failing | None:
    """The first consumer, of the first `count`, that ended at once `ends` times or more."""
    for consumer in state.get("consumers", []):
        if count is not None and consumer["index"] >= count:
            continue
        if consumer["quick_ends"] < ends:
            continue
        log = supervisor.log_of(fleet.directory, consumer["index"])
        if consumer["error"]:
            how, hint = f"it could not be started ({consumer['error']})", "see `consumers.command`"
        else:
            how = f"{_describe_exit(consumer['exit_code'])}; its last lines:\n  {_read_tail(log)}"
            hint = f"its log is {log}"
        told = f"consumer {consumer['index']} ended at once {consumer['quick_ends']} times: {how}"
        return _Failing(mask_secrets(told), hint)
    return None


def _real(fleet: Fleet) -> Path:
    return Path(os.path.realpath(fleet.directory))


def _read_state(fleet: Fleet) -> dict[str, Any]:
    return supervisor.read_private(fleet.directory / supervisor.STATE)


def _follow(fleet: Fleet, count: int) -> str:
    """The latest request for consumers, perhaps another process's.
    Raises BacklogError: it asks for another number than we do.
    """
    wanted = supervisor.read_private(fleet.directory / supervisor.WANTED)
    if wanted.get("count", count) != count:
        raise BacklogError(
            f"another process asked for {wanted['count']} consumers, while this one for {count}",
            subject=f"stream {fleet.stream}, group {fleet.group}",
            hint="see who else starts or stops them, then run this again",
        )
    return str(wanted.get("request"))


def _lives(consumer: dict[str, Any]) -> bool:
    return bool(consumer["pid"]) and supervisor.find_start(consumer["pid"]) == consumer["started"]


def _has_settled(state: dict[str, Any], count: int) -> bool:
    """Whether exactly `count` run, each long enough to have found its own mistakes."""
    now, consumers = time.monotonic(), state["consumers"]
    return len(consumers) == count and all(
        not consumer["stopping"] and now - consumer["born"] >= _SETTLED and _lives(consumer)
        for consumer in consumers
    )


@contextmanager
def _locked(fleet: Fleet) -> Iterator[int | None]:
    """The fleet's lock while nobody has it; None where a supervisor has it."""
    descriptor = os.open(fleet.directory / supervisor.LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        # Closed, not unlocked: a supervisor that has inherited it keeps it.
        yield descriptor
    finally:
        os.close(descriptor)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _read_tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "(nothing)"
    return cut_tail(text) or "(nothing)"
