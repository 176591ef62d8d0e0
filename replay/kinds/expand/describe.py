"""What to know before an expansion is approved, one sentence each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from backlogctl.clock import Deadline
from backlogctl.config import Stream
from backlogctl.errors import KafkaFailure
from backlogctl.fanout.disk import DiskCheck
from backlogctl.fanout.keys import Skew, count_misplaced
from backlogctl.fanout.layout import Layout, Load, measure_drain
from backlogctl.fanout.quiet import STATIC_SECONDS
from backlogctl.fanout.relay.commits import READ_BESIDE, REPEATED, UNDECIDED
from backlogctl.fanout.unread import find_unread
from backlogctl.formats import (
    format_count,
    format_duration,
    format_moment,
    format_plural,
    format_rate,
)
from backlogctl.kafka.admin import committed_offsets, list_offsets
from backlogctl.kafka.clients import make_admin
from backlogctl.ledger import TemporaryTopic
from backlogctl.ledger.steps import has_stopped_consumers
from backlogctl.replay.consumers.copy_group import SET_FORWARD, UNTOLD, list_passed
from backlogctl.replay.consumers.kept_copy import find_topic, find_way_out
from backlogctl.replay.consumers.members import ask_brokers, find_readers, name_stopped
from backlogctl.replay.engine.guards import warn_about_approval
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.next_commands import WayOut
from backlogctl.replay.engine.values import (
    Account,
    Checked,
    Fact,
    LagReading,
    OnlyThere,
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
from backlogctl.replay.kinds.expand.plan import (
    NAME,
    ExpandPlan,
    PlannedPartition,
    StreamBacklog,
)
from backlogctl.replay.present.status import make_standing
from backlogctl.values import GapState, Recovery, RecoveryState

# Two commits of a consumer may lie seconds apart: less than this says little.
_SHORT_SECONDS = 60.0
# One key's share, in times of what each consumer would have.
_HEAVY = 1.5


def warn_about_stream(workspace: Workspace, stream: Stream) -> list[str]:
    """What the stream's own configuration, or another plan of it, means for this one."""
    warnings = warn_about_approval(workspace, stream, NAME)
    if stream.isolation == "read_uncommitted":
        warnings.append(
            "the group reads uncommitted data, the relay only committed: aborted messages are "
            "left out, and an open transaction holds back what comes after it"
        )
    return warnings


def warn_about_backlog(stream: Stream, backlog: StreamBacklog, start_at: str) -> list[str]:
    """What is lost already, where the relay begins by choice, and what the topic is."""
    warnings: list[str] = []
    if backlog.lost:
        warnings.append(
            f"at most {format_plural(backlog.lost, 'message')} of this group expired unread: "
            f"draining does not bring them back, `backlogctl plan rebuild {stream.name}` does"
        )
    for part in backlog.partitions:
        unread = part.unread
        if part.committed is not None or unread.high <= unread.log_start:
            continue
        told = f"partition {unread.partition} has no committed offset: the relay begins at "
        skipped = unread.start - unread.log_start
        if start_at == "latest":
            told += f"its end {unread.start:,}, {format_plural(skipped, 'message')} before it are "
            told += "never read"
        else:
            told += f"its log start {unread.start:,}; `--start latest` leaves what is there unread"
        warnings.append(told)
    if backlog.other_topics:
        warnings.append(
            f"the group reads other topics too ({', '.join(backlog.other_topics)}): nobody reads "
            "them until the original consumers are back; their retention is not looked at"
        )
    if static := [member for member in backlog.group.members if member.instance]:
        warnings.append(
            f"{format_plural(len(static), 'static member')} (`group.instance.id`): stopped, they "
            f"stay in the group until their session.timeout.ms is over; it is waited for up to "
            f"{STATIC_SECONDS:.0f} s, in which nobody reads"
        )
    if "compact" in backlog.topic.config.get("cleanup.policy", ""):
        warnings.append("the topic is compacted: holes between its offsets are no losses")
    if backlog.lag <= stream.expand.max_lag_at_cutover:
        warnings.append(
            f"no more than `expand.max_lag_at_cutover` ({stream.expand.max_lag_at_cutover:,}) is "
            "behind: the original consumers would do"
        )
    return warnings


