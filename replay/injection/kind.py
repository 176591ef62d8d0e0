"""What kinds that send staged messages have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from backlogctl.config import Config, Stream
from backlogctl.errors import Refused
from backlogctl.formats import format_plural
from backlogctl.replay.engine.kind import Kind, OptionsT, RunContext, Workspace
from backlogctl.replay.engine.plan import PlannedWindow
from backlogctl.replay.engine.values import (
    Checked,
    Fact,
    PutBack,
    Readers,
    Reads,
    RecoveryRecord,
    RecoveryStatus,
    Verification,
)
from backlogctl.replay.injection.plan import READ_BACK, InjectionPlan
from backlogctl.replay.present.status import make_standing
from backlogctl.values import ChunkState, Recovery, Step

if TYPE_CHECKING:
    from backlogctl.kafka.rights import Right
    from backlogctl.ledger import Lease
    from backlogctl.ledger.chunks import ChunkRecord


LEFT_OUT = "a newer message is there, or the row is gone"
# Why a plan that sends messages may not run, whoever approves it.

NOT_WITHOUT_DELIVER = "; it will not run unless the stream says `deliver: topic`"


def check_size(plan: InjectionPlan, recovery: Recovery) -> None:
    """More messages than `limits.max_messages`.

    Raises:
        Refused
    """
    if plan.message_count > plan.limits.max_messages:
        raise Refused(
            f"{plan.message_count} messages are more than `limits.max_messages` "
            f"({plan.limits.max_messages})",
            subject=f"recovery {recovery.id}",
            hint=f"raise the limit of stream {plan.stream}",
        )


def check_readers(plan: InjectionPlan, recovery: Recovery) -> None:
    """Other groups that read the stream's topic would get the messages too.

    Raises:
        Refused: the stream does not say `deliver: topic`.
    """
    if not plan.delivers or plan.deliver == "topic":
        return
    subject = f"recovery {recovery.id}"
    if plan.other_groups:
        raise Refused(
            f"other groups read topic {plan.topic} and would get the messages too: "
            f"{', '.join(plan.other_groups)}",
            subject=subject,
            hint=f"say `deliver: topic` in stream {plan.stream} if that is right",
        )
    if plan.others_unknown:
        raise Refused(
            f"whether other groups read topic {plan.topic}, and would get the messages too, "
            f"is unknown: the tool {plan.others_unknown}",
            subject=subject,
            hint=f"grant that (`backlogctl acl {plan.kind} {plan.stream}` prints what is needed) "
            f"and plan again, or say `deliver: topic` in stream {plan.stream} if other readers "
            "may get them",
        )


def warn_about_readers(others: Sequence[str], unknown: str, deliver: str | None) -> list[str]:
    """Who else reads the stream's topic, and whether the plan may run in spite of that.

    Args:
        unknown: why there may be more of them; "" where there are none.
    """
    end = "" if deliver == "topic" else NOT_WITHOUT_DELIVER
    told = []
    if unknown:
        told.append(f"whether other groups read this topic is unknown: the tool {unknown}{end}")
    if others and end:
        told.append(
            f"other groups read this topic and would get the messages too: {', '.join(others)}{end}"
        )
    elif others:
        told.append(f"other groups will get the messages too: {', '.join(others)}")
    return told


def has_readers_alone(plan: InjectionPlan) -> bool:
    """Whether nobody gets the messages who was not meant to."""
    if not plan.delivers or plan.deliver == "topic":
        return True
    return not (plan.other_groups or plan.others_unknown)


InjectionT = TypeVar("InjectionT", bound=InjectionPlan)


class InjectionKind(Kind[InjectionT, OptionsT]):
    """A kind whose plans stage messages, and whose runs send each once (protocol P3)."""

    def apply_terms(self, plan: InjectionT, stream: Stream) -> InjectionT:
        """The window, the limits and `deliver` are those of the configuration."""
        terms = {
            "deliver": stream.deliver,
            "limits": stream.limits,
            "off_peak": PlannedWindow.freeze(stream.off_peak),
        }
        return super().apply_terms(plan, stream).model_copy(update=terms)

    def preview(
        self, workspace: Workspace, plan: InjectionT, recovery: Recovery
    ) -> tuple[Fact, ...]:
        """A few messages, masked."""
        from backlogctl.replay.injection.staged import preview_messages

        return preview_messages(workspace, plan, recovery.id)

    def check(self, plan: InjectionT, recovery: Recovery) -> None:
        """Too many messages, or readers who would get them too."""
        check_size(plan, recovery)
        check_readers(plan, recovery)

    def list_rights(
        self, config: Config, stream: Stream, recovery_id: str, plan: InjectionT | None = None
    ) -> tuple[Right, ...]:
        """The target and the Kafka ledger are written in transactions."""
        from backlogctl.replay.injection.plan import list_possible, list_sending

        if plan is None:
            return list_possible(config, stream, recovery_id)
        return list_sending(config, stream, recovery_id, plan, plan.sends_to)

    @property
    def context(self) -> type[RunContext[Any]]:
        """Staged messages, Spark, the gaps."""
        from backlogctl.replay.injection.context import InjectionContext

        return InjectionContext

    @property
    def steps(self) -> Sequence[Step[Any]]:
        """Check, make the target, inject, verify."""
        from backlogctl.replay.injection.steps import STEPS

        return STEPS

    def close(
        self,
        workspace: Workspace,
        recovery: Recovery,
        lease: Lease,
        *,
        context: RunContext[InjectionT] | None,
        console: Console,
    ) -> None:
        """Fences every slot. What is committed stays; a rehearsal's topic is deleted."""
        from backlogctl.replay.injection.target import close_injection

        close_injection(workspace, recovery)

    def count_run(
        self, plan: InjectionT, recovery: Recovery, counts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """`injected` by this run, `skipped` as they were in the topic already, `left_out` as their
        rows changed since the plan; together all.

        Of a recovery that was verified before, all count as injected.
        """
        known = counts or {
            "injected": recovery.injected,
            "skipped": recovery.skipped,
            "left_out": recovery.detail.get("verified", {}).get("left_out", 0),
        }
        return {**known, "quarantined": plan.quarantined}

    def say_run(self, plan: InjectionT, counts: Mapping[str, Any]) -> str:
        """`1,000 messages are in topic orders, each once`."""
        from backlogctl.replay.injection.target import format_target

        count = counts["injected"] + counts["skipped"]
        are = "is" if count == 1 else "are"
        where = format_target(plan.target, plan.topic)
        told = f"{format_plural(count, 'message')} {are} in {where}, each once"
        if not count:
            told = f"nothing had to be put back into {where}"
        if left := counts.get("left_out"):
            told += f"; {format_plural(left, 'message')} left out: {LEFT_OUT}"
        return told

    def describe_standing(
        self, workspace: Workspace, recovery: Recovery, *, ask: bool = True
    ) -> RecoveryStatus:
        """What was put back, and what not; it stops nobody's consumers."""
        chunks = workspace.ledger.chunks.list(recovery.id)
        left_out = sum(chunk.left_out for chunk in chunks)
        planned = self.read_plan(recovery).message_count - left_out
        return make_standing(
            workspace,
            recovery,
            Readers(Reads.ORIGINALS),
            put_back=PutBack(recovery.injected, planned),
        )


# How messages that were sent were verified, for every kind that sends some.

_CHECKED = {
    "staged": "messages staged",
    "matched": "read back once, as staged, in their partition",
    "missing": "missing",
    "doubled": "there more than once",
    "different": "different from what was staged",
    "unexpected": "under this recovery's id, but not to be sent",
    "left_out": f"left out: {LEFT_OUT}",
}


def describe_read_back(
    record: RecoveryRecord, columns: tuple[str, ...], partitions: tuple[tuple[Any, ...], ...]
) -> Verification:
    """What the step `verify` found, with a table of the kind's own."""
    event = record.find_last(READ_BACK)
    detail: Mapping[str, Any] = (
        event.detail if event else record.recovery.detail.get("verified", {})
    )
    told = "Nothing was read back yet."
    if detail:
        told = (
            "The topic was read back as a read_committed consumer sees it. Each staged message "
            "was looked for; its key, value, headers and partition were compared to the byte."
        )
    return Verification(
        result=("passed" if detail.get("exact") else "failed") if detail else "pending",
        told=told,
        checks=tuple(
            Checked(words, detail[name])
            for name, words in _CHECKED.items()
            # Only where rows are restated can one be left out.
            if detail.get(name) is not None and (detail[name] or name != "left_out")
        ),
        columns=columns,
        partitions=partitions,
    )


def list_injected(record: RecoveryRecord) -> dict[int, tuple[int, str]]:
    """Of each partition that got messages: how many, and their offsets in words."""
    injected: dict[int, list[ChunkRecord]] = defaultdict(list)
    for chunk in record.chunks:
        if chunk.state is ChunkState.INJECTED:
            injected[chunk.chunk.slot].append(chunk)
    return {
        number: (sum(c.sent for c in done), format_injected_offsets(done))
        for number, done in injected.items()
    }


def format_injected_offsets(done: list[ChunkRecord]) -> str:
    """`1,000–1,999`; a dash where they are not known."""
    first = [chunk.first_offset for chunk in done if chunk.first_offset is not None]
    last = [chunk.last_offset for chunk in done if chunk.last_offset is not None]
    return f"{min(first):,}–{max(last):,}" if first and last else "—"
