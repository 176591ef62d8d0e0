"""The relay's processes: started, listened to, started again, and stopped."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backlogctl import IMPORT_ROOT
from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure, ProducerFenced
from backlogctl.fanout.relay.interface import (
    RECORD,
    GuardLost,
    Patience,
    Position,
    PositionExpired,
    RelayTask,
    SourceRange,
    UnexplainedRefusal,
)
from backlogctl.fanout.relay.worker import read_error, read_position, write_task
from backlogctl_delivery.kafka import EncryptionRefused, LoginRefused

STOP_SECONDS = 60.0
# How long relays are restarted without any progress: a broker may be away.
PATIENCE_SECONDS = 300.0
# How often one partition's relay is started again without a commit of its own, where it is not
# known whether the refusal passes: each try leaves aborted records.
REFUSALS = 5
_BACK_OFF = (0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass
class _Tries:
    """Failures of one partition's relay since it last committed something."""

    failures: int = 0
    refusals: int = 0
    again_at: float | None = None  # when it is started again; None: it has been


@dataclass
class _Process:
    """One worker process and the partitions it still relays."""

    parts: list[SourceRange]
    child: subprocess.Popen[str]
    listener: threading.Thread
    open: set[int]

    @property
    def ended(self) -> bool:
        return self.child.poll() is not None and not self.listener.is_alive()


class Spares:
    """Relay processes started ahead of time: they have loaded what they need and wait for a task.

    Started when there is nothing else to do, they spare the wait when there is.
    """

    def __init__(self, log: Path, engine: str = RECORD) -> None:
        self._log, self._engine = log, engine
        self._children: list[subprocess.Popen[str]] = []

    def fill(self, count: int) -> None:
        while len(self._children) < count:
            self._children.append(_spawn(self._log, self._engine))

    def take(self) -> subprocess.Popen[str]:
        """One that waits, or a new one."""
        while self._children:
            child = self._children.pop()
            if child.poll() is None:
                return child
            _close_pipes(child)
        return _spawn(self._log, self._engine)

    def close(self) -> None:
        children, self._children = self._children, []
        for child in children:
            child.kill()
            child.wait(10.0)
            _close_pipes(child)


def count_processes(partitions: int, processes: int | None = None) -> int:
    """How many processes relay so many partitions: as many as cores, and at least four."""
    return max(1, min(processes or max(4, os.cpu_count() or 1), partitions))