def warn_about_speed(
    stream: Stream, backlog: StreamBacklog, load: Load, layout: Layout, *, given: bool
) -> list[str]:
    """How sure the drain times are, and whether they are good enough.

    Args:
        given: whether an operator said how fast a consumer is.
    """
    warnings: list[str] = []
    if not given and backlog.pace.seconds < _SHORT_SECONDS:
        warnings.append(
            f"the speed of a consumer was measured over {backlog.pace.seconds:.0f} s only; "
            "`--rate N` says it for sure"
        )
    if backlog.pace.produced_per_second is None:
        warnings.append(
            "how fast the topic is written is not known: drain times are those of a topic at rest"
        )
    if measure_drain(load.unlimited, layout.consumers) is None:
        warnings.append(
            f"even {format_plural(layout.consumers, 'consumer')} do not keep up with what is "
            "written: the group will fall behind again"
        )
    consumers = stream.consumers
    if consumers and layout.consumers < layout.factor * min(
        consumers.replicas, backlog.topic.partitions
    ):
        cap = backlog.name_cap(layout.consumers)
        warnings.append(f"{cap} keeps it at {format_plural(layout.consumers, 'consumer')}")
    if layout.wins is False:
        better = (
            f"a factor of {layout.smallest_factor} would win"
            if layout.smallest_factor
            else "no factor wins"
        )
        warnings.append(
            f"retention is faster than the drain, so it is raised first; without that {better}"
        )
    return warnings


def warn_about_keys(stream: Stream, backlog: StreamBacklog, order: str) -> list[str]:
    """Whether messages of a key stay in order; looks at the oldest unread ones."""
    if order == "round_robin":
        return ["messages of one key lose their order: they are spread evenly (`round_robin`)"]
    wrong, looked = count_misplaced(backlog.peeked, stream.partitioner, backlog.topic.partitions)
    if not wrong:
        return []
    return [
        f"{wrong} of {looked} keys looked at are not where `partitioner: {stream.partitioner}` "
        "puts them: a key that lies in several partitions has no order among them"
    ]


def warn_about_skew(skew: Skew, load: Load, layout: Layout, order: str) -> list[str]:
    """Whether one key keeps one consumer at work long after all others are through."""
    even = measure_drain(replace(load, largest_share=0.0), layout.consumers)
    if order == "round_robin" or skew.share <= _HEAVY / layout.consumers:
        return []
    now = layout.seconds_expanded
    takes = "is never drained" if now is None else f"takes {format_duration(now)}"
    instead = "" if even is None else f", {format_duration(even)} if they were spread"
    return [
        f"about {skew.share:.0%} of the messages have one key ({skew.looked:,} were looked at): "
        f"one consumer handles them all, so the backlog {takes}{instead}; `--order round_robin` "
        "spreads them, where the order of a key's messages is not needed"
    ]


def warn_about_disk(disk: DiskCheck) -> list[str]:
    """Where it is not known that the copy fits."""
    if disk.enough is None:
        return [f"whether the brokers' disks have room is not known: {disk.reason}"]
    return [] if disk.enough else [f"the copy does not fit: {disk.reason}"]


# An expansion's plan for people: what is behind, how long it takes, what is done to whom.

ORDER_WORDS = {
    "key": "messages of a key stay in order",
    "round_robin": "spread evenly, in no order",
}
_VERDICT_WORDS = {
    "wins": "plan: before retention",
    "loses": "plan: retention is faster",
    "no_deadline": "plan: no loss in sight",
}
_WORTH_SAYING = 1.5
_LEFT_OUT = ("transactional_prefix", "partitioner", "isolation")


def describe_expand_plan(plan: ExpandPlan, recovery: Recovery) -> Telling:
    unread = format_plural(plan.lag, "message")
    consumers = format_plural(plan.consumers, "consumer")
    verdict = name_verdict(plan)
    return Telling(
        verdict=verdict,
        verdict_words=_VERDICT_WORDS[verdict],
        request=f"Drain {unread} of {plan.stream} with {consumers} ({recovery.id})",
        summary=f"Drains {unread} of topic {plan.topic} that group {plan.group} has not read.",
        counts=_list_counts(plan),
        tables=(_draw_behind(plan),),
        facts=_list_facts(plan),
        actions=make_actions(
            (
                ("stops", plan.stopped),
                ("raises", plan.raised),
                ("creates", plan.created),
                ("gives back", plan.given_back),
            )
        ),
        other_groups=plan.other_groups,
        others_unknown=plan.others_unknown,
        warnings=plan.warnings,
        size=plan.lag,
        document=_make_document(plan, verdict),
    )


def name_verdict(plan: ExpandPlan) -> str:
    """`wins` or `loses` the race against retention; `no_deadline` where none is in sight."""
    return "no_deadline" if plan.wins is None else ("wins" if plan.wins else "loses")


