"""The interface of a kind of recovery. The engine, the page, the report and the runbooks know a
recovery's kind by nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic import ValidationError
from rich.console import Console

from backlog.config import Config, Stream
from backlog.config.base import explain
from backlog.errors import Refused
from backlog.step import Step
from backlog.values import Gap, Recovery, RecoveryState
from monitoring.verdicts import Verdict
from replay.recovery.plan import Options, Origin, Plan
from replay.recovery.terms import choose_stricter

if TYPE_CHECKING:
    from datetime import datetime

    from backlog.kafka.rights import Right
    from backlog.ledger import Lease, Ledger
    from replay.recovery.context import RunContext
    from replay.recovery.workspace import Workspace
    from replay.telling.account import Account, RecoveryRecord
    from replay.telling.standings import Standing
    from replay.telling.value import Fact, Telling

PlanT = TypeVar("PlanT", bound=Plan)
OptionsT = TypeVar("OptionsT", bound=Options)
Say = Callable[[str], None]


def say_nothing(_: str) -> None:
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
        origin: Origin | None = None,
        say: Say = say_nothing,
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
    ) -> Standing:
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
