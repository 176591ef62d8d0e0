"""What somebody else did to the original group's commits while nobody guarded them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.errors import VerificationFailed
from backlogctl.fanout.movers import History, read_commit_history
from backlogctl.fanout.relay.commits import (
    READ_BESIDE,
    REPEATED,
    UNDECIDED,
    CommitWithMetadata,
    Moved,
    find_commits,
    find_moved_commits,
)
from backlogctl.formats import Say, format_plural
from backlogctl.monitoring.verdict.commands import redrive_offsets
from backlogctl.replay.consumers.copy_group import SLACK, CopyGroup
from backlogctl.replay.consumers.fleet import STOPPED_AT, StoppingContext
from backlogctl.values import Cause, Certainty, OffsetRange

_SECONDS = 60.0
# The relays' own positions; the argument says whether what is undecided is waited for.
ReadPositions = Callable[[bool], Mapping[int, CommitWithMetadata]]

_SENTENCES: Mapping[str, str] = {
    UNDECIDED: "the group's offsets moved forward on partition {p} from {start:,} to {end:,}, and "
    "no relay did it: either a consumer that came back has read {many}, or somebody skipped them. "
    "They are a possible gap on record: `backlogctl gaps {stream}`",
    READ_BESIDE: "a reader of the group committed on partition {p} from {start:,} to {end:,} while "
    "nobody guarded it: {many} are its own, and are not relayed",
    REPEATED: "somebody set the offsets of the group back: {many} of partition {p} ({start:,} to "
    "{end:,}) were read before, and are handled once more",
}


def record_outsiders(
    context: StoppingContext[Any], read_positions: ReadPositions, say: Say
) -> None:
    """Puts on record what was done to the group, before anything goes on behind it.

    What may have been skipped becomes a possible gap. Safe to call again.
    """
    # What a relay left undecided is waited for only where somebody else has committed.
    if not _look(context, read_positions, stable=False):
        return
    moved = _look(context, read_positions, stable=True)
    known = {(item.partition, item.start, item.end) for item in list_moved(context)}
    _record_gaps(context, [item for item in moved if item.what == UNDECIDED])
    for item in moved:
        if (item.partition, item.start, item.end) in known:
            continue
        context.record(item.what, partition=item.partition, start=item.start, end=item.end)
        say(
            _SENTENCES[item.what].format(
                many=format_plural(item.end - item.start, "message"),
                p=item.partition,
                start=item.start,
                end=item.end,
                stream=context.stream.name,
            )
        )


def _look(
    context: StoppingContext[Any], read_positions: ReadPositions, *, stable: bool
) -> tuple[Moved, ...]:
    """Args: `stable`: decided, and with the log of commits, which tells who did it."""
    group, topic, numbers = (
        context.recovery.group,
        context.recovery.topic,
        range(context.partitions),
    )
    place = (context.admin, group, topic, list(numbers), Deadline(_SECONDS))
    commits = find_commits(*place, stable=stable)
    if len(commits) < len(numbers):
        context.check_topic()  # commits go with their topic: then that is what to say
    now = {number: commit.offset for number, commit in commits.items()}
    return find_moved_commits(
        commits,
        read_positions(stable),
        context.begun,
        context.recovery.id,
        lambda: _read_history(context, now) if stable else None,
    )


def _read_history(context: StoppingContext[Any], now: Mapping[int, int | None]) -> History | None:
    """The group's commits since its consumers were stopped."""
    events = context.workspace.ledger.events.list(context.recovery.id)
    stopped = [event.at for event in events if event.action == STOPPED_AT]
    if not stopped:
        return None
    group, topic = context.recovery.group, context.recovery.topic
    return read_commit_history(context.admin, group, topic, stopped[0] - SLACK, now)


def list_moved(context: StoppingContext[Any]) -> tuple[Moved, ...]:
    """What is on record of it."""
    return tuple(
        Moved(event.detail["partition"], event.detail["start"], event.detail["end"], event.action)
        for event in context.workspace.ledger.events.list(context.recovery.id)
        if event.action in _SENTENCES
    )


def _record_gaps(context: StoppingContext[Any], moved: Iterable[Moved]) -> None:
    why = (
        f"while {context.recovery.id} was at work, the group's offsets moved past them: either a "
        "consumer that came back has read them, or somebody skipped them"
    )
    for item in moved:
        place = OffsetRange(item.partition, item.start, item.end)
        context.record_gap(place, Cause.SKIPPED, why, certainty=Certainty.POSSIBLE)


def refuse_moved(context: StoppingContext[Any], copy_group: CopyGroup) -> None:
    """What nobody is known to have handled is no success, though the layout is as it was.

    Raises:
        VerificationFailed: somebody else moved one of the two groups forward.
    """
    recovery, stream = context.recovery, context.stream.name
    if context.cancelling:
        return
    undecided = [item for item in list_moved(context) if item.what == UNDECIDED]
    if undecided:
        back = redrive_offsets(stream, undecided[:3])
        many = format_plural(sum(item.end - item.start for item in undecided), "message")
        raise VerificationFailed(
            f"at most {many} were either read by a consumer that came back, or skipped: the "
            "group's offsets moved past them, and no relay did it; they are a possible gap on "
            "record",
            subject=f"group {recovery.group} on topic {recovery.topic}",
            hint="all else is handled, and the layout is as it was: cancelled, this recovery is "
            "closed. Look at the consumers' own log or table: `backlogctl waive GAP` where they "
            f"were handled, else `{back}`; `backlogctl gaps {stream}` lists them all",
        )
    if copy_group.list_moves():
        many = format_plural(copy_group.count_moved(), "message")
        raise VerificationFailed(
            f"the group's offsets were moved past {many} while none of its consumers is known to "
            "have been there; it was set back, and they are handled now. What else was done to it "
            "is not known, so the temporary topic is kept",
            subject=f"group {copy_group.group} on topic {copy_group.topic}",
            hint="the layout is as it was. Look at what the consumers have handled: cancelled, "
            "this recovery is closed, and the topic deleted",
        )