def _make_document(plan: ExpandPlan, verdict: str) -> dict[str, Any]:
    counts = {
        "lag": plan.lag,
        "lost": plan.lost,
        "canary": plan.canary.messages,
        "consumers": plan.consumers,
        "temporary_partitions": plan.temporary.partitions,
    }
    return plan.describe(verdict, counts, _LEFT_OUT)


def _list_counts(plan: ExpandPlan) -> tuple[PlanFigure, ...]:
    counts = [
        PlanFigure("lag", plan.lag, "unread messages", strong=True, in_facts=True),
        PlanFigure("replicas", plan.replicas, "consumers in normal times", in_facts=True),
        PlanFigure("consumers", plan.consumers, "consumers while expanded", in_facts=True),
        PlanFigure(
            "temporary_partitions",
            plan.temporary.partitions,
            "partitions of the temporary topic",
            in_facts=True,
        ),
    ]
    if plan.lost:
        counts.append(PlanFigure("lost", plan.lost, "messages lost before, at most"))
    return tuple(counts)


def _draw_behind(plan: ExpandPlan) -> Table:
    """The partitions that are behind; without the last column where nothing was lost."""
    behind = [row for row in plan.partitions if row.lag]
    several = any(row.lost for row in behind)
    rows = []
    for row in behind:
        start = f"{row.start:,}" + ("" if row.committed is not None else " (no commit)")
        at = row.oldest_unread_at
        cells = [
            str(row.partition),
            format_count(row.lag),
            start,
            "unknown" if at is None else format_moment(at),
        ]
        if several:
            cells.append(format_count(row.lost))
        tone, toned = _choose_row_tone(row)
        rows.append(Row(tuple(cells), row.lag, tone, toned))
    columns = ("partition", "behind", "relay from", "oldest unread", *(["lost"] if several else []))
    return Table("Partitions", tuple(columns), tuple(rows), unit="behind")


def _choose_row_tone(row: PlannedPartition) -> tuple[Tone, int]:
    """What was lost is seen first, then that the group has no commit; and in which column."""
    if row.lost:
        return "bad", -1
    return ("", -1) if row.committed is not None else ("warn", 2)


def _list_facts(plan: ExpandPlan) -> tuple[Fact, ...]:
    now, expanded = plan.seconds_to_drain_now, plan.seconds_to_drain_expanded
    faster = ""
    if now and expanded and now / expanded >= _WORTH_SAYING:
        faster = f": {now / expanded:.0f} times as fast"
    consumers = format_plural(plan.consumers, "consumer")
    return (
        Fact(
            "as it is",
            f"{_say_drained(now)}, by {format_plural(plan.replicas, 'consumer')}",
            decides=True,
        ),
        Fact(
            "expanded",
            f"{_say_drained(expanded)}, by {consumers}{faster}",
            "bad" if expanded is None else "good",
            decides=True,
        ),
        Fact(
            "retention",
            _say_retention(plan),
            "bad" if plan.wins is False else "",
            decides=True,
        ),
        Fact("speed", _say_speed(plan)),
        Fact(
            "spread",
            f"{plan.factor} × the partitions, {plan.temporary.partitions:,} in all; "
            f"{ORDER_WORDS.get(plan.order, plan.order)}",
        ),
        Fact("relays into", f"topic {plan.temporary.topic}, read by {plan.recovery_group}"),
        Fact("relay engine", ": ".join(filter(None, (plan.engine, plan.engine_why)))),
        Fact("disk", plan.disk.told or "room enough", _choose_disk_tone(plan)),
        *(Fact(*one) for one in (("writes", plan.writes), ("tried", plan.tried)) if one[1]),
    )


def _choose_disk_tone(plan: ExpandPlan) -> Tone:
    return "bad" if plan.disk.enough is False else ""


def _say_drained(seconds: float | None) -> str:
    return "never drained" if seconds is None else f"drained in {format_duration(seconds)}"


def _say_retention(plan: ExpandPlan) -> str:
    held = plan.hold.needed
    if plan.seconds_to_loss is not None:
        told = f"deletes the oldest unread message in {format_duration(plan.seconds_to_loss)}"
        told += f" (by {plan.loss_by})"
    elif held:
        told = "is limited, and when it deletes what is unread is not known"
    else:
        told = "deletes nothing in sight"
    return f"{told}; it is raised meanwhile" if held and plan.raised else told


