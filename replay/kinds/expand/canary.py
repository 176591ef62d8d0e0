"""One consumer before all others: a dry run while planning, and a share of the backlog (step 5)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from backlogctl.clock import Deadline
from backlogctl.config import Stream
from backlogctl.errors import BacklogError, KafkaFailure, Refused
from backlogctl.fanout.launchers import Role
from backlogctl.fanout.launchers.interface import CheckStop, Fleet, Launcher
from backlogctl.fanout.relay.guard import find_others
from backlogctl.fanout.relay.interface import ConsumerCameBack, SourceRange
from backlogctl.fanout.speed import COMMIT_SECONDS, Speed, Trial
from backlogctl.fanout.temporary_topic import (
    create_empty_topic,
    delete_empty_topic,
    name_temporary_topic,
)
from backlogctl.kafka.admin import (
    TopicInfo,
    delete_group,
    describe_group_state,
    list_offsets,
    read_group_state,
    set_group_offsets,
)
from backlogctl.kafka.clients import Admin, make_admin
from backlogctl.kafka.errors import GroupActive
from backlogctl.kafka.groups import Member
from backlogctl.kafka.raw_client import keep_clients
from backlogctl.replay.consumers.fleet import (
    fleet_of,
    launcher_of,
)
from backlogctl.replay.engine.brakes import CANARY, PausedBecause
from backlogctl.replay.engine.kind import Say, Workspace
from backlogctl.replay.kinds.expand.context import LAGS_SECONDS, ExpandContext
from backlogctl.values import Step
from backlogctl_delivery.crashpoints import reach

# Whether the first consumer does what it was told: it runs, in its group, on its topic.

LOOK_SECONDS = 0.5
LEAVE_SECONDS = 15.0  # longer than the session timeouts of most consumers that are killed
_POLL_SECONDS = 0.2


class CanaryFailed(BacklogError):
    """The first consumer on the temporary topic does not work, or reads something else."""

    code = "canary_failed"


@dataclass(frozen=True, slots=True)
class FirstConsumer:
    """One consumer on a temporary topic.

    Attributes:
        fleet: what it was told: its topic and group.
        original: the stream's group, which is none of its business.
        afterwards: what a person does once it is mended.
        look: called while it is waited for; may raise.
    """

    properties: Mapping[str, str]
    admin: Admin
    launcher: Launcher
    fleet: Fleet
    original: str
    afterwards: str
    look: CheckStop

    @property
    def subject(self) -> str:
        """For errors."""
        return f"group {self.fleet.group} on topic {self.fleet.topic}"

    def has_joined(self) -> bool:
        """Whether its group has members."""
        return read_group_state(self.admin, self.fleet.group).is_active

    def find_others(self) -> tuple[Member, ...]:
        """Members of the original group, but for guards."""
        return find_others(self.properties, self.original, Deadline(10.0))

    def find_topics(self) -> frozenset[str]:
        """What members of its group are assigned partitions of; nothing without members."""
        state = describe_group_state(self.admin, self.fleet.group, Deadline(10.0))
        return frozenset(topic for member in state.members for topic in member.topics)


def find_first(context: ExpandContext) -> FirstConsumer:
    """Of a run."""
    return FirstConsumer(
        context.properties,
        context.admin,
        context.launcher,
        context.fleet,
        context.recovery.group,
        "the next run goes on, and a cancel lets the group's own consumers go on; they stay "
        "stopped until then",
        context.look,
    )


class CanaryLook:
    """Looks at the first consumer until it has committed something."""

    def __init__(self, consumer: FirstConsumer) -> None:
        self._consumer = consumer
        self._look_at = 0.0

    def look(self) -> None:
        """Asks the launcher, and the recovery's group.

        Raises:
            CanaryFailed: it keeps ending, or is assigned another topic.
        """
        if time.monotonic() < self._look_at:
            return
        one = self._consumer
        ended = one.launcher.explain(one.fleet)
        if ended is not None:
            raise CanaryFailed(
                f"the first consumer does not stay: {ended}",
                subject=one.subject,
                hint=f"mend it, then {one.afterwards}",
            )
        with suppress(KafkaFailure):  # a broker is away: the next look shows it
            self._check_topic()
        self._look_at = time.monotonic() + LOOK_SECONDS

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Says so where it is the first consumer who is in the original group.

        Raises:
            CanaryFailed: instead of the error that names a member of that group.
        """
        try:
            yield
        except (ConsumerCameBack, GroupActive) as error:
            # People are not asked to stop theirs.
            if self._consumer.launcher.name == "manual":
                raise
            judged: CanaryFailed | None = None
            with suppress(BacklogError):  # unknown; who is there was said
                judged = self.judge_members()
            raise judged or error from error

    def judge_members(self, known: frozenset[str] = frozenset()) -> CanaryFailed | None:
        """What to say of members of the original group: None where they are not the first consumer.

        They are where that is not in its own group, and they go away when it is stopped.

        Args:
            known: ids of members who were there before.
        """
        one = self._consumer

        def find() -> tuple[Member, ...]:
            return tuple(m for m in one.find_others() if m.member_id not in known)

        found = find()
        if not found or one.has_joined():
            return None
        names = ", ".join(str(member) for member in found)
        one.launcher.stop(one.fleet, one.look)
        limit = Deadline(LEAVE_SECONDS)
        while find():
            if limit.expired:
                return None
            one.look()
            time.sleep(_POLL_SECONDS)
        return CanaryFailed(
            f"it ignores BACKLOG_GROUP: the first consumer joined the group {one.original} "
            f"instead, as {names}, and left it when it was stopped",
            subject=one.subject,
            hint="make the consumers take their group from the variable BACKLOG_GROUP (or the "
            f"placeholder {{group}}), then {one.afterwards}",
        )

    def _check_topic(self) -> None:
        one = self._consumer
        others = sorted(one.find_topics() - {one.fleet.topic})
        if not others:
            return
        raise CanaryFailed(
            f"it ignores BACKLOG_TOPIC: the first consumer reads {', '.join(others)} in the "
            f"recovery's group, not only {one.fleet.topic}. What it handled of that is "
            "handled again by the original consumers",
            subject=one.subject,
            hint="make the consumers take their topic from the variable BACKLOG_TOPIC (or the "
            f"placeholder {{topic}}), then {one.afterwards}",
        )


