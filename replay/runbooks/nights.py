"""What one night does for one stream: go on with a rebuild, make one, or ask for an approval."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from backlogctl.config import Stream
from backlogctl.errors import InvalidTransition, PutBackAlready, Refused
from backlogctl.formats import format_moment
from backlogctl.monitoring.offsets.timeline import date_loss
from backlogctl.replay.engine.approval import is_expired
from backlogctl.replay.engine.archives import ARCHIVE
from backlogctl.replay.engine.brakes import OPERATOR
from backlogctl.replay.engine.kind import Say, Workspace, ignore_progress
from backlogctl.replay.engine.next_commands import is_final, name_cancel
from backlogctl.replay.engine.plan import ACTIVE, BEGUN, UNFINISHED, RunOrigin
from backlogctl.replay.injection.archived import list_archived
from backlogctl.replay.injection.unprocessed import WORD, list_in_log
from backlogctl.replay.kinds.rebuild.kind import KIND as REBUILD
from backlogctl.replay.kinds.rebuild.losses import list_repairable, take_every
from backlogctl.replay.kinds.rebuild.plan import RebuildOptions
from backlogctl.replay.kinds.rebuild.planning import plan_rebuild
from backlogctl.replay.kinds.redrive.kind import KIND as REDRIVE
from backlogctl.replay.kinds.redrive.plan import RedriveOptions
from backlogctl.replay.kinds.redrive.planning import plan_redrive
from backlogctl.replay.present.status import describe_recovery_plan
from backlogctl.replay.runbooks.work import describe_other
from backlogctl.values import Gap, Recovery, RecoveryState, to_document


class Tonight(StrEnum):
    """What to do tonight."""

    RUN = "run"  # approved: put back
    ASK = "ask"  # planned: a person must approve it
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class NightWork:
    """The night's work for one stream; `recovery` is "" where there is none.

    `expired`: when an earlier approval did, so that the new question is another one; else "".
    """

    stream: str
    action: Tonight
    recovery: str
    why: str
    expired: str = ""

    def to_json(self) -> dict[str, Any]:
        return to_document(self)


def read_action(work: Mapping[str, Any]) -> Tonight:
    """Of `NightWork.to_json`; a task that slept over an upgrade has the key of before."""
    return Tonight(work["action"] if "action" in work else work["deed"])


@dataclass(frozen=True, slots=True)
class Interval:
    """Times `[start, end)`."""

    start: datetime
    end: datetime

    def __str__(self) -> str:
        return f"{format_moment(self.start)} to {format_moment(self.end)}"


GapPlanner = Callable[[Workspace, Stream, datetime, RunOrigin, Say, Interval | None], Recovery]


def has_nights(workspace: Workspace, stream: Stream) -> bool:
    """Whether a night may have work for it: it has a table, or an archive."""
    return stream.source is not None or bool(
        workspace.ledger.archives.list(stream.name, with_purged=False)
    )


def find_night_work(
    workspace: Workspace,
    stream: Stream,
    before: datetime,
    origin: RunOrigin,
    say: Say = ignore_progress,
    *,
    lost_in: Interval | None = None,
    hold: Callable[[Recovery], str] = lambda _: "",
    planner: GapPlanner | None = None,
) -> NightWork:
    """Goes on with what was begun, else plans the gaps that were found before `before`.

    Args:
        lost_in: only what was lost in this time, whenever it was found: a night of the past.
        hold: why a recovery is a person's to go on with; "" where it is not.
        planner: plans elsewhere what `plan_gaps` would plan here.

    Asked twice it gives the same work: a plan that is there is not made again, and what is
    verified is no gap any more (fault 39).

    Raises:
        Refused: an earlier rebuild needs a person first, or a guard says no.
        BacklogError: the plan could not be made.
    """
    wait = workspace.config.guards.approval_expires
    now = workspace.ledger.now()
    for recovery in sorted(workspace.ledger.recoveries.list(stream.name), key=_rank):
        mine = _repairs(workspace, recovery)
        open_ = mine and recovery.state in ACTIVE
        other = describe_other(workspace, recovery, origin.deployment) if open_ else ""
        if mine and not other and recovery.state in UNFINISHED and (why := hold(recovery)):
            return NightWork(stream.name, Tonight.NOTHING, recovery.id, why)
        work = _judge_earlier(stream, recovery, now, wait, mine=mine, other=other)
        if work is not None:
            return work
    wants = _choose_wanted(workspace, stream, before, lost_in)
    if not _count_gaps(workspace, stream, wants):
        others = _count_gaps(workspace, stream, take_every)
        why = "no open gap"
        if lost_in is not None:
            why = f"no open gap was lost in this night ({lost_in})"
        if others:
            why += f"; {others} {'at other times' if lost_in else 'found since'}"
        return NightWork(stream.name, Tonight.NOTHING, "", why)
    try:
        recovery = (planner or plan_gaps)(workspace, stream, before, origin, say, lost_in)
    except PutBackAlready as done:
        # A person closes the gaps; until then no night can do anything about them.
        return NightWork(stream.name, Tonight.NOTHING, "", f"{done.message}; {done.hint}")
    except Refused as refused:
        # Another recovery is in the way, or what was lost is answered meanwhile.
        gone = isinstance(refused, InvalidTransition) or not _count_gaps(workspace, stream, wants)
        if refused.retryable or not gone:
            raise
        return NightWork(stream.name, Tonight.NOTHING, "", refused.message)
    return _judge_plan(workspace, stream, recovery)


def plan_gaps(
    workspace: Workspace,
    stream: Stream,
    before: datetime,
    origin: RunOrigin,
    say: Say,
    lost_in: Interval | None,
) -> Recovery:
    """What the log still has first: retention takes that, and no row. Then the oldest archive, as
    its messages are older than those that rows make again."""
    ledger, wants = workspace.ledger, _choose_wanted(workspace, stream, before, lost_in)
    sources = [WORD] if any(map(wants, list_in_log(ledger, stream))) else []
    archived = [each.record for each in list_archived(ledger, stream) if wants(each.gap)]
    sources += [f"{ARCHIVE}:{name}" for name in dict.fromkeys(one.recovery_id for one in archived)]
    rebuilds = any(map(wants, list_repairable(ledger, stream)))
    for source in sources:
        options = RedriveOptions(source=source)
        try:
            return plan_redrive(workspace, stream, options, origin=origin, wants=wants, say=say)
        except Refused as refused:
            # What a person must decide holds up nothing else.
            if refused.retryable or not (rebuilds or source != sources[-1]):
                raise
    return plan_rebuild(workspace, stream, RebuildOptions(), origin=origin, wants=wants, say=say)


def _rank(recovery: Recovery) -> int:
    """What goes first, the older first of two: work that was begun, failed work, a plan that
    waits, and last what cannot be run any more, so that it hides none of them."""
    if recovery.state is RecoveryState.FAILED:
        return 3 if is_final(recovery) else 1
    return 0 if recovery.state in BEGUN else 2


def _choose_wanted(
    workspace: Workspace, stream: Stream, before: datetime, lost_in: Interval | None
) -> Callable[[Gap], bool]:
    if lost_in is None:
        return lambda gap: gap.detected_at < before
    history = workspace.ledger.samples.history(stream.name)
    return lambda gap: lost_in.start <= date_loss(history, gap) < lost_in.end


def _count_gaps(workspace: Workspace, stream: Stream, wants: Callable[[Gap], bool]) -> int:
    """Gaps that can be put back, open or waiting in an archive: nobody can plan the others, and
    detection reports them."""
    ledger = workspace.ledger
    archived = (each.gap for each in list_archived(ledger, stream))
    known = (*list_repairable(ledger, stream), *list_in_log(ledger, stream), *archived)
    return sum(wants(gap) for gap in {gap.id: gap for gap in known}.values())


def _judge_earlier(
    stream: Stream, recovery: Recovery, now: datetime, wait: timedelta, *, mine: bool, other: str
) -> NightWork | None:
    """What an earlier recovery of the stream means for tonight; None: nothing.

    Args:
        mine: it puts back what was found lost, as this night would.
        other: what is said where another Airflow has it.
    """
    if other or (not mine and recovery.kind != REBUILD.name):
        # A plan of ours would take the place of one that somebody is asked about.
        asked = recovery.state is RecoveryState.PLANNED and now - recovery.created_at < wait
        if asked or recovery.state in UNFINISHED:
            why = other or f"its {recovery.kind} {recovery.id} is {recovery.state}"
            return NightWork(stream.name, Tonight.NOTHING, "", why)
        return None
    if not mine:
        # It repairs nothing: only while it runs is it in the way.
        if recovery.state in BEGUN:
            why = f"its rehearsal {recovery.id} is {recovery.state}"
            return NightWork(stream.name, Tonight.NOTHING, "", why)
        return None
    if recovery.state is RecoveryState.PLANNED:
        return NightWork(stream.name, Tonight.ASK, recovery.id, "waits for its approval")
    if recovery.state is RecoveryState.PAUSED and recovery.detail.get("why") == OPERATOR:
        return NightWork(stream.name, Tonight.NOTHING, recovery.id, "paused by an operator")
    if recovery.state is RecoveryState.FAILED:
        if is_final(recovery):
            raise Refused(
                f"recovery {recovery.id} has failed, and would again: "
                f"{recovery.detail.get('message')}",
                subject=f"stream {stream.name}",
                hint=f"`{name_cancel(recovery.id)}`; the next night plans again",
            )
        return NightWork(stream.name, Tonight.RUN, recovery.id, "failed before; tried again")
    if recovery.state in BEGUN:
        if is_expired(recovery, now):
            expired = recovery.approval_expires_at
            told = "" if expired is None else f"{expired:%Y%m%dT%H%M}"
            return NightWork(stream.name, Tonight.ASK, recovery.id, "its approval expired", told)
        return NightWork(stream.name, Tonight.RUN, recovery.id, f"is {recovery.state}")
    return None


def _judge_plan(workspace: Workspace, stream: Stream, recovery: Recovery) -> NightWork:
    if recovery.state is RecoveryState.APPROVED:
        return NightWork(stream.name, Tonight.RUN, recovery.id, "an exact plan, approved by itself")
    plan, told = workspace.plan_of(recovery), describe_recovery_plan(workspace, recovery)
    why = f"planned, {told.verdict}; the stream's approval is `{plan.approval}`"
    return NightWork(stream.name, Tonight.ASK, recovery.id, why)


def _repairs(workspace: Workspace, recovery: Recovery) -> bool:
    """Whether it puts back, for the stream's group, what was found lost; also of a plan nobody can
    read. A rehearsal takes no gaps, and neither does a redrive of what a person chose."""
    if recovery.kind == REDRIVE.name:
        if recovery.plan.get("lost_only") and recovery.plan.get("target") is None:
            return True
        return bool(workspace.ledger.recoveries.gap_ids(recovery.id))
    return recovery.kind == REBUILD.name and recovery.plan.get("target") is None
