"""The steps of a rebuild, in their order."""

from __future__ import annotations

from backlog.step import Step
from replay.kinds.rebuild.context import RebuildContext
from replay.kinds.rebuild.steps.check_target import CheckTarget
from replay.kinds.rebuild.steps.inject import Inject
from replay.kinds.rebuild.steps.stage_check import StageCheck
from replay.kinds.rebuild.steps.verify import Verify

STEPS: tuple[Step[RebuildContext], ...] = (CheckTarget(), StageCheck(), Inject(), Verify())