NOTHING_SECONDS = 60.0
SLOW_SHARE = 0.5
_CANARY_POLL_SECONDS = 0.1
_STILL_SECONDS = 1.0
_STILL_FEW_SECONDS = 0.2
_MARKERS = 2  # a partition's, of the few transactions that bring the share
_ENOUGH = 100


class CanaryStep(Step[ExpandContext]):
    """Relays the share, starts one consumer on it, and measures."""

    name = "canary"

    def start(self, context: ExpandContext) -> None:
        """Relays and measures.

        Raises:
            CanaryFailed: nothing was handled, or the consumer ended or reads something else.
            PausedBecause: it is slower than half of what the plan counts on; `resume` accepts it.
        """
        look = CanaryLook(find_first(context))
        with look.judging():  # it may be in that group before the guard is
            context.join()
            context.note_counters()
            measured = _relay_share(context, look)
        if measured is None:
            return
        context.details[self.name] = measured.to_json()
        # Few messages, and no more to read: an earlier run's consumer has had the others.
        if measured.handled >= _ENOUGH or context.find_unread():
            _hold_against_plan(context, measured)


def _relay_share(context: ExpandContext, look: CanaryLook) -> Speed | None:
    """Relays the share to one consumer, and measures it; None where there was nothing for it."""
    context.launch(1)  # it waits since the others were stopped; after a crash it starts now
    joins = find_first(context).has_joined
    has_joined, handled = context.ask(joins), context.read_handled()
    begun = time.monotonic()
    context.session.start(lambda: _cut_ranges(context))
    while not context.session.is_done:
        context.tick()
        time.sleep(0.02)
    context.session.stop_relays()
    reach("p4.7.canary.relayed")
    context.session.make_ready(context.partitions)  # while there is time: the drain's relays
    context.await_decided()
    reach("p4.7.canary.started")
    # The lag first: the consumer reads meanwhile.
    share = context.ask(context.read_lags).temporary_total + context.read_handled() - handled
    if share <= 0 or not (context.read_handled() - handled or context.find_unread()):
        return None  # control records alone are none
    return _measure(context, Trial(share, begun), look, joined=has_joined, handled=handled)


