"""Copies: replication factor, min.insync.replicas, leaders, racks, and internal topics.

Rules from Kafka's documentation of `min.insync.replicas` and `acks`, and from KIP-679.
"""

from __future__ import annotations

from collections.abc import Iterator

from backlog.numbers import format_plural
from monitoring.doctor.facts import Brokers, Replicas, Topic
from monitoring.doctor.finding import Finding, Level, Room

WANTED = 3
_SHOWN = 5


@Room.TOPIC.check(
    "unclean-leader-election",
    "Unclean leader election",
    "A replica that is behind may become the leader: what it does not have is gone, though "
    "it was acknowledged, and offsets are given a second time.",
    "A loss of this kind leaves no hole in the offsets.",
)
@Room.TOPIC.check(
    "min-insync-replicas",
    "How many copies `acks=all` means",
    "`acks=all` waits for the replicas in sync, and that may be the leader alone: "
    "`min.insync.replicas` is the number below which a write is refused instead.",
    "Judged with the replication factor: it should be one less. Equal to it, one broker that "
    "restarts stops every write, and so every recovery that puts messages back.",
)
@Room.TOPIC.check(
    "replication-factor",
    "Copies of each message",
    "With one replica a broken disk loses every message on it; with two, a single failure "
    "leaves either no safety or no writes.",
    "Three replicas with `min.insync.replicas` 2 is what survives one failure and goes on.",
)
def judge_replication(topic: Topic) -> Iterator[Finding]:
    """Copies of the topic's messages."""
    factor, least = topic.replication_factor, topic.read_number("min.insync.replicas")
    least_two = topic.make_alteration("min.insync.replicas", 2)
    reassign = "give each partition three replicas with kafka-reassign-partitions.sh, then"
    if factor < WANTED:
        found = f"replication factor {factor}"
        if least is not None:
            found += f", min.insync.replicas {least}"
        level = Level.LOSES if factor == 1 else Level.WARNS
        yield Finding("replication-factor", level, topic.subject, found, reassign, (least_two,))
    if least is not None and factor > 1:
        found = f"min.insync.replicas {least} with {format_plural(factor, 'replica')}"
        if least == 1:
            mend = "" if factor > 2 else reassign
            yield Finding(
                *("min-insync-replicas", Level.LOSES, topic.subject, found, mend), (least_two,)
            )
        elif least >= factor:
            less = topic.make_alteration("min.insync.replicas", factor - 1)
            yield Finding(
                *("min-insync-replicas", Level.STOPS, topic.subject, found),
                "" if factor > 2 else reassign,
                (less if factor > 2 else least_two,),
            )
    elif least is not None and least > factor:
        found = f"min.insync.replicas {least} with {format_plural(factor, 'replica')}: no write "
        yield Finding(
            *("min-insync-replicas", Level.STOPS, topic.subject, found + "with acks=all succeeds"),
            reassign,
            (least_two,),
        )
    if topic.settings.get("unclean.leader.election.enable") == "true":
        yield Finding(
            *("unclean-leader-election", Level.LOSES, topic.subject),
            "unclean.leader.election.enable is true",
            "",
            (topic.make_alteration("unclean.leader.election.enable", "false"),),
        )


