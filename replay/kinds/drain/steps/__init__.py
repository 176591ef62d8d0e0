"""The steps of a drain, in their order (protocol P5)."""

from __future__ import annotations

from backlog.step import Step
from replay.kinds.drain.context import DrainContext
from replay.kinds.drain.steps.archive import Archive
from replay.kinds.drain.steps.check_source import CheckSource
from replay.kinds.drain.steps.delete_records import DeleteRecords
from replay.kinds.drain.steps.fence import Fence
from replay.kinds.drain.steps.move_group import MoveGroup
from replay.kinds.drain.steps.restore import Restore
from replay.kinds.drain.steps.stop_consumers import StopConsumers
from replay.kinds.drain.steps.verify import Verify

STEPS: tuple[Step[DrainContext], ...] = (
    CheckSource(),
    StopConsumers(),
    Fence(),
    Archive(),
    MoveGroup(),
    DeleteRecords(),
    Restore(),
    Verify(),
)
# What `cancel` does from the move of the group on: it goes forward.
FORWARD: tuple[Step[DrainContext], ...] = (MoveGroup(), DeleteRecords(), Restore(), Verify())
# And before it.
BACK: tuple[Step[DrainContext], ...] = (Restore(),)
