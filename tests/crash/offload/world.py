"""A stream with traffic of every sort that is behind: it is offloaded, killed, and put back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Console

from backlogctl.errors import BacklogError
from backlogctl.kafka.admin import create_topic
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.runner import Run
from backlogctl.replay.kinds.redrive.plan import RedriveOptions
from backlogctl.replay.kinds.redrive.planning import plan_redrive
from backlogctl.values import Recovery
from tests.crash.offload.shortened import STOP_INSTEAD
from tests.crash.offload.traffic import Traffic
from tests.kafka_tools import wait_until
from tests.replay.expand.world import PARTITIONS, WITHIN
from tests.replay.makers import PAST, change_ledger
from tests.replay.offload.world import OffloadWorld
from tests.replay.shop import LOCAL_SPARK, ROOT

DONE = ("verified", "cancelled")
_TRIES = 3


@dataclass
class CrashWorld(OffloadWorld):
    """One story."""

    seed: int = 0
    shortened: str = f"{__package__}.shortened"

    @cached_property
    def traffic(self) -> Traffic:
        """Its producers."""
        return Traffic(self.bootstrap, self.topic, PARTITIONS, self.seed)

    def write_config(self) -> None:
        """With consumers that note a message's bytes."""
        super().write_config()
        environment = {"ORDER_LOG": str(self.log), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", f"{__package__}.consumer"]
        self.set_consumers(command=command, environment=environment)
        self.change_config(lambda document: document.update(spark=LOCAL_SPARK))

    def begin(self, backlog: int) -> None:
        """Old messages, and slow consumers that work."""
        create_topic(self.properties, self.topic, partitions=PARTITIONS, exist_ok=True)
        self.write_config()
        for _ in range(4):
            self.traffic.mix(backlog // 4)
        self.start_originals()
        wait_until(lambda: None not in self.read_commits().values(), what="commits everywhere")

    # What is done to the runners.

    def kill(self, recovery: Recovery, point: str = "", moment: float = 0.0) -> bool:
        """A run that is killed at a point, or after some seconds; whether it was."""
        process = self.start("run", recovery.id, "--json", crash_at=point)
        try:
            process.communicate(timeout=moment or WITHIN)
        except subprocess.TimeoutExpired:
            self.kill_group(process)
        return process.returncode == -signal.SIGKILL

    def kill_group(self, process: subprocess.Popen[str]) -> None:
        """With Spark, which is in its process group."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def stop(self, recovery: Recovery, point: str) -> subprocess.Popen[str]:
        """A run that is stopped at a point; its lease lasts no longer (fault 2)."""
        os.environ[STOP_INSTEAD] = "1"
        try:
            process = self.start("run", recovery.id, "--json", crash_at=point)
        finally:
            del os.environ[STOP_INSTEAD]
        wait_until(lambda: _is_held(process), WITHIN, f"it is stopped at {point}")
        change_ledger(self.open(), f"UPDATE backlog_recoveries SET lease_until = '{PAST}'")
        return process

    def wake(self, process: subprocess.Popen[str]) -> str:
        """A stopped run goes on; what it says at its end."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
        try:
            out, err = process.communicate(timeout=WITHIN)
        except subprocess.TimeoutExpired:
            self.kill_group(process)
            return "a runner that woke up does not end"
        return f"{process.returncode} {out} {err}"

    def finish(self, recovery: Recovery) -> list[str]:
        """Runs it until it is done; what failed."""
        told = []
        for _ in range(_TRIES):
            if str(self.read(recovery).state) in DONE:
                break
            try:
                Run(self.open(), recovery.id, Console(file=self.told, width=400)).carry_out()
            except BacklogError as error:
                told.append(f"run: {type(error).__name__} {error.message}")
                time.sleep(0.5)
        return told

    def plan_putting_back(self) -> Recovery:
        """The night's recovery, approved."""
        workspace = self.open()
        waiting = workspace.ledger.gaps.list_waiting()
        options = RedriveOptions(source=f"archive:{waiting[0].archive}")
        planned = plan_redrive(workspace, workspace.config.stream(self.stream), options)
        return approve_plan(workspace, planned, by="tester")

    def end(self) -> None:
        """Also what was stopped."""
        for process in self.started:
            if process.poll() is None:
                self.kill_group(process)
        super().end()


def _is_held(process: subprocess.Popen[str]) -> bool:
    """Whether it is stopped; or over, where it did not come to the point."""
    if process.poll() is not None:
        return True
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"
