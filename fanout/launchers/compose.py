"""Consumers as containers of Docker Compose, by its command line."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.config import Compose, Consumers
from backlogctl.errors import BacklogError
from backlogctl.fanout.launchers.compose_project import (
    ComposeDocument,
    describe_differences,
    make_recovery_project,
    name_recovery_project,
    parse_project,
)
from backlogctl.fanout.launchers.interface import (
    CheckStop,
    Fleet,
    Role,
    cut_tail,
    find_inherited,
)
from backlogctl.fanout.launchers.running import LaunchCommand, run_to_end
from backlogctl.formats import format_plural
from backlogctl_delivery.visible import join_words

_PROGRAM = ("docker", "compose")
_TICK = 0.05
_LOOK_EVERY = 0.5  # also how long all must have run to be counted as started
_NOW_SECONDS = 30.0
_ENDED = ("exited", "restarting", "dead")


@dataclass(frozen=True, slots=True)
class ServiceContainer:
    """One of a service, as `docker compose ps` shows it."""

    name: str
    state: str
    exit_code: int

    @property
    def index(self) -> str:
        """Its number in the service."""
        return re.split(r"[-_]", self.name)[-1]


class ComposeLauncher:
    """Stops and starts the stream's own service; a recovery has a project of its own."""

    name = "compose"

    def __init__(self, consumers: Consumers) -> None:
        assert consumers.compose is not None  # the configuration was checked
        self._settings: Compose = consumers.compose
        self._consumers = consumers
        self._read: ComposeDocument | None = None

    def scale(self, fleet: Fleet, count: int, check_stop: CheckStop) -> None:
        """Makes `count` containers run, and waits until they do.

        Raises:
            BacklogError: Compose failed, a container ended at once, or it took longer than
                `command_within`.
        """
        if count == 0:
            self.stop(fleet, check_stop)
            return
        within = self._consumers.command_within.total_seconds()
        limit = Deadline(within)
        service = self._settings.service
        up = ["up", "--detach", "--no-deps", "--no-recreate", "--scale", f"{service}={count}"]
        given = ""
        place = self._place(fleet, limit, check_stop)
        if fleet.role is Role.RECOVERY:
            document = self._document(limit, check_stop)
            given = json.dumps(make_recovery_project(document, self._settings, fleet))
            place = ["--file", "-", *place]
        self._run(fleet, [*place, *up, service], limit, check_stop, given)
        self._await_count(fleet, count, limit, check_stop)

    def stop(self, fleet: Fleet, check_stop: CheckStop) -> None:
        """Stops the service, or removes the recovery's containers with their own volumes."""
        limit = Deadline(self._consumers.stop_within.total_seconds())
        place = self._place(fleet, limit, check_stop)
        if fleet.role is Role.ORIGINAL:
            self._run(fleet, [*place, "stop", self._settings.service], limit, check_stop)
        else:
            self._run(fleet, [*place, "down", "--volumes"], limit, check_stop)
        self._await_count(fleet, 0, limit, check_stop)

    def count_running(self, fleet: Fleet) -> int | None:
        """How many containers run; those of `docker compose run` do not count."""
        limit = Deadline(_NOW_SECONDS)
        return _count(self._list(fleet, limit, lambda: None, ended=False))

    def explain(self, fleet: Fleet) -> str | None:
        """The first container that has ended: its exit code and last lines."""
        limit = Deadline(_NOW_SECONDS)
        return self._explain(fleet, limit, lambda: None)

    def describe(self, fleet: Fleet) -> str:
        service = self._settings.service
        words = join_words([*_PROGRAM, *self._files()])
        if fleet.role is Role.ORIGINAL:
            return f"service {service} of `{words}`, stopped and started"
        told = ", ".join(self._settings.variables)
        return f"containers made from service {service} of `{words}`, told by {told}"

    def logs(self, fleet: Fleet) -> str:
        """The command that shows them."""
        try:
            place = self._place(fleet, Deadline(_NOW_SECONDS), lambda: None)
        except BacklogError:
            return "`docker compose logs` of the recovery's project"
        return f"`{join_words([*_PROGRAM, *place, 'logs', self._settings.service])}`"

    def check(self, original: Fleet, recovery: Fleet | None, count: int) -> tuple[str, ...]:
        """Asks Compose for the project and the engine for its containers."""
        limit = Deadline(_NOW_SECONDS)
        document = self._document(limit, lambda: None)
        running = _count(self._list(original, limit, lambda: None, ended=False))
        told: list[str] = []
        if running != self._consumers.replicas:
            told.append(
                f"service {self._settings.service} has "
                f"{format_plural(running, 'running container')}, and `consumers.replicas` is "
                f"{self._consumers.replicas}: so many are given back"
            )
        if recovery is not None:
            make_recovery_project(document, self._settings, recovery)
            told += describe_differences(document, self._settings)
        return tuple(told)

    def _files(self) -> list[str]:
        files = [word for path in self._settings.files for word in ("--file", str(path))]
        named = self._settings.project
        return [*files, *(("--project-name", named) if named else ())]

    def _document(self, limit: Deadline, check_stop: CheckStop) -> ComposeDocument:
        """The stream's own project, as it was when it was first needed."""
        if self._read is None:
            words = [*self._files(), "config", "--format", "json", self._settings.service]
            self._read = parse_project(
                self._run(None, words, limit, check_stop, retryable=True), self._settings
            )
        return self._read

    def _place(self, fleet: Fleet, limit: Deadline, check_stop: CheckStop) -> list[str]:
        """Which project is meant. The recovery's is known by its name: by no file."""
        if fleet.role is Role.ORIGINAL:
            return self._files()
        name = name_recovery_project(self._document(limit, check_stop), fleet)
        return ["--project-name", name]

    def _list(
        self, fleet: Fleet, limit: Deadline, check_stop: CheckStop, *, ended: bool
    ) -> list[ServiceContainer]:
        """Containers that are up, or with `ended` all. With `--all` or `--status` Compose lists
        those of `docker compose run` too."""
        place = self._place(fleet, limit, check_stop)
        kinds = ["--all"] if ended else []
        words = [*place, "ps", *kinds, "--format", "json", self._settings.service]
        return parse_containers(self._run(fleet, words, limit, check_stop, retryable=True))

    def _explain(self, fleet: Fleet, limit: Deadline, check_stop: CheckStop) -> str | None:
        for one in self._list(fleet, limit, check_stop, ended=True):
            if one.state in _ENDED:
                place = self._place(fleet, limit, check_stop)
                last = ["--no-color", "--no-log-prefix", "--tail", "10", "--index", one.index]
                words = [*place, "logs", *last, self._settings.service]
                lines = cut_tail(self._run(fleet, words, limit, check_stop, retryable=True))
                return (
                    f"container {one.name} is {one.state} with exit code {one.exit_code}; its last "
                    f"lines:\n  {lines or '(nothing)'}"
                )
        return None

    def _await_count(
        self, fleet: Fleet, count: int, limit: Deadline, check_stop: CheckStop
    ) -> None:
        """Until two looks see `count`; one is enough where none is to be left."""
        looks = 0
        while True:
            running = _count(self._list(fleet, limit, check_stop, ended=False))
            looks = looks + 1 if running == count else 0
            if looks == (2 if count else 1):
                return
            ended = self._explain(fleet, limit, check_stop) if running < count else None
            if ended or limit.expired:
                raise BacklogError(
                    ended
                    or f"still {running} of its containers run after {limit.seconds:g} s, "
                    f"not {count}",
                    subject=f"stream {fleet.stream}, compose service {self._settings.service}",
                    hint="see why they do not start or end, then run this again",
                )
            pause = Deadline(limit.remaining(_LOOK_EVERY))
            while not pause.expired:
                check_stop()
                time.sleep(pause.remaining(_TICK))

    def _run(
        self,
        fleet: Fleet | None,
        words: Sequence[str],
        limit: Deadline,
        check_stop: CheckStop,
        given: str = "",
        *,
        retryable: bool = False,
    ) -> str:
        subject = f"`{join_words([*_PROGRAM, *words])}`"
        command = LaunchCommand(
            (*_PROGRAM, *words),
            {**find_inherited(), **self._consumers.reveal_environment()},
            self._consumers.directory or Path.cwd(),
            subject if fleet is None else f"stream {fleet.stream}, {subject}",
            "docker is looked for on PATH; Compose is its plugin",
            "consumers.command_within` and `consumers.stop_within",
            given,
            retryable=retryable,
        )
        return run_to_end(command, limit, check_stop)


def parse_containers(text: str) -> list[ServiceContainer]:
    """What `docker compose ps --format json` prints: an array, or since 2.21 an object a line.
    Raises BacklogError: it prints something else.
    """
    try:
        stripped = text.strip()
        found: list[Any] = (
            json.loads(stripped)
            if stripped.startswith("[")
            else [json.loads(line) for line in stripped.splitlines() if line.strip()]
        )
        # Those of `docker compose run` are nobody's replicas.
        return [
            ServiceContainer(str(one["Name"]), str(one["State"]), int(one.get("ExitCode") or 0))
            for one in found
            if "com.docker.compose.oneoff=True" not in str(one.get("Labels"))
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BacklogError(
            f"`docker compose ps --format json` printed something else: {cut_tail(text)}",
            subject="docker compose",
            hint="Compose 2.21 or newer is needed",
        ) from error


def _count(containers: Sequence[ServiceContainer]) -> int:
    return sum(one.state == "running" for one in containers)
