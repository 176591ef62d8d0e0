"""A stream's consumers as its launcher sees them: the original ones, and a recovery's."""

from __future__ import annotations

from backlog.config import Stream
from backlog.errors import UsageError
from backlog.progress import Say
from fanout.launchers import Fleet, Launcher, Role, make_launcher
from replay.recovery.workspace import Workspace

_DIRECTORY = "consumers"


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
