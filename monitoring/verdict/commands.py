"""What to type next: every command that a status, the doctor or the page prints of a group or a
topic is made here, from what is wrong.

Who is woken at night pastes them. So each of them alone loses no message and lets no write be
refused; where only several steps together are safe, words say so, and there is no command.
tests/replay/doctor/test_printed_commands.py carries out all of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from backlogctl.monitoring.verdict.status import Urgency, Verdict, find_urgency
from backlogctl_delivery.visible import quote_word

HOUR, DAY = 3_600, 86_400
# A hold is given back when it ends, so it lasts until what is unread now is read: by the pace of
# the window, with half of that again. Where no pace is known, so long beyond the loss.
_SLACK, _TO_ACT = 1.5, 5 * HOUR
_HOLDS = {
    "6h": 6 * HOUR,
    "12h": 12 * HOUR,
    "24h": DAY,
    "2d": 2 * DAY,
    "3d": 3 * DAY,
    "7d": 7 * DAY,
    "14d": 14 * DAY,
    "30d": 30 * DAY,
}
# Java's Long.MAX_VALUE, Kafka's "never".
NEVER = 2**63 - 1
# The copies that survive one failure, and go on (Kafka's documentation of `min.insync.replicas`).
WANTED = 3
_REASSIGN = "give each partition three replicas with kafka-reassign-partitions.sh"


class TopicLike(Protocol):
    """What a command about a topic needs; `access` is of `name_access`, `settings` are in force,
    `own` those it sets itself."""

    @property
    def name(self) -> str: ...
    @property
    def access(self) -> str: ...
    @property
    def settings(self) -> Mapping[str, str]: ...
    @property
    def own(self) -> Collection[str]: ...


@dataclass(frozen=True, slots=True)
class Advice:
    """What mends it in words, "" where the commands say all; the commands, in this order."""

    mend: str = ""
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupTrouble:
    """A verdict on a group's topic, and what the configuration lets the tool do about it.

    Attributes:
        stream: "" for a group that no stream is about: it is added before it is repaired.
        seconds_to_loss, seconds_to_drain: None where they are not known.
        seconds_held: how long an operator's hold lasts yet; a shorter one would end it sooner.
        is_blocked: messages lie behind an open transaction, where no consumer gets to.
        seconds_unseen: until retention takes something, if nobody reads; None where a member does.
    """

    verdict: Verdict
    stream: str
    cluster: str
    group: str
    has_consumers: bool = False
    has_source: bool = False
    seconds_to_loss: float | None = None
    seconds_to_drain: float | None = None
    seconds_held: float = 0.0
    is_blocked: bool = False
    seconds_unseen: float | None = None


def advise_on_group(of: GroupTrouble) -> tuple[str, ...]:
    """The commands that help, the best first; none where all is well."""
    if not of.stream:
        needs_one = of.verdict in (
            *(Verdict.LOST, Verdict.LOSING, Verdict.STOP, Verdict.STALL, Verdict.BLOCKED),
        )
        place = f"--cluster {quote_word(of.cluster)} --group {quote_word(of.group)}"
        return (f"backlogctl status {place}",) if needs_one else ()
    expand = expand_stream(of.stream)
    match of.verdict:
        case Verdict.OK | Verdict.LAGGING | Verdict.WARN if (
            find_urgency(of.seconds_unseen) is Urgency.NOW
        ):
            least = find_hold_seconds(of.seconds_unseen or 0.0, None)
            return (suggest_hold(of.stream, max(least, of.seconds_held)), look_at_stream(of.stream))
        case Verdict.OK | Verdict.LAGGING:
            return ()
        case Verdict.LOSING:
            least = find_hold_seconds(of.seconds_to_loss or 0.0, of.seconds_to_drain)
            hold = suggest_hold(of.stream, max(least, of.seconds_held))
            if of.is_blocked:
                return (hold, list_transactions(of.stream))
            return (hold, expand) if of.has_consumers else (hold,)
        case Verdict.BLOCKED:
            return (list_transactions(of.stream),)
        case Verdict.LOST:
            gaps = list_gaps(of.stream)
            return (rebuild_stream(of.stream), gaps) if of.has_source else (gaps,)
        case Verdict.WARN:
            return (expand,) if of.has_consumers else ()
        case Verdict.STALL | Verdict.STOP if of.has_consumers:
            return (f"backlogctl consumers status {of.stream}",)
    return (look_at_stream(of.stream),)


def find_hold_seconds(seconds_to_loss: float, seconds_to_drain: float | None) -> float:
    """For how long retention has to wait, in seconds, so that nothing of now is lost."""
    if seconds_to_drain is None:
        return seconds_to_loss + _TO_ACT
    return max(seconds_to_loss + HOUR, _SLACK * seconds_to_drain)


def suggest_hold(stream: str, seconds: float) -> str:
    """Holds the topic's retention for at least so long; it is given back then."""
    return f"backlogctl hold {stream} --for {round_hold(seconds)}"


