"""What to type next about a recovery, or a stream: the one place that decides it, for each kind,
error and page.

It goes by what is on record, and by what the brokers say where they were asked. The command loses
nothing, and is one that is not refused once the cause of a failure is mended; what is not known is
asked for (`backlogctl show R`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backlogctl.config import Stream
from backlogctl.errors import (
    ConsumersLeft,
    KafkaLedgerLost,
    PlanStale,
    Refused,
    RewindRefused,
    StagingChanged,
    UnreadLeft,
    VerificationFailed,
)
from backlogctl.monitoring.verdict.commands import (
    expand_stream,
    is_hold,
    is_plan,
    list_gaps,
    look_at_stream,
    show_recovery,
)
from backlogctl.replay.engine.approval import check_hash, check_runnable, is_expired
from backlogctl.replay.engine.archives import touches
from backlogctl.replay.engine.brakes import CANARY, OPERATOR
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import LEAVE_CONSUMERS, REWIND, is_in_the_way
from backlogctl.values import (
    FINAL,
    ChunkState,
    Gap,
    GapState,
    LedgerEvent,
    Recovery,
    RecoveryState,
)

if TYPE_CHECKING:
    from backlogctl.ledger import Ledger

# Lines of the record that this goes by.
# How it stands, as the brokers said it then; for those who cannot ask them.
STANDING = "how it stands"
# What retention takes next of the stream, with `message`: a look that changes nothing.
LOOKED_AHEAD = "looked ahead"
CANCEL_ASKED, CANCEL_FAILED, REFUSED = "cancel asked", "cancelling failed", "refused"


_LOST = (GapState.OPEN, GapState.PLANNED, GapState.STAGED, GapState.INJECTED)
_FINAL = (PlanStale.code, KafkaLedgerLost.code, StagingChanged.code, VerificationFailed.code)


@dataclass(frozen=True, slots=True)
class WayOut:
    """How a recovery can be closed so that nothing is lost, as the brokers say it.

    Attributes:
        ways: of `Kind.cancel_ways`.
        is_only: any run would be refused.
    """

    ways: tuple[str, ...] = ()
    is_only: bool = False


@dataclass(frozen=True, slots=True)
class _Failure:
    """What failed last, and nothing was done since."""

    code: str
    retryable: bool = False
    by_cancel: bool = False

    @property
    def is_final(self) -> bool:
        """Whether another run would end the same: what was approved is not there any more, or what
        was done is not what was approved."""
        return self.code in _FINAL and not self.retryable


def list_next_commands(
    workspace: Workspace, recovery: Recovery, way_out: WayOut | None = None
) -> list[str]:
    """What an operator would type next; nothing where this program cannot read the plan.

    Args:
        way_out: what the brokers say now; None where they were not asked, or do not answer.
    """
    if _refuses(workspace.plan_of, recovery):
        return []
    name, state, ledger = recovery.id, recovery.state, workspace.ledger
    if state in FINAL:
        return _list_after(workspace, recovery)
    if _is_outdated(ledger, recovery):
        return [name_cancel(name)]
    if state is RecoveryState.PLANNED:
        # Its warnings say why it may not run.
        is_good = not _refuses(check_runnable, workspace, recovery)
        return [name_approval(name)] if is_good else []
    is_worked_on = ledger.leases.find_runner(name) is not None
    if state is RecoveryState.RUNNING and is_worked_on:
        return [f"{show_recovery(name)} --watch"]
    events = ledger.events.list(name)
    if way_out is None and (standing := find_standing(events)):
        return list(standing["next_commands"])
    failure = _find_failure(recovery, events)
    if recovery.requested == "cancel":
        # Asked for, and not carried out yet: that is what any run would do.
        return [name_cancel(name, _choose_ways(list_cancel_ways(events), failure))]
    if _refuses(check_hash, recovery):
        return [name_cancel(name)]
    if (failure and failure.is_final) or (way_out and way_out.is_only):
        if way_out is None and workspace.kind_of(recovery).asks_how_to_close(workspace, recovery):
            return [show_recovery(name)]
        return [name_cancel(name, () if way_out is None else way_out.ways)]
    if is_expired(recovery):
        return [name_approval(name)]
    held = state is RecoveryState.PAUSED and recovery.detail.get("why") in (OPERATOR, CANARY)
    # A pause that its runner has not seen before it ended holds it all the same.
    held = held or recovery.requested == "pause"
    return [f"backlogctl {'resume' if held else 'run'} {name}"]


def find_standing(events: Sequence[LedgerEvent]) -> Mapping[str, Any] | None:
    """How it stands, as it was put on record; None where something has happened since."""
    last = next((one for one in reversed(events) if one.action != LOOKED_AHEAD), None)
    return last.detail if last is not None and last.action == STANDING else None


def list_stream_commands(
    workspace: Workspace,
    stream: Stream,
    verdict: Sequence[str],
    active: Iterable[Recovery],
    asked: Mapping[str, Sequence[str]] | None = None,
) -> tuple[str, ...]:
    """What an operator would type next about a stream: what its open recoveries need; of its
    verdict what is no plan; and a plan only where it would not be refused, nor take the place of
    one that waits.

    What holds messages back that are about to be lost comes first, unless a runner drains them.

    Args:
        verdict: the commands of its verdict alone.
        active: recoveries that are not over, of any stream.
        asked: by recovery, the next commands as the brokers say it.

    Raises:
        LedgerError.
    """
    ledger, known = workspace.ledger, asked or {}
    theirs: list[str] = []
    hidden: set[str] = set()
    is_free, is_drained = True, False  # for a new plan; by a runner
    for one in active:
        blocks = is_in_the_way(stream, one)
        if one.stream != stream.name and not blocks:
            continue
        found = known.get(one.id) or list_next_commands(workspace, one)
        theirs += found or [show_recovery(one.id)]
        hidden.add(show_recovery(one.id))
        if blocks or (one.state is RecoveryState.PLANNED and found):
            is_free = False
        if one.stops_consumers and one.state is RecoveryState.RUNNING:
            is_drained = is_drained or ledger.leases.find_runner(one.id) is not None
    expand, gaps = expand_stream(stream.name), list_gaps(stream.name)
    lost = [one for one in verdict if one == gaps or (is_plan(one) and one != expand)]
    plans = suggest_plans(workspace, stream) if lost and is_free else []
    own: list[str] = []
    for command in verdict:
        if command in lost[:1]:
            own += plans
        if command == gaps or (command not in (*lost, *hidden) and (is_free or command != expand)):
            own.append(command)
    holds = [] if is_drained else [command for command in own if is_hold(command)]
    return tuple(dict.fromkeys((*holds, *theirs, *own)))


def is_final(recovery: Recovery) -> bool:
    """Whether it failed, and another run would end the same."""
    is_failed = recovery.state is RecoveryState.FAILED
    return is_failed and _make_failure(recovery.detail, by_cancel=False).is_final


def name_approval(recovery_id: str) -> str:
    """The command that approves a plan."""
    return f"backlogctl approve {recovery_id} --by NAME"


def name_cancel(recovery_id: str, ways: Iterable[str] = ()) -> str:
    """The command that closes a recovery in these ways."""
    return " ".join((f"backlogctl cancel {recovery_id}", *(f"--{way}" for way in ways)))


def list_cancel_ways(events: Iterable[LedgerEvent]) -> tuple[str, ...]:
    """The ways of the last `cancel`, so that whoever goes on with it goes the same."""
    asked = [event.detail.get("ways", ()) for event in events if event.action == CANCEL_ASKED]
    return tuple(asked[-1]) if asked else ()


def suggest_plans(
    workspace: Workspace, stream: Stream, gaps: Collection[Gap] | None = None
) -> list[str]:
    """The commands that plan to put back what a stream has lost, each message by one of them; no
    gap of which a plan would be refused, or that may be no loss at all.

    Args:
        gaps: of these alone; None is all that no recovery has taken.
    """
    ledger = workspace.ledger
    if gaps is None:
        free = {gap.id for gap in ledger.gaps.list_waiting(stream.name)}
        known = ledger.gaps.list(stream.name, [GapState.OPEN, GapState.STAGED])
        gaps = [gap for gap in known if gap.state is GapState.OPEN or gap.id in free]
    newest = ledger.recoveries.list(stream.name)[-1:]
    events = [event for recovery in newest for event in ledger.events.list(recovery.id)]
    if any(event.detail.get("code") == KafkaLedgerLost.code for event in events):
        return []  # it would be refused until a person has decided
    sent = find_unverified(ledger, stream.name)
    left = [gap for gap in gaps if gap.id not in sent]
    found = [
        command for kind in workspace.kinds for command in kind.suggest_plans(ledger, stream, left)
    ]
    return list(dict.fromkeys(found))


def find_unverified(ledger: Ledger, stream: str) -> dict[str, str]:
    """By gap the cancelled recovery that sent all it had for it, and did not read that back as it
    should be: a plan would find nothing left. None of one of which some is lost again."""
    found: dict[str, str] = {}
    for recovery in ledger.recoveries.list(stream, [RecoveryState.CANCELLED]):
        ids, chunks = ledger.recoveries.gap_ids(recovery.id), ledger.chunks.list(recovery.id)
        is_sent = bool(chunks) and all(each.state is ChunkState.INJECTED for each in chunks)
        if not ids or not is_sent:
            continue
        lost = [gap for gap in ledger.gaps.list(stream, _LOST) if gap.id not in ids]
        if not any(
            touches(each.chunk.slot, each.first_offset, each.last_offset, lost) for each in chunks
        ):
            found |= dict.fromkeys(ids, recovery.id)
    return found


def _is_outdated(ledger: Ledger, recovery: Recovery) -> bool:
    """Whether no run can begin: the topic was seen made anew, or with more partitions, since."""
    if recovery.state not in (RecoveryState.PLANNED, RecoveryState.APPROVED):
        return False
    newest, plan = ledger.samples.latest(recovery.stream), recovery.plan
    if newest is None or (newest.cluster, newest.topic) != (recovery.cluster, recovery.topic):
        return False
    # Fewer partitions are some that could not be seen.
    is_other = newest.topic_id != plan["topic_id"]
    is_other = is_other or len(newest.partitions) > plan["partition_count"]
    return is_other and newest.taken_at > recovery.created_at


def _find_failure(recovery: Recovery, events: Iterable[LedgerEvent]) -> _Failure | None:
    """By the record's newest line that says how the last try ended."""
    for event in reversed(tuple(events)):
        if event.action in (REFUSED, CANCEL_FAILED):
            return _make_failure(event.detail, by_cancel=event.action == CANCEL_FAILED)
        if event.action == recovery.state:
            break
    if recovery.state is RecoveryState.FAILED:
        return _make_failure(recovery.detail, by_cancel=False)
    return None


