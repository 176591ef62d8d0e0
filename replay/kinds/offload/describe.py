"""An offload's plan for people: what is unread, where it goes, what is deleted, what comes back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from backlogctl.config import Stream
from backlogctl.fanout.disk import PartitionBacklog, estimate_freed
from backlogctl.fanout.segments import ROLL_MS, SEGMENT_BYTES, SEGMENT_MS
from backlogctl.formats import format_bytes, format_count, format_duration, format_plural
from backlogctl.kafka.admin import TopicInfo
from backlogctl.kafka.log_dirs import LogDirs
from backlogctl.ledger.steps import has_stopped_consumers
from backlogctl.monitoring.watch.disks import Forecast
from backlogctl.replay.consumers.members import ask_brokers, find_readers, name_stopped
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.next_commands import CANCEL_ASKED
from backlogctl.replay.engine.plan import LEAVE_CONSUMERS
from backlogctl.replay.engine.values import (
    Account,
    Checked,
    Fact,
    InArchive,
    PlanFigure,
    Readers,
    Reads,
    RecoveryRecord,
    RecoveryStatus,
    Row,
    Table,
    Telling,
    Tone,
    Unexplained,
    Verification,
    make_actions,
)
from backlogctl.replay.kinds.offload.plan import (
    COVERED,
    EXPIRED,
    FORWARD,
    GIVEN_UP,
    THROWN_AWAY,
    CutGroup,
    OffloadPlan,
    PlannedFreeing,
    PlannedPlace,
)
from backlogctl.replay.present.status import make_standing
from backlogctl.values import GapState, Recovery, RecoveryState

ARCHIVES, DISCARDS = "archives", "discards"


def describe_offload_plan(plan: OffloadPlan, recovery: Recovery) -> Telling:
    unread = format_plural(plan.unread, "message")
    verdict = ARCHIVES if plan.place else DISCARDS
    does = "Moves" if plan.place else "Discards"
    into = " into an archive" if plan.place else ", for good"
    return Telling(
        verdict=verdict,
        verdict_words="plan: archived first" if plan.place else "plan: deleted for good",
        request=f"{'Offload' if plan.place else 'Discard'} at most {unread} of {plan.stream} "
        f"({recovery.id})",
        summary=f"{does} at most {unread} of topic {plan.topic} that group {plan.group} has not "
        f"read{into}, and frees the brokers' disks.",
        counts=_list_counts(plan),
        tables=(_draw_unread(plan), *_draw_cut(plan)),
        facts=_list_facts(plan),
        actions=make_actions(
            (
                ("stops", plan.stopped),
                ("moves", plan.moved),
                ("frees", plan.freed),
                ("gives back", plan.given_back),
            )
        ),
        other_groups=plan.other_groups,
        others_unknown=plan.others_unknown,
        warnings=plan.warnings,
        size=plan.unread,
        document=_make_document(plan, verdict),
    )


def _make_document(plan: OffloadPlan, verdict: str) -> dict[str, Any]:
    counts = {
        "unread": plan.unread,
        "bytes": plan.bytes,
        "frees": plan.freeing.most,
        "frees_at_least": plan.freeing.least,
        "cut_groups": len(plan.cut_groups),
    }
    return plan.describe(verdict, counts)


def _list_counts(plan: OffloadPlan) -> tuple[PlanFigure, ...]:
    counts = [
        PlanFigure("unread", plan.unread, "unread messages, at most", strong=True),
        PlanFigure("replicas", plan.replicas, "consumers that are stopped", in_facts=True),
    ]
    if plan.cut_groups:
        lost = sum(item.messages for item in plan.cut_groups)
        counts.append(PlanFigure("cut", lost, "messages that other groups lose, at most"))
    return tuple(counts)


def _draw_unread(plan: OffloadPlan) -> Table:
    rows = tuple(
        Row(
            (
                str(row.partition),
                format_count(row.unread),
                f"{row.committed:,}",
                f"{row.end:,}",
                "unknown" if row.bytes is None else format_bytes(row.bytes),
            ),
            row.unread,
        )
        for row in plan.partitions
        if row.unread
    )
    columns = ("partition", "unread", "committed", "last stable offset", "size")
    return Table("Partitions", columns, rows, unit="unread")


def _draw_cut(plan: OffloadPlan) -> tuple[Table, ...]:
    if not plan.cut_groups:
        return ()
    rows = tuple(
        Row((item.group, format_count(item.messages)), item.messages, "bad")
        for item in plan.cut_groups
    )
    title, columns = "Other groups that are cut", ("group", "loses at most")
    return (Table(title, columns, rows, unit="lost", noun="group"),)


def _list_facts(plan: OffloadPlan) -> tuple[Fact, ...]:
    size = "unknown" if plan.bytes is None else f"about {format_bytes(plan.bytes)}"
    facts = [
        Fact("size", f"{size}, one copy of what is unread", decides=True),
        Fact("disks", _say_disks(plan), _choose_full_tone(plan), decides=True),
        Fact("frees", plan.freeing.told, "bad" if plan.freeing.problem else ""),
    ]
    if plan.place is None:
        facts.append(Fact("archive", "none: it is deleted for good", "bad", decides=True))
    else:
        tone: Tone = "bad" if plan.place.problem else ""
        told = f"{plan.place.location}; {plan.place.told}"
        facts.append(Fact("archive", told, tone, decides=True))
    return tuple(facts)


def _say_disks(plan: OffloadPlan) -> str:
    known = [b for b in plan.disks.brokers if b.usable is not None and b.total is not None]
    told = ", ".join(
        f"broker {b.broker}: {format_bytes(b.usable)} of {format_bytes(b.total)} free"
        for b in known
    )
    return f"{told}; {plan.disks.told}" if told else plan.disks.told


def _choose_full_tone(plan: OffloadPlan) -> Tone:
    return "" if plan.disks.seconds_to_full is None else "bad"


# What came of an offload: what was archived, passed over, deleted and freed.


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


# How an offload stands: who reads, who is stopped, and what is only in the archive.


def describe_offload(
    workspace: Workspace, recovery: Recovery, plan: OffloadPlan, *, ask: bool
) -> RecoveryStatus:
    """Of the ledger, and what the brokers say where they answer."""
    steps = {step.step: step for step in workspace.ledger.steps.list(recovery.id)}
    properties = workspace.config.clusters[recovery.cluster].client_properties()
    readers, stopped, problem = Readers(Reads.ORIGINALS), "", ""
    if has_stopped_consumers(steps.values()):
        readers, problem = ask_brokers(
            recovery,
            lambda limit: find_readers(properties, recovery.group, limit),
            Readers(Reads.UNKNOWN),
            ask=ask,
        )
        stopped = name_stopped(plan.group, plan.replicas, steps, readers)
    return make_standing(
        workspace,
        recovery,
        readers,
        stopped=stopped,
        archive=_find_archive(workspace, recovery, is_cut="delete_records" in steps),
        problem=problem,
    )


def _find_archive(workspace: Workspace, recovery: Recovery, *, is_cut: bool) -> InArchive | None:
    record = workspace.ledger.archives.find(recovery.id)
    if record is None or record.purged_at is not None:
        return None
    return InArchive(record.location, record.messages, is_only_there=is_cut)


# What an offload will do to Kafka and to consumers, in sentences that an approver reads.


def describe_stopped(stream: Stream, launching: str, members: Sequence[str]) -> list[str]:
    """Who stops reading, and how."""
    told = [f"the consumers of group {stream.group}: {launching}"]
    if members:
        told.append(f"{format_plural(len(members), 'member')} of it now")
    else:
        told.append("the group has no members now")
    return told


def describe_moved(
    stream: Stream, unread: int, size: int | None, place: PlannedPlace | None
) -> list[str]:
    """Where the messages go, and how the group's offsets are set."""
    many = f"at most {format_plural(unread, 'message')}"
    if size is not None:
        many += f", about {format_bytes(size)}"
    where = f"into the archive {place.location}" if place else "nowhere: they are not archived"
    return [
        f"{many}, and what is written until the consumers are stopped: {where}",
        f"the committed offsets of group {stream.group}, to the last stable offsets of that time",
    ]


