"""The steps of a recovery, one file each, each with the same four verbs (backlog.step)."""

from __future__ import annotations

from backlog.step import Step
from replay.context import RunContext
from replay.steps.check_target import CheckTarget
from replay.steps.inject import Inject
from replay.steps.stage_check import StageCheck
from replay.steps.verify import Verify

REBUILD: tuple[Step[RunContext], ...] = (CheckTarget(), StageCheck(), Inject(), Verify())

__all__ = ["REBUILD", "RunContext"]
