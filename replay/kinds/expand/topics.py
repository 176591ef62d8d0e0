"""Both topics of an expansion and how far it has come: what plan, ledger and brokers say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import BacklogError, KafkaFailure, PlanStale, Refused
from backlogctl.fanout.quiet import find_undecided
from backlogctl.fanout.relay.commits import CommitWithMetadata, read_positions
from backlogctl.fanout.relay.guard import find_others
from backlogctl.fanout.relay.interface import Patience
from backlogctl.fanout.relay.pool import PATIENCE_SECONDS
from backlogctl.fanout.unread import find_unread
from backlogctl.formats import Say, format_duration, format_moment, format_plural
from backlogctl.kafka.admin import committed_offsets, list_offsets, read_topic_id
from backlogctl.kafka.clients import Admin, make_admin
from backlogctl.kafka.errors import TopicMissing
from backlogctl.kafka.groups import read_standing
from backlogctl.ledger import StepRecord, TemporaryTopic
from backlogctl.ledger.steps import RESTORE_STEP, has_stopped_consumers
from backlogctl.monitoring.offsets.history import Timeline
from backlogctl.replay.consumers.fleet import StoppingContext
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.values import LagReading, OnlyThere, Readers, Reads, RecoveryStatus
from backlogctl.replay.kinds.expand.plan import ExpandPlan
from backlogctl.replay.present.status import make_standing
from backlogctl.values import Cause, Certainty, Gap, GapState, Recovery

# Whether the temporary topic is still that of an expansion.


def refuse_other_copy(admin: Admin, plan: ExpandPlan, recovery_id: str, topic_id: str) -> None:
    """The temporary topic is the one that was made.

    Raises:
        PlanStale: it is gone, or was replaced.
    """
    name, found = plan.temporary.topic, None
    with suppress(TopicMissing):
        found, _ = read_topic_id(admin, name, Deadline(30.0))
    if found != topic_id:
        what = "is gone" if found is None else f"was replaced: its id is {found}, not {topic_id}"
        raise PlanStale(
            f"this recovery's temporary topic {what}",
            subject=f"topic {name}",
            hint=f"`backlogctl cancel {recovery_id} --rewind` lets the group read all that was "
            f"relayed once more; `backlogctl cancel {recovery_id}` records it as a gap instead",
        )


# Brokers that are away are waited for, and it is said since when.

Answer = TypeVar("Answer")

_PAUSE_SECONDS = 0.5


class BrokerRetry:
    """Asks again until they answer; `away` is for how many seconds they have not, in all.

    Nothing is decided meanwhile: an answer that is not there is not zero.
    """

    def __init__(self, tick: Callable[[], None], say: Say) -> None:
        """Args: `tick` is called while they are waited for; it may raise, and ends the waiting."""
        self._tick = tick
        self._say = say
        self.away = 0.0

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """What the brokers answer.

        Raises:
            KafkaFailure: an answer that another try does not change, or none for too long.
        """
        at, began, is_said = utc_now(), time.monotonic(), False
        patience = Patience(PATIENCE_SECONDS)
        while True:
            try:
                answer = question()
            except KafkaFailure as error:
                if not error.retryable or patience.is_over():
                    raise
                if not is_said:
                    is_said = True
                    self._say(
                        f"the brokers have not answered since {format_moment(at)}: "
                        f"{error.message}; waiting for them, nothing is decided meanwhile"
                    )
            else:
                if is_said:
                    seconds = time.monotonic() - began
                    self.away += seconds
                    self._say(f"the brokers answer again, after {format_duration(seconds)}")
                return answer
            self._tick()
            time.sleep(_PAUSE_SECONDS)


ASK_SECONDS = 10.0  # then it is said that the brokers are away
_ABSENT_SECONDS = 5.0
_TOPICS_PAUSE_SECONDS = 0.3


@dataclass
class ExpandTopics(StoppingContext[ExpandPlan]):
    """What the steps of an expansion ask; nothing here changes anything but the record."""

    @property
    def again(self) -> str:
        """What to do where the source is another topic now."""
        return (
            f"`backlogctl cancel {self.recovery.id}` drains what is copied and restores the "
            "layout; then plan again"
        )

    @property
    def starts(self) -> Mapping[int, int]:
        """Where the relay of a partition begins that has no commit."""
        return {row.partition: row.start for row in self.plan.partitions}

    @property
    def temporary_topic(self) -> str:
        """The temporary topic's name."""
        return self.plan.temporary.topic

    @property
    def temporary_partitions(self) -> int:
        return self.plan.temporary.partitions

    @property
    def recovery_group(self) -> str:
        """The group that reads the temporary topic."""
        return self.plan.recovery_group

    @property
    def temporary(self) -> TemporaryTopic | None:
        """The temporary topic as the ledger has it; None before it was announced."""
        return self.workspace.ledger.temporary_topics.get(self.recovery.id)

    @property
    def has_temporary(self) -> bool:
        """Whether the temporary topic was created, and is not deleted yet."""
        known = self.temporary
        return known is not None and known.topic_id is not None and known.deleted_at is None

    def is_complete(self, step: str) -> bool:
        """From the ledger: a crash does not make a step start anew."""
        if step == "drain" and not self.is_complete("cut_over"):
            # Between them the backlog may have grown again: nobody has read since.
            return False
        return super().is_complete(step)

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """What the brokers answer to it; a run waits for those that are away."""
        return question()

    def read_source_lag(self) -> int:
        """Offsets left in the source; the temporary topic may be gone."""
        return self._count_left(self.recovery.group, self.recovery.topic, self.partitions)

    def read_temporary_lag(self) -> int:
        """Offsets left in the temporary topic; the source may be gone."""
        return self._count_left(
            self.recovery_group, self.temporary_topic, self.temporary_partitions
        )

    def _count_left(self, group: str, topic: str, partitions: int) -> int:
        numbers = range(partitions)
        found = self.ask(
            lambda: read_standing(self.admin, group, topic, numbers, Deadline(ASK_SECONDS))
        )
        return sum(found.lag.values())

    def read_handled(self) -> int:
        """Offsets of the temporary topic that its group has committed past."""
        numbers = range(self.temporary_partitions)
        group, topic = self.recovery_group, self.temporary_topic
        done = self.ask(
            lambda: committed_offsets(self.admin, group, topic, numbers, Deadline(ASK_SECONDS))
        )
        return sum(at or 0 for at in done.values())

    def find_unread(self) -> dict[int, int]:
        """Temporary partitions with unread data records, by reading them."""
        return self.ask(
            lambda: find_unread(
                self.admin,
                self.properties,
                self.temporary_topic,
                self.recovery_group,
                self.temporary_partitions,
            )
        )

    def find_undecided(self) -> dict[int, int]:
        """Temporary partitions where an open transaction hides what is behind it."""
        return self.ask(
            lambda: find_undecided(self.admin, self.temporary_topic, self.temporary_partitions)
        )

    def is_drained(self) -> bool:
        """Whether nothing of the temporary topic is unread, or hidden by an open transaction."""
        return not (self.find_undecided() or self.find_unread())

    def find_commit(self, partition: int) -> int:
        """Where the original group is."""
        commits = committed_offsets(
            self.admin, self.recovery.group, self.recovery.topic, [partition], require_stable=True
        )
        return commits[partition] or 0

    def read_positions(self, *, stable: bool = True) -> dict[int, CommitWithMetadata]:
        """The relays' own positions and counters, of partitions of which something was relayed."""
        return read_positions(
            self.admin,
            self.recovery_group,
            self.recovery.topic,
            list(range(self.partitions)),
            self.recovery.id,
            Deadline(60.0),
            stable=stable,
        )

    def check_copy(self) -> None:
        """The temporary topic, once it was made, is that one; raises PlanStale where it is not."""
        known = self.temporary
        if known is not None and known.topic_id is not None and known.deleted_at is None:
            refuse_other_copy(self.admin, self.plan, self.recovery.id, known.topic_id)

    def has_copy(self) -> bool:
        """Whether the temporary topic is there, and the one that was made.

        A broker that is behind may not know it for a moment: it must be gone for a while.
        """
        limit = Deadline(_ABSENT_SECONDS)
        while True:
            try:
                self.check_copy()
                return self.has_temporary
            except PlanStale:
                if limit.expired:
                    return False
            time.sleep(_TOPICS_PAUSE_SECONDS)


