"""The kinds of recoveries. A new one is a folder beside these, and a name in this list."""

from __future__ import annotations

from replay.kinds.drain.kind import KIND as DRAIN
from replay.kinds.expand.kind import KIND as EXPAND
from replay.kinds.rebuild.kind import KIND as REBUILD
from replay.kinds.redrive.kind import KIND as REDRIVE
from replay.recovery.kind import Registry

# In the order in which `auto` takes them: drain what can still be saved, then put back.
KINDS = Registry((EXPAND, REBUILD, DRAIN, REDRIVE))

__all__ = ["DRAIN", "EXPAND", "KINDS", "REBUILD", "REDRIVE"]
