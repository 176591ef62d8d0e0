"""Reads what a report is made of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from backlog.hashing import hash_value
from backlog.ledger import Ledger
from backlog.ledger.disks import DiskReading
from backlog.ledger.holds import Hold
from backlog.values import FINAL, Event, Recovery
from replay.recovery.housekeeping import find_end
from replay.recovery.workspace import Workspace
from replay.telling.account import RecoveryRecord

# The lag before that has nothing to do with this incident.
_LOOK_BACK = timedelta(hours=24)
_LOOK_ON = timedelta(minutes=30)


def collect_record(workspace: Workspace, recovery_id: str) -> RecoveryRecord:
    """Everything that the ledger has about one recovery, read once; nothing else is looked at.

    Raises:
        UsageError: there is no such recovery.
        Refused: another program, or another version of this one, planned it.
    """
    ledger = workspace.ledger
    recovery = ledger.recoveries.get(recovery_id)
    kind = workspace.kind_of(recovery)
    plan = kind.read_plan(recovery)
    events = ledger.events.list(recovery_id)
    ended_at = _find_ending(recovery, events)
    gaps = kind.find_gaps(plan, ledger, recovery, ended_at)
    begin = min([recovery.created_at, *(gap.detected_at for gap in gaps)])
    if not kind.traits.repairs_gaps:
        # Where losses have gone on for weeks, the lag of the last days is enough.
        begin = max(begin, recovery.created_at - _LOOK_BACK)
    begin -= _LOOK_BACK
    end = None if ended_at is None else ended_at + _LOOK_ON
    samples = tuple(
        sample
        for sample in ledger.samples.history(recovery.stream, begin)
        if (sample.topic, sample.group) == (recovery.topic, recovery.group)
        and (end is None or sample.taken_at <= end)
    )
    held = ledger.holds.list(open_only=False, stream=recovery.stream)
    return RecoveryRecord(
        recovery=recovery,
        events=events,
        steps=ledger.steps.list(recovery_id),
        gaps=gaps,
        chunks=ledger.chunks.list(recovery_id),
        burndown=ledger.burndown.list(recovery_id),
        samples=samples,
        disks=read_disks(ledger, recovery, ended_at) if kind.traits.opens_gaps else (),
        holds=tuple(hold for hold in held if _concerns(hold, recovery, begin, end)),
        problem=ledger.events.find_break(recovery_id),
        plan_holds=hash_value(dict(recovery.plan)) == recovery.plan_hash,
        now=ledger.now(),
        ended_at=ended_at,
    )


def read_disks(
    ledger: Ledger, recovery: Recovery, ended_at: datetime | None
) -> tuple[DiskReading, ...]:
    """The brokers' disks from some time before the plan to some time after the end."""
    end = None if ended_at is None else ended_at + _LOOK_ON
    return tuple(
        one
        for one in ledger.disks.history(recovery.cluster, recovery.created_at - _LOOK_ON)
        if end is None or one.at <= end
    )


def _find_ending(recovery: Recovery, events: Sequence[Event]) -> datetime | None:
    """When it came to its end; None while it may go on."""
    if recovery.state not in FINAL or not events:
        return None
    # Not the last line of the record: one may be added long after the end.
    return find_end(recovery, events) or events[-1].at


def _concerns(hold: Hold, recovery: Recovery, begin: datetime, end: datetime | None) -> bool:
    """Whether the topic was held for this recovery, or by somebody in these hours."""
    if hold.holder == recovery.id:
        return True
    if (hold.cluster, hold.topic) != (recovery.cluster, recovery.topic):
        return False
    over = hold.released_at is not None and hold.released_at < begin
    return not over and (end is None or hold.created_at <= end)