def _cut_ranges(context: ExpandContext) -> list[SourceRange]:
    """The share of each partition, from where its group is now."""
    parts = context.make_ranges()
    # Read behind the log starts: what retention removes in between is not left, and never comes.
    lags = context.ask(context.read_lags).source
    share = context.plan.canary.partitions
    ranges: list[SourceRange] = []
    for part in parts:
        start = max(part.start, context.find_commit(part.partition))
        count = min(share.get(part.partition, 0), lags[part.partition])
        if count > 0:
            ranges.append(SourceRange(part.partition, part.start, start + count))
    return ranges


@keep_clients()  # it asks again and again
def _measure(
    context: ExpandContext, trial: Trial, look: CanaryLook, *, joined: bool, handled: int
) -> Speed:
    """Watches the consumer until its speed is known.

    Args:
        trial: of its share, from when the first of it was relayed. joined: it was there by then.
        handled: offsets that its group had committed past before.
    """
    planned, started = context.plan.rate_per_consumer, trial.joined
    begun = asked_at = trial.joined
    has_joined, away = find_first(context).has_joined, context.brokers.away
    looked_at = trial.joined
    while True:
        context.tick()
        if not joined and not trial.commits and context.ask(has_joined):
            trial, joined = Trial(trial.share, time.monotonic()), True
        left = context.ask(lambda: context.read_lags(LAGS_SECONDS)).temporary_total
        now = time.monotonic()
        # It could do nothing meanwhile; or this process stood still, and nobody saw when it did it.
        if context.brokers.away != away or now - looked_at > COMMIT_SECONDS:
            away, begun, trial = context.brokers.away, now, Trial(left, now)
        looked_at = now
        trial = trial.note(now, left)
        if not trial.commits:
            look.look()
        if left == 0:
            return trial.measure(now, drained=True)
        if trial.is_enough(now, planned):
            return trial.measure(now, drained=False)
        # Control and aborted records stay in the lag; none but they may be left.
        few = left <= _MARKERS * context.partitions
        still = _STILL_FEW_SECONDS if few else _STILL_SECONDS
        if now - max(trial.last_at, asked_at) >= still:
            asked_at = now
            if not context.find_unread():
                return trial.measure(now, drained=True)
        if not trial.commits and now - begun > NOTHING_SECONDS:
            # What it committed while this process stood still is in no trial.
            if (unseen := context.read_handled() - handled) > 0:
                return Speed(unseen, now - started, known=False)
            raise _say_nothing(context)
        time.sleep(_CANARY_POLL_SECONDS)


def _hold_against_plan(context: ExpandContext, speed: Speed) -> None:
    planned = context.plan.rate_per_consumer
    if speed.rate >= SLOW_SHARE * planned:
        return
    if not speed.known:
        context.say(
            f"the first consumer handled {speed.handled:,} messages, in too few commits to tell "
            f"its speed: {speed.rate:.0f} messages/s or more; the plan counts on {planned:.0f}"
        )
        return
    told = (
        f"one consumer handled {speed.rate:.0f} messages/s on the temporary topic, and the plan "
        f"counts on {planned:.0f}"
    )
    if context.resumed:
        context.say(f"{told}; going on, as said by `resume`")
        return
    raise PausedBecause(
        CANARY,
        told,
        subject=f"recovery {context.recovery.id}",
        hint="resumed, it goes on all the same; cancelled, it restores the layout",
    )


def _say_nothing(context: ExpandContext) -> CanaryFailed:
    return CanaryFailed(
        f"the first consumer committed nothing within {NOTHING_SECONDS:.0f} s",
        subject=f"group {context.recovery_group} on topic {context.temporary_topic}",
        hint="it must read the topic and group of BACKLOG_TOPIC and BACKLOG_GROUP; its log: "
        f"{context.launcher.logs(context.fleet)}. Mend it and run again; nothing is lost",
    )


# A dry run of one consumer, on an empty topic: whom it joins, and what it reads.
#
# Nobody is stopped, and no message is relayed. Topic and group have the same name each time, so
# what a try that was killed has left is taken over by the next one.

TRIAL_NAME = "try"
SEEN_SECONDS = 60.0  # a service may need that long until it joins
PEOPLE_SECONDS = 600.0
_STAYS_SECONDS = 2.0
_LEAVE_SECONDS = 15.0


