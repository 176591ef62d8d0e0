"""A stream's consumers as its launcher sees them: the original ones, and a recovery's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from backlog.config import Config, Stream
from backlog.errors import UsageError
from backlog.progress import Say
from fanout.launchers import make_launcher
from fanout.launchers.interface import Fleet, Launcher, Role
from replay.recovery.masking import mask_values
from replay.recovery.workspace import Workspace

_DIRECTORY = "consumers"
# How long is waited for consumers: decides no message.
_WAITS = ("command_within", "stop_within")


def fleet_of(
    workspace: Workspace,
    stream: Stream,
    role: Role,
    recovery_id: str = "",
    *,
    topic: str | None = None,
    group: str | None = None,
) -> Fleet:
    """The consumers of a stream in one of the two roles.

    Args:
        recovery_id: the expansion's; needed for recovery consumers, none for the original ones.
        topic: what they read; the stream's without it.
        group: their group; the stream's without it.

    Raises:
        ValueError: the role and the id do not go together.
    """
    if (role is Role.RECOVERY) != bool(recovery_id):
        raise ValueError(f"role {role.value} with recovery id {recovery_id!r}")
    place = workspace.config.staging.dir / _DIRECTORY / stream.name
    return Fleet(
        stream=stream.name,
        role=role,
        topic=topic or stream.topic,
        group=group or stream.group,
        bootstrap_servers=workspace.config.cluster_of(stream).bootstrap,
        directory=place / (recovery_id or Role.ORIGINAL.value),
        recovery_id=recovery_id,
    )


def launcher_of(workspace: Workspace, stream: Stream, say: Say) -> Launcher:
    """The stream's launcher.

    Raises:
        UsageError: the configuration does not say how its consumers are started.
    """
    if stream.consumers is None:
        raise UsageError(
            "the configuration does not say how its consumers are started and stopped",
            subject=f"stream {stream.name}",
            hint="give it a `consumers` section; see docs/configuration.md",
        )
    return make_launcher(stream.consumers, workspace.properties(stream), say)


def require_consumers(stream: Stream) -> None:
    """Refuses a stream whose consumers nobody could stop and start.

    Raises:
        UsageError: its section does not say how.
    """
    if stream.consumers is None:
        raise UsageError(
            "it does not say how its consumers are started and stopped",
            subject=f"stream {stream.name}",
            hint=f"add `streams.{stream.name}.consumers` with `launcher: process`, `command` or "
            "`manual` (people do it when asked); see docs/configuration.md",
        )


def freeze_consumers(config: Config, stream: Stream) -> dict[str, Any]:
    """How the consumers are started and stopped, without the values of their variables."""
    assert stream.consumers is not None
    frozen = stream.consumers.model_dump(mode="json")
    frozen["environment"] = sorted(stream.consumers.environment)
    # A command may hold a password that came by reference.
    masked: dict[str, Any] = mask_values(config.mask_secrets, frozen)
    return masked


def fingerprint_with_consumers(
    config: Config, stream: Stream, names: Collection[str]
) -> dict[str, Any]:
    """These settings of a stream, and how its consumers are started and stopped, if at all."""
    consumers = None if stream.consumers is None else freeze_consumers(config, stream)
    return {**stream.model_dump(mode="json", include=set(names)), "consumers": consumers}


def keep_waits(planned: Mapping[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """A stream's configuration now, to hold against a plan's: how long is waited for consumers may
    change while the plan is open."""
    before = planned.get("consumers")
    if before and now["consumers"]:
        now["consumers"] |= {name: before[name] for name in _WAITS if name in before}
    return now
