"""Copies: replication factor, min.insync.replicas, leaders, racks, and internal topics.

Rules from Kafka's documentation of `min.insync.replicas` and `acks`, and from KIP-679.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta

from backlogctl.formats import format_bytes, format_duration, format_plural
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel, CheckScope
from backlogctl.monitoring.doctor.facts import BrokerFacts, Newest, Replicas, Topic
from backlogctl.monitoring.verdict.commands import (
    NEVER,
    WANTED,
    Advice,
    advise_on_compaction,
    advise_on_large_segments,
    advise_on_least_in_sync,
    advise_on_message_size,
    advise_on_missing_flush,
    advise_on_needless_flush,
    advise_on_replicas,
    advise_on_short_retention,
    advise_on_small_segments,
    advise_on_unclean_elections,
    describe_topic_state,
)
from backlogctl.monitoring.verdict.status import GroupStatus

_SHOWN = 5


@CheckScope.TOPIC.check(
    "unclean-leader-election",
    "Unclean leader election",
    "A replica that is behind may become the leader: what it does not have is gone, though "
    "it was acknowledged, and offsets are given a second time.",
    "A loss of this kind leaves no hole in the offsets.",
)
@CheckScope.TOPIC.check(
    "min-insync-replicas",
    "How many copies `acks=all` means",
    "`acks=all` waits for the replicas in sync, and that may be the leader alone: "
    "`min.insync.replicas` is the number below which a write is refused instead.",
    "Judged with the replication factor: it should be one less. Equal to it, one broker that "
    "restarts stops every write, and so every recovery that puts messages back.",
)
@CheckScope.TOPIC.check(
    "replication-factor",
    "Copies of each message",
    "With one replica a broken disk loses every message on it; with two, a single failure "
    "leaves either no safety or no writes.",
    "Three replicas with `min.insync.replicas` 2 is what survives one failure and goes on.",
)
def judge_replication(topic: Topic) -> Iterator[CheckFinding]:
    factor, least = topic.replication_factor, topic.read_number("min.insync.replicas")
    if factor < WANTED:
        found = f"replication factor {factor}"
        if least is not None:
            found += f", min.insync.replicas {least}"
        level = CheckLevel.LOSES if factor == 1 else CheckLevel.WARNS
        yield _make(("replication-factor", level, topic), found, advise_on_replicas(factor, least))
    if least is not None and (least > factor or factor > 1):
        found = f"min.insync.replicas {least} with {format_plural(factor, 'replica')}"
        level = CheckLevel.LOSES if least == 1 else CheckLevel.STOPS
        if least > factor:
            found += ": no write with acks=all succeeds"
        if least == 1 or least >= factor:
            advice = advise_on_least_in_sync(topic, factor, least, topic.in_sync)
            yield _make(("min-insync-replicas", level, topic), found, advice)
    if topic.settings.get("unclean.leader.election.enable") == "true":
        yield _make(
            ("unclean-leader-election", CheckLevel.LOSES, topic),
            "unclean.leader.election.enable is true",
            advise_on_unclean_elections(topic),
        )


def _make(what: tuple[str, CheckLevel, Topic], found: str, advice: Advice) -> CheckFinding:
    check, level, topic = what
    return CheckFinding(check, level, topic.subject, found, advice.mend, advice.commands)


@CheckScope.TOPIC.check(
    "under-replicated",
    "Replicas out of sync",
    "Fewer copies are up to date than the topic is meant to have.",
)
@CheckScope.TOPIC.check(
    "offline-partitions",
    "Partitions without a leader",
    "Nobody can read or write them until a replica comes back.",
)
def judge_partitions(topic: Topic) -> Iterator[CheckFinding]:
    least = topic.read_number("min.insync.replicas") or 1
    mend = "find out which brokers are missing, and start them"
    advice = Advice(mend, (describe_topic_state(topic),))
    offline = [p for p, one in topic.partitions.items() if one.leader < 0]
    if offline:
        what = ("offline-partitions", CheckLevel.STOPS, topic)
        yield _make(what, f"{_name(offline)} without a leader", advice)
    behind = {
        p: one
        for p, one in topic.partitions.items()
        if len(one.in_sync) < len(one.replicas) and one.leader >= 0
    }
    for level, chosen, words in (
        (
            CheckLevel.STOPS,
            [p for p, one in behind.items() if len(one.in_sync) < least],
            f"below min.insync.replicas {least}: writes with acks=all are refused",
        ),
        (
            CheckLevel.LOSES,
            [p for p, one in behind.items() if len(one.in_sync) == 1 >= least],
            "with one replica in sync: one more failure loses what is acknowledged now",
        ),
        (
            CheckLevel.WARNS,
            [p for p, one in behind.items() if len(one.in_sync) >= max(2, least)],
            "with fewer replicas in sync than they have",
        ),
    ):
        if chosen:
            yield _make(("under-replicated", level, topic), f"{_name(chosen)} {words}", advice)


@CheckScope.TOPIC.check(
    "racks",
    "Copies in one rack",
    "All copies of a partition in one rack are lost, or away, together.",
    "Only judged where brokers have `broker.rack`.",
)
@CheckScope.TOPIC.check(
    "brokers",
    "Number of brokers",
    "Fewer than three brokers cannot hold three replicas, nor replace one that is away.",
)
def judge_brokers(topic: Topic, brokers: BrokerFacts) -> Iterator[CheckFinding]:
    if len(brokers.racks) < WANTED:
        yield CheckFinding(
            *("brokers", CheckLevel.WARNS, "the cluster"),
            f"it has {format_plural(len(brokers.racks), 'broker')}",
            "add brokers until there are three, then move replicas to them",
        )
    if not all(brokers.racks.values()):
        return
    together = [p for p, one in topic.partitions.items() if _share_rack(one, brokers)]
    if together:
        racks = sorted(set(brokers.racks.values()))
        yield CheckFinding(
            *("racks", CheckLevel.WARNS, topic.subject),
            f"{_name(together)} with all replicas in one rack; the brokers' racks: "
            + ", ".join(racks),
            "kafka-reassign-partitions.sh with replicas in different racks"
            if len(racks) > 1
            else "brokers in another rack, then kafka-reassign-partitions.sh",
        )


@CheckScope.TOPIC.check(
    "commit-log",
    "Replicas of `__consumer_offsets`",
    "Committed offsets are messages of an internal topic: with one replica a broken disk "
    "loses them, and each group starts where `auto.offset.reset` says.",
    "The setting counts when the topic is made, at the cluster's first commit.",
)
def judge_internal_topics(brokers: BrokerFacts) -> Iterator[CheckFinding]:
    """Those of commits and transactions, as the brokers make them."""
    there = len(brokers.racks)
    commits = brokers.read_numbers("offsets.topic.replication.factor")
    if commits and commits[-1] > there:
        yield CheckFinding(
            *("commit-log", CheckLevel.STOPS, "the cluster"),
            f"offsets.topic.replication.factor is {commits[-1]} and there "
            f"{'is' if there == 1 else 'are'} {format_plural(there, 'broker')}: where "
            "__consumer_offsets does not exist yet, no group can commit",
            "set offsets.topic.replication.factor on every broker to at most their number",
        )
    elif commits and commits[0] == 1 and there > 1:
        yield CheckFinding(
            *("commit-log", CheckLevel.LOSES, "the cluster"),
            f"offsets.topic.replication.factor is 1 with {there} brokers",
            "set offsets.topic.replication.factor to 3, and give __consumer_offsets three "
            "replicas with kafka-reassign-partitions.sh",
        )


def _share_rack(partition: Replicas, brokers: BrokerFacts) -> bool:
    racks = {brokers.racks.get(number) for number in partition.replicas}
    return len(partition.replicas) > 1 and len(racks) == 1


def _name(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (", ..." if len(numbers) > _SHOWN else "")
    return f"{format_plural(len(numbers), 'partition')} ({shown})"


# Whether what a recovery writes would be taken: sizes, flushes, transactions.

# Our headers and the batch around a single message (Kafka protocol, record batch: 61 bytes).
OVERHEAD_BYTES = 512
# What relay and injection ask for.
TRANSACTION_MS = 15_000
_FULL = 0.8
_OFTEN_MESSAGES = 1_000_000
_OFTEN_MS = 60_000


@CheckScope.TOPIC.check(
    "message-size",
    "Largest message against `max.message.bytes`",
    "A message that is put back has a few headers more than the first time, and the topic "
    "must still take it.",
    "The newest 200 messages of each partition are looked at, before compression.",
)
def judge_message_size(topic: Topic, newest: Newest) -> Iterator[CheckFinding]:
    limit = topic.read_number("max.message.bytes")
    if limit is None or newest.largest is None:
        return
    needed = newest.largest + OVERHEAD_BYTES
    if needed > _FULL * limit:
        level = CheckLevel.STOPS if needed > limit else CheckLevel.WARNS
        yield _make(
            ("message-size", level, topic),
            f"the largest of the newest messages has {format_bytes(newest.largest)}, "
            f"max.message.bytes is {format_bytes(limit)}",
            advise_on_message_size(topic, needed, limit),
        )


@CheckScope.TOPIC.check(
    "flush",
    "Flush settings",
    "Kafka acknowledges from memory and relies on other replicas: with one replica only a "
    "flush to disk survives a power cut, and with several a forced flush only costs speed.",
    "This is where old texts disagree: those that ask for `flush.messages=1` speak of a "
    "single replica, those that forbid it of replicated topics.",
)
def judge_flush(topic: Topic) -> Iterator[CheckFinding]:
    messages, milliseconds = topic.read_number("flush.messages"), topic.read_number("flush.ms")
    if messages is None or milliseconds is None:
        return
    often = messages < _OFTEN_MESSAGES or milliseconds < _OFTEN_MS
    if topic.replication_factor == 1 and messages > 1:
        yield _make(
            ("flush", CheckLevel.LOSES, topic),
            f"one replica, and {_say_flush(messages, milliseconds)}: a power cut loses what was "
            "acknowledged last",
            advise_on_missing_flush(topic),
        )
    elif topic.replication_factor > 1 and often:
        yield _make(
            ("flush", CheckLevel.WARNS, topic),
            f"{topic.replication_factor} replicas, and {_say_flush(messages, milliseconds)}: "
            "replication keeps them already",
            advise_on_needless_flush(topic),
        )


@CheckScope.TOPIC.check(
    "transactions",
    "Transactions of the cluster",
    "Messages are put back and relayed in transactions: where the cluster cannot begin one, a "
    "recovery stops at its first message.",
)
def judge_transactions(brokers: BrokerFacts) -> Iterator[CheckFinding]:
    """Whether a transaction can begin, and live as long as ours."""
    subject, there = "the cluster", len(brokers.racks)
    longest = brokers.read_numbers("transaction.max.timeout.ms")
    if longest and longest[0] < TRANSACTION_MS:
        yield CheckFinding(
            *("transactions", CheckLevel.STOPS, subject),
            f"transaction.max.timeout.ms is {longest[0]}, and a recovery asks for {TRANSACTION_MS}",
            f"set transaction.max.timeout.ms on every broker to at least {TRANSACTION_MS}",
        )
    factors = brokers.read_numbers("transaction.state.log.replication.factor")
    leasts = brokers.read_numbers("transaction.state.log.min.isr")
    if factors and factors[-1] > there:
        yield CheckFinding(
            *("transactions", CheckLevel.STOPS, subject),
            f"transaction.state.log.replication.factor is {factors[-1]} with {there} broker"
            f"{'' if there == 1 else 's'}: where __transaction_state does not exist yet, no "
            "transaction can begin",
            "set transaction.state.log.replication.factor on every broker to at most their number",
        )
    elif factors and leasts and leasts[-1] >= factors[0]:
        why = f"with {factors[0]} replicas: no transaction can be written"
        if leasts[-1] == factors[0]:
            if there == 1:
                return
            why = "with as many replicas: one broker that restarts stops every transaction"
        yield CheckFinding(
            *("transactions", CheckLevel.STOPS, subject),
            f"transaction.state.log.min.isr is {leasts[-1]} {why}",
            f"set transaction.state.log.min.isr on every broker to {max(1, factors[0] - 1)}",
        )


def _say_flush(messages: int, milliseconds: int) -> str:
    parts = []
    if messages < NEVER:
        parts.append(f"flush.messages {messages}")
    if milliseconds < NEVER:
        parts.append(f"flush.ms {milliseconds} ({format_duration(milliseconds / 1000)})")
    return " and ".join(parts) if parts else "no flush is forced"


# From Friday evening to Monday morning, and some hours to mend it.
WEEKEND = timedelta(hours=72)


@CheckScope.RETENTION.check(
    "retention",
    "How long a stopped group has",
    "Retention deletes what is old or too much, read or not; this is the time between a "
    "consumer that stops and the first lost message.",
    "Time and size are judged together, with the real lag and rate: whichever comes first. "
    "Shorter than `watch.horizon`, a loss cannot be announced as early as configured; shorter "
    "than 72 hours, a weekend is too long.",
)
def judge_retention(
    stream: str,
    topic: Topic,
    horizon: timedelta,
    newest: Newest | None = None,
    status: GroupStatus | None = None,
) -> Iterator[CheckFinding]:
    """How long a group may stand still.

    Args:
        horizon: how far ahead a loss is announced.
        newest: without it retention by size is not judged.
    """
    by_time, by_size = _find_time(topic, status), _find_size(topic, newest, status)
    times = [(seconds, how) for seconds, how in (by_time, by_size) if seconds is not None]
    if not times:
        return
    seconds, how = min(times)
    if seconds >= WEEKEND.total_seconds():
        return
    level = CheckLevel.LOSES if seconds < horizon.total_seconds() else CheckLevel.WARNS
    yield _make(
        ("retention", level, topic),
        f"a group that stops now loses its first message in {format_duration(seconds)} ({how})",
        advise_on_short_retention(
            topic,
            stream,
            by_time=by_time[0] is not None and by_time[0] < WEEKEND.total_seconds(),
            bytes_a_second=_find_byte_rate(topic, newest, status),
        ),
    )


_LOCAL = ("local.retention.ms", "local.retention.bytes")


@CheckScope.RETENTION.check(
    "tiered",
    "Tiered storage",
    "Older messages are in the remote storage alone, and count for no broker's disk: a copy of "
    "them takes room that the topic itself does not take.",
    "`retention.ms` and `retention.bytes` are for all of the topic and decide what is lost; "
    "`local.retention.ms` and `local.retention.bytes` only say when a segment that is uploaded "
    "leaves the brokers' disks (-2: as the former). How fast the remote storage is read, no broker "
    "tells.",
)
def judge_tiered(topic: Topic) -> Iterator[CheckFinding]:
    """What the two retentions of a tiered topic mean (KIP-405)."""
    if topic.settings.get("remote.storage.enable") != "true":
        return
    if missing := [name for name in _LOCAL if topic.read_number(name) is None]:
        yield CheckFinding(
            *("tiered", CheckLevel.UNKNOWN, topic.subject),
            f"the topic is tiered, and what brokers keep on their own disks is unknown: "
            f"{' and '.join(missing)} cannot be read",
            "ask the operators of the cluster",
        )
    elif local := topic.kept_locally:
        yield CheckFinding(
            *("tiered", CheckLevel.WARNS, topic.subject),
            f"it keeps messages {topic.kept}, of which brokers keep on their own disks {local}; "
            "what is older is in the remote storage alone",
            "reckon with the remote storage where a group is further behind than that: try how "
            "fast it is read before a recovery has to",
        )


@CheckScope.RETENTION.check(
    "segments",
    "Segments that make retention coarse",
    "Only whole segments are deleted: with large ones messages stay longer than configured, "
    "and then go many at once.",
)
def judge_segments(
    topic: Topic, newest: Newest | None = None, status: GroupStatus | None = None
) -> Iterator[CheckFinding]:
    keep = topic.read_number("retention.ms")
    if keep is None or keep <= 0 or "delete" not in topic.settings.get("cleanup.policy", "delete"):
        return
    spans = [(topic.read_number("segment.ms") or 0) / 1000]
    rate, size = _find_byte_rate(topic, newest, status), topic.read_number("segment.bytes")
    if rate and size:
        spans.append(size / rate)
    span = min(spans)
    if span * 1000 > keep:
        yield _make(
            ("segments", CheckLevel.WARNS, topic),
            f"a segment holds up to {format_duration(span)} and retention is "
            f"{format_duration(keep / 1000)}: messages stay up to "
            f"{format_duration(span + keep / 1000)}, then go a segment at a time",
            advise_on_large_segments(topic, keep, has_expired=_may_have_expired(status)),
        )


# A segment takes two memory maps, of its indexes, and Linux gives a process so many at first
# (`vm.max_map_count`; Kafka's documentation, "OS").
_MAPS, _MAPS_EACH = 65_530, 2
_MANY_SEGMENTS = 1_000
_SHORTEST = timedelta(minutes=10)


@CheckScope.RETENTION.check(
    "small-segments",
    "Segments that are too small",
    "Each segment has three files and two memory maps on every replica: thousands of them take a "
    "broker's file handles and maps, until it ends, and make each of its starts slow.",
    "How many there may be is reckoned from `segment.ms` and `segment.bytes` and from retention.",
)
def judge_small_segments(
    topic: Topic,
    brokers: BrokerFacts,
    newest: Newest | None = None,
    status: GroupStatus | None = None,
) -> Iterator[CheckFinding]:
    size, milliseconds = topic.read_number("segment.bytes"), topic.read_number("segment.ms")
    is_cleaned = "delete" not in topic.settings.get("cleanup.policy", "delete")
    if not size or not milliseconds or is_cleaned:  # the cleaner puts small segments together
        return
    rate, seconds = _find_byte_rate(topic, newest, status), milliseconds / 1000
    by_size = size / rate if rate else None
    span = seconds if by_size is None else min(seconds, by_size)
    keep, limit = topic.read_number("retention.ms"), topic.read_number("retention.bytes")
    limits = []
    if keep is not None and keep >= 0:
        limits.append(keep / 1000 / span)
    if limit is not None and limit >= 0 and (by_size is None or by_size <= seconds):
        limits.append(limit / size)
    most = min(limits, default=math.inf)
    if most <= _MANY_SEGMENTS or (math.isinf(most) and span >= _SHORTEST.total_seconds()):
        return
    replicas = len(topic.partitions) * topic.replication_factor / max(1, len(brokers.racks))
    level = CheckLevel.STOPS if most * replicas * _MAPS_EACH > _MAPS else CheckLevel.WARNS
    count = "any number of" if math.isinf(most) else f"up to {round(most):,}"
    why = (
        f"segment.ms is {format_duration(seconds)}"
        if by_size is None or seconds < by_size
        else f"segment.bytes is {format_bytes(size)}, full after {format_duration(by_size)}"
    )
    yield _make(
        ("small-segments", level, topic),
        f"{why}: a partition that is written comes to {count} segments",
        advise_on_small_segments(topic, by_time=by_size is None or seconds < by_size),
    )


def _may_have_expired(status: GroupStatus | None) -> bool:
    """Whether something unread may be older than retention."""
    return status is None or any(
        part.lag != 0 and not part.seconds_retained for part in status.partitions
    )


@CheckScope.RETENTION.check(
    "compaction",
    "Compaction",
    "Compaction keeps the newest message of each key and deletes those before it, read or "
    "not: right for a table, a loss for events.",
)
def judge_compaction(topic: Topic) -> Iterator[CheckFinding]:
    policy = topic.settings.get("cleanup.policy", "")
    if "compact" in policy:
        advice = advise_on_compaction(topic, policy)
        what = ("compaction", CheckLevel.LOSES, topic)
        yield _make(what, f"cleanup.policy is {policy}", advice)


@CheckScope.RETENTION.check(
    "offsets-retention",
    "How long commits are kept",
    "A group that is empty for longer than `offsets.retention.minutes` loses its committed "
    "offsets: it then starts at the end and skips, or at the beginning and repeats.",
)
def judge_offsets_retention(
    topic: Topic, brokers: BrokerFacts, horizon: timedelta
) -> Iterator[CheckFinding]:
    minutes = brokers.read_numbers("offsets.retention.minutes")
    keep = topic.read_number("retention.ms")
    if not minutes or keep is None:
        return
    kept = minutes[0] * 60
    if keep >= 0 and kept * 1000 >= keep:
        return
    yield CheckFinding(
        "offsets-retention",
        CheckLevel.LOSES if kept < horizon.total_seconds() else CheckLevel.WARNS,
        "the cluster",
        f"offsets.retention.minutes is {minutes[0]} ({format_duration(kept)}), and {topic.subject} "
        f"keeps its messages {topic.kept}",
        "set offsets.retention.minutes on every broker above the retention of what is read",
    )


def _find_time(topic: Topic, status: GroupStatus | None) -> tuple[float | None, str]:
    keep = topic.read_number("retention.ms")
    if keep is None or keep < 0 or "delete" not in topic.settings.get("cleanup.policy", "delete"):
        return None, ""
    how = f"retention.ms {format_duration(keep / 1000)}"
    left = [] if status is None else [one.seconds_retained for one in status.partitions]
    known = [one for one in left if one is not None]
    return min([keep / 1000, *known]), how


def _find_size(
    topic: Topic, newest: Newest | None, status: GroupStatus | None
) -> tuple[float | None, str]:
    limit = topic.read_number("retention.bytes")
    rate = _find_byte_rate(topic, newest, status)
    if limit is None or limit < 0 or not rate:
        return None, ""
    how = (
        f"retention.bytes {format_bytes(limit)} a partition, and the busiest is written "
        f"{format_bytes(round(rate))}/s"
    )
    return limit / rate, how


def _find_byte_rate(
    topic: Topic, newest: Newest | None, status: GroupStatus | None
) -> float | None:
    """Bytes a second of the busiest partition, before compression; None where nothing is known."""
    if newest is None or newest.mean is None or status is None:
        return None
    rates = [one.produced_per_second for one in status.partitions]
    known = [one for one in rates if one]
    return max(known) * newest.mean if known else None