class RelayPool:
    """Relays every range, in as many processes as partitions and cores allow.

    `check` must be called again and again: it starts what died again. The caller holds the
    recovery's lease; it is looked at before a relay is started, because a relay that starts takes
    its partition's transactional.id from whoever has it.
    """

    def __init__(
        self,
        task: RelayTask,
        ranges: Sequence[SourceRange],
        log: Path,
        *,
        engine: str = RECORD,
        processes: int | None = None,
        before_start: Callable[[], None] = lambda: None,
        spares: Spares | None = None,
    ) -> None:
        self._task = task
        self._ranges = {part.partition: part for part in ranges}
        self._log = log
        self._spares = spares or Spares(log, engine)
        self._count = count_processes(len(self._ranges), processes)
        self._before_start = before_start
        self._lock = threading.Lock()
        self._processes: list[_Process] = []
        self._positions: dict[int, Position] = {}
        self._done: set[int] = set()
        self._failures: list[tuple[int, BacklogError]] = []
        self._stopping = False
        self._tries: dict[int, _Tries] = {}
        self._patience = Patience(PATIENCE_SECONDS)

    def start(self) -> None:
        numbers = sorted(self._ranges)
        self._before_start()
        for index in range(self._count):
            self._launch([self._ranges[number] for number in numbers[index :: self._count]])

    @property
    def positions(self) -> dict[int, Position]:
        """The last committed position of each partition that has committed."""
        with self._lock:
            return dict(self._positions)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(p.child.pid for p in self._processes if p.child.poll() is None)

    @property
    def is_done(self) -> bool:
        """Whether every partition came to its range's end, or stopped when asked."""
        with self._lock:
            return self._done == set(self._ranges)

    def check(self) -> None:
        """Looks at the processes; starts a partition's relay again where its failure will pass.

        Raises:
            GuardLost, PositionExpired: the caller decides how to go on.
            ProducerFenced: another runner has taken over.
            BacklogError: it failed, and would again.
        """
        self._collect_dead()
        with self._lock:
            failures, self._failures = self._failures, []
        for _, error in failures:
            if not error.retryable or isinstance(
                error, GuardLost | PositionExpired | ProducerFenced
            ):
                raise error
            # Work under way waits for a password that is changed, broker by broker.
            if isinstance(error, LoginRefused | EncryptionRefused) and not self.positions:
                raise error
        if failures and self._patience.is_over():
            raise failures[0][1]
        for number, error in failures:
            self._note_failure(number, error)
        if due := self._take_due():
            self._before_start()
            self._launch([self._ranges[number] for number in due])

    def _note_failure(self, number: int, error: BacklogError) -> None:
        """It is tried again a little later; raises what was refused too often."""
        with self._lock:
            tries = self._tries.setdefault(number, _Tries())
        if isinstance(error, UnexplainedRefusal):
            tries.refusals += 1
            if tries.refusals >= REFUSALS:
                error.message += f"; so it went {tries.refusals} times"
                error.retryable = False
                raise error
        tries.again_at = time.monotonic() + _BACK_OFF[min(tries.failures, len(_BACK_OFF) - 1)]
        tries.failures += 1

    def _take_due(self) -> list[int]:
        """Partitions whose relay is to be started again now."""
        with self._lock:
            now, found = time.monotonic(), []
            for number, tries in self._tries.items():
                if tries.again_at is not None and now >= tries.again_at and not self._stopping:
                    tries.again_at = None
                    found.append(number)
            return found

    def stop(self, look: Callable[[], None] = lambda: None) -> None:
        """Asks every relay to stop between two transactions, and waits until they have.

        Raises:
            KafkaFailure: one did not stop in time; it was killed, its transaction is open until
                it is fenced.
        """
        self._stopping = True
        for process in self._processes:
            with contextlib.suppress(OSError, ValueError):
                assert process.child.stdin is not None
                process.child.stdin.write("stop\n")
                process.child.stdin.flush()
        limit = Deadline(STOP_SECONDS)
        while not all(process.ended for process in self._processes):
            look()
            if limit.expired:
                self.kill()
                raise KafkaFailure(
                    f"a relay did not stop within {STOP_SECONDS:g} s and was killed",
                    subject=f"topic {self._task.source}",
                    hint=f"see {self._log}; run the recovery again",
                    retryable=True,
                )
            time.sleep(0.02)
        self._close_pipes()

    def kill(self) -> None:
        """Ends every process at once; open transactions stay open until they are fenced."""
        self._stopping = True
        for process in self._processes:
            if process.child.poll() is None:
                process.child.kill()
            process.child.wait(10.0)
            process.listener.join(10.0)
        self._close_pipes()

    def _launch(self, parts: list[SourceRange]) -> None:
        if not parts:
            return
        child = self._spares.take()
        listener = threading.Thread(target=self._listen, args=(child,), daemon=True)
        process = _Process(parts, child, listener, {part.partition for part in parts})
        self._processes.append(process)
        listener.start()
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(write_task(self._task, parts) + "\n")
            child.stdin.flush()

    def _listen(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            try:
                document: dict[str, Any] = json.loads(line)
            except ValueError:
                continue  # it was killed in the middle of a line
            with self._lock:
                if "position" in document:
                    position = read_position(document["position"])
                    self._positions[position.partition] = position
                    self._tries.pop(position.partition, None)
                    self._patience.note_progress()
                elif "done" in document:
                    position = read_position(document["done"])
                    self._positions[position.partition] = position
                    self._done.add(position.partition)
                    self._close(position.partition)
                else:
                    number = int(document["partition"])
                    self._failures.append((number, read_error(document["failed"])))
                    self._close(number)

    def _close(self, partition: int) -> None:
        for process in self._processes:
            process.open.discard(partition)

    def _collect_dead(self) -> None:
        """A process that ended without a report on a partition was killed, or crashed."""
        for process in [p for p in self._processes if p.ended]:
            self._processes.remove(process)
            self._close_pipe(process)
            code = process.child.returncode
            for number in sorted(process.open):
                died = KafkaFailure(
                    f"its process ended with exit code {code}",
                    subject=f"relay of {self._task.source}[{number}]",
                    hint=f"see {self._log}",
                    retryable=True,
                )
                with self._lock:
                    self._failures.append((number, died))

    def _close_pipes(self) -> None:
        for process in self._processes:
            self._close_pipe(process)
        self._processes = []

    def _close_pipe(self, process: _Process) -> None:
        process.listener.join(5.0)
        _close_pipes(process.child)


def _spawn(log_path: Path, engine: str) -> subprocess.Popen[str]:
    log_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with log_path.open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "backlogctl.fanout.relay.worker", engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # Ctrl-C is the runner's: it stops its relays between two transactions.
            start_new_session=True,
            env=_find_environment(),
        )


def _close_pipes(child: subprocess.Popen[str]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _find_environment() -> dict[str, str]:
    """Ours, with the place our packages are imported from; numpy needs no threads here."""
    root = str(IMPORT_ROOT)
    paths = [root, os.environ.get("PYTHONPATH", "")]
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OPENBLAS_NUM_THREADS": "1"}
    return {**os.environ, **ours}
