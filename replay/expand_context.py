"""What the steps of an expansion work with: both topics, the relays, the consumers, the view."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from backlog.clock import Deadline, utc_now
from backlog.config import Consumers
from backlog.errors import BacklogError, KafkaFailure, LeaseHeld, PlanStale, UsageError
from backlog.kafka.admin import committed_offsets, list_offsets
from backlog.kafka.clients import Admin, make_admin
from backlog.ledger import BurndownSample, TemporaryTopic
from fanout.lags import Lags, read_lags
from fanout.launchers import make_launcher
from fanout.launchers.interface import Fleet, Launcher, Role
from fanout.relay.commits import CommitWithMetadata, read_all
from fanout.relay.guard import Guard
from fanout.relay.interface import RelayTask, SourceRange
from fanout.relay.session import Hooks, RelaySession
from fanout.unread import find_unread
from replay.brakes import check_requests
from replay.context import RunContext
from replay.expand_progress import BurndownView
from replay.expand_source import (
    find_overwritten,
    is_source,
    refuse_other_copy,
    refuse_other_source,
)
from replay.fleets import fleet_of
from replay.observation import look_at_stream

_REQUESTS_EACH = 0.25
_SAMPLE_EACH = 1.0
_TOPICS_EACH = 2.0
# The same each time: what they look at may have changed since.
COUNTERS_LOST = "counters overwritten by a commit of somebody else"
COPY_GONE = "the temporary topic is gone: what was in it and not handled is lost there"
SOURCE_GONE = "the source topic is gone, and the counters with it"
_NEVER_COMPLETE = ("check_source",)


@dataclass
class ExpandContext(RunContext):
    """One run of one expansion.

    Attributes:
        closing: the layout is being restored: a request to pause or cancel changes nothing now.
        cancelling: that is all there is to do, with what is left of the topics.
        details: what a step leaves for the ledger when it is completed.
    """

    closing: bool = False
    cancelling: bool = False
    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    step: str = ""
    _relayed_before: dict[int, int] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)
    _requests_at: float = 0.0
    _sample_at: float = 0.0
    _topics_at: float = 0.0

    @property
    def plan(self) -> Mapping[str, Any]:
        """The stored plan."""
        return self.recovery.plan

    @property
    def partitions(self) -> int:
        """Partitions of the source topic, as planned."""
        return int(self.plan["partition_count"])

    @property
    def temporary_topic(self) -> str:
        """The temporary topic's name."""
        return str(self.plan["temporary"]["topic"])

    @property
    def temporary_partitions(self) -> int:
        """Its partitions."""
        return int(self.plan["temporary"]["partitions"])

    @property
    def recovery_group(self) -> str:
        """The group that reads the temporary topic."""
        return str(self.plan["recovery_group"])

    @property
    def temporary(self) -> TemporaryTopic | None:
        """The temporary topic as the ledger has it; None before it was announced."""
        return self.workspace.ledger.temporary_topics.get(self.recovery.id)

    @property
    def has_temporary(self) -> bool:
        """Whether the temporary topic was created, and is not deleted yet."""
        known = self.temporary
        return known is not None and known.topic_id is not None and known.deleted_at is None

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

    @cached_property
    def launcher(self) -> Launcher:
        """The stream's launcher."""
        return make_launcher(self.consumers, self.properties, self.say)

    @property
    def originals(self) -> Fleet:
        """The stream's own consumers."""
        return fleet_of(self.workspace, self.stream, Role.ORIGINAL)

    @property
    def fleet(self) -> Fleet:
        """The consumers on the temporary topic."""
        return fleet_of(
            self.workspace,
            self.stream,
            Role.RECOVERY,
            self.recovery.id,
            topic=self.temporary_topic,
            group=self.recovery_group,
        )

    @property
    def logs(self) -> Path:
        """Where the relays' processes write what they have to say."""
        return self.workspace.staging_of(self.recovery.id) / "relay.log"

    @cached_property
    def session(self) -> RelaySession:
        """Guard and relays of this run."""
        return RelaySession(
            lambda: Guard(
                self.properties,
                self.recovery.group,
                self.recovery.topic,
                self.partitions,
                self.recovery.id,
            ),
            self._make_task,
            self.logs,
            Hooks(self.look, self.check_ground, self._note_expired),
        )

    @cached_property
    def view(self) -> BurndownView:
        """What people see while it runs."""
        return BurndownView(self.console, self.workspace.ledger, self.recovery)

    def say(self, text: str) -> None:
        """A sentence for people, and for the record."""
        self.view.say(text)
        self.record("said", message=text)

    def open(self) -> None:
        """Takes Ctrl-C, shows the view."""
        self._stack.enter_context(self.interrupts.installed())
        self._stack.callback(self.view.stop)
        self.view.start()

    def close(self, error: BaseException | None) -> None:
        """Ends what belongs to this run; the consumers of the recovery too, where it is ours."""
        try:
            if "session" in self.__dict__:
                if error is None or not self._is_lost(error):
                    self.session.close()
                else:
                    self.session.abandon()
                    self.session.leave()
            if error is not None and not self._is_lost(error):
                self._end_consumers()
        finally:
            self._stack.close()

    def is_complete(self, step: str) -> bool:
        """From the ledger: a crash does not make a step start anew."""
        found = self.workspace.ledger.steps.get(self.recovery.id, step)
        return step not in _NEVER_COMPLETE and found is not None and found.is_complete

    def was_started(self, step: str) -> bool:
        """Whether the step was ever started, and not rolled back."""
        found = self.workspace.ledger.steps.get(self.recovery.id, step)
        return found is not None and found.rolled_back_at is None

    def begin(self, step: str) -> None:
        """On record before anything is done, so that a later run gives back what it took."""
        self.step = step
        self.workspace.ledger.steps.start(self.recovery.id, step)
        self.record(f"{step} started")
        self.view.note_step(step)

    def end(self, step: str) -> None:
        """On record, with what the step left."""
        detail = self.details.get(step, {})
        self.workspace.ledger.steps.complete(self.recovery.id, step, detail)
        self.record(f"{step} completed", **detail)

    def look(self) -> None:
        """What stops the run: a lost lease, Ctrl-C, and requests unless it is closing."""
        now = time.monotonic()
        if now < self._requests_at:
            return
        self._requests_at = now + _REQUESTS_EACH
        check_requests(self, requests=not self.closing)

    def tick(self) -> None:
        """Called again and again while the relays and consumers work.

        Raises:
            PlanStale: a topic is not the one it was any more, unless it is closing.
        """
        self.look()
        self._look_at_topics()
        self.session.check()
        if time.monotonic() >= self._sample_at:
            self._sample_at = time.monotonic() + _SAMPLE_EACH
            with suppress(KafkaFailure):  # a broker is away: the next one tells
                self.sample()

    def sample(self) -> Lags:
        """Reads both lags, keeps the sample, shows it."""
        lags = self.read_lags()
        positions = self.session.positions
        relayed = sum(
            {**self._relayed_before, **{n: p.relayed for n, p in positions.items()}}.values()
        )
        known = BurndownSample(
            recovery_id=self.recovery.id,
            at=utc_now(),
            step=self.step,
            source_lag=lags.source_total,
            temporary_lag=lags.temporary_total,
            relayed=relayed,
            handled=max(0, relayed - lags.temporary_total),
            consumers=self._count_consumers(),
        )
        self.workspace.ledger.burndown.add(known)
        self.view.note_sample(known)
        return lags

    def read_lags(self) -> Lags:
        """What is left in both topics now."""
        return read_lags(
            self.admin,
            source=self.recovery.topic,
            group=self.recovery.group,
            partitions=self.partitions,
            temporary=self.temporary_topic,
            recovery_group=self.recovery_group,
            temporary_partitions=self.temporary_partitions,
            last_offsets=self.session.last_offsets,
        )

    def read_temporary_lag(self) -> int:
        """Offsets left in the temporary topic; the source may be gone."""
        topic, numbers = self.temporary_topic, range(self.temporary_partitions)
        handled = committed_offsets(self.admin, self.recovery_group, topic, numbers)
        ends = list_offsets(self.admin, topic, numbers, "latest", "read_committed")
        return sum(max(0, end - (handled[number] or 0)) for number, end in ends.items())

    def find_unread(self) -> dict[int, int]:
        """Temporary partitions with unread data records, by reading them."""
        return find_unread(
            self.admin,
            self.properties,
            self.temporary_topic,
            self.recovery_group,
            self.temporary_partitions,
        )

    def find_commit(self, partition: int) -> int:
        """Where the original group is."""
        commits = committed_offsets(
            self.admin, self.recovery.group, self.recovery.topic, [partition], require_stable=True
        )
        return commits[partition] or 0

    def note_counters(self) -> None:
        """Takes what earlier runs relayed from the group's commits, for the totals shown."""
        commits = self.read_relay_commits()
        self._relayed_before = {
            number: commit.counters(self.recovery.id).relayed for number, commit in commits.items()
        }

    def read_relay_commits(self, *, stable: bool = True) -> dict[int, CommitWithMetadata]:
        """The original group's commits, with the relays' counters.

        On record where somebody else has committed over the counters: then they are lost.
        """
        group, topic = self.recovery.group, self.recovery.topic
        numbers = list(range(self.partitions))
        commits = read_all(self.admin, group, topic, numbers, Deadline(60.0), stable=stable)
        stopped = self.workspace.ledger.steps.get(self.recovery.id, "stop_consumers")
        begun = {} if stopped is None else stopped.detail.get("committed", {})
        if lost := find_overwritten(commits, begun, self.recovery.id):
            self.record(COUNTERS_LOST, partitions=lost)
        return commits

    def make_ranges(self) -> list[SourceRange]:
        """Every partition, from its commit on, without an end."""
        lows = list_offsets(self.admin, self.recovery.topic, range(self.partitions), "earliest")
        return [SourceRange(number, low) for number, low in sorted(lows.items())]

    def check_ground(self) -> None:
        """Before a relay starts: the lease is ours, and the topic is the planned one.

        Raises:
            LeaseHeld: another runner has it.
            PlanStale: the topic was made anew, or has more partitions (faults 15, 16).
        """
        self.lease.confirm()
        self.check_topic()
        # Not waiting for what a relay left undecided: the one that starts now decides it.
        self.read_relay_commits(stable=False)

    def _make_task(self, metadata: bytes) -> RelayTask:
        plan = self.plan
        return RelayTask(
            properties=self.properties,
            recovery_id=self.recovery.id,
            source=self.recovery.topic,
            target=self.temporary_topic,
            target_partitions=self.temporary_partitions,
            group=self.recovery.group,
            group_metadata=metadata,
            order=plan["order"],
            partitioner=plan["partitioner"],
            transactional_prefix=plan["transactional_prefix"],
        )

    def check_topic(self) -> None:
        """The source topic is the one of the plan; raises PlanStale where it is not."""
        refuse_other_source(self.admin, self.recovery)

    def check_copy(self) -> None:
        """The temporary topic, once it was made, is that one; raises PlanStale where it is not."""
        known = self.temporary
        if known is not None and known.topic_id is not None and known.deleted_at is None:
            refuse_other_copy(self.admin, self.recovery, known.topic_id)

    def has_copy(self) -> bool:
        """Whether the temporary topic is there, and the one that was made."""
        try:
            self.check_copy()
        except PlanStale:
            return False
        return self.has_temporary

    def has_source(self) -> bool:
        """Whether the source is still the topic that was planned, perhaps with more partitions."""
        return is_source(self.admin, self.recovery)

    def _look_at_topics(self) -> None:
        if self.closing or time.monotonic() < self._topics_at:
            return
        self._topics_at = time.monotonic() + _TOPICS_EACH
        try:
            self.check_topic()
            self.check_copy()
        except KafkaFailure:
            return  # a broker is away: the next look tells

    def _note_expired(self) -> None:
        """Retention was faster: the gap is on record before the commit moves past it."""
        self.say("retention removed messages before they were relayed; `backlogctl gaps` shows it")
        look_at_stream(self.workspace, self.stream)

    def _count_consumers(self) -> int | None:
        try:
            return self.launcher.count_running(self.fleet)
        except BacklogError:
            return None

    def _is_lost(self, error: BaseException) -> bool:
        return isinstance(error, LeaseHeld) or self.lease.lost

    def _end_consumers(self) -> None:
        """They end with the run; people are not asked to stop theirs for a pause."""
        if self.stream.consumers is None or self.consumers.launcher == "manual":
            return
        if self.has_temporary:
            with suppress(BacklogError):
                self.launcher.stop(self.fleet, lambda: None)
