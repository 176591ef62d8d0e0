"""The kinds of recoveries. A new one is a folder beside these, and a name in this list."""

from __future__ import annotations

from backlogctl.replay.engine.kind import Registry
from backlogctl.replay.kinds.expand.kind import KIND as EXPAND
from backlogctl.replay.kinds.offload.kind import KIND as OFFLOAD
from backlogctl.replay.kinds.rebuild.kind import KIND as REBUILD
from backlogctl.replay.kinds.redrive.kind import KIND as REDRIVE

# In the order in which `auto` takes them: offload what can still be saved, then put back.
KINDS = Registry((EXPAND, REBUILD, OFFLOAD, REDRIVE))

__all__ = ["EXPAND", "KINDS", "OFFLOAD", "REBUILD", "REDRIVE"]