def describe_freed(
    stream: Stream, freeing: PlannedFreeing, cut: Sequence[CutGroup], *, archived: bool
) -> list[str]:
    """What is deleted from the brokers, and who loses by it."""
    after = "once it is archived and read back" if archived else "for good"
    told = [
        f"all of topic {stream.topic} up to these offsets is deleted, {after}",
        freeing.told,
    ]
    if freeing.ended:
        told.append(
            f"for that {SEGMENT_MS} of the topic is {ROLL_MS} for some seconds, and what it was "
            "after them; silent partitions get the marker of a transaction without messages"
        )
    told += [
        f"group {item.group} loses at most {format_plural(item.messages, 'message')}"
        for item in cut
    ]
    return told


def describe_freeing(
    log_dirs: LogDirs,
    topic: TopicInfo,
    cuts: Sequence[PartitionBacklog],
    ended: Collection[int],
    why: str,
) -> PlannedFreeing:
    """Between what and what, and why not all.

    Args:
        why: partitions are not in `ended`.
    """
    segment = int(topic.config.get(SEGMENT_BYTES, 0)) or None
    found = estimate_freed(
        log_dirs, cuts, replication=topic.replication, segment_bytes=segment, ended=ended
    )
    stays = "" if segment is None else f" (up to {format_bytes(segment)} each)"
    stays = f"the last segments{stays} may stay, since {why}" if why else ""
    if found.most is None or found.kept is None:
        told = f"how much that frees is unknown: {found.reason}" + (f"; {stays}" if why else "")
    elif found.kept:
        least = format_bytes(found.most - found.kept) if found.most > found.kept else "nothing"
        told = f"that frees between {least} and about {format_bytes(found.most)} on all brokers "
        told += f"together: {stays}"
    else:
        told = f"that frees about {format_bytes(found.most)} on all brokers together: the last "
        told += "segment of each partition is ended for it"
    if log_dirs.local_starts is not None:
        told += "; what only the remote storage has of the topic takes no room there"
    return PlannedFreeing(most=found.most, kept=found.kept, told=told, ended=tuple(sorted(ended)))


def list_numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def format_forecast(forecast: Forecast) -> str:
    """`broker 1 is full in 12 min at the present rate`."""
    if forecast.seconds is not None:
        told = f"broker {forecast.broker} is full in {format_duration(forecast.seconds)} at the "
        return told + "present rate" + (f"; {forecast.why}" if forecast.why else "")
    if forecast.is_known:
        return forecast.why
    return f"when they are full is unknown: {forecast.why}"


def describe_given_back(
    stream: Stream, place: PlannedPlace | None, *, has_source: bool
) -> list[str]:
    """What comes back, and how."""
    assert stream.consumers is not None
    replicas = format_plural(stream.consumers.replicas, "consumer")
    told = [f"{replicas} of group {stream.group}, which go on with what is written from then on"]
    if place is not None:
        told.append(
            "what was archived waits as a gap: the nightly backfill, or `backlogctl plan redrive "
            f"{stream.name} --from archive:...`, puts it back as it was"
        )
    elif has_source:
        told.append(
            "what was discarded is a gap: the nightly backfill, or `backlogctl plan rebuild "
            f"{stream.name}`, rebuilds it from the tables"
        )
    else:
        told.append("what was discarded never comes back: the stream has no source")
    return told