def round_hold(seconds: float) -> str:
    """The next longer one that a person would say: `6h`, `3d`."""
    days = f"{math.ceil(seconds / DAY)}d"
    return next((text for text, one in _HOLDS.items() if one >= seconds), days)


def list_transactions(stream: str) -> str:
    return f"backlogctl transactions list {stream}"


def look_at_stream(stream: str) -> str:
    return f"backlogctl status {stream}"


def audit_producers(stream: str) -> tuple[str, ...]:
    """Who writes what; reads batch headers only. None for a topic that no stream is about."""
    return (f"backlogctl audit producers {stream}",) if stream else ()


def list_gaps(stream: str) -> str:
    return f"backlogctl gaps {stream}"


def expand_stream(stream: str) -> str:
    return f"backlogctl plan expand {stream}"


def rebuild_stream(stream: str) -> str:
    return f"backlogctl plan rebuild {stream}"


def redrive_stream(stream: str, source: str) -> str:
    return f"backlogctl plan redrive {stream} --from {source}"


class RangeLike(Protocol):
    """Offsets of one partition, the end is left out: of a gap, a range, a part of an archive."""

    @property
    def partition(self) -> int: ...
    @property
    def start(self) -> int | None: ...
    @property
    def end(self) -> int | None: ...


def redrive_offsets(stream: str, ranges: Iterable[RangeLike], source: str = "log") -> str:
    """Puts back the messages at these offsets, where the source still has all of them."""
    places = [
        f"--offsets {each.partition}:{each.start}-{each.end - 1}"
        for each in sorted(ranges, key=lambda each: (each.partition, each.start or 0))
        if each.end is not None
    ]
    return " ".join((redrive_stream(stream, source), *places))


def is_hold(command: str) -> bool:
    """Whether it keeps messages from being deleted, and changes nothing else."""
    return command.startswith("backlogctl hold ")


def is_plan(command: str) -> bool:
    """Whether it makes a plan."""
    return command.startswith("backlogctl plan ")


def show_recovery(recovery: str) -> str:
    return f"backlogctl show {recovery}"


def name_access(properties: Mapping[str, Any]) -> str:
    """How Kafka's own tools reach a cluster; `admin.properties` has the login by Java's names."""
    from backlogctl.kafka.clients import find_addresses  # Airflow reads commands with its DAGs

    place = f"--bootstrap-server {quote_word(find_addresses(properties))}"
    is_plain = str(properties.get("security.protocol", "plaintext")).lower() == "plaintext"
    return place if is_plain else f"{place} --command-config admin.properties"


def reset_offset(access: str, group: str, topic: str, partition: int, at: int | None) -> str:
    """Sets a group without members back on one partition; None is the log start."""
    place = quote_word(f"{topic}:{partition}")
    return (
        f"kafka-consumer-groups.sh {access} --group {quote_word(group)} --topic {place} "
        f"--reset-offsets {'--to-earliest' if at is None else f'--to-offset {at}'} --execute"
    )


