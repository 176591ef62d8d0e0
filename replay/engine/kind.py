"""The interface of a kind of recovery. The engine, the page, the report and the runbooks know a
recovery's kind by nothing else.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar, cast

from pydantic import ValidationError
from rich.console import Console

from backlogctl.clock import OffPeakWindow
from backlogctl.config import Config, Stream
from backlogctl.config.base import explain
from backlogctl.errors import Refused
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.replay.engine.interrupts import Interrupts
from backlogctl.replay.engine.plan import Options, Plan, RunOrigin, find_identity
from backlogctl.values import FINAL, Gap, Recovery, RecoveryState, Step
from backlogctl_delivery.visible import escape_text

if TYPE_CHECKING:
    from datetime import datetime

    from backlogctl.kafka.rights import Right
    from backlogctl.ledger import Lease, Ledger
    from backlogctl.replay.engine.values import (
        Account,
        Fact,
        RecoveryRecord,
        RecoveryStatus,
        Telling,
    )


# What changes no message takes effect from the configuration: when and how fast, who approves.
#
# The plan stays as it is stored and hashed; these values are laid over it when it is shown,
# approved or run, so that a person sees what will happen.

Approval = Literal["named", "second_person", "auto"]
TERMS_CHANGED = "terms taken from the configuration"
TERMS = ("approval", "deliver", "limits", "off_peak")
_LENIENT_FIRST: tuple[Approval, ...] = ("auto", "named", "second_person")


def choose_stricter(one: Approval, other: Approval) -> Approval:
    """Of two ways to approve the stricter one: a plan is not made easier to approve afterwards."""
    return max(one, other, key=_LENIENT_FIRST.index)


def find_changed_terms(planned: Plan, now: Plan) -> Mapping[str, Any]:
    """The values that another configuration than the plan's gives, as plain JSON."""
    before, after = _dump(planned), _dump(now)
    return {name: after[name] for name in after if after[name] != before[name]}


def record_terms(workspace: Workspace, recovery: Recovery, actor: str, doing: str) -> None:
    """Puts on record which values an approval or a run took, where they are not the plan's."""
    planned, now = workspace.plan_of(recovery), workspace.plan_now(recovery)
    if changed := find_changed_terms(planned, now):
        detail = {"for": doing, **changed}
        workspace.ledger.events.append(recovery.id, actor, TERMS_CHANGED, detail)


def _dump(plan: Plan, names: Iterable[str] = TERMS) -> Mapping[str, Any]:
    return plan.model_dump(mode="json", include=set(names))


PlanT = TypeVar("PlanT", bound=Plan)
OptionsT = TypeVar("OptionsT", bound=Options)
Say = Callable[[str], None]


def ignore_progress(_: str) -> None:
    """For work that nobody watches."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What others ask of a kind, instead of its name.

    Attributes:
        stops_consumers: while it is worked on, the group's own consumers are stopped: in the step
            `stop_consumers`; they are back after the step `restore`.
        holds_when_failed: a failed one left something changed: until it is run again or
            cancelled, no other recovery of the topic or group may begin.
        repairs_gaps: it takes gaps and closes them; cancelled, they are open again.
        injects: it sends messages by way of the Kafka ledger; later plans subtract them.
        opens_gaps: what it does makes gaps, which another recovery closes.
        uses_spark: its plans or its work start a Spark of their own.
    """

    stops_consumers: bool = False
    holds_when_failed: bool = False
    repairs_gaps: bool = False
    injects: bool = False
    opens_gaps: bool = False
    uses_spark: bool = False


