"""The steps of an expansion, in their order (protocol P4)."""

from __future__ import annotations

from backlog.step import Step
from replay.expand_context import ExpandContext
from replay.steps.expand.canary import Canary
from replay.steps.expand.check_source import CheckSource
from replay.steps.expand.create_topic import CreateTopic
from replay.steps.expand.cut_over import CutOver
from replay.steps.expand.drain import Drain
from replay.steps.expand.hold_retention import HoldRetention
from replay.steps.expand.remove_topic import RemoveTopic
from replay.steps.expand.restore import Restore
from replay.steps.expand.stop_consumers import StopConsumers
from replay.steps.expand.verify import Verify

STEPS: tuple[Step[ExpandContext], ...] = (
    CheckSource(),
    HoldRetention(),
    StopConsumers(),
    CreateTopic(),
    Canary(),
    Drain(),
    CutOver(),
    Restore(),
    Verify(),
    RemoveTopic(),
)
# What `cancel` does from wherever a run is: cut over now, and restore.
CLOSING: tuple[Step[ExpandContext], ...] = (CutOver(), Restore(), Verify(), RemoveTopic())