def create_index(dialect: str, table: str, column: str) -> str:
    """Who writes the table goes on meanwhile: PostgreSQL's plain statement would lock it."""
    name = f"{table}_{column}".replace(".", "_")
    how = "CONCURRENTLY " if dialect == "postgresql" else ""
    return f"CREATE INDEX {how}{name} ON {table} ({column})"


# Settings of a topic, by Kafka's own tools.


def alter_topic(topic: TopicLike, **settings: object) -> str:
    """Sets some of its settings: `min_insync_replicas=2` is `min.insync.replicas`."""
    words = ",".join(f"{name.replace('_', '.')}={value}" for name, value in settings.items())
    return f"{_begin(topic)} --add-config {words}"


def describe_topic_state(topic: TopicLike) -> str:
    """Leaders and replicas, partition by partition."""
    return f"kafka-topics.sh {topic.access} --describe --topic {quote_word(topic.name)}"


def _begin(topic: TopicLike) -> str:
    return (
        f"kafka-configs.sh {topic.access} --alter --entity-type topics "
        f"--entity-name {quote_word(topic.name)}"
    )


def advise_on_replicas(factor: int, least: int | None) -> Advice:
    """A topic with fewer than three replicas: the number of replicas comes first.

    Args:
        least: `min.insync.replicas`; None where it is not known.
    """
    if least is not None and least > 1:
        return Advice(_REASSIGN)
    refused = (
        "it would refuse every write with acks=all"
        if factor == 1
        else "one broker that restarts would stop every write with acks=all"
    )
    return Advice(f"{_REASSIGN}; only then set min.insync.replicas=2: before, {refused}")


def advise_on_least_in_sync(topic: TopicLike, factor: int, least: int, in_sync: int) -> Advice:
    """`min.insync.replicas` that is too low for the replicas, or too high.

    Args:
        factor, in_sync: the fewest replicas of a partition, and the fewest of them in sync now.
    """
    if least > factor:
        # What is refused now is taken again; more copies are another finding.
        most = factor - 1 if factor >= WANTED else factor
        return Advice("", (alter_topic(topic, min_insync_replicas=most),))
    if factor < WANTED:
        return advise_on_replicas(factor, least)
    if least == factor:
        return Advice("", (alter_topic(topic, min_insync_replicas=factor - 1),))
    if in_sync < 2:
        return Advice(
            "once at least two replicas of each partition are in sync, set "
            "min.insync.replicas=2: before, it would refuse writes with acks=all"
        )
    return Advice("", (alter_topic(topic, min_insync_replicas=2),))


def advise_on_unclean_elections(topic: TopicLike) -> Advice:
    return Advice("", (alter_topic(topic, unclean_leader_election_enable="false"),))


def advise_on_message_size(topic: TopicLike, needed: int, limit: int) -> Advice:
    """`needed` bytes of the largest message, and `limit`, what it takes now."""
    return Advice("", (alter_topic(topic, max_message_bytes=max(2 * needed, limit)),))


def advise_on_missing_flush(topic: TopicLike) -> Advice:
    """One replica, whose newest messages are in memory only."""
    return Advice("three replicas; with a single broker", (alter_topic(topic, flush_messages=1),))


def advise_on_needless_flush(topic: TopicLike) -> Advice:
    """Settings that are the topic's own go; those that come from the brokers are set aside."""
    names = ("flush.messages", "flush.ms")
    own = [name for name in names if name in topic.own]
    others = {
        name: NEVER
        for name in names
        if name not in topic.own and int(topic.settings.get(name, NEVER)) < NEVER
    }
    commands = [f"{_begin(topic)} --delete-config {','.join(own)}"] if own else []
    return Advice("", (*commands, *([alter_topic(topic, **others)] if others else [])))