def try_consumer(
    workspace: Workspace, stream: Stream, source: TopicInfo, group: str, say: Say
) -> tuple[str, str]:
    """Starts one consumer as the recovery would, looks at it, and takes everything away again.

    Args:
        source: the stream's topic. group: the one that the consumer is told to join.

    Returns:
        What was seen, and a warning: "" where it does as it should.

    Raises:
        CanaryFailed: it does not stay, or joins or reads something else.
        Refused: another try of this stream is under way, or the topic is not ours.
    """
    admin = make_admin(workspace.properties(stream))
    topic = name_temporary_topic(source.name, TRIAL_NAME)
    launcher = launcher_of(workspace, stream, say)
    fleet = fleet_of(workspace, stream, Role.RECOVERY, TRIAL_NAME, topic=topic, group=group)
    by_people = launcher.name == "manual"
    limit = Deadline(PEOPLE_SECONDS if by_people else SEEN_SECONDS)
    one = FirstConsumer(
        workspace.properties(stream),
        admin,
        launcher,
        fleet,
        stream.group,
        f"`backlogctl plan expand {stream.name} --try` again. Nobody was stopped",
        lambda: _refuse_late(limit, fleet.group) if by_people else None,
    )
    say(f"trying one consumer on the empty topic {topic}")
    # 1. What an earlier try left is ended.
    if not by_people:
        launcher.stop(fleet, one.look)
    _await_nobody(one)
    with ExitStack() as given_back:
        # 2. An empty topic; and the source, for this group, from its end: a consumer that reads
        #    the wrong topic handles next to nothing of it.
        topic_id = create_empty_topic(admin, source, topic, 1)
        given_back.callback(delete_empty_topic, admin, topic, topic_id, 1)
        given_back.callback(delete_group, admin, group)
        ends = list_offsets(admin, source.name, range(source.partitions), "latest")
        set_group_offsets(admin, group, source.name, ends)
        # 3. One consumer, while the group's own go on.
        given_back.callback(_await_nobody, one)
        given_back.callback(launcher.stop, fleet, lambda: None)
        known = frozenset(member.member_id for member in one.find_others())
        began = time.monotonic()
        launcher.scale(fleet, 1, one.look)
        # 4. What it does; then all is taken away, the last first.
        return _watch(one, known, limit, began)


def _watch(
    one: FirstConsumer, known: frozenset[str], limit: Deadline, began: float
) -> tuple[str, str]:
    """Until it reads its topic, and has done so for a while."""
    look = CanaryLook(one)
    stays: Deadline | None = None
    while not limit.expired:
        one.look()
        look.look()
        known = _judge(look, one, known)
        reads = one.find_topics() == {one.fleet.topic}
        stays = (stays or Deadline(_STAYS_SECONDS)) if reads else None
        if stays is not None and stays.expired:
            took = time.monotonic() - began - _STAYS_SECONDS
            return (
                f"one consumer joined group {one.fleet.group} and read {one.fleet.topic}, and "
                f"nothing else, within {took:.1f} s",
                "",
            )
        time.sleep(_POLL_SECONDS)
    told = f"one consumer ran for {limit.seconds:.0f} s, and was seen in no group"
    return told, (
        f"{told}: what it reads is not known. It may assign its partitions itself, or start slowly"
    )


def _judge(look: CanaryLook, one: FirstConsumer, known: frozenset[str]) -> frozenset[str]:
    """Who is in the original group for other reasons than this consumer.

    Raises:
        CanaryFailed: it is this consumer who joined it.
    """
    now = frozenset(member.member_id for member in one.find_others())
    if now <= known or one.launcher.name == "manual" or one.has_joined():
        return known
    failed = look.judge_members(known)
    if failed is not None:
        raise failed
    one.launcher.scale(one.fleet, 1, one.look)  # it was stopped to see who leaves
    return known | now


@keep_clients()  # it asks again and again
def _await_nobody(one: FirstConsumer) -> None:
    """Nobody is in the try's group; it is nobody else's.

    Raises:
        Refused: somebody stays in it.
    """
    limit = Deadline(_LEAVE_SECONDS)
    while read_group_state(one.admin, one.fleet.group).is_active:
        if limit.expired:
            raise Refused(
                "somebody is in it: another try is under way, or a consumer of one was not ended",
                subject=f"group {one.fleet.group}",
                hint="end it, then try again; nobody was stopped",
            )
        time.sleep(_POLL_SECONDS)


def _refuse_late(limit: Deadline, group: str) -> None:
    if limit.expired:
        raise CanaryFailed(
            f"nobody started a consumer within {limit.seconds / 60:.0f} min",
            subject=f"group {group}",
            hint="plan without `--try`, or start it when asked; nobody was stopped",
        )