def _make_failure(detail: Any, *, by_cancel: bool) -> _Failure:
    return _Failure(detail.get("code", ""), bool(detail.get("retryable")), by_cancel)


def _choose_ways(asked: tuple[str, ...], failure: _Failure | None) -> tuple[str, ...]:
    """Those of the last cancel, unless it has failed for that very reason."""
    if failure is None or not failure.by_cancel:
        return asked
    ways = list(asked)
    if failure.code in (RewindRefused.code, PlanStale.code) and REWIND in ways:
        ways.remove(REWIND)
    if failure.code == ConsumersLeft.code and LEAVE_CONSUMERS not in ways:
        ways.append(LEAVE_CONSUMERS)
    if failure.code == UnreadLeft.code and REWIND not in ways:
        ways.append(REWIND)
    return tuple(ways)


def _list_after(workspace: Workspace, recovery: Recovery) -> list[str]:
    """What comes when it is over: a plan for what is still lost, by its stream's last one alone."""
    if newer := recovery.detail.get("superseded_by"):
        return [show_recovery(newer)]
    stream = workspace.config.streams.get(recovery.stream)
    if stream is None or workspace.ledger.recoveries.list(stream.name)[-1].id != recovery.id:
        return []
    if plans := suggest_plans(workspace, stream):
        return plans[:1]
    # What is unread is its group's again; whether that needs help is seen there.
    return [] if recovery.state is RecoveryState.VERIFIED else [look_at_stream(stream.name)]


def _refuses(check: Callable[..., object], *arguments: object) -> bool:
    try:
        check(*arguments)
    except Refused:
        return True
    return False
