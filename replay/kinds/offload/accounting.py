"""What came of an offload: what was archived, passed over, deleted and freed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from backlog.numbers import format_bytes, format_plural
from backlog.values import GapState, RecoveryState
from replay.around.ways import LEAVE_CONSUMERS
from replay.kinds.offload.cancelling import GIVEN_UP, THROWN_AWAY
from replay.kinds.offload.context import EXPIRED, FORWARD
from replay.kinds.offload.discarding import COVERED
from replay.kinds.offload.plan import OffloadPlan
from replay.recovery.cancelling import CANCEL_ASKED
from replay.telling.account import Account, Checked, RecoveryRecord, Unexplained, Verification


def account_for_offload(plan: OffloadPlan, record: RecoveryRecord) -> Account:
    """Of the plan, and of what the ledger has on its runs."""
    counts: Mapping[str, Any] = record.recovery.detail.get("counts") or {}
    unread = f"at most {format_plural(plan.unread, 'unread message')}"
    archived = plan.place is not None
    where = "archived" if archived else "discarded"
    many = unread
    if archived and "archived" in counts:
        many = format_plural(counts["archived"], "message")
    return Account(
        aim=f"to take {unread} of topic {plan.topic} off the brokers",
        achieved=f"{many} of topic {plan.topic} {where}, and the brokers' disks relieved",
        verified=_say_verified(plan, record),
        cancelled=_say_cancelled(record),
        no_losses=f"Nothing of topic {plan.topic} is known to be lost.",
        after_losses=_say_where(plan, record),
        figures=tuple(_list_figures(plan, counts)),
        verification=_describe_verification(plan, record),
        unexplained=_describe_rest(plan, record),
    )


def _say_where(plan: OffloadPlan, record: RecoveryRecord) -> str:
    """Where what was taken off the brokers is now."""
    states = {gap.state for gap in record.gaps}
    if states == {GapState.VERIFIED}:
        return " All of them were put back since, and verified."
    if states and states <= {GapState.VERIFIED, GapState.WAIVED}:
        return " None of them waits any more: each gap is verified, or waived."
    if plan.place is None:
        return f" `backlogctl plan rebuild {plan.stream}` puts back what can be rebuilt."
    command = f"backlogctl plan redrive {plan.stream} --from archive:{record.recovery.id}"
    return f" They wait in the archive: `{command}` puts them back."


def _say_verified(plan: OffloadPlan, record: RecoveryRecord) -> str:
    step = record.find_step("verify")
    back = "are back and go on behind it"
    if step is not None and step.detail.get("moves") is False:
        back = "were started, but the group does not move"
    if plan.place is None:
        return (
            f"What group {plan.group} had not read was deleted from the brokers, on purpose and "
            f"without an archive; the group's own consumers {back}."
        )
    return (
        f"What group {plan.group} had not read lies in an archive, read back file by file before "
        f"anything was deleted; the group's own consumers {back}."
    )


def _say_cancelled(record: RecoveryRecord) -> str:
    if not record.steps:
        return "It was cancelled before it began. Nothing was changed."
    asked = record.find_last(CANCEL_ASKED)
    left = asked is not None and LEAVE_CONSUMERS in asked.detail.get("ways", ())
    if record.find_last(GIVEN_UP):
        started = "were left to you" if left else "were started"
        return f"It was cancelled and could not be finished; the group's consumers {started}."
    if record.find_last(FORWARD):
        return "It was cancelled after the group was moved, so it was carried to its end."
    thrown = ", and its archive was thrown away" if record.find_last(THROWN_AWAY) else ""
    started = "were left to you" if left else "were started again"
    return f"It was cancelled: the consumers {started}{thrown}. Nothing was deleted."


def _list_figures(plan: OffloadPlan, counts: Mapping[str, Any]) -> list[tuple[str, str]]:
    figures = [("unread when planned, at most", f"{plan.unread:,}")]
    if plan.place is not None and "archived" in counts:
        figures.append(("archived", f"{counts['archived']:,}"))
        figures.append(("archive", format_bytes(counts["archive_bytes"])))
    if "freed_bytes" in counts:
        freed = counts["freed_bytes"]
        figures.append(("freed so far", "unknown" if freed is None else format_bytes(freed)))
    return figures


def _describe_verification(plan: OffloadPlan, record: RecoveryRecord) -> Verification:
    step = record.find_step("verify")
    result: Literal["passed", "failed", "pending"] = "pending"
    told, checks = "Nothing was verified yet.", ()
    lows: Mapping[str, int] = {}
    if step is not None and step.is_complete:
        result, lows = "passed", step.detail.get("log_start", {})
        told = (
            "The archive's files are there as they were read back; each partition's log begins at "
            "the fence or behind it, and so does the group."
            if plan.place is not None
            else "Each partition's log begins at the fence or behind it, and so does the group."
        )
        checks = (
            Checked("offsets taken off the brokers unread", step.detail.get("offsets")),
            *(
                (Checked("messages in the archive", step.detail.get("archived")),)
                if plan.place is not None
                else ()
            ),
        )
    elif record.find_last(GIVEN_UP) or (
        record.recovery.state is RecoveryState.FAILED
        and record.recovery.detail.get("code") == "verification_failed"
    ):
        result, told = "failed", "It is not as it should be; the archive is kept."
    return Verification(
        result=result,
        told=told,
        checks=checks,
        columns=("partition", "unread when planned", "log start now"),
        partitions=tuple(
            (row.partition, row.unread, lows.get(str(row.partition))) for row in plan.partitions
        ),
    )


def _describe_rest(plan: OffloadPlan, record: RecoveryRecord) -> Unexplained:
    reasons = [
        "What is archived is not what was unread when planned: the group read on until it was "
        "stopped, and new messages came until the fence was set.",
        "Offsets are an upper bound on messages: control records, aborted and compacted messages "
        "use some, and are in no archive.",
    ]
    step = record.find_step("verify")
    if record.find_last(EXPIRED):
        expired = None if step is None else step.detail.get("expired")
        many = "some" if not expired else f"at most {format_plural(expired, 'message')}"
        reasons.append(
            f"Retention removed {many} before they were archived: they are a gap, and are not "
            "counted here."
        )
    if record.find_last(COVERED):
        reasons.append("An older gap stands for some messages that the archive has, too.")
    if step is None or not step.is_complete:
        return Unexplained("Not known yet.", reasons=tuple(reasons))
    archived, offsets = step.detail.get("archived"), step.detail.get("offsets")
    if plan.place is None or archived is None or offsets is None:
        return Unexplained("Nothing: what was discarded was not counted.", reasons=tuple(reasons))
    if not offsets:
        return Unexplained("Nothing: there was nothing to archive.", reasons=tuple(reasons))
    if archived == offsets:
        return Unexplained(f"Nothing: each of the {offsets:,} offsets holds a message.")
    return Unexplained(
        f"{offsets - archived:,} of {offsets:,} offsets hold no message that readers get.",
        reasons=tuple(reasons),
    )