def _say_speed(plan: ExpandPlan) -> str:
    told = f"{format_rate(plan.rate_per_consumer)} by each consumer ({plan.rate_source})"
    written = plan.produced_per_second
    if written is None:
        return told
    return f"{told}, {format_rate(written) if written else 'nothing'} written meanwhile"


# What came of an expansion: whether what was relayed, written and handled is one number.

UNVERIFIED = "cancelled without verification"
_OUTSIDE: Mapping[str, str] = {
    UNDECIDED: "The group's offsets moved past what was relayed: what lies between was either read "
    "by a consumer that came back, or skipped. It is a possible gap.",
    READ_BESIDE: "A reader of the group committed past what was relayed, so that was left to it.",
    REPEATED: "Somebody set the group's offsets back: what lies between was handled once more.",
    SET_FORWARD: "Somebody set the offsets of the recovery's group forward: it was set back, and "
    "what lies between was handled.",
    UNTOLD: "The offsets of the recovery's group moved, and by whom is not known: it was set back, "
    "and what lies between was handled, perhaps once more.",
}


def account_for_expansion(plan: ExpandPlan, record: RecoveryRecord) -> Account:
    """Of the plan, and of what the ledger has on its runs."""
    counts: Mapping[str, Any] = record.recovery.detail.get("counts") or {}
    verification = _describe_verification(plan, record)
    many = format_plural(counts.get("relayed", plan.lag), "unread message")
    rebuilds = ""
    if any(gap.state is GapState.OPEN for gap in record.gaps):
        rebuilds = (
            f" Draining does not bring these back: `backlogctl plan rebuild {plan.stream}` does."
        )
    passed = len(list_passed(record.events))
    left_out = f" {_say_passed(passed, record.recovery)}" if passed else ""
    return Account(
        aim=f"to drain {format_plural(plan.lag, 'unread message')} of topic {plan.topic}",
        achieved=f"{many} of topic {plan.topic} drained, and the layout restored",
        verified=f"{'All else' if left_out else 'Everything'} that group {plan.group} had not "
        f"read was handled with "
        f"{plan.consumers:,} consumers instead of {plan.replicas:,}. What was relayed is what was "
        f"written and handled; the group's own consumers are back.{left_out}",
        cancelled="It was cancelled: what had been relayed was handled, and the layout restored."
        if record.steps
        else "It was cancelled before it began. Nothing was changed.",
        no_losses=f"Nothing of topic {plan.topic} is known to be lost.",
        after_losses=rebuilds,
        figures=tuple(_list_figures(plan, record, counts)),
        verification=verification,
        unexplained=_describe_rest(record, verification, counts),
    )


def _list_figures(
    plan: ExpandPlan, record: RecoveryRecord, counts: Mapping[str, Any]
) -> list[tuple[str, str]]:
    figures = [("unread when planned", f"{plan.lag:,}")]
    if record.burndown:
        figures.append(("handled", f"{record.burndown[-1].handled:,}"))
    figures.append(("consumers", f"{plan.replicas:,} → {plan.consumers:,}"))
    if rate := counts.get("drained_per_second"):
        figures.append(("drained", f"{rate:,.0f}/s"))
    return figures


def _describe_verification(plan: ExpandPlan, record: RecoveryRecord) -> Verification:
    step = record.find_step("verify")
    detail: Mapping[str, Any] = (
        step.detail if step and step.is_complete else record.recovery.detail.get("verified", {})
    )
    failure = record.recovery.detail if record.recovery.state is RecoveryState.FAILED else {}
    checks: tuple[Checked, ...] = ()
    result: Literal["passed", "failed", "pending"] = "pending"
    told = "Nothing was verified yet."
    if "relayed" in detail:
        result = "passed"
        told = (
            "The temporary topic was read to its end as a read_committed consumer sees it and "
            "held against what the relay counted, partition by partition; nothing in it was "
            "unread. Then the original group was watched until it moved, or had nothing left to "
            "read."
        )
        checks = (
            Checked("relayed, by the counters in the relay's own commits", detail["relayed"]),
            Checked("written, counted by reading the temporary topic", detail.get("written")),
        )
    elif failure.get("code") == "verification_failed" or record.find_last(UNVERIFIED):
        result, told = "failed", "The temporary topic is not what was relayed, and is kept."
    relayed: Mapping[str, int] = detail.get("partitions", {})
    return Verification(
        result=result,
        told=told,
        checks=checks,
        columns=("partition", "unread when planned", "relayed"),
        partitions=tuple(
            (row.partition, row.lag, relayed.get(str(row.partition))) for row in plan.partitions
        ),
    )


