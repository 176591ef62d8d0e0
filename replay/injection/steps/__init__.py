"""The steps of an injection, in their order."""

from __future__ import annotations

from backlog.step import Step
from replay.injection.context import InjectionContext
from replay.injection.steps.check_target import CheckTarget
from replay.injection.steps.inject import Inject
from replay.injection.steps.stage_check import StageCheck
from replay.injection.steps.verify import Verify

STEPS: tuple[Step[InjectionContext], ...] = (
    CheckTarget(),
    StageCheck(),
    Inject(),
    Verify(),
)
