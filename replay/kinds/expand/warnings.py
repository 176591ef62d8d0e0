"""What to know before an expansion is approved, one sentence each."""

from __future__ import annotations

from dataclasses import replace

from backlog.config import Stream
from backlog.numbers import format_duration, format_plural
from fanout.disk import DiskCheck
from fanout.layout import Layout, Load, measure_drain
from fanout.misplaced import count_misplaced
from fanout.quiet import STATIC_SECONDS
from fanout.skew import Skew
from replay.kinds.expand.backlog import Backlog
from replay.kinds.expand.plan import NAME
from replay.recovery.guards import warn_about_approval
from replay.recovery.workspace import Workspace

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


def warn_about_backlog(stream: Stream, backlog: Backlog, start_at: str) -> list[str]:
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


def warn_about_speed(stream: Stream, backlog: Backlog, layout: Layout, *, given: bool) -> list[str]:
    """How sure the drain times are, and whether they are good enough.

    Args:
        given: whether an operator said how fast a consumer is.
    """
    warnings: list[str] = []
    pace = backlog.pace
    if not given and pace.seconds < _SHORT_SECONDS:
        warnings.append(
            f"the speed of a consumer was measured over {pace.seconds:.0f} s only; "
            "`--rate N` says it for sure"
        )
    if pace.produced_per_second is None:
        warnings.append(
            "how fast the topic is written is not known: drain times are those of a topic at rest"
        )
    if layout.seconds_expanded is None:
        warnings.append(
            f"even {format_plural(layout.consumers, 'consumer')} do not keep up with what is "
            "written: the group will fall behind again"
        )
    consumers = stream.consumers
    if consumers and layout.consumers < layout.factor * min(
        consumers.replicas, backlog.topic.partitions
    ):
        cap = format_plural(layout.consumers, "consumer")
        warnings.append(f"`consumers.max_consumers` keeps it at {cap}")
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


def warn_about_keys(stream: Stream, backlog: Backlog, order: str) -> list[str]:
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
