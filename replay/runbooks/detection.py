"""When a detection starts a recovery again that it started before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from backlogctl.clock import Deadline, read_time
from backlogctl.config import Stream, mask_secrets
from backlogctl.errors import BacklogError
from backlogctl.formats import format_duration
from backlogctl.ledger import OPERATOR
from backlogctl.monitoring.offsets.history import MEMBERLESS
from backlogctl.monitoring.verdict.commands import find_hold_seconds
from backlogctl.monitoring.verdict.status import Urgency, Verdict, find_urgency
from backlogctl.replay.engine.approval import NOBODY
from backlogctl.replay.engine.archives import find_ended_at
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.next_commands import LOOKED_AHEAD
from backlogctl.replay.engine.plan import ACTIVE, find_identity
from backlogctl.replay.observe.stream import reach_clusters, sample_stream
from backlogctl.replay.present.report import NOTHING_AHEAD, adds_messages
from backlogctl.values import Gap, GapState, Recovery, RecoveryState, to_document

_FIRST_PAUSE = timedelta(minutes=10)
_LONGEST_PAUSE = timedelta(hours=6)
_AGAIN_AFTER = timedelta(days=1)


class Came(StrEnum):
    """What came of the run that was started last."""

    OPEN = "open"  # it is at work, or waits
    BROKEN = "broken"  # it failed by itself before there was a plan, or was never made
    ENDED = "ended"  # it came to an end, or a person ended it


@dataclass(frozen=True, slots=True)
class Started:
    """A run that a detection started; `tries` counts those for the same occasion."""

    occasion: str
    run_id: str
    at: datetime
    tries: int = 1

    def to_json(self) -> dict[str, Any]:
        return to_document(self)

    @classmethod
    def read(cls, document: Any) -> Started | None:
        """Of `to_json`; None where it is something else."""
        try:
            return cls(**{**document, "at": read_time(document["at"])})
        except (TypeError, KeyError, ValueError):
            return None


def decide_start(
    stream: str, occasion: str, last: Started | None, came: Came, now: datetime
) -> Started | None:
    """The run to start now; None: not now.

    One at a time. For the same occasion another one after a day, and after a technical failure with
    a pause that doubles from ten minutes to six hours.

    Args:
        came: of `last`.
    """
    # By name and day: two detections at once start one.
    new = Started(occasion, f"detect__{stream}__{occasion}__{now:%Y%m%d}", now)
    if last is None:
        return new
    if came is Came.OPEN:
        return None
    if last.occasion != occasion:
        return new
    if came is Came.BROKEN:
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(last.tries - 1, 10))
        if now - last.at < pause:
            return None
        tries = last.tries + 1
        return replace(new, run_id=f"{new.run_id}__{tries}", tries=tries)
    return new if now - last.at >= _AGAIN_AFTER else None


# One look at a stream for a scheduler: its verdict, what is newly lost, and what to do.

# What tells how long a message stays.
_RETENTION = ("retention", "disks")
# A question does not wait longer for what is beside it.
_LOSS_SECONDS = 10.0
# The occasions of a run where no gap is open: a recovery, or a hold of the retention alone.
BEHIND, HOLD_ALONE = "behind", "hold"
# A plan that was cancelled before anybody approved it.
CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class LossAhead:
    """What retention takes next of what the group has not read; `hold_seconds` would keep it.

    Attributes:
        puts_back: what is to be added counts too, from then on.
    """

    seconds: float
    sentence: str
    hold_seconds: float
    puts_back: bool


@dataclass(frozen=True, slots=True)
class Detection:
    """What one look found.

    Attributes:
        new_gaps: ids of gaps that were not reported before.
        newest_gap: id of the gap that was recorded last, reported or not; "" without any.
        actions: what the verdict suggests, in the order to do it.
        under_way: recoveries of the stream that are not at an end.
        declined: the last plan, where a person said no to it lately and nothing was lost since.
        occasion: what a run would be for: the newest open gap, or `behind`; where only a hold can
            help, that.
        alarming: a new gap, or a loss ahead: worth an event.
        ahead: what retention takes next, where the group goes on like this and the actions put
            back what they can.
        warnings: what else was seen, one sentence each.
    """

    stream: str
    verdict: str
    course: str
    sentence: str
    lag: int | None
    lost: int | None
    seconds_to_loss: float | None
    new_gaps: tuple[str, ...]
    newest_gap: str
    actions: tuple[str, ...]
    under_way: tuple[str, ...]
    declined: str
    occasion: str
    alarming: bool
    ahead: LossAhead | None
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def detect_backlog(
    workspace: Workspace, stream: Stream, told: str | None = None, *, puts_back: bool = True
) -> Detection:
    """Samples and judges a stream; its gaps are in the ledger afterwards.

    Args:
        told: `newest_gap` of the last report, "" for none: open gaps recorded since then are new,
            also where `watch` found them first. None: only those that this look finds are.
        puts_back: whether what is suggested will be planned, and so add messages.

    Raises:
        ClusterUnreachable, KafkaFailure, LedgerError.
    """
    before = _list_gaps(workspace, stream)
    seen, entry = sample_stream(workspace, stream)
    gaps = _list_gaps(workspace, stream)
    new = _find_new(gaps, before[-1].id if told is None and before else told or "")
    lag = entry["lag"] or entry["lag_at_least"] or 0
    course = Verdict(entry["course"])
    actions = choose_actions(workspace, stream, course, lag, seen.sample.topic_id)
    injects = any(workspace.kinds.get(name).traits.injects for name in actions)
    ahead = find_loss_ahead(entry, puts_back=puts_back and injects)
    lost = next((gap.id for gap in reversed(gaps) if gap.state is GapState.OPEN), BEHIND)
    return Detection(
        stream=stream.name,
        verdict=entry["verdict"],
        course=entry["course"],
        sentence=entry["sentence"],
        lag=entry["lag"],
        lost=entry["lost"],
        seconds_to_loss=entry["seconds_to_loss"],
        new_gaps=new,
        newest_gap=gaps[-1].id if gaps else "",
        actions=actions,
        under_way=tuple(
            recovery.id for recovery in workspace.ledger.recoveries.list(stream.name, ACTIVE)
        ),
        declined=find_declined(workspace, stream),
        occasion=lost if actions else _find_hold_occasion(workspace, stream, ahead) or lost,
        alarming=bool(new) or Verdict.LOSING in (entry["verdict"], entry["course"]),
        ahead=ahead,
        warnings=tuple(entry["warnings"]),
    )


def find_loss_ahead(entry: Mapping[str, Any], *, puts_back: bool = False) -> LossAhead | None:
    """Of a stream's entry of `status`; None where nothing is in sight, or it is not known.

    Args:
        puts_back: messages are to be added, which nobody has read then.
    """
    loss, parts = entry["seconds_to_loss"], entry["partitions"]
    # A reader that never joins is seen by its commits alone.
    is_read = entry["group_state"] not in MEMBERLESS or any(
        part["consumed_per_second"] for part in parts
    )
    alone = not is_read and entry["rhythm"] is None
    if alone:
        kept = [part["seconds_retained"] for part in parts if part["lag"]]
        # What is added now is as young as a message can be.
        kept += [entry["retention_seconds"]] if puts_back else []
        loss = min((one for one in [*kept, loss] if one is not None), default=None)
    if loss is None:
        return None
    who = "the group reads too slowly" if is_read else "nobody is in the group"
    # How soon what is added pushes out what is older is not known.
    earliest = (
        "or sooner by its size" if puts_back and entry["retention_bytes"] else "at the earliest"
    )
    when = f"in {format_duration(loss)} {earliest}" if loss > 0 else "at its next check"
    length = find_hold_seconds(loss, entry["seconds_to_drain"])
    what = "what is unread" if entry["lag"] != 0 else "what is put back"
    told = f"{who}, and retention takes {what} {when}"
    return LossAhead(loss, told, length, puts_back and alone)


def comes_before_answer(ahead: LossAhead | None, wait: timedelta) -> bool:
    """Whether who is asked about a plan may answer too late."""
    return ahead is not None and ahead.seconds < wait.total_seconds()


def _find_hold_occasion(workspace: Workspace, stream: Stream, ahead: LossAhead | None) -> str:
    """What asks for a hold; "" where nothing does. The end of one in force is another occasion."""
    if ahead is None or not comes_before_answer(ahead, workspace.config.guards.approval_expires):
        return ""
    held = workspace.ledger.holds.list(stream=stream.name, holder=OPERATOR)
    ends = [hold.until for hold in held if hold.until is not None]
    if not ends:
        return HOLD_ALONE
    if find_urgency(ahead.seconds) is not Urgency.NOW:
        return ""
    return f"{HOLD_ALONE}-{max(ends):%Y%m%d%H%M}"


def describe_loss_ahead(workspace: Workspace, name: str, *, puts_back: bool = False) -> str:
    """The same of a stream that is looked at now; "" where nothing is in sight."""
    unknown = "whether retention will take what is unread is not known"
    try:
        stream = workspace.config.stream(name)
        away = reach_clusters(workspace.config, [stream])[stream.cluster]
        if isinstance(away, BacklogError):
            raise away
        _, entry = sample_stream(workspace, stream, Deadline(_LOSS_SECONDS))
    except BacklogError as error:
        return f"{unknown}: {mask_secrets(str(error))}"
    if ahead := find_loss_ahead(entry, puts_back=puts_back):
        return ahead.sentence
    if puts_back and entry["retention_bytes"]:
        return f"{unknown}: `retention.bytes` takes the oldest once the topic has grown past it"
    unseen = [one["what"] for one in entry["unseen"] if one["what"] in _RETENTION]
    if unseen:
        return f"{unknown}: {' and '.join(unseen)} could not be read"
    deletes = entry["retention_seconds"] is not None or entry["retention_bytes"]
    if deletes and entry["lag"] is None:
        return f"{unknown}: what is unread is not known"
    if deletes and entry["course"] == Verdict.LAGGING and entry["rhythm"] is None:
        return f"{unknown}: there are too few samples yet"
    return ""


def note_loss_ahead(workspace: Workspace, recoveries: Iterable[Recovery]) -> list[str]:
    """The same of their streams, put on record for their reports; what is in sight, once each."""
    told: dict[tuple[str, bool], str] = {}
    for recovery in recoveries:
        asked = recovery.stream, adds_messages(workspace, recovery)
        if asked not in told:
            told[asked] = describe_loss_ahead(workspace, asked[0], puts_back=asked[1])
        detail = {"message": told[asked] or NOTHING_AHEAD}
        workspace.ledger.events.append(recovery.id, str(find_identity()), LOOKED_AHEAD, detail)
    return list(dict.fromkeys(text for text in told.values() if text))


def _list_gaps(workspace: Workspace, stream: Stream) -> list[Gap]:
    """In the order of their ids, in which they were recorded."""

    def rank(gap: Gap) -> tuple[str, int]:
        _, day, number, *_ = gap.id.split("-")
        return day, int(number)

    return sorted(workspace.ledger.gaps.list(stream=stream.name), key=rank)


def _find_new(gaps: list[Gap], told: str) -> tuple[str, ...]:
    """The open ones after the one that was reported last; all where the ledger does not have it."""
    ids = [gap.id for gap in gaps]
    after = ids.index(told) + 1 if told in ids else 0
    return tuple(gap.id for gap in gaps[after:] if gap.state is GapState.OPEN)


def choose_actions(
    workspace: Workspace, stream: Stream, course: Verdict, lag: int, topic_id: str
) -> tuple[str, ...]:
    """What `auto` means now: offload first what can still be saved, then rebuild what is lost.

    A gap that cannot be rebuilt asks for nothing: it stays open until a person waives it. One that
    waits in an archive may be put back by day too, where a person asks for `auto`.

    Args:
        topic_id: that the topic has now.
    """
    return tuple(
        kind.name
        for kind in workspace.kinds
        if kind.suggest(workspace.ledger, stream, course, lag, topic_id)
    )


def propose_instead(found: Detection) -> str:
    """What a person can do where `auto` has nothing to do."""
    if found.under_way:
        return f"{' and '.join(found.under_way)} is at work on it"
    if found.declined:
        return f"{found.declined} was rejected: an action by its name plans again"
    if found.lag:
        return "the action `expand` drains what is unread all the same"
    return "messages that exist are put back by the action `redrive`"


def should_plan(workspace: Workspace, stream: Stream, found: Detection) -> bool:
    """Whether a scheduler starts a run by itself (`auto_plan`): a recovery, or a hold."""
    quiet = not found.under_way and not found.declined
    if not found.actions:
        return stream.auto_plan and quiet and found.occasion.startswith(HOLD_ALONE)
    return stream.auto_plan and quiet and _is_bad(workspace, found)


def find_declined(workspace: Workspace, stream: Stream) -> str:
    """The stream's last plan, where a person said no to it; "" where it may be asked again.

    That is: after `guards.approval_expires`, after a new loss, or where nobody had answered.
    """
    ledger = workspace.ledger
    last = next(reversed(ledger.recoveries.list(stream.name)), None)
    if last is None or last.state is not RecoveryState.REJECTED:
        return ""
    # A plan that another took the place of, or that did not come to its end, has no answer.
    answered = last.detail.get("by", NOBODY) != NOBODY or last.detail.get("why") == CANCELLED
    events = ledger.events.list(last.id)
    at = find_ended_at(last, events) or events[-1].at
    lost = ledger.gaps.list(stream=stream.name, states=[GapState.OPEN])
    since = any(gap.detected_at > at for gap in lost)
    recent = ledger.now() - at < workspace.config.guards.approval_expires
    return last.id if answered and recent and not since else ""


def _is_bad(workspace: Workspace, found: Detection) -> bool:
    """Something will be lost, or is; what waits in an archive is neither: it is for the night."""
    repairs = any(workspace.kinds.get(name).traits.repairs_gaps for name in found.actions)
    return (repairs and found.occasion != BEHIND) or Verdict.LOSING in (found.verdict, found.course)
