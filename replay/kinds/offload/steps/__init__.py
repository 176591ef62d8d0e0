"""The steps of an offload, in their order (protocol P5)."""

from __future__ import annotations

from backlog.step import Step
from replay.kinds.offload.context import OffloadContext
from replay.kinds.offload.steps.archive import Archive
from replay.kinds.offload.steps.check_source import CheckSource
from replay.kinds.offload.steps.delete_records import DeleteRecords
from replay.kinds.offload.steps.fence import Fence
from replay.kinds.offload.steps.move_group import MoveGroup
from replay.kinds.offload.steps.restore import Restore
from replay.kinds.offload.steps.stop_consumers import StopConsumers
from replay.kinds.offload.steps.verify import Verify

STEPS: tuple[Step[OffloadContext], ...] = (
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
FORWARD: tuple[Step[OffloadContext], ...] = (MoveGroup(), DeleteRecords(), Restore(), Verify())
# And before it.
BACK: tuple[Step[OffloadContext], ...] = (Restore(),)