# What somebody else did to the group's commits while nobody guarded them.
#
# The relay's own position says what was relayed; a commit elsewhere is somebody else's. Only a
# reader's own commit carries a leader epoch: one without is a reset from outside (KIP-320).

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


def find_moved_commits(
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


def record_outsiders(context: ExpandTopics, say: Say) -> None:
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
    return find_moved_commits(
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
        record_expand_gap(context, item.partition, item.start, item.end, Certainty.EXACT, why)


def record_expand_gap(
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


# How an expansion stands: what the ledger has, and what the brokers say where they answer.

# A person waits for the answer, and a broker may be away.
_SECONDS = 6.0
# An offset that is left may be a control record: so few are read.
_FEW = 20


def describe_expansion(
    workspace: Workspace, recovery: Recovery, plan: ExpandPlan, *, ask: bool
) -> RecoveryStatus:
    """Who reads, who is stopped, and what exists only in the temporary topic."""
    ledger = workspace.ledger
    steps = {step.step: step for step in ledger.steps.list(recovery.id)}
    is_stopped = has_stopped_consumers(steps.values())
    temporary = _find_temporary(workspace, recovery)
    readers = Readers(Reads.UNKNOWN if is_stopped else Reads.ORIGINALS)
    messages: int | None = 0 if temporary is not None and "canary" not in steps else None
    problem = ""
    if is_stopped or temporary is not None:
        try:
            if not ask:
                raise Refused(
                    f"the brokers are not asked here; `backlogctl show {recovery.id}` does"
                )
            limit = Deadline(_SECONDS)
            if is_stopped:
                readers = _find_readers(workspace, recovery, plan, limit)
            if temporary is not None and messages is None:
                messages = _count_left(workspace, recovery, plan, temporary, limit)
        except BacklogError as error:
            problem = str(error)
    return make_standing(
        workspace,
        recovery,
        readers,
        stopped=_say_stopped(plan, steps, readers) if is_stopped else "",
        only_there=_make_only_there(workspace, recovery, temporary, messages),
        problem=problem,
    )


def _find_temporary(workspace: Workspace, recovery: Recovery) -> TemporaryTopic | None:
    known = workspace.ledger.temporary_topics.get(recovery.id)
    return known if known is not None and known.deleted_at is None else None


def _find_readers(
    workspace: Workspace, recovery: Recovery, plan: ExpandPlan, limit: Deadline
) -> Readers:
    """Members of either group. One that assigns its partitions itself is a member of none."""
    properties = workspace.config.clusters[recovery.cluster].client_properties()
    originals = len(find_others(properties, recovery.group, limit))
    ours = len(find_others(properties, plan.recovery_group, limit))
    reads = {
        (False, False): Reads.NOBODY,
        (True, False): Reads.ORIGINALS,
        (False, True): Reads.RECOVERY,
        (True, True): Reads.BOTH,
    }[bool(originals), bool(ours)]
    return Readers(reads, originals, ours)


def _count_left(
    workspace: Workspace,
    recovery: Recovery,
    plan: ExpandPlan,
    temporary: TemporaryTopic,
    limit: Deadline,
) -> int:
    """Messages that were relayed and not handled, at most.

    Raises:
        KafkaFailure: that is not known, or the topic is gone.
    """
    properties = workspace.config.clusters[recovery.cluster].client_properties()
    admin, topic, numbers = make_admin(properties), temporary.name, range(temporary.partitions)
    try:
        found, _ = read_topic_id(admin, topic, limit)
    except TopicMissing:
        found = None
    if found != temporary.topic_id:
        raise KafkaFailure(
            "it is gone; what was not handled in it is lost there", subject=f"topic {topic}"
        )
    handled = committed_offsets(admin, plan.recovery_group, topic, numbers, limit)
    ends = list_offsets(admin, topic, numbers, "latest", "read_committed", limit)
    last = workspace.ledger.burndown.latest(recovery.id)
    if last is not None and sum(ends.values()) < last.relayed:
        raise KafkaFailure(
            f"it ends before the {last.relayed:,} messages that were relayed into it: the reading "
            "is not to be trusted",
            subject=f"topic {topic}",
        )
    left = sum(max(0, end - (handled[number] or 0)) for number, end in ends.items())
    if left <= _FEW * temporary.partitions and not find_unread(
        admin, properties, topic, plan.recovery_group, temporary.partitions, limit
    ):
        return 0
    return left


def _make_only_there(
    workspace: Workspace,
    recovery: Recovery,
    temporary: TemporaryTopic | None,
    messages: int | None,
) -> OnlyThere | None:
    if temporary is None:
        return None
    last = workspace.ledger.burndown.latest(recovery.id)
    known = None if last is None else LagReading(last.temporary_lag, last.at)
    return OnlyThere(temporary.name, messages, known)


def _say_stopped(plan: ExpandPlan, steps: dict[str, StepRecord], readers: Readers) -> str:
    if RESTORE_STEP in steps and readers.originals:
        return ""  # the layout is being restored, and they are back already
    return f"the {format_plural(plan.replicas, 'consumer')} of group {plan.group}"
