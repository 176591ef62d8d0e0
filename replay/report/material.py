"""What a report is made of: everything that the ledger has about one recovery, read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from backlog.ledger import BurndownSample
from backlog.ledger.chunks import ChunkRecord
from backlog.ledger.holds import Hold
from backlog.ledger.steps import StepRecord
from backlog.manifest import hash_value
from backlog.values import Event, Gap, GapState, Recovery, RecoveryState, Sample
from monitoring.lag import find_end
from monitoring.page.steps import read_steps
from replay.kinds import EXPAND, find_kind
from replay.report.shape import check_shape
from replay.workspace import Workspace

# What happened to the lag before that says nothing of this incident.
_LOOK_BACK = timedelta(hours=24)
_LOOK_ON = timedelta(minutes=30)
# What is lost at the very end is seen by the next look.
_SEEN_LATE = timedelta(minutes=5)
_AT_END = (RecoveryState.VERIFIED, RecoveryState.REJECTED, RecoveryState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Material:
    """A recovery and what is on record about it.

    Attributes:
        gaps: those that a rebuild is for, as they were planned; for an expansion, what its topic
            and group lost of this backlog.
        samples: of its topic and group, around it.
        problem: what is wrong with the record of events; None for a whole one.
        plan_holds: whether the stored plan is still what its hash was made of.
    """

    recovery: Recovery
    events: tuple[Event, ...]
    steps: tuple[StepRecord, ...]
    gaps: tuple[Gap, ...]
    chunks: tuple[ChunkRecord, ...]
    burndown: tuple[BurndownSample, ...]
    samples: tuple[Sample, ...]
    holds: tuple[Hold, ...]
    problem: str | None
    plan_holds: bool
    now: datetime

    @property
    def is_expansion(self) -> bool:
        """Whether a backlog was drained, else lost messages were put back."""
        return self.recovery.kind == EXPAND

    @property
    def ended_at(self) -> datetime | None:
        """When it came to its end; None while it may go on."""
        return _find_ending(self.recovery, self.events)

    def find_last(self, action: str) -> Event | None:
        """The last line of the record with that action."""
        return next((event for event in reversed(self.events) if event.action == action), None)

    def find_first(self, action: str) -> Event | None:
        """The first line of the record with that action."""
        return next((event for event in self.events if event.action == action), None)


def collect(workspace: Workspace, recovery_id: str) -> Material:
    """Reads the ledger; nothing else is looked at.

    Raises:
        UsageError: there is no such recovery.
        Refused: another program, or another version of this one, planned it.
    """
    ledger = workspace.ledger
    recovery = ledger.recoveries.get(recovery_id)
    find_kind(recovery)
    check_shape(recovery)
    events = ledger.events.list(recovery_id)
    ended_at = _find_ending(recovery, events)
    gaps = _find_gaps(workspace, recovery, ended_at)
    begin = min([recovery.created_at, *(gap.detected_at for gap in gaps)])
    if recovery.kind == EXPAND:
        # Of a loss that has gone on for weeks the lag of the last days tells enough.
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
    return Material(
        recovery=recovery,
        events=events,
        steps=ledger.steps.list(recovery_id) or read_steps(events),
        gaps=gaps,
        chunks=ledger.chunks.list(recovery_id),
        burndown=ledger.burndown.list(recovery_id),
        samples=samples,
        holds=tuple(hold for hold in held if _concerns(hold, recovery, begin, end)),
        problem=ledger.events.find_break(recovery_id),
        plan_holds=hash_value(dict(recovery.plan)) == recovery.plan_hash,
        now=ledger.now(),
    )


def measure_lag(samples: Sequence[Sample], isolation: str) -> list[tuple[datetime, int]]:
    """When each sample was taken, and the unread offsets that existed then."""
    return [
        (
            sample.taken_at,
            sum(
                max(0, find_end(part, isolation) - max(part.committed, part.low))
                for part in sample.partitions
                if part.committed is not None
            ),
        )
        for sample in samples
    ]


def _find_ending(recovery: Recovery, events: Sequence[Event]) -> datetime | None:
    """Not the last line of the record: one may be added long after the end."""
    if recovery.state not in _AT_END or not events:
        return None
    for event in reversed(events):
        if event.action == recovery.state or event.action.startswith("superseded by "):
            return event.at
    return events[-1].at


def _find_gaps(
    workspace: Workspace, recovery: Recovery, ended_at: datetime | None
) -> tuple[Gap, ...]:
    ledger = workspace.ledger
    known = ledger.gaps.list(recovery.stream)
    if recovery.kind == EXPAND:
        return tuple(gap for gap in known if _is_of_backlog(gap, recovery, ended_at))
    ids = set(ledger.recoveries.gap_ids(recovery.id))
    # A gap that was released since may have grown: the report is about what was planned.
    planned = {row["id"]: row for row in recovery.plan.get("gaps", ())}
    found = [
        replace(gap, start=planned[gap.id]["start"], end=planned[gap.id]["end"])
        if gap.id in planned
        else gap
        for gap in known
        if gap.id in ids
    ]
    return tuple(sorted(found, key=lambda gap: (gap.partition, gap.start or 0)))


def _is_of_backlog(gap: Gap, recovery: Recovery, ended_at: datetime | None) -> bool:
    """Whether it was lost of what an expansion is for: then, or up to what was still unread."""
    if (gap.topic, gap.group) != (recovery.topic, recovery.group):
        return False
    if ended_at is not None and gap.detected_at > ended_at + _SEEN_LATE:
        return False
    if gap.detected_at >= recovery.created_at:
        return True
    if gap.state is GapState.WAIVED:
        return False
    if gap.detected_at >= recovery.created_at - _LOOK_BACK:
        return True
    # Seen long ago, and it grew until the plan was made.
    return any(
        row["partition"] == gap.partition
        and row.get("lost")
        and None not in (gap.end, row.get("start"))
        and gap.end >= row["start"]
        for row in recovery.plan["partitions"]
    )


def _concerns(hold: Hold, recovery: Recovery, begin: datetime, end: datetime | None) -> bool:
    """Whether the topic was held for this recovery, or by somebody in these hours."""
    if hold.holder == recovery.id:
        return True
    if (hold.cluster, hold.topic) != (recovery.cluster, recovery.topic):
        return False
    over = hold.released_at is not None and hold.released_at < begin
    return not over and (end is None or hold.created_at <= end)
