"""How each kind of recovery is carried out: what its steps work with, and the steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backlog.step import Step
from replay.context import RunContext
from replay.expand_context import ExpandContext
from replay.kinds import EXPAND, REBUILD
from replay.rebuild_context import RebuildContext
from replay.steps.expand import STEPS as EXPAND_STEPS
from replay.steps.rebuild import REBUILD as REBUILD_STEPS


@dataclass(frozen=True, slots=True)
class Way:
    """The context of a kind of recovery, and its steps in order."""

    make_context: Callable[..., RunContext]
    steps: tuple[Step[Any], ...]


WAYS: dict[str, Way] = {
    REBUILD: Way(RebuildContext, REBUILD_STEPS),
    EXPAND: Way(ExpandContext, EXPAND_STEPS),
}
