"""Where a group is in a topic: commits and ends that fit together.

After a restart or a change of leader a broker may answer with ends that it has not recovered yet:
taken as they are, nothing would seem to be left. An end below what is known written or committed
is therefore a failed reading.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from backlog.clock import Deadline
from backlog.errors import ClusterUnreachable, KafkaFailure
from backlog.kafka.clients import Admin
from backlog.kafka.groups import committed_offsets
from backlog.kafka.topics import list_offsets
from backlogctl_delivery.visible import quote_word

# Longer than a leader needs to recover its ends: then the messages are gone.
TRUNCATED_SECONDS = 20.0
_PAUSE = 0.1


class EndsBehind(KafkaFailure):
    """A log seems to end below what is known of it: what is left is unknown. Ask again."""

    code = "ends_behind"
    retryable = True


class LogTruncated(KafkaFailure):
    """A log has ended below what is known of it for so long that it is no passing answer."""

    code = "log_truncated"


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """By partition: the group's commits (None where it has none), and the last stable offsets."""

    commits: Mapping[int, int | None]
    ends: Mapping[int, int]

    @property
    def lag(self) -> dict[int, int]:
        """Offsets left, so an upper bound on messages."""
        return {p: max(0, end - (self.commits[p] or 0)) for p, end in self.ends.items()}


def read_standing(
    admin: Admin,
    group: str,
    topic: str,
    partitions: Iterable[int],
    limit: Deadline,
    *,
    require_stable: bool = False,
    written: Mapping[int, int] | None = None,
) -> GroupStanding:
    """Commits first, then the ends; asked again while an end lies below what is known.

    Args:
        admin: kept by those who ask often: it remembers since when an answer is wrong.
        written: offsets up to which partitions are known to be written.

    Raises:
        EndsBehind: until the deadline an end lay below a commit, or below what is written.
        LogTruncated: it has for 20 s: messages were lost, or the commit was set wrong.
        ClusterUnreachable, KafkaFailure.
    """
    numbers, known = tuple(partitions), written or {}
    seen: KafkaFailure | None = None
    while True:
        try:
            commits = committed_offsets(admin, group, topic, numbers, limit, require_stable)
            ends = list_offsets(admin, topic, numbers, "latest", "read_committed", limit)
            floors = {p: max(commits[p] or 0, known.get(p, 0)) for p in numbers}
            below = [p for p in numbers if ends[p] < floors[p]]
            # An open transaction holds the last stable offset back, and is no wrong answer.
            highs = list_offsets(admin, topic, below, "latest", deadline=limit)
        except ClusterUnreachable:
            # Out of time while it asked again: what it saw before says more.
            if seen is not None and limit.expired:
                raise seen from None
            raise
        behind = {p: high for p, high in highs.items() if high < floors[p]}
        if not behind:
            admin.behind_since.pop((group, topic), None)
            return GroupStanding(commits, ends)
        since = admin.behind_since.setdefault((group, topic), time.monotonic())
        seconds = time.monotonic() - since
        seen = _describe(group, topic, behind, floors, commits, seconds)
        if seconds >= TRUNCATED_SECONDS or limit.expired:
            raise seen
        admin.poll(limit.remaining(_PAUSE))


def _describe(
    group: str,
    topic: str,
    behind: Mapping[int, int],
    floors: Mapping[int, int],
    commits: Mapping[int, int | None],
    seconds: float,
) -> KafkaFailure:
    number, end = next(iter(behind.items()))
    known = "committed offset" if commits[number] == floors[number] else "known written offset"
    told = f"the log ends at {end}, below the {known} {floors[number]}"
    if more := len(behind) - 1:
        told += f", and {more} more partitions like it"
    subject = f"group {group} on topic {topic}[{number}]"
    if seconds < TRUNCATED_SECONDS:
        return EndsBehind(
            f"what is left is unknown: {told}; a broker that was restarted has not recovered it",
            subject=subject,
            hint="try again when the brokers are back",
        )
    return LogTruncated(
        f"{told}, for {seconds:.0f} s by now: messages were lost (an unclean leader election cuts "
        "a log back), or the offset was set wrong",
        subject=subject,
        hint="look at the brokers' logs for a truncation; then set the group to where it really "
        f"is: `kafka-consumer-groups.sh --bootstrap-server ... --group {quote_word(group)} --topic "
        f"{topic}:{number} --reset-offsets --to-offset {end} --execute`",
    )
