"""What somebody else did to the group's commits while nobody guarded them.

The relay's own position says what was relayed; a commit elsewhere is somebody else's. Only a
reader's own commit carries a leader epoch: one without is a reset from outside (KIP-320).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from backlog.clock import utc_now
from backlog.numbers import format_plural
from backlog.progress import Say
from backlog.values import Cause, Certainty, Gap, GapState
from fanout.relay.commits import CommitWithMetadata
from monitoring.timeline import Timeline
from replay.kinds.expand.topics import ExpandTopics

SKIPPED = "the group was set past what was relayed"
READ_BESIDE = "somebody else read on past what was relayed"
REPEATED = "the group was set back behind what was relayed"
_SENTENCES: Mapping[str, str] = {
    SKIPPED: "somebody set the offsets of the group forward: {many} of partition {p} "
    "({start:,} to {end:,}) were never relayed nor handled. They are a gap on record: "
    "`backlogctl gaps {stream}`, then `backlogctl plan rebuild {stream}`",
    READ_BESIDE: "a reader of the group committed on partition {p} from {start:,} to {end:,} while "
    "nobody guarded it: {many} are its own, and are not relayed",
    REPEATED: "somebody set the offsets of the group back: {many} of partition {p} ({start:,} to "
    "{end:,}) were read before, and are handled once more",
}


@dataclass(frozen=True, slots=True)
class Moved:
    """Offsets `[start, end)` of a partition between the relay's position and somebody's commit."""

    partition: int
    start: int
    end: int
    what: str


def find_moved(
    commits: Mapping[int, CommitWithMetadata],
    positions: Mapping[int, CommitWithMetadata],
    begun: Mapping[int, int],
    recovery_id: str,
) -> tuple[Moved, ...]:
    """Where the original group does not stand where the relay left it.

    Args:
        begun: where its consumers were stopped; of partitions of which nothing was relayed.
    """
    found = []
    for number, commit in sorted(commits.items()):
        own = positions[number].offset if number in positions else begun.get(number)
        if own is None or commit.offset == own or commit.is_of(recovery_id):
            continue
        if commit.offset < own:
            found.append(Moved(number, commit.offset, own, REPEATED))
        else:
            what = SKIPPED if commit.epoch is None else READ_BESIDE
            found.append(Moved(number, own, commit.offset, what))
    return tuple(found)


def note_outsiders(context: ExpandTopics, say: Say) -> None:
    """Puts on record what was done to the group, before anything goes on behind it.

    What was skipped becomes an exact gap. Safe to call again.
    """
    # What a relay left undecided is waited for only where somebody else has committed.
    if not _look(context, stable=False):
        return
    moved = _look(context, stable=True)
    known = {(item.partition, item.start, item.end) for item in list_moved(context)}
    _record_gaps(context, [item for item in moved if item.what == SKIPPED])
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


def _look(context: ExpandTopics, *, stable: bool) -> tuple[Moved, ...]:
    return find_moved(
        context.read_commits(stable=stable),
        context.read_positions(stable=stable),
        context.begun,
        context.recovery.id,
    )


def list_moved(context: ExpandTopics) -> tuple[Moved, ...]:
    """What is on record of it."""
    return tuple(
        Moved(event.detail["partition"], event.detail["start"], event.detail["end"], event.action)
        for event in context.workspace.ledger.events.list(context.recovery.id)
        if event.action in _SENTENCES
    )


def _record_gaps(context: ExpandTopics, skipped: Iterable[Moved]) -> None:
    why = f"while {context.recovery.id} was at work, somebody set the group's offsets past them"
    for item in skipped:
        record_gap(context, item.partition, item.start, item.end, Certainty.EXACT, why)


def record_gap(
    context: ExpandTopics, partition: int, start: int, end: int, certainty: Certainty, reason: str
) -> Gap:
    """A gap of this expansion's topic and group, dated by the stream's samples."""
    ledger, recovery = context.workspace.ledger, context.recovery
    topic_id = context.plan.topic_id
    samples = [
        sample
        for sample in ledger.samples.history(context.stream.name)
        if (sample.topic, sample.group) == (recovery.topic, recovery.group)
    ]
    bounds = Timeline(samples, topic_id).bound(partition, start, end)
    return ledger.gaps.record(
        Gap(
            id="",
            stream=context.stream.name,
            cluster=recovery.cluster,
            topic=recovery.topic,
            group=recovery.group,
            topic_id=topic_id,
            partition=partition,
            start=start,
            end=end,
            cause=Cause.SKIPPED,
            certainty=certainty,
            state=GapState.OPEN,
            first_time=bounds.lower,
            last_time=bounds.upper,
            detected_at=utc_now(),
            reason=reason,
        )
    )
