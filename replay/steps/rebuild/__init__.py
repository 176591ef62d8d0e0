"""The steps of a rebuild, in their order."""

from __future__ import annotations

from backlog.step import Step
from replay.rebuild_context import RebuildContext
from replay.steps.rebuild.check_target import CheckTarget
from replay.steps.rebuild.inject import Inject
from replay.steps.rebuild.stage_check import StageCheck
from replay.steps.rebuild.verify import Verify

REBUILD: tuple[Step[RebuildContext], ...] = (CheckTarget(), StageCheck(), Inject(), Verify())
