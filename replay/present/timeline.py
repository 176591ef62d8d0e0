"""What happened, in order: from the first lag to the last line of the record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby

from backlogctl.formats import format_duration, format_plural
from backlogctl.ledger import Ledger
from backlogctl.ledger.holds import Hold
from backlogctl.ledger.measurements import DiskReading
from backlogctl.replay.engine.archives import find_ended_at
from backlogctl.replay.engine.kind import STEP_COMPLETED, STEP_STARTED, Workspace
from backlogctl.replay.engine.values import RecoveryRecord
from backlogctl.replay.present.document import read_record
from backlogctl.replay.present.figures import measure_lag
from backlogctl.replay.present.progress import (
    find_finished_starts,
    format_detail,
    name_line,
    name_step,
)
from backlogctl.values import FINAL, Cause, Gap, GapState, LedgerEvent, Recovery, hash_value

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
    record = read_record(workspace, ledger.recoveries.get(recovery_id))
    recovery = record.recovery
    kind = workspace.kind_of(recovery)
    plan = kind.read_plan(recovery)
    ended_at = _find_ending(recovery, record.events)
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
    return replace(
        record,
        gaps=gaps,
        samples=samples,
        disks=read_disks(ledger, recovery, ended_at) if kind.traits.opens_gaps else (),
        holds=tuple(hold for hold in held if _concerns(hold, recovery, begin, end)),
        plan_holds=hash_value(dict(recovery.plan)) == recovery.plan_hash,
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


def _find_ending(recovery: Recovery, events: Sequence[LedgerEvent]) -> datetime | None:
    """When it came to its end; None while it may go on."""
    if recovery.state not in FINAL or not events:
        return None
    # Not the last line of the record: one may be added long after the end.
    return find_ended_at(recovery, events) or events[-1].at


def _concerns(hold: Hold, recovery: Recovery, begin: datetime, end: datetime | None) -> bool:
    """Whether the topic was held for this recovery, or by somebody in these hours."""
    if hold.holder == recovery.id:
        return True
    if (hold.cluster, hold.topic) != (recovery.cluster, recovery.topic):
        return False
    over = hold.released_at is not None and hold.released_at < begin
    return not over and (end is None or hold.created_at <= end)


# A group that works has some lag all the time: it falls behind from where it had this share of
# the most that it came to.
_SMALL_SHARE = 0.02
_TOGETHER = timedelta(minutes=1)
_MOST_LINES = 240

_WORDS = {
    "planned": "planned",
    "approved": "approved",
    "running": "run began",
    "taken over": "run taken over from a runner that is gone",
    "paused": "paused",
    "failed": "failed",
    "verified": "verified",
    "cancelled": "cancelled",
    "rejected": "rejected",
    "read back": "everything read back",
    "rows asked for": "the table asked which rows are gone",
    "said": "note",
}
# The details of an event that are shown; no others are.
_DETAILS = ("by", "reason", "step", "message", "runner", "gone")


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """One line. `kind` is seen (by sampling), said (on record) or held."""

    at: datetime
    what: str
    who: str = ""
    detail: str = ""
    kind: str = "said"
    weight: str = "plain"  # plain | strong | bad


def list_lines(record: RecoveryRecord, isolation: str) -> tuple[list[TimelineLine], int]:
    """The timeline, oldest first, and how many lines in its middle were left out."""
    lines = [
        *_list_lag(record, isolation),
        *_list_gaps(record.gaps),
        *_list_holds(record.holds, record.recovery.id),
        *_list_events(record),
    ]
    lines.sort(key=lambda line: line.at)
    more = len(lines) - _MOST_LINES
    if more <= 0:
        return lines, 0
    half = _MOST_LINES // 2
    return [*lines[:half], *lines[-half:]], more


def find_rise(points: list[tuple[datetime, int]]) -> tuple[datetime, datetime, int] | None:
    """When the group began to fall behind, when it was furthest, and by how many offsets.

    None where it never was.
    """
    if not points:
        return None
    peak_at, peak = max(points, key=lambda point: point[1])
    if not peak:
        return None
    before = [at for at, lag in points if at < peak_at and lag <= peak * _SMALL_SHARE]
    return (before[-1] if before else points[0][0]), peak_at, peak


def _list_lag(record: RecoveryRecord, isolation: str) -> Iterator[TimelineLine]:
    rise = find_rise(measure_lag(record.samples, isolation))
    if rise is None:
        return
    began, peak_at, peak = rise
    first = record.samples[0].taken_at
    if began < peak_at:
        what = "the group falls behind"
        detail = "it was behind in the first sample that is kept" if began == first else ""
        yield TimelineLine(began, what, detail=detail, kind="seen")
    yield TimelineLine(peak_at, "furthest behind", detail=f"{peak:,} unread", kind="seen")


def _list_gaps(gaps: tuple[Gap, ...]) -> Iterator[TimelineLine]:
    # What an offload moved is no loss, and its own steps say when.
    gaps = tuple(gap for gap in gaps if gap.cause is not Cause.DISCARDED or gap.archive is None)
    known = [gap for gap in gaps if gap.first_time and gap.last_time]
    if known:
        first = min(gap.first_time for gap in known if gap.first_time)
        last = max(gap.last_time for gap in known if gap.last_time)
        yield TimelineLine(first, "the first lost message was written, not before", kind="seen")
        yield TimelineLine(last, "the last lost message was written, not after", kind="seen")
    ordered = sorted(gaps, key=lambda gap: gap.detected_at)
    start: datetime | None = None

    def place(gap: Gap) -> datetime:
        nonlocal start
        if start is None or gap.detected_at - start > _TOGETHER:
            start = gap.detected_at
        return start

    for at, group in groupby(ordered, key=place):
        found = list(group)
        lost = sum(gap.count or 0 for gap in found)
        places = len({gap.partition for gap in found})
        told = f"at most {format_plural(lost, 'message')} in {format_plural(places, 'partition')}"
        if any(gap.count is None for gap in found):
            told += ", and a range that is not known"
        yield TimelineLine(at, "loss detected", detail=told, kind="seen", weight="bad")
    for gap in ordered:
        if gap.state is GapState.WAIVED:
            yield TimelineLine(gap.detected_at, f"gap {gap.id}: waived since", detail=gap.reason)


def _list_holds(holds: tuple[Hold, ...], recovery_id: str) -> Iterator[TimelineLine]:
    for hold in holds:
        names = ", ".join(sorted(hold.raised))
        who = "this recovery" if hold.holder == recovery_id else hold.actor
        yield TimelineLine(hold.created_at, "retention held", who, names, kind="held")
        if hold.released_at is not None:
            yield TimelineLine(hold.released_at, "retention given back", who, names, kind="held")


def _list_events(record: RecoveryRecord) -> Iterator[TimelineLine]:
    started: dict[str, datetime] = {}
    finished = find_finished_starts([(event.action, event.detail) for event in record.events])
    for number, event in enumerate(record.events):
        action, detail = event.action, event.detail
        name = str(detail.get("step", ""))
        if number in finished:
            started[name] = event.at
            continue
        if action == STEP_COMPLETED and name in started:
            took = (event.at - started[name]).total_seconds()
            what = f"{name_step(name)}: done"
            yield TimelineLine(event.at, what, _name_actor(event), f"in {format_duration(took)}")
            continue
        action, _ = name_line(event.action, event.detail)
        yield TimelineLine(
            event.at,
            _WORDS.get(action, action.replace("_", " ")),
            _name_actor(event),
            describe_detail(event),
            weight=_weigh(event.action),
        )


def _name_actor(event: LedgerEvent) -> str:
    """The account, or the name that was given with it."""
    identity = event.detail.get("identity")
    return f"{event.actor} ({identity})" if identity and identity != event.actor else event.actor


def describe_detail(event: LedgerEvent) -> str:
    """The details of an event that may be shown: never the contents of a message."""
    detail = event.detail
    if event.action == "read back":
        return f"{detail.get('matched', 0):,} of {detail.get('staged', 0):,} as staged"
    if detail.get("code") == "bug":
        return "an error of the program; its record has it"
    if event.action == "planned":
        return f"plan {str(detail.get('plan_hash', ''))[:16]}…"
    if event.action == "approved":
        return f"plan {str(detail.get('plan_hash', ''))[:16]}…, by the name {detail.get('by')}"
    if event.action in (STEP_STARTED, STEP_COMPLETED):
        _, detail = name_line(event.action, detail)
    return format_detail({name: detail[name] for name in _DETAILS if name in detail})


def _weigh(action: str) -> str:
    if action in ("verified", "approved", "planned"):
        return "strong"
    return "bad" if action in ("failed", "cancelling failed", "refused") else "plain"
