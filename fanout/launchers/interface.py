"""What every consumer launcher does; one contract suite tests them all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from backlogctl.config import mask_secrets
from backlogctl_delivery.visible import join_lines

CheckStop = Callable[[], None]
"""Called while a launcher waits; raises to stop the run (pause, cancel, Ctrl-C, lost lease)."""


# Settings of the runner and secrets of its scheduler: not for consumers.
_NOT_PASSED_ON = ("BACKLOG_", "AIRFLOW_", "_AIRFLOW_")
_TAIL_LINES = 10


class Role(StrEnum):
    """Which consumers a fleet stands for."""

    ORIGINAL = "original"  # the stream's own, on its topic
    RECOVERY = "recovery"  # ten times as many, on the temporary topic


@dataclass(frozen=True, slots=True)
class Fleet:
    """Consumers that belong together: one group on one topic.

    `directory` is where a launcher keeps what it must remember of this fleet, and the consumers'
    logs; it is the fleet's own, and the same after a crash.
    """

    stream: str
    role: Role
    topic: str
    group: str
    bootstrap_servers: str
    directory: Path
    recovery_id: str = ""  # "" for the original consumers

    @property
    def variables(self) -> Mapping[str, str]:
        """What a consumer should read, as variables: BACKLOG_TOPIC, BACKLOG_GROUP, ..."""
        return {f"BACKLOG_{name.upper()}": value for name, value in self.placeholders.items()}

    @property
    def placeholders(self) -> Mapping[str, str]:
        """For templated arguments: `{topic}`, `{group}`, `{bootstrap_servers}`, ..."""
        return {
            "topic": self.topic,
            "group": self.group,
            "bootstrap_servers": self.bootstrap_servers,
            "role": self.role.value,
            "stream": self.stream,
            "recovery": self.recovery_id,
        }


class Launcher(Protocol):
    """Starts, stops and counts consumers. Every verb may be called again after a crash."""

    name: str

    def scale(self, fleet: Fleet, count: int, check_stop: CheckStop) -> None:
        """Makes `count` consumers of the fleet run; those that run already are kept.
        Raises BacklogError: they cannot be started, or ended at once; says where their log is.
        """

    def stop(self, fleet: Fleet, check_stop: CheckStop) -> None:
        """Ends every consumer of the fleet that this launcher knows; nothing where none runs.

        Returns when the launcher sees none any more. The caller checks the group's state, since a
        launcher may not know every member.
        """

    def count_running(self, fleet: Fleet) -> int | None:
        """How many run; None where the launcher cannot know."""

    def explain(self, fleet: Fleet) -> str | None:
        """Why its consumers do not stay, masked of secrets; None where nothing is known of that.
        Raises BacklogError: the launcher could not be asked.
        """

    def describe(self, fleet: Fleet) -> str:
        """How it starts and stops them, for a plan: one sentence."""

    def logs(self, fleet: Fleet) -> str:
        """Where a person finds what they print."""

    def check(self, original: Fleet, recovery: Fleet | None, count: int) -> tuple[str, ...]:
        """Looks whether it could stop the original consumers and run `count` of the recovery's,
        and changes nothing: what a plan should warn of.

        Args:
            recovery: None where a recovery only stops the original ones.

        Raises:
            BacklogError: it could not, and why.
        """


def cut_tail(text: str) -> str:
    """The last lines of an output, as an error shows them, without secrets."""
    # Masked before it is cut: half a secret would not be found.
    lines = [line.rstrip() for line in mask_secrets(text).splitlines() if line.strip()]
    return join_lines(lines[-_TAIL_LINES:])


def find_inherited() -> dict[str, str]:
    """The environment of this process, as far as consumers and their commands get it."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_NOT_PASSED_ON)}
