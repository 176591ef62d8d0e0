"""Ways to cancel that several kinds know."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar

from backlogctl.clock import Deadline, utc_now
from backlogctl.config import Config, Consumers, Stream
from backlogctl.errors import (
    BacklogError,
    ConsumersLeft,
    KafkaFailure,
    LeaseHeld,
    Refused,
    UsageError,
    VerificationFailed,
)
from backlogctl.fanout.launchers import LeftLauncher, make_launcher
from backlogctl.fanout.launchers.interface import Fleet, Launcher, Role
from backlogctl.fanout.quiet import await_empty, await_quiet
from backlogctl.fanout.relay.commits import CommitWithMetadata, read_all
from backlogctl.fanout.relay.interface import Patience
from backlogctl.fanout.relay.pool import PATIENCE_SECONDS
from backlogctl.fanout.unread import find_unread
from backlogctl.formats import Say, format_duration, format_moment
from backlogctl.kafka.admin import committed_offsets, read_group_state
from backlogctl.kafka.clients import Admin, make_admin
from backlogctl.kafka.groups import LogTruncated
from backlogctl.ledger import Ledger
from backlogctl.monitoring.offsets.timeline import Timeline
from backlogctl.replay.engine.approval import check_runnable
from backlogctl.replay.engine.brakes import CancelRequested, PausedBecause, check_requests
from backlogctl.replay.engine.cancelling import find_ways
from backlogctl.replay.engine.guards import check_configuration, check_denied, fingerprint_stream
from backlogctl.replay.engine.kind import PlanT, RunContext, Workspace
from backlogctl.replay.engine.plan import LEAVE_CONSUMERS, mask_values
from backlogctl.replay.observe.rights import require_rights
from backlogctl.replay.observe.stream import is_source, refuse_other_source
from backlogctl.values import Cause, Certainty, Gap, GapState, OffsetRange

# A stream's consumers as its launcher sees them: the original ones, and a recovery's.

_DIRECTORY = "consumers"
# How long is waited for consumers: decides no message.
_WAITS = ("command_within", "stop_within")


def fleet_of(
    workspace: Workspace,
    stream: Stream,
    role: Role,
    recovery_id: str = "",
    *,
    topic: str | None = None,
    group: str | None = None,
) -> Fleet:
    """The consumers of a stream in one of the two roles.

    Args:
        recovery_id: the expansion's; needed for recovery consumers, none for the original ones.
        topic: what they read; the stream's without it.
        group: their group; the stream's without it.

    Raises:
        ValueError: the role and the id do not go together.
    """
    if (role is Role.RECOVERY) != bool(recovery_id):
        raise ValueError(f"role {role.value} with recovery id {recovery_id!r}")
    place = workspace.config.staging.dir / _DIRECTORY / stream.name
    return Fleet(
        stream=stream.name,
        role=role,
        topic=topic or stream.topic,
        group=group or stream.group,
        bootstrap_servers=workspace.config.cluster_of(stream).bootstrap,
        directory=place / (recovery_id or Role.ORIGINAL.value),
        recovery_id=recovery_id,
    )


def launcher_of(workspace: Workspace, stream: Stream, say: Say) -> Launcher:
    """The stream's launcher.

    Raises:
        UsageError: the configuration does not say how its consumers are started.
    """
    if stream.consumers is None:
        raise UsageError(
            "the configuration does not say how its consumers are started and stopped",
            subject=f"stream {stream.name}",
            hint="give it a `consumers` section; see docs/configuration.md",
        )
    return make_launcher(stream.consumers, workspace.properties(stream), say)


def require_consumers(stream: Stream) -> None:
    """Refuses a stream whose consumers nobody could stop and start.

    Raises:
        UsageError: its section does not say how.
    """
    if stream.consumers is None:
        raise UsageError(
            "it does not say how its consumers are started and stopped",
            subject=f"stream {stream.name}",
            hint=f"add `streams.{stream.name}.consumers` with `launcher: process`, `command` or "
            "`manual` (people do it when asked); see docs/configuration.md",
        )


def freeze_consumers(config: Config, stream: Stream) -> dict[str, Any]:
    """How the consumers are started and stopped, without the values of their variables."""
    assert stream.consumers is not None
    frozen = stream.consumers.model_dump(mode="json")
    frozen["environment"] = sorted(stream.consumers.environment)
    # A command may hold a password that came by reference.
    masked: dict[str, Any] = mask_values(config.mask_secrets, frozen)
    return masked


def fingerprint_with_consumers(
    config: Config, stream: Stream, names: Collection[str]
) -> dict[str, Any]:
    """These settings of a stream, and how its consumers are started and stopped, if at all."""
    consumers = None if stream.consumers is None else freeze_consumers(config, stream)
    return {**fingerprint_stream(stream, names), "consumers": consumers}


def keep_waits(planned: Mapping[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """A stream's configuration now, to hold against a plan's: how long is waited for consumers may
    change while the plan is open."""
    before = planned.get("consumers")
    if before and now["consumers"]:
        now["consumers"] |= {name: before[name] for name in _WAITS if name in before}
    return now


# Each piece of the layout is given back as far as possible; what could not be is told last.

CONSUMERS_STAY = "the recovery's consumers could not be ended"
CONSUMERS_MISSING = "the group's own consumers could not be started"


@dataclass(slots=True)
class CleanupErrors:
    """What could not be given back in this run, and why."""

    _failed: dict[str, BacklogError] = field(default_factory=dict)

    def __contains__(self, what: str) -> bool:
        return what in self._failed

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """A failure in it does not keep what comes next from being given back.

        Raises:
            LeaseHeld: another runner does it.
            CancelRequested, PausedBecause: somebody asked; that is no failure, and the next run, or
                the cancellation, does it again.
        """
        try:
            yield
        except (LeaseHeld, CancelRequested, PausedBecause):
            raise
        except BacklogError as error:
            self._failed[what] = error

    def refuse(self, hint: str) -> None:
        """Tells all of it.

        Raises:
            ConsumersLeft: something could not be given back.
        """
        if not self._failed:
            return
        first, *_ = self._failed.values()
        told = "; ".join(f"{what}: {error.message}" for what, error in self._failed.items())
        raise ConsumersLeft(told, subject=first.subject, hint=hint) from first


def say_by_hand(context: StoppingContext[Any], what: str) -> str:
    """What to do where consumers could not be started or ended."""
    if context.cancelling:
        return f"Do it by hand ({what}), then close the recovery and leave consumers alone"
    return f"Mend the launcher and run again; or cancel it, and do it by hand ({what})"


# Brokers that are away are waited for, and it is said since when.

Answer = TypeVar("Answer")

_PAUSE_SECONDS = 0.5
_TOLD_AT_TRY = 2


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
        at, began, tries = utc_now(), time.monotonic(), 0
        patience = Patience(PATIENCE_SECONDS)
        while True:
            try:
                answer = question()
            except KafkaFailure as error:
                if not error.retryable or patience.is_over():
                    raise
                tries += 1
                # Once is no sign of them: a call fails that is under way while this process sleeps.
                if tries == _TOLD_AT_TRY:
                    self._say(
                        f"the brokers have not answered since {format_moment(at)}: "
                        f"{error.message}; waiting for them, nothing is decided meanwhile"
                    )
            else:
                seconds = time.monotonic() - began if tries else 0.0
                self.away += seconds
                if tries >= _TOLD_AT_TRY:
                    self._say(f"the brokers answer again, after {format_duration(seconds)}")
                return answer
            self._tick()
            time.sleep(_PAUSE_SECONDS)


# What a run works with that stops the group's own consumers: their group, and who starts them.
#
# For the kinds with the trait `stops_consumers`.

STOPPED_AT = "its consumers were stopped"
_REQUESTS_EACH = 0.25
# The same each time: what they look at may have changed since.
_NEVER_COMPLETE = ("check_source",)


@dataclass
class StoppingContext(RunContext[PlanT]):
    """One run of one recovery that keeps the group's own consumers stopped for a while.

    Attributes:
        closing: all is given back now: a request to pause or cancel changes nothing.
        cancelling: that is all there is to do.
        quiet: the original group was watched in this run.
    """

    closing: bool = False
    cancelling: bool = False
    quiet: bool = False
    leftovers: CleanupErrors = field(default_factory=CleanupErrors)
    _requests_at: float = 0.0

    @property
    def again(self) -> str:
        """What to do where the topic is another one now; a hint."""
        return "cancel it, then plan again"

    @property
    def partitions(self) -> int:
        """Partitions of the topic, as planned."""
        return self.plan.partition_count

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """Client properties; they hold secrets."""
        return self.workspace.properties(self.stream)

    @cached_property
    def admin(self) -> Admin:
        """An admin client, kept."""
        return make_admin(self.properties)

    @property
    def consumers(self) -> Consumers:
        """How the stream's consumers are launched.

        Raises:
            UsageError: the configuration no longer says.
        """
        if self.stream.consumers is None:
            raise UsageError(
                "it no longer says how its consumers are started and stopped",
                subject=f"stream {self.stream.name}",
                hint=f"put `streams.{self.stream.name}.consumers` back",
            )
        return self.stream.consumers

    @property
    def launcher(self) -> Launcher:
        """The stream's launcher; one that does nothing where a cancel leaves consumers alone.

        Raises:
            LeaseHeld: this run stood still, and the consumers are another runner's now.
        """
        self.lease.check()
        return LeftLauncher(self._launcher, self.say) if self.leaves_consumers else self._launcher

    @cached_property
    def _launcher(self) -> Launcher:
        return make_launcher(self.consumers, self.properties, self.say)

    @property
    def leaves_consumers(self) -> bool:
        """Whether a person starts and ends them."""
        return self.cancelling and LEAVE_CONSUMERS in self.cancel_ways

    @property
    def cancel_ways(self) -> tuple[str, ...]:
        """How the last `cancel` asked for it."""
        return find_ways(self.workspace, self.recovery.id)

    @property
    def originals(self) -> Fleet:
        """The stream's own consumers."""
        return fleet_of(self.workspace, self.stream, Role.ORIGINAL)

    def is_complete(self, step: str) -> bool:
        """From the ledger: a crash does not make a step start anew."""
        found = self.workspace.ledger.steps.get(self.recovery.id, step)
        return step not in _NEVER_COMPLETE and found is not None and found.is_complete

    def was_started(self, step: str) -> bool:
        """Whether the step was ever started."""
        return self.workspace.ledger.steps.get(self.recovery.id, step) is not None

    def look(self) -> None:
        """What stops the run: a lost lease, Ctrl-C, and requests unless it is closing."""
        now = time.monotonic()
        if now < self._requests_at:
            return
        self._requests_at = now + _REQUESTS_EACH
        check_requests(self, requests=not self.closing)

    def check_topic(self) -> None:
        """The topic is the one of the plan; raises PlanStale where it is not."""
        refuse_other_source(self.admin, self.plan, self.again)

    def require_planned(self, fingerprint: Collection[str]) -> None:
        """Plan, configuration, topic and rights are still those that were approved.

        Args:
            fingerprint: what of the stream's section the plan was computed from.

        Raises:
            PlanStale: something is no longer what the plan was made on.
            Refused: a guard says no, or a right is missing.
        """
        workspace, stream, plan = self.workspace, self.stream, self.plan
        check_runnable(workspace, self.recovery)
        check_denied(workspace, stream)
        now = fingerprint_with_consumers(workspace.config, stream, fingerprint)
        hint = "put it back and run it again; or cancel it, and plan again"
        check_configuration(plan, keep_waits(plan.configuration, now), hint)
        self.check_topic()
        kind = workspace.kind_of(self.recovery)
        rights = kind.list_rights(workspace.config, stream, self.recovery.id, plan)
        require_rights(workspace, stream, rights)

    def has_source(self) -> bool:
        """Whether it is still the topic that was planned, perhaps with more partitions."""
        return is_source(self.admin, self.plan)

    # The group.

    def stop_originals(self, starts: Mapping[int, int]) -> None:
        """The group's consumers end, and where they left it is on record at once.

        A run may be killed before the group is quiet. A later run finds what was done to the group
        since then, and does not take it for its consumers' own.

        Args:
            starts: where partitions begin that have no commit.
        """
        self.launcher.stop(self.originals, self.look)
        self.await_empty()
        if not self.find_stopped_at():
            self.note_stopped_at(starts)

    def start_originals(self) -> None:
        """Starts the stream's own consumers, as many as in normal times."""
        self.launcher.scale(self.originals, self.consumers.replicas, self.look)

    def await_empty(self) -> None:
        """The original group has no members.

        Raises:
            GroupActive: it did not get empty; names them.
        """
        within = self.consumers.stop_within.total_seconds()
        await_empty(self.admin, self.recovery.group, self.look, within=within)

    def await_quiet(self, look: Callable[[], None] = lambda: None) -> None:
        """The original group is empty, and its commits do not move.

        Args:
            look: called while it waits.

        Raises:
            GroupActive: it did not get empty; names its members.
            GroupStillCommits: somebody commits without being a member.
        """

        def look_at_both() -> None:
            self.look()
            look()

        await_quiet(
            self.properties,
            self.recovery.group,
            self.recovery.topic,
            self.partitions,
            look_at_both,
            within=self.consumers.stop_within.total_seconds(),
        )
        self.quiet = True

    def read_commits(self, *, stable: bool = True) -> dict[int, CommitWithMetadata]:
        """The original group's commits; not `stable`: without what is undecided."""
        group, topic, numbers = self.recovery.group, self.recovery.topic, range(self.partitions)
        try:
            return read_all(self.admin, group, topic, list(numbers), Deadline(60.0), stable=stable)
        except Refused:
            self.check_topic()  # commits go with their topic: then that is what to say
            raise

    @property
    def begun(self) -> dict[int, int]:
        """Where the group was when its consumers were stopped; empty until then."""
        return find_begun(self.workspace.ledger, self.recovery.id)

    def find_left_at(self) -> dict[int, int]:
        """Where this recovery left the group, which has read all before that; empty until its
        consumers were stopped."""
        return self.begun

    def find_stopped_at(self) -> dict[int, int]:
        """Where its consumers left the group when they ended, as the first run that stopped them
        saw it."""
        return _find_stopped_at(self.workspace.ledger, self.recovery.id)

    def note_stopped_at(self, starts: Mapping[int, int]) -> None:
        """Puts on record where the consumers left the group, `starts` where they committed
        nothing: nobody guards it now, and what somebody else does to it is told by this."""
        group, topic = self.recovery.group, self.recovery.topic
        commits = committed_offsets(
            self.admin, group, topic, range(self.partitions), Deadline(30.0), require_stable=True
        )
        found = {number: starts[number] if at is None else at for number, at in commits.items()}
        self.record(STOPPED_AT, committed={str(n): at for n, at in found.items()})

    def record_gap(
        self,
        item: OffsetRange,
        cause: Cause,
        reason: str,
        *,
        certainty: Certainty = Certainty.EXACT,
        maybe_empty: bool = False,
        times: tuple[datetime | None, datetime | None] | None = None,
        archive: str | None = None,
    ) -> Gap:
        """Puts on record what the group will not read.

        Args:
            maybe_empty: its offsets may be no messages.
            times: of the first and the last message; None takes those of the stream's samples.
            archive: the one that has the messages.
        """
        ledger, recovery = self.workspace.ledger, self.recovery
        first, last = times or self.date_range(item)
        gap = Gap(
            id="",
            stream=self.stream.name,
            cluster=recovery.cluster,
            topic=recovery.topic,
            group=recovery.group,
            topic_id=self.plan.topic_id,
            partition=item.partition,
            start=item.start,
            end=item.end,
            cause=cause,
            certainty=Certainty.BOUNDED if maybe_empty else certainty,
            maybe_empty=maybe_empty,
            state=GapState.OPEN,
            first_time=first,
            last_time=last,
            detected_at=utc_now(),
            reason=reason,
            archive=archive,
        )
        return ledger.gaps.record(gap)

    def date_range(self, item: OffsetRange) -> tuple[datetime | None, datetime | None]:
        """Between which times it was written, by the stream's samples."""
        samples = [
            sample
            for sample in self.workspace.ledger.samples.history(self.stream.name)
            if (sample.topic, sample.group) == (self.recovery.topic, self.recovery.group)
        ]
        bounds = Timeline(samples, self.plan.topic_id).bound(item.partition, item.start, item.end)
        return bounds.lower, bounds.upper


