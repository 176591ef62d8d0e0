"""The steps of an expansion, in their order (protocol P4)."""

from __future__ import annotations

from backlog.step import Step
from replay.kinds.expand.context import ExpandContext
from replay.kinds.expand.steps.canary import Canary
from replay.kinds.expand.steps.check_source import CheckSource
from replay.kinds.expand.steps.create_topic import CreateTopic
from replay.kinds.expand.steps.cut_over import CutOver
from replay.kinds.expand.steps.drain import Drain
from replay.kinds.expand.steps.hold_retention import HoldRetention
from replay.kinds.expand.steps.remove_topic import RemoveTopic
from replay.kinds.expand.steps.restore import Restore
from replay.kinds.expand.steps.stop_consumers import StopConsumers
from replay.kinds.expand.steps.verify import Verify

STEPS: tuple[Step[ExpandContext], ...] = (
    CheckSource(),
    HoldRetention(),
    CreateTopic(),  # what may not be created is noticed before anybody is stopped
    StopConsumers(),
    Canary(),
    Drain(),
    CutOver(),
    Restore(),
    Verify(),
    RemoveTopic(),
)
# What `cancel` does from wherever a run is: cut over now, and restore.
CLOSING: tuple[Step[ExpandContext], ...] = (CutOver(), Restore(), Verify(), RemoveTopic())