def _describe_rest(
    record: RecoveryRecord, verification: Verification, counts: Mapping[str, Any]
) -> Unexplained:
    reasons = [
        "What is relayed is not what was unread when planned: the group read on until it was "
        "stopped, and new messages came until the relay ended.",
        "Aborted messages are not relayed: no read_committed consumer would have read them.",
        "Handled more than once is allowed: where consumers stop and others go on, what was "
        "handled and not committed is handled again, as after any rebalance.",
    ]
    reasons += [_OUTSIDE[action] for action in _OUTSIDE if record.find_last(action)]
    if passed := list_passed(record.events):
        reasons.append(_say_passed(len(passed), record.recovery))
    if verification.result == "passed":
        return Unexplained(_compare(verification.checks, counts), reasons=tuple(reasons))
    if not record.burndown:
        return Unexplained("Nothing was relayed.")
    last = record.burndown[-1]
    told = (
        f"Not known yet. When last looked at, {format_plural(last.relayed, 'message')} were "
        f"relayed and {last.handled:,} handled; {last.source_lag:,} were left in the topic and "
        f"{last.temporary_lag:,} in the temporary topic."
    )
    return Unexplained(told, reasons=tuple(reasons))


def _say_passed(count: int, recovery: Recovery) -> str:
    many = format_plural(count, "message")
    return (
        f"{many} that the consumers could not handle were passed on purpose, and are kept: "
        f"`backlogctl plan redrive {recovery.stream} --from passed:{recovery.id}` puts them back."
    )


def _compare(checks: Sequence[Checked], counts: Mapping[str, Any]) -> str:
    """Whether what was relayed, written and handled are one number."""
    found = {
        "relayed": checks[0].value,
        "written": checks[1].value,
        # Not the burn-down's: its last sample is a moment before the end.
        "handled": counts.get("handled"),
    }
    known = {name: value for name, value in found.items() if value is not None}
    if len(set(known.values())) == 1:
        total = format_plural(checks[0].value or 0, "message")
        return f"Nothing: {' = '.join(known)}, {total}."
    return f"Not the same: {', '.join(f'{value:,} {name}' for name, value in known.items())}."


# How an expansion stands: what the ledger has, and what the brokers say where they answer.

# An offset that is left may be a control record: so few are read.
_FEW = 20


def describe_expansion(
    workspace: Workspace, recovery: Recovery, plan: ExpandPlan, *, ask: bool
) -> RecoveryStatus:
    """Who reads, who is stopped, and what exists only in the temporary topic."""
    steps = {step.step: step for step in workspace.ledger.steps.list(recovery.id)}
    temporary = _find_temporary(workspace, recovery)
    properties = workspace.config.clusters[recovery.cluster].client_properties()
    readers, stopped, problem = Readers(Reads.ORIGINALS), "", ""
    if has_stopped_consumers(steps.values()):
        readers, problem = ask_brokers(
            recovery,
            lambda limit: find_readers(properties, recovery.group, limit, plan.recovery_group),
            Readers(Reads.UNKNOWN),
            ask=ask,
        )
        stopped = name_stopped(plan.group, plan.replicas, steps, readers)
    only_there: OnlyThere | None = None
    way_out: WayOut | None = None
    planned = (plan.topic_id, plan.partition_count)
    if ask and not problem:
        way_out, problem = ask_brokers(
            recovery,
            lambda limit: find_way_out(workspace, recovery, temporary, planned, limit),
            None,
            ask=True,
        )
    if temporary is not None:
        messages: int | None = None if "canary" in steps else 0
        if not problem and messages is None:
            messages, problem = ask_brokers(
                recovery,
                lambda limit: _count_left(workspace, recovery, plan, temporary, limit),
                None,
                ask=ask,
            )
        last = workspace.ledger.burndown.latest(recovery.id)
        known = None if last is None else LagReading(last.temporary_lag, last.at)
        only_there = OnlyThere(temporary.name, messages, known)
    return make_standing(
        workspace,
        recovery,
        readers,
        stopped=stopped,
        only_there=only_there,
        problem=problem,
        way_out=way_out,
    )


def _find_temporary(workspace: Workspace, recovery: Recovery) -> TemporaryTopic | None:
    known = workspace.ledger.temporary_topics.get(recovery.id)
    return known if known is not None and known.deleted_at is None else None


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
    if find_topic(admin, topic, limit)[0] != temporary.topic_id:
        raise KafkaFailure(
            "it is gone, with what was in it and not handled", subject=f"topic {topic}"
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
