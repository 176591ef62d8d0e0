"""Consumer launchers: how a stream's consumers are started, stopped and counted."""

from __future__ import annotations

from collections.abc import Mapping

from backlogctl.config import Consumers
from backlogctl.fanout.launchers.command import CommandLauncher
from backlogctl.fanout.launchers.compose import ComposeLauncher
from backlogctl.fanout.launchers.interface import CheckStop, Fleet, Launcher, Role
from backlogctl.fanout.launchers.kubernetes import KubernetesLauncher
from backlogctl.fanout.launchers.manual import LeftLauncher, ManualLauncher
from backlogctl.fanout.launchers.process import ConsumerState, ProcessLauncher, ramp_up
from backlogctl.formats import Say

__all__ = [
    "CheckStop",
    "CommandLauncher",
    "ComposeLauncher",
    "ConsumerState",
    "Fleet",
    "KubernetesLauncher",
    "Launcher",
    "LeftLauncher",
    "ManualLauncher",
    "ProcessLauncher",
    "Role",
    "make_launcher",
    "ramp_up",
]


def make_launcher(consumers: Consumers, properties: Mapping[str, str], say: Say) -> Launcher:
    """The launcher that the configuration names.

    Args:
        properties: client properties of the stream's cluster.
        say: takes what people must do.
    """
    match consumers.launcher:
        case "process":
            return ProcessLauncher(consumers)
        case "command":
            return CommandLauncher(consumers)
        case "manual":
            return ManualLauncher(properties, say)
        case "kubernetes":
            return KubernetesLauncher(consumers, say)
        case "compose":
            return ComposeLauncher(consumers)