@Room.TOPIC.check(
    "under-replicated",
    "Replicas out of sync",
    "Fewer copies are up to date than the topic is meant to have.",
)
@Room.TOPIC.check(
    "offline-partitions",
    "Partitions without a leader",
    "Nobody can read or write them until a replica comes back.",
)
def judge_partitions(topic: Topic) -> Iterator[Finding]:
    """Leaders and replicas as they are now."""
    least = topic.read_number("min.insync.replicas") or 1
    mend = "find out which brokers are missing, and start them"
    describe = (
        f"kafka-topics.sh --bootstrap-server {topic.addresses} --describe --topic {topic.name}",
    )
    offline = [p for p, one in topic.partitions.items() if one.leader < 0]
    if offline:
        found = f"{_name(offline)} without a leader"
        yield Finding("offline-partitions", Level.STOPS, topic.subject, found, mend, describe)
    behind = {
        p: one
        for p, one in topic.partitions.items()
        if len(one.in_sync) < len(one.replicas) and one.leader >= 0
    }
    for level, chosen, words in (
        (
            Level.STOPS,
            [p for p, one in behind.items() if len(one.in_sync) < least],
            f"below min.insync.replicas {least}: writes with acks=all are refused",
        ),
        (
            Level.LOSES,
            [p for p, one in behind.items() if len(one.in_sync) == 1 >= least],
            "with one replica in sync: one more failure loses what is acknowledged now",
        ),
        (
            Level.WARNS,
            [p for p, one in behind.items() if len(one.in_sync) >= max(2, least)],
            "with fewer replicas in sync than they have",
        ),
    ):
        if chosen:
            found = f"{_name(chosen)} {words}"
            yield Finding("under-replicated", level, topic.subject, found, mend, describe)


@Room.TOPIC.check(
    "racks",
    "Copies in one rack",
    "All copies of a partition in one rack are lost, or away, together.",
    "Only judged where brokers have `broker.rack`.",
)
@Room.TOPIC.check(
    "brokers",
    "Number of brokers",
    "Fewer than three brokers cannot hold three replicas, nor replace one that is away.",
)
def judge_brokers(topic: Topic, brokers: Brokers) -> Iterator[Finding]:
    """How many brokers, in which racks."""
    if len(brokers.racks) < WANTED:
        yield Finding(
            *("brokers", Level.WARNS, "the cluster"),
            f"it has {format_plural(len(brokers.racks), 'broker')}",
            "add brokers until there are three, then move replicas to them",
        )
    if not all(brokers.racks.values()):
        return
    together = [p for p, one in topic.partitions.items() if _share_rack(one, brokers)]
    if together:
        racks = sorted(set(brokers.racks.values()))
        yield Finding(
            *("racks", Level.WARNS, topic.subject),
            f"{_name(together)} with all replicas in one rack; the brokers' racks: "
            + ", ".join(racks),
            "kafka-reassign-partitions.sh with replicas in different racks"
            if len(racks) > 1
            else "brokers in another rack, then kafka-reassign-partitions.sh",
        )


@Room.TOPIC.check(
    "commit-log",
    "Replicas of `__consumer_offsets`",
    "Committed offsets are messages of an internal topic: with one replica a broken disk "
    "loses them, and each group starts where `auto.offset.reset` says.",
    "The setting counts when the topic is made, at the cluster's first commit.",
)
def judge_internal_topics(brokers: Brokers) -> Iterator[Finding]:
    """Those of commits and transactions, as the brokers make them."""
    there = len(brokers.racks)
    commits = brokers.read_numbers("offsets.topic.replication.factor")
    if commits and commits[-1] > there:
        yield Finding(
            *("commit-log", Level.STOPS, "the cluster"),
            f"offsets.topic.replication.factor is {commits[-1]} and there "
            f"{'is' if there == 1 else 'are'} {format_plural(there, 'broker')}: where "
            "__consumer_offsets does not exist yet, no group can commit",
            "set offsets.topic.replication.factor on every broker to at most their number",
        )
    elif commits and commits[0] == 1 and there > 1:
        yield Finding(
            *("commit-log", Level.LOSES, "the cluster"),
            f"offsets.topic.replication.factor is 1 with {there} brokers",
            "set offsets.topic.replication.factor to 3, and give __consumer_offsets three "
            "replicas with kafka-reassign-partitions.sh",
        )


def _share_rack(partition: Replicas, brokers: Brokers) -> bool:
    racks = {brokers.racks.get(number) for number in partition.replicas}
    return len(partition.replicas) > 1 and len(racks) == 1


def _name(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (", ..." if len(numbers) > _SHOWN else "")
    return f"{format_plural(len(numbers), 'partition')} ({shown})"