def advise_on_short_retention(
    topic: TopicLike, stream: str, *, by_time: bool, bytes_a_second: float | None
) -> Advice:
    """A group that stops on a Friday evening loses messages: held over a weekend, or kept longer.

    Nothing is lowered. A hold asks first whether the disks have room; Kafka's tool does not.

    Args:
        by_time: `retention.ms` is what deletes first, else `retention.bytes`.
        bytes_a_second: of the busiest partition.
    """
    hold = (suggest_hold(stream, 3 * DAY),) if stream else ()
    kept = int(topic.settings.get("retention.ms", -1))
    raised: dict[str, object] = {}
    if by_time and kept >= 0:
        raised["retention_ms"] = max(7 * DAY * 1000, 2 * kept)
    limit = int(topic.settings.get("retention.bytes", -1))
    if limit >= 0 and bytes_a_second:
        raised["retention_bytes"] = max(2 * limit, round(7 * DAY * bytes_a_second))
    return Advice(
        "hold it for now; or raise it for good, where the disks have room",
        (*hold, *([alter_topic(topic, **raised)] if raised else [])),
    )


def advise_on_large_segments(topic: TopicLike, retention_ms: int, *, has_expired: bool) -> Advice:
    """Segments that keep messages for longer than retention.

    Args:
        has_expired: something unread is older than retention, or may be: only its segment keeps it.
    """
    wanted = max(60_000, retention_ms // 10)
    if has_expired:
        return Advice(
            f"once the group has read what is there, set segment.ms={wanted}: before, it would "
            "delete unread messages that are older than retention"
        )
    return Advice("", (alter_topic(topic, segment_ms=wanted),))


def advise_on_small_segments(topic: TopicLike, *, by_time: bool) -> Advice:
    """Larger ones, from the next one on: twenty to a retention.

    Args:
        by_time: `segment.ms` closes them, else `segment.bytes`.
    """
    kept = int(topic.settings.get("retention.ms" if by_time else "retention.bytes", -1))
    if by_time:
        wanted = max(600_000, kept // 20) if kept >= 0 else 7 * DAY * 1000
        return Advice("", (alter_topic(topic, segment_ms=wanted),))
    wanted = min(2**30, max(2**20, kept // 20)) if kept >= 0 else 2**30
    return Advice("", (alter_topic(topic, segment_bytes=wanted),))


def advise_on_compaction(topic: TopicLike, policy: str) -> Advice:
    """A compacted topic of events. Retention did not count for it so far, and would delete what is
    older at once."""
    has_retention = "delete" in policy
    kept = {} if has_retention else {"retention_ms": -1, "retention_bytes": -1}
    after = "" if has_retention else " this, and then choose how long it keeps them"
    return Advice(
        f"leave it where only the newest message of each key matters; else{after}",
        (alter_topic(topic, cleanup_policy="delete", **kept),),
    )


def advise_on_expired_arrivals(topic: TopicLike, stream: str, age_ms: int, unit: str) -> Advice:
    """Messages that are older than retention when they come.

    Args:
        age_ms: of the oldest.
        unit: what its timestamp counts, where that is not milliseconds; else "".
    """
    mend = f"let their producers write milliseconds instead of {unit}" if unit else ""
    return Advice(
        f"{mend or 'let their producers set the time of sending'}, or the broker its own "
        "(message.timestamp.type=LogAppendTime, for what comes then); until what is there is read, "
        "keep it, where the disks have room",
        (
            alter_topic(topic, retention_ms=-1 if unit else age_ms + 7 * DAY * 1000),
            *audit_producers(stream),
        ),
    )


def advise_on_future_timestamps(stream: str) -> Advice:
    """Refusing such messages would refuse all writes of who is wrong."""
    return Advice(
        "look who writes it, and mend that clock or unit; after that "
        "message.timestamp.after.max.ms=3600000 refuses such messages: before, every write of it",
        audit_producers(stream),
    )
