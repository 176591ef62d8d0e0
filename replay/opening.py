"""Opens a workspace with every kind of recovery that this program knows."""

from __future__ import annotations

from backlogctl.config import Config
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.kinds import KINDS


def open_workspace(config: Config, *, passing: bool = False) -> Workspace:
    """Configuration and ledger.

    Args:
        passing: with a ledger that is gone when the process ends.

    Raises:
        LedgerError: the ledger cannot be opened, or needs `backlogctl db upgrade`.
    """
    opened = Workspace.open_passing if passing else Workspace.open
    return opened(config, KINDS)
