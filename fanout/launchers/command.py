"""Consumers that the user's own commands start, stop and count."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from backlogctl.clock import Deadline
from backlogctl.config import Consumers
from backlogctl.config.consumers import fill_in
from backlogctl.errors import BacklogError
from backlogctl.fanout.launchers.interface import CheckStop, Fleet, cut_tail, find_inherited
from backlogctl.fanout.launchers.running import LaunchCommand, run_to_end
from backlogctl_delivery.visible import join_words

_TICK = 0.02
_ASK_EVERY = 1.0


class CommandLauncher:
    """Runs `scale`, `stop` and `status` of the configuration, without a shell."""

    name = "command"

    def __init__(self, consumers: Consumers) -> None:
        self._consumers = consumers

    def scale(self, fleet: Fleet, count: int, check_stop: CheckStop) -> None:
        """Runs `scale`, and waits until `status`, where there is one, prints `count`.
        Raises BacklogError: a command failed, or it took longer than `command_within`.
        """
        if count == 0:
            self.stop(fleet, check_stop)
            return
        assert self._consumers.scale is not None  # the configuration was checked
        limit = Deadline(self._consumers.command_within.total_seconds())
        self._run("scale", self._consumers.scale, fleet, limit, check_stop, count)
        self._wait_for(fleet, count, limit, check_stop)

    def stop(self, fleet: Fleet, check_stop: CheckStop) -> None:
        """Runs `stop`, and waits until `status`, where there is one, prints 0."""
        assert self._consumers.stop is not None
        limit = Deadline(self._consumers.command_within.total_seconds())
        self._run("stop", self._consumers.stop, fleet, limit, check_stop, 0)
        limit = Deadline(self._consumers.stop_within.total_seconds())
        self._wait_for(fleet, 0, limit, check_stop)

    def count_running(self, fleet: Fleet) -> int | None:
        """What `status` prints; None without one."""
        return self._ask(fleet, lambda: None)

    def explain(self, fleet: Fleet) -> str | None:
        """That `status` prints 0; unknown without one."""
        if self.count_running(fleet) != 0:
            return None
        return "`consumers.status` prints 0: none of them runs; their own logs say why"

    def describe(self, fleet: Fleet) -> str:
        assert self._consumers.scale is not None
        assert self._consumers.stop is not None
        scale = join_words(fill_in(self._consumers.scale, {**fleet.placeholders, "replicas": "N"}))
        stop = join_words(fill_in(self._consumers.stop, fleet.placeholders))
        return f"your commands: `{scale}` starts N of them, `{stop}` ends all"

    def logs(self, fleet: Fleet) -> str:
        return "where your commands put them"

    def check(self, original: Fleet, recovery: Fleet | None, count: int) -> tuple[str, ...]:
        return ()

    def _wait_for(self, fleet: Fleet, count: int, limit: Deadline, check_stop: CheckStop) -> None:
        while (running := self._ask(fleet, check_stop)) not in (count, None):
            if limit.expired:
                raise BacklogError(
                    f"its `status` still prints {running} after {limit.seconds:g} s, not {count}",
                    subject=f"stream {fleet.stream}, group {fleet.group}",
                    hint="see why they do not start or end, then run this again",
                )
            pause = Deadline(limit.remaining(_ASK_EVERY))
            while not pause.expired:
                check_stop()
                time.sleep(pause.remaining(_TICK))

    def _ask(self, fleet: Fleet, check_stop: CheckStop) -> int | None:
        if self._consumers.status is None:
            return None
        limit = Deadline(self._consumers.command_within.total_seconds())
        output = self._run("status", self._consumers.status, fleet, limit, check_stop, None)
        number = re.search(r"\d+", output)
        if number is None:
            raise BacklogError(
                f"its `status` command printed no number but: {cut_tail(output) or '(nothing)'}",
                subject=f"stream {fleet.stream}",
                hint="it must print how many consumers run; see `consumers.status`",
            )
        return int(number[0])

    def _run(
        self,
        name: str,
        arguments: Sequence[str],
        fleet: Fleet,
        limit: Deadline,
        check_stop: CheckStop,
        replicas: int | None,
    ) -> str:
        """Runs one command to its end; what it printed on stdout."""
        counts = {} if replicas is None else {"replicas": str(replicas)}
        command = fill_in(arguments, {**fleet.placeholders, **counts})
        environment = {
            **find_inherited(),
            **self._consumers.reveal_environment(),
            **fleet.variables,
            **{f"BACKLOG_{name.upper()}": value for name, value in counts.items()},
        }
        run = LaunchCommand(
            command,
            environment,
            self._consumers.directory or Path.cwd(),
            f"stream {fleet.stream}, `consumers.{name}`",
            "it is looked for on PATH, and runs in `consumers.directory`",
            "consumers.command_within",
        )
        return run_to_end(run, limit, check_stop)