class Kind(ABC, Generic[PlanT, OptionsT]):
    """One kind of recovery.

    Attributes:
        name: the word of the command line and of the ledger, such as `rebuild`.
        summary: one line for help, the form, and the task group: what it does.
        plan_model: of the newest version; its default of `version` is that version.
        cancel_ways: how it can be cancelled besides the usual way.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    traits: ClassVar[Traits]
    plan_model: type[PlanT]
    options_model: type[OptionsT]
    cancel_ways: ClassVar[tuple[str, ...]] = ()

    # Plan

    @abstractmethod
    def make_plan(
        self,
        workspace: Workspace,
        stream: Stream,
        options: OptionsT,
        *,
        origin: RunOrigin | None = None,
        say: Say = ignore_progress,
    ) -> Recovery:
        """Plans, and stores the plan; Kafka and the source are only read.

        Raises:
            UsageError: the stream's configuration or the options do not allow it.
            Refused: there is nothing to do, a guard says no, or another recovery is in the way.
        """

    def read_plan(self, recovery: Recovery) -> PlanT:
        """The stored plan of a recovery of this kind.

        Raises:
            Refused: another version of this program wrote it, or it was changed.
        """
        version = recovery.plan.get("version", 1)
        known = self.plan_model.model_fields["version"].default
        if version != known:
            raise _refuse_plan(
                recovery, f"it has version {version}, and this program knows {known}"
            )
        try:
            return self.plan_model.read(recovery.plan)
        except ValidationError as error:
            problem = explain(error.errors(include_url=False)[0])
        # Raised outside of `except`: pydantic's error carries the plan.
        raise _refuse_plan(recovery, f"{'.'.join(problem.path)} {problem.text}")

    def apply_terms(self, plan: PlanT, stream: Stream) -> PlanT:
        """The plan with what the configuration says now of what changes no message."""
        stricter = choose_stricter(plan.approval, stream.approval)
        return plan.model_copy(update={"approval": stricter})

    def check(self, plan: PlanT, recovery: Recovery) -> None:
        """Raises Refused for a plan that may not run, whoever approves it."""

    def is_automatic(self, plan: PlanT) -> bool:
        """Whether `approval: auto` approves this plan; a person must, where it is False."""
        return False

    def suggest(
        self, ledger: Ledger, stream: Stream, course: Verdict, lag: int, topic_id: str
    ) -> bool:
        """Whether `auto` takes this kind for a stream that is seen like this now.

        Args:
            lag: consumer lag, in offsets.
            topic_id: that the topic has now.
        """
        return False

    def suggest_options(self, ledger: Ledger, stream: Stream) -> dict[str, Any]:
        """The options that `auto` plans it with, where the form says nothing else."""
        return {}

    @property
    def is_suggested(self) -> bool:
        """Whether `auto` may take it: it says when."""
        return type(self).suggest is not Kind.suggest

    @abstractmethod
    def is_configured(self, stream: Stream) -> bool:
        """Whether the stream's section has what this kind needs."""

    @abstractmethod
    def list_rights(
        self, config: Config, stream: Stream, recovery_id: str, plan: PlanT | None = None
    ) -> tuple[Right, ...]:
        """What the tool must be allowed on the cluster to plan and run it; for `backlogctl acl`,
        and asked before every plan and run.

        Args:
            recovery_id: names of what it creates have it.
            plan: where it is made already, only what it does is asked for.
        """

    # Run

    @property
    @abstractmethod
    def context(self) -> type[RunContext[PlanT]]:
        """What a run's steps work with."""

    @property
    @abstractmethod
    def steps(self) -> Sequence[Step[Any]]:
        """The steps, in their order."""

    @abstractmethod
    def close(
        self,
        workspace: Workspace,
        recovery: Recovery,
        lease: Lease,
        *,
        context: RunContext[PlanT] | None,
        console: Console,
    ) -> None:
        """Brings what was begun to an end that leaves nothing half done; what `cancel` drives.

        Safe to call again after a crash.

        Args:
            context: of the run that is cancelled, where there is one.

        Raises:
            BacklogError: it could not be closed; the recovery's state is not changed.
        """

    def asks_how_to_close(self, workspace: Workspace, recovery: Recovery) -> bool:
        """Whether only the brokers can say by which of `cancel_ways` it loses nothing."""
        return False

    def suggest_plans(
        self, ledger: Ledger, stream: Stream, gaps: Collection[Gap]
    ) -> tuple[str, ...]:
        """The commands that plan to put back what is lost, of the gaps that this kind is for."""
        return ()

    # For people

    @abstractmethod
    def tell(self, plan: PlanT, recovery: Recovery) -> Telling:
        """The plan for every renderer."""

    def preview(self, workspace: Workspace, plan: PlanT, recovery: Recovery) -> tuple[Fact, ...]:
        """What messages hold, for the operator's terminal alone: nothing keeps it."""
        return ()

    @abstractmethod
    def account(self, plan: PlanT, record: RecoveryRecord) -> Account:
        """What came of it, for the report and for what `run` and `cancel` say."""

    @abstractmethod
    def count_run(
        self, plan: PlanT, recovery: Recovery, counts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """`counts` of the document of `run`; given those that the run itself found."""

    @abstractmethod
    def say_run(self, plan: PlanT, counts: Mapping[str, Any]) -> str:
        """What a run that was verified did, behind the recovery's name and state."""

    @abstractmethod
    def say_cancelled(self, recovery: Recovery, ways: Sequence[str] = ()) -> str:
        """How things stand once it is cancelled or rejected, behind its name and state.

        Args:
            ways: how it was cancelled, of `cancel_ways`.
        """

    @abstractmethod
    def describe_standing(
        self, workspace: Workspace, recovery: Recovery, *, ask: bool = True
    ) -> RecoveryStatus:
        """How things stand now: who reads, who is stopped, what is only where; never an error.

        Args:
            ask: the brokers too, for some seconds; else what is on record.
        """

    def find_gaps(
        self, plan: PlanT, ledger: Ledger, recovery: Recovery, ended_at: datetime | None
    ) -> tuple[Gap, ...]:
        """The losses that the report is about."""
        return ()


class Registry:
    """The kinds that this program knows, in the order in which `auto` takes them."""

    def __init__(self, kinds: Sequence[Kind[Any, Any]]) -> None:
        self._kinds = {kind.name: kind for kind in kinds}

    def __iter__(self) -> Iterator[Kind[Any, Any]]:
        return iter(self._kinds.values())

    def names(self) -> tuple[str, ...]:
        return tuple(self._kinds)

    def select(self, names: Iterable[str]) -> Registry:
        """Those of these names alone; KeyError where there is none of a name."""
        return Registry([self._kinds[name] for name in names])

    def without(self, *kinds: Kind[Any, Any]) -> Registry:
        """All but these, by their names."""
        left_out = {kind.name for kind in kinds}
        return Registry([kind for kind in self if kind.name not in left_out])

    def get(self, name: str) -> Kind[Any, Any]:
        """The kind of that name; KeyError where there is none."""
        return self._kinds[name]

    def find(self, recovery: Recovery) -> Kind[Any, Any]:
        """The kind of a stored recovery: the one place where an unknown kind is refused.

        Raises:
            Refused: this program does not know it.
        """
        if recovery.kind not in self._kinds:
            raise Refused(
                f"this program does not know the kind {recovery.kind}",
                subject=f"recovery {recovery.id}",
                hint="use the version of backlogctl that planned it",
            )
        return self._kinds[recovery.kind]


def _refuse_plan(recovery: Recovery, why: str) -> Refused:
    # Work that began is finished by a version that can read the plan.
    unbegun = recovery.state in (RecoveryState.PLANNED, RecoveryState.APPROVED)
    again = f", or `backlogctl cancel {recovery.id}` and plan again" if unbegun else ""
    return Refused(
        f"its plan was made by another version of backlogctl, or changed: {why}",
        subject=f"recovery {recovery.id}",
        hint=f"use the version that planned it{again}; `backlogctl show {recovery.id} --json` has "
        "the plan and the record as they are",
    )


# Configuration and ledger, opened together: what every verb works with.


@dataclass(frozen=True)
class Workspace:
    """An opened configuration."""

    config: Config
    ledger: Ledger
    kinds: Registry

    @classmethod
    def open(cls, config: Config, kinds: Registry) -> Self:
        """Opens the ledger that the configuration names.

        Raises:
            LedgerError: it cannot be opened, or needs `backlogctl db upgrade`.
        """
        from backlogctl.ledger import open_ledger

        return cls(config, open_ledger(config.ledger_url()), kinds)

    @classmethod
    def open_passing(cls, config: Config, kinds: Registry) -> Self:
        """With a ledger that is gone when the process ends."""
        from backlogctl.ledger import open_ledger

        # A file, not memory: the ledger's connections are several.
        directory = tempfile.mkdtemp(prefix="backlogctl-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        return cls(config, open_ledger(f"sqlite:///{directory}/ledger.db"), kinds)

    def kind_of(self, recovery: Recovery) -> Kind[Any, Any]:
        """What this program knows of the recovery's kind.

        Raises:
            Refused: nothing; another program planned it.
        """
        return self.kinds.find(recovery)

    def plan_of(self, recovery: Recovery) -> Plan:
        """The stored plan, as the model of its kind and version.

        Raises:
            Refused: another version of this program, or another program, planned it.
        """
        plan: Plan = self.kind_of(recovery).read_plan(recovery)
        return plan

    def plan_now(self, recovery: Recovery) -> Plan:
        """The stored plan as it would be carried out now: what changes no message is taken from
        the configuration. Of a recovery that is over, the plan as it is stored.

        Raises:
            Refused: another version of this program, or another program, planned it.
        """
        plan, stream = self.plan_of(recovery), self.config.streams.get(recovery.stream)
        if stream is None or recovery.state in FINAL:
            return plan
        now: Plan = self.kind_of(recovery).apply_terms(plan, stream)
        return now

    def properties(self, stream: Stream) -> Mapping[str, str]:
        """Client properties of the stream's cluster, secrets revealed."""
        return self.config.clusters[stream.cluster].client_properties()

    def staging_of(self, recovery_id: str) -> Path:
        """Where a recovery's staged messages lie."""
        return self.config.staging.dir / recovery_id


# What a step works with: the stored plan, configuration and ledger, and what stops a run.

STEP_STARTED, STEP_COMPLETED = "step started", "step completed"


@dataclass
class RunContext(Generic[PlanT]):
    """One run of one recovery, of any kind; steps leave what later steps need here.

    Attributes:
        details: by step, what it leaves on record when it is completed.
        found: what this run adds to the document of `run`.
        resumed: an operator said `resume`: what held the last run back is accepted.
        step: the one that is at work.
    """

    workspace: Workspace
    recovery: Recovery
    stream: Stream
    lease: Lease
    interrupts: Interrupts
    console: Console
    resumed: bool = False
    found: dict[str, Any] = field(default_factory=dict)
    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    step: str = ""

    @cached_property
    def plan(self) -> PlanT:
        """The approved plan, with the brakes of the configuration."""
        return cast("PlanT", self.workspace.plan_now(self.recovery))

    @property
    def window(self) -> OffPeakWindow | None:
        """The off-peak window that the work keeps to."""
        return None if self.plan.off_peak is None else self.plan.off_peak.open()

    def record(self, action: str, **detail: Any) -> None:
        """Adds a line to the recovery's record."""
        self.workspace.ledger.events.append(self.recovery.id, str(find_identity()), action, detail)

    def say(self, text: str) -> None:
        """A sentence for people, and for the record."""
        self.console.print(escape_text(text), markup=False, highlight=False, soft_wrap=True)
        self.record("said", message=text)

    def decide(self, action: str) -> None:
        """Adds a line that whoever goes on or cancels goes by: only with the lease.

        Raises:
            LeaseHeld: another run has taken over; nothing is on record.
        """
        self.workspace.ledger.events.append(
            self.recovery.id, str(find_identity()), action, owner=self.lease.owner
        )

    def open(self) -> None:
        """Called when the steps begin."""

    def close(self, error: BaseException | None) -> None:
        """Called when the steps are over, or one of them raised `error`."""

    def is_complete(self, step: str) -> bool:
        """Whether an earlier run completed the step for good; it is then left out."""
        return False

    def begin(self, step: str) -> None:
        """A step starts: on record before it changes anything, so that a crash cannot hide it."""
        self.step = step
        self.workspace.ledger.steps.start(self.recovery.id, step)
        self.record(STEP_STARTED, step=step)

    def end(self, step: str) -> None:
        """A step is completed: on record with what it left."""
        detail = self.details.get(step, {})
        self.workspace.ledger.steps.complete(self.recovery.id, step, detail)
        self.record(STEP_COMPLETED, step=step, **detail)
