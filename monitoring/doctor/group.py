"""The group: its verdict, its type, and how its partitions are shared out."""

from __future__ import annotations

from collections.abc import Iterator

from backlogctl.formats import format_plural
from backlogctl.kafka.group_types import explain_unsupported_group
from backlogctl.kafka.groups import GroupState
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel, CheckScope
from backlogctl.monitoring.doctor.facts import BrokerFacts, Topic
from backlogctl.monitoring.verdict.commands import look_at_stream
from backlogctl.monitoring.verdict.status import GroupStatus, Verdict
from backlogctl.monitoring.verdict.summary import describe_held

_BAD = {
    Verdict.LOST: CheckLevel.LOSES,
    Verdict.LOSING: CheckLevel.LOSES,
    Verdict.STOP: CheckLevel.LOSES,
    Verdict.STALL: CheckLevel.LOSES,
    Verdict.BEYOND_END: CheckLevel.LOSES,
    Verdict.REWIND: CheckLevel.WARNS,
}
_OTHER_WAY = {"disabled": "either way", "upgrade": "back to classic", "downgrade": "to KIP-848"}


@CheckScope.GROUP.check(
    "group-course",
    "A group that loses, stands still or jumped",
    "Each of these verdicts loses or repeats messages if nobody acts.",
)
def judge_course(status: GroupStatus) -> Iterator[CheckFinding]:
    """What `status` says of it, where that is bad."""
    level = _BAD.get(status.verdict)
    if status.verdict is Verdict.LAGGING and status.next_commands:
        level = CheckLevel.UNKNOWN  # a reader that is not seen, and retention is near
    if level is not None:
        yield CheckFinding(
            *("group-course", level, f"group {status.group}", status.sentence, ""),
            tuple(dict.fromkeys((*status.next_commands[:1], look_at_stream(status.stream)))),
        )


@CheckScope.GROUP.check(
    "open-transaction",
    "A transaction that stays open",
    "Readers of committed data get nothing that lies behind it, while retention goes on: what "
    "expires meanwhile nobody has read.",
    "Only where it has been open for longer than this topic's transactions usually are. "
    "`backlogctl transactions list` names all that are open, and how to abort one.",
)
def judge_transactions(status: GroupStatus) -> Iterator[CheckFinding]:
    """Each partition on which one has been open for too long."""
    for part in status.partitions:
        if part.held is None:
            continue
        who = part.held.transaction
        yield CheckFinding(
            *("open-transaction", CheckLevel.LOSES, f"topic {status.topic}"),
            describe_held(part),
            "let its producer end it; abort it where that is gone"
            if who is not None
            else "find out who left it open, with Kafka's own command where it may be asked",
            tuple(one for one in status.next_commands if "transactions" in one),
        )


@CheckScope.GROUP.check(
    "group-type",
    "Type of the group",
    "Only classic and consumer groups (KIP-848) have committed offsets that a recovery can "
    "work with.",
)
def judge_type(group: str, kind: str | None) -> Iterator[CheckFinding]:
    if why := explain_unsupported_group(kind):
        yield CheckFinding(
            *("group-type", CheckLevel.STOPS, f"group {group}", why),
            "recover it by its own means: `kafka-share-groups.sh`, or the reset tool of "
            "Kafka Streams",
        )


@CheckScope.GROUP.check(
    "group-migration",
    "Change of the group protocol",
    "Consumers of the other protocol cannot join while members of this one are there, so "
    "consumers that are moved one by one stay outside.",
    "`group.consumer.migration.policy` of the brokers; `bidirectional` allows both ways.",
)
def judge_migration(group: str, state: GroupState, brokers: BrokerFacts) -> Iterator[CheckFinding]:
    """Whether consumers could be moved to the other protocol one by one."""
    policies = brokers.read_words("group.consumer.migration.policy") - {"bidirectional"}
    if policies and state.members and state.type in ("classic", "consumer"):
        policy = min(policies)
        yield CheckFinding(
            *("group-migration", CheckLevel.WARNS, f"group {group}"),
            f"it is a {state.type} group with members, and group.consumer.migration.policy is "
            f"{policy}: it cannot change {_OTHER_WAY.get(policy, 'freely')} while they are there",
            "stop all members before the others start, or set "
            "group.consumer.migration.policy=bidirectional on every broker",
        )


@CheckScope.GROUP.check(
    "static-membership",
    "Rebalances without static membership",
    "Each restart of a member moves partitions; with `group.instance.id` a member that comes "
    "back within its session keeps its own (KIP-345).",
)
@CheckScope.GROUP.check(
    "unassigned",
    "Partitions that no member has",
    "Nobody reads them, though the group has members: what is in them expires unread.",
)
@CheckScope.GROUP.check(
    "assignment-skew",
    "Partitions shared out unevenly",
    "The member with the most partitions decides when the backlog is drained.",
)
@CheckScope.GROUP.check(
    "idle-members",
    "Members without work",
    "A partition is read by one member: more members than partitions change nothing.",
    "It is what `plan expand` is for: more partitions for a time.",
)
def judge_members(
    group: str, state: GroupState, topic: Topic, rebalancing: int, samples: int
) -> Iterator[CheckFinding]:
    """How the topic's partitions are shared out.
    `rebalancing`: in how many of `samples` the group was rebalancing.
    """
    if not state.members or state.state != "stable":
        return
    subject, count = f"group {group}", len(topic.partitions)
    work = sorted(sum(map(len, one.partitions.values())) for one in state.members)
    ours = {number for one in state.members for number in one.partitions.get(topic.name, ())}
    if missing := sorted(set(topic.partitions) - ours):
        shown = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        yield CheckFinding(
            *("unassigned", CheckLevel.LOSES, subject),
            f"{format_plural(len(missing), 'partition')} of {topic.name} ({shown}) "
            f"{'is' if len(missing) == 1 else 'are'} assigned to none of its "
            f"{format_plural(len(state.members), 'member')}",
            "check that every member subscribes to the topic; consumers that assign partitions "
            "themselves must name all of them",
        )
    if idle := work.count(0):
        yield CheckFinding(
            *("idle-members", CheckLevel.WARNS, subject),
            f"{idle} of {format_plural(len(state.members), 'member')} have no partition: "
            f"{topic.name} has {count}",
            f"{count} consumers are enough; more for a time is what `plan expand` is for",
        )
    counts = work[idle:]
    # One more than another is what cannot be shared evenly.
    if counts and counts[-1] > counts[0] + 1 and counts[-1] >= 2 * counts[0]:
        yield CheckFinding(
            *("assignment-skew", CheckLevel.WARNS, subject),
            f"one member has {counts[-1]} partitions, another {counts[0]}",
            "partition.assignment.strategy CooperativeStickyAssignor, the same on every member, "
            "and the same subscription",
        )
    if rebalancing and not all(one.instance for one in state.members):
        yield CheckFinding(
            *("static-membership", CheckLevel.WARNS, subject),
            f"it was rebalancing in {rebalancing} of {format_plural(samples, 'sample')}, and "
            "not every member has a group.instance.id",
            "give each consumer a group.instance.id that it keeps when it is started again",
        )
