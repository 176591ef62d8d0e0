"""The kinds of recoveries. A new one is a folder beside these, and a name in this list."""

from __future__ import annotations

from replay.kinds.expand.kind import KIND as EXPAND
from replay.kinds.rebuild.kind import KIND as REBUILD
from replay.recovery.kind import Registry

# In the order in which `auto` takes them: drain what can still be saved, then put back.
KINDS = Registry((EXPAND, REBUILD))

__all__ = ["EXPAND", "KINDS", "REBUILD"]
