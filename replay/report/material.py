"""What a report is made of: everything that the ledger has about one recovery, read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from backlog.ledger import BurndownSample
from backlog.ledger.chunks import ChunkRecord
from backlog.ledger.holds import Hold
from backlog.ledger.steps import StepRecord
from backlog.manifest import hash_value
from backlog.values import Event, Gap, Recovery, RecoveryState, Sample
from monitoring.lag import find_end
from replay.kinds import EXPAND
from replay.workspace import Workspace

# What happened to the lag before that says nothing of this incident.
_LOOK_BACK = timedelta(hours=24)
_LOOK_ON = timedelta(minutes=30)
_AT_END = (RecoveryState.VERIFIED, RecoveryState.REJECTED, RecoveryState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Material:
    """A recovery and what is on record about it.

    Attributes:
        gaps: those that a rebuild is for; for an expansion, those of its topic and group that are
            open or were found since it was planned.
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
        if self.recovery.state not in _AT_END:
            return None
        return self.events[-1].at if self.events else None

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
    """
    ledger = workspace.ledger
    recovery = ledger.recoveries.get(recovery_id)
    events = ledger.events.list(recovery_id)
    gaps = _find_gaps(workspace, recovery)
    begin = min([recovery.created_at, *(gap.detected_at for gap in gaps)]) - _LOOK_BACK
    end = events[-1].at + _LOOK_ON if events and recovery.state in _AT_END else None
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
        steps=ledger.steps.list(recovery_id) or tuple(_read_steps(events)),
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


def _find_gaps(workspace: Workspace, recovery: Recovery) -> tuple[Gap, ...]:
    ledger = workspace.ledger
    if recovery.kind != EXPAND:
        found = [ledger.gaps.get(gap_id) for gap_id in ledger.recoveries.gap_ids(recovery.id)]
        return tuple(sorted(found, key=lambda gap: (gap.partition, gap.start or 0)))
    return tuple(
        gap
        for gap in ledger.gaps.list(recovery.stream)
        if (gap.topic, gap.group) == (recovery.topic, recovery.group)
        and (gap.state == "open" or gap.detected_at >= recovery.created_at)
    )


def _concerns(hold: Hold, recovery: Recovery, begin: datetime, end: datetime | None) -> bool:
    """Whether the topic was held for this recovery, or by somebody in these hours."""
    if hold.holder == recovery.id:
        return True
    if (hold.cluster, hold.topic) != (recovery.cluster, recovery.topic):
        return False
    over = hold.released_at is not None and hold.released_at < begin
    return not over and (end is None or hold.created_at <= end)


def _read_steps(events: Sequence[Event]) -> Iterator[StepRecord]:
    """A rebuild's steps are on record only as events."""
    first: dict[str, datetime] = {}
    last: dict[str, datetime] = {}
    ended: dict[str, datetime] = {}
    tries: dict[str, int] = {}
    for event in events:
        name, _, word = event.action.rpartition(" ")
        if word == "started":
            first.setdefault(name, event.at)
            last[name] = event.at
            tries[name] = tries.get(name, 0) + 1
            ended.pop(name, None)
        elif word == "completed" and name in first:
            ended[name] = event.at
    for name, at in first.items():
        yield StepRecord(
            events[0].recovery_id, name, at, last[name], ended.get(name), None, tries[name]
        )