def find_begun(ledger: Ledger, recovery_id: str) -> dict[int, int]:
    """Where a recovery's group was when its consumers were stopped; empty until then."""
    stopped = ledger.steps.get(recovery_id, "stop_consumers")
    committed = {} if stopped is None else stopped.detail.get("committed", {})
    # A run may be killed between the two.
    found = {int(number): at for number, at in committed.items()}
    return found or _find_stopped_at(ledger, recovery_id)


def _find_stopped_at(ledger: Ledger, recovery_id: str) -> dict[int, int]:
    for event in ledger.events.list(recovery_id):
        if event.action == STOPPED_AT:
            return {int(number): at for number, at in event.detail["committed"].items()}
    return {}


def find_begin(noted: int, commit: CommitWithMetadata) -> int:
    """Where a partition's group has stopped: further than it was noted only by a reader's own
    commit, which carries a leader epoch (KIP-320). One without is somebody's reset."""
    return max(noted, commit.offset) if commit.epoch is not None else noted


# Whether the original group goes on, once its consumers are back.

MOVES_SECONDS = 120.0
_POLL_SECONDS = 0.25


def await_movement(context: StoppingContext[Any]) -> None:
    """The original group has members, and moves or has nothing to read.

    Raises:
        VerificationFailed: it does not; all else is restored.
    """
    group, topic, limit = context.recovery.group, context.recovery.topic, Deadline(MOVES_SECONDS)
    numbers = range(context.partitions)
    before = committed_offsets(context.admin, group, topic, numbers)
    while True:
        context.look()
        now = committed_offsets(context.admin, group, topic, numbers)
        if now != before:
            return
        # Not by the lag: a reader stays before control and aborted records for ever.
        try:
            unread = find_unread(
                *(context.admin, context.properties, topic, group, context.partitions),
                expires=True,
            )
        except LogTruncated as lost:
            raise VerificationFailed(
                lost.message, subject=lost.subject, hint=lost.hint, retryable=True
            ) from lost
        state = read_group_state(context.admin, group, Deadline(30.0))
        if state.is_active and not unread:
            return
        if limit.expired:
            raise VerificationFailed(
                f"it does not move: messages are unread in partitions {sorted(unread)}, and the "
                f"group is {state.state}",
                subject=f"group {group} on topic {topic}",
                hint="look at the consumers' logs; everything else is restored. Run again to "
                "verify, once they work",
                retryable=True,
            )
        time.sleep(_POLL_SECONDS)
