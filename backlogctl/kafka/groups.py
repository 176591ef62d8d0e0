"""Admin verbs on consumer groups; see `backlogctl.kafka.admin`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from backlogctl.clock import Deadline
from backlogctl.errors import ClusterUnreachable, KafkaFailure
from backlogctl.kafka.clients import (
    Admin,
    Connection,
    ask,
    connect,
    retry_in_turns,
    retry_transient,
    seconds_left,
    wait_for,
    wait_for_broker,
)
from backlogctl.kafka.topics import DEFAULT_SECONDS, list_offsets
from backlogctl.values import LOG_START

# So long a coordinator is looked for before it is read why there is none.
_LOOK_SECONDS = 3.0
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed offset; `epoch` is the leader epoch in it, None where it carries none, LOG_START
    where it names the log start, and `offset` is that of now."""

    offset: int
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group; `partitions` are those it is assigned, by topic. `instance` is its
    `group.instance.id`: a static member, which stays until its session ends (KIP-345); else ""."""

    client_id: str
    host: str
    member_id: str
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    instance: str = ""

    @property
    def topics(self) -> frozenset[str]:
        """Those it is assigned partitions of."""
        return frozenset(self.partitions)

    def __str__(self) -> str:
        return f"{self.client_id} at {self.host}"


@dataclass(frozen=True, slots=True)
class GroupState:
    """`state` is Kafka's in lower case (`stable`, `empty`, `dead`, ...); `type` its protocol;
    `is_simple`: nobody ever joined it, its reader assigns its partitions itself."""

    state: str
    members: tuple[Member, ...]
    type: str = ""
    is_simple: bool = False

    @property
    def is_active(self) -> bool:
        """Whether the group has members or is about to have some."""
        return bool(self.members) or self.state not in ("empty", "dead")


def read_commits(
    connection: Connection,
    group: str,
    topic: str,
    partitions: Iterable[int],
    deadline: Deadline | None = None,
    require_stable: bool = False,
    log_starts: Mapping[int, int] | None = None,
) -> dict[int, Commit | None]:
    """The group's commits; None where it has none (Kafka's -1001).

    Args:
        log_starts: stand for the -2 that KafkaJS commits when it goes on at the log start; without
            them that is no commit.

    Raises:
        ClusterUnreachable, KafkaFailure: for any partition.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    wanted = [TopicPartition(topic, partition) for partition in partitions]
    subject, doing = f"group {group} on topic {topic}", "read committed offsets"
    if not wanted:
        return {}
    # Not the admin call: librdkafka 2.16 aborts the process when a broker goes away under an admin
    # request to a coordinator (its issue 4605), and such a client may never recover.
    wait_for_broker(admin, subject, doing, limit)
    reader = admin.open_reader(group, require_stable)

    def call() -> dict[int, Commit | None]:
        try:
            answer = ask_for_commits(reader, wanted, limit)
        except KafkaException as error:
            raise admin.translate(error, subject, doing, limit.seconds) from error
        finally:
            reader.poll(0)  # delivers its log lines
        return check_commits(admin, answer, subject, doing, log_starts or {})

    return retry_transient(admin, limit, call)


def ask_for_commits(
    reader: Consumer, wanted: list[TopicPartition], limit: Deadline
) -> list[TopicPartition]:
    """librdkafka looks for a coordinator that it is refused again and again, until the time is up;
    why stands among the messages."""
    while True:
        try:
            return reader.committed(wanted, timeout=min(_LOOK_SECONDS, seconds_left(limit)))
        except KafkaException as error:
            told = reader.poll(0)
            why = None if told is None else told.error()
            if why is not None and why.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise KafkaException(why) from error
            if limit.expired or error.args[0].code() != KafkaError._TIMED_OUT:
                raise


def committed_offsets(
    connection: Connection,
    group: str,
    topic: str,
    partitions: Iterable[int],
    deadline: Deadline | None = None,
    require_stable: bool = False,
) -> dict[int, int | None]:
    """`read_commits` without the epochs."""
    commits = read_commits(connection, group, topic, partitions, deadline, require_stable)
    return {p: None if commit is None else commit.offset for p, commit in commits.items()}


def list_consumer_groups(
    admin: Admin, subject: str, doing: str, limit: Deadline, wanted: str = ""
) -> list[Any]:
    """Classic and consumer groups of all brokers, as confluent-kafka lists them.

    Args:
        wanted: a group; where a broker lists it, the others need not answer.
    """

    def call(turn: Deadline) -> list[Any]:
        future = ask(admin, admin.list_consumer_groups, subject, doing, turn)
        listing = wait_for(admin, future, subject, doing, turn)
        if any(one.group_id == wanted for one in listing.valid):
            return list(listing.valid)
        for error in listing.errors:  # no cause: KafkaErrors are not exceptions, and have no trace
            raise admin.translate(error, subject, doing, turn.seconds)
        return list(listing.valid)

    return retry_in_turns(admin, limit, call)


def check_commits(
    admin: Admin,
    items: Sequence[TopicPartition] | None,
    subject: str,
    doing: str,
    log_starts: Mapping[int, int] | None = None,
) -> dict[int, Commit | None]:
    """An answer's commits by partition; None where there is none.
    Raises KafkaFailure: a partition was refused.
    """
    commits: dict[int, Commit | None] = {}
    for item in items or ():
        if item.error is not None:
            raise admin.translate(item.error, f"{subject}, partition {item.partition}", doing)
        epoch = cast(int | None, item.leader_epoch)  # the stub says int; it is None too
        known = None if epoch is None or epoch < 0 else epoch
        offset: int | None = item.offset
        if item.offset == OFFSET_BEGINNING:
            known = LOG_START
            offset = (log_starts or {}).get(item.partition)
        if offset is not None and offset < 0:
            offset = None
        commits[item.partition] = None if offset is None else Commit(offset, known)
    return commits


# Where a group is in a topic: commits and ends that fit together.
#
# After a restart or a change of leader a broker may answer with ends that it has not recovered
# yet: taken as they are, nothing would seem to be left. An end below what is known written or
# committed is therefore a failed reading.

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
    """By partition: the group's commits (None where it has none), the last stable offsets, and the
    log starts where something may be left."""

    commits: Mapping[int, int | None]
    ends: Mapping[int, int]
    log_starts: Mapping[int, int] = field(default_factory=dict)

    def find_next(self, partition: int) -> int:
        """The first offset that the group can still read: what retention removed is not left."""
        return max(self.commits[partition] or 0, self.log_starts.get(partition, 0))

    @property
    def lag(self) -> dict[int, int]:
        """Offsets left, so an upper bound on messages."""
        return {p: max(0, end - self.find_next(p)) for p, end in self.ends.items()}


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
            lagging = [p for p in numbers if (commits[p] or 0) < ends[p]]
            log_starts = list_offsets(admin, topic, lagging, "earliest", deadline=limit)
            return GroupStanding(commits, ends, log_starts)
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
        hint="look at the brokers' logs for a truncation; `backlogctl status STREAM` tells where "
        "the group goes on without a loss: not at the end, which skips what came since the cut",
    )
