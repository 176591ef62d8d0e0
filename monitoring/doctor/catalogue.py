"""Every check of the doctor: what it is about and why it matters; docs/doctor.md is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Room(StrEnum):
    """Where a check looks."""

    TOPIC = "Topic and brokers"
    RETENTION = "Retention"
    GROUP = "Group and its consumers"
    LOG = "Producers, from the log"
    PRODUCER = "Producer, from a configuration file"
    CONSUMER = "Consumer, from a configuration file"
    DELIVERY = "Outboxes and look-back"
    RIGHTS = "Rights"
    TOOL = "The tool itself"


@dataclass(frozen=True, slots=True)
class Check:
    """`why` is one or two sentences, shown with each finding; `more` stands in the docs only."""

    name: str
    room: Room
    title: str
    why: str
    more: str = ""


_CHECKS = (
    Check(
        "replication-factor", Room.TOPIC, "Copies of each message",
        "With one replica a broken disk loses every message on it; with two, a single failure "
        "leaves either no safety or no writes.",
        "Three replicas with `min.insync.replicas` 2 is what survives one failure and goes on.",
    ),
    Check(
        "min-insync-replicas", Room.TOPIC, "How many copies `acks=all` means",
        "`acks=all` waits for the replicas in sync, and that may be the leader alone: "
        "`min.insync.replicas` is the number below which a write is refused instead.",
        "Judged with the replication factor: it should be one less. Equal to it, one broker that "
        "restarts stops every write, and so every recovery that puts messages back.",
    ),
    Check(
        "brokers", Room.TOPIC, "Number of brokers",
        "Fewer than three brokers cannot hold three replicas, nor replace one that is away.",
    ),
    Check(
        "unclean-leader-election", Room.TOPIC, "Unclean leader election",
        "A replica that is behind may become the leader: what it does not have is gone, though "
        "it was acknowledged, and offsets are given a second time.",
        "A loss of this kind leaves no hole in the offsets.",
    ),
    Check(
        "offline-partitions", Room.TOPIC, "Partitions without a leader",
        "Nobody can read or write them until a replica comes back.",
    ),
    Check(
        "under-replicated", Room.TOPIC, "Replicas out of sync",
        "Fewer copies are up to date than the topic is meant to have.",
    ),
    Check(
        "racks", Room.TOPIC, "Copies in one rack",
        "All copies of a partition in one rack are lost, or away, together.",
        "Only judged where brokers have `broker.rack`.",
    ),
    Check(
        "message-size", Room.TOPIC, "Largest message against `max.message.bytes`",
        "A message that is put back has a few headers more than the first time, and the topic "
        "must still take it.",
        f"The newest {200} messages of each partition are looked at, before compression.",
    ),
    Check(
        "flush", Room.TOPIC, "Flush settings",
        "Kafka acknowledges from memory and relies on other replicas: with one replica only a "
        "flush to disk survives a power cut, and with several a forced flush only costs speed.",
        "This is where old texts disagree: those that ask for `flush.messages=1` speak of a "
        "single replica, those that forbid it of replicated topics.",
    ),
    Check(
        "transactions", Room.TOPIC, "Transactions of the cluster",
        "Messages are put back and relayed in transactions: where the cluster cannot begin one, a "
        "recovery stops at its first message.",
    ),
    Check(
        "commit-log", Room.TOPIC, "Replicas of `__consumer_offsets`",
        "Committed offsets are messages of an internal topic: with one replica a broken disk "
        "loses them, and each group starts where `auto.offset.reset` says.",
        "The setting counts when the topic is made, at the cluster's first commit.",
    ),
    Check(
        "retention", Room.RETENTION, "How long a stopped group has",
        "Retention deletes what is old or too much, read or not; this is the time between a "
        "consumer that stops and the first lost message.",
        "Time and size are judged together, with the real lag and rate: whichever comes first. "
        "Shorter than `watch.horizon`, a loss cannot be announced as early as configured; shorter "
        "than 72 hours, a weekend is too long.",
    ),
    Check(
        "segments", Room.RETENTION, "Segments that make retention coarse",
        "Only whole segments are deleted: with large ones messages stay longer than configured, "
        "and then go many at once.",
    ),
    Check(
        "compaction", Room.RETENTION, "Compaction",
        "Compaction keeps the newest message of each key and deletes those before it, read or "
        "not: right for a table, a loss for events.",
    ),
    Check(
        "offsets-retention", Room.RETENTION, "How long commits are kept",
        "A group that is empty for longer than `offsets.retention.minutes` loses its committed "
        "offsets: it then starts at the end and skips, or at the beginning and repeats.",
    ),
    Check(
        "future-timestamps", Room.RETENTION, "Messages from the future",
        "Retention by time goes by the newest time of a segment: one message dated ahead keeps "
        "its whole segment, and forecasts by age are wrong.",
    ),
    Check(
        "group-course", Room.GROUP, "A group that loses, stands still or jumped",
        "Each of these verdicts loses or repeats messages if nobody acts.",
    ),
    Check(
        "group-type", Room.GROUP, "Type of the group",
        "Only classic and consumer groups (KIP-848) have committed offsets that a recovery can "
        "work with.",
    ),
    Check(
        "group-migration", Room.GROUP, "Change of the group protocol",
        "Consumers of the other protocol cannot join while members of this one are there, so "
        "consumers that are moved one by one stay outside.",
        "`group.consumer.migration.policy` of the brokers; `bidirectional` allows both ways.",
    ),
    Check(
        "idle-members", Room.GROUP, "Members without work",
        "A partition is read by one member: more members than partitions change nothing.",
        "It is what `plan expand` is for: more partitions for a time.",
    ),
    Check(
        "assignment-skew", Room.GROUP, "Partitions shared out unevenly",
        "The member with the most partitions decides when the backlog is drained.",
    ),
    Check(
        "unassigned", Room.GROUP, "Partitions that no member has",
        "Nobody reads them, though the group has members: what is in them expires unread.",
    ),
    Check(
        "static-membership", Room.GROUP, "Rebalances without static membership",
        "Each restart of a member moves partitions; with `group.instance.id` a member that comes "
        "back within its session keeps its own (KIP-345).",
    ),
    Check(
        "not-idempotent", Room.LOG, "Messages without a producer id",
        "Without idempotence the broker cannot see whether a batch is missing, late or there "
        "twice: what such a producer loses leaves no trace.",
        "The headers of the newest batches are read, without decompressing them: about 1 MiB of "
        "each partition, 64 MiB and 10 seconds at all. Each finding says how much it was. "
        "`backlogctl audit producers` reads the whole log.",
    ),
    Check(
        "epoch-restarted", Room.LOG, "Epochs that were raised",
        "An idempotent producer raises its epoch when batches failed and it cannot know whether "
        "the broker has them: messages may be missing, and the log does not show which.",
        "Transactions raise epochs too, and are left out.",
    ),
    Check(
        "sequence-jump", Room.LOG, "Numbers that do not go on",
        "A broker takes a batch only with the next number, so a break means that it had "
        "forgotten the producer, or lost batches it had taken.",
    ),
    Check(
        "hot-partition", Room.LOG, "A partition with much more than its share",
        "The consumer of that partition decides when a backlog is drained, and more consumers do "
        "not help.",
        "By the offsets that each partition got in the last hour that has messages: more than "
        "twice the mean, of at least 1,000.",
    ),
    Check(
        "producer-acks", Room.PRODUCER, "`acks`",
        "Only with `acks=all` has a message reached more than one broker when it is acknowledged.",
    ),
    Check(
        "producer-retries", Room.PRODUCER, "`retries` and `delivery.timeout.ms`",
        "A leader that moves refuses for some seconds: a producer that gives up before loses what "
        "its application does not send again.",
    ),
    Check(
        "producer-idempotence", Room.PRODUCER, "`enable.idempotence` and requests in flight",
        "Without idempotence a retry may write a message twice, and with several requests in "
        "flight also change their order (KIP-98).",
    ),
    Check(
        "producer-buffer", Room.PRODUCER, "`buffer.memory`, `max.block.ms`, `linger.ms`",
        "What waits in memory is lost when the process ends, and when the buffer is full a send "
        "fails after `max.block.ms`.",
    ),
    Check(
        "consumer-commits", Room.CONSUMER, "Automatic commits",
        "Offsets that are committed by time say what was fetched, not what was done: after a "
        "crash the difference is skipped, and no hole shows it.",
    ),
    Check(
        "consumer-reset", Room.CONSUMER, "`auto.offset.reset`",
        "It decides without a word where a group without valid commits starts: `latest` skips "
        "everything that is unread, and so does a group whose messages expired.",
    ),
    Check(
        "consumer-polls", Room.CONSUMER, "`max.poll.interval.ms` and `max.poll.records`",
        "A member that handles its messages for longer is put out of the group: its partitions "
        "move, and what it did is done again.",
    ),
    Check(
        "consumer-isolation", Room.CONSUMER, "`isolation.level`",
        "A reader of uncommitted messages handles those of aborted transactions too, as a "
        "recovery leaves them when it is interrupted.",
    ),
    Check(
        "client-file", Room.CONSUMER, "Settings that are unknown or contradict each other",
        "A client refuses to start with settings that exclude each other, and ignores names it "
        "does not know.",
    ),
    Check(
        "outbox-table", Room.DELIVERY, "The table of an outbox",
        "Messages are committed into it and sent from it: where it is missing, or is of another "
        "version, nothing is sent.",
        "Compared with the columns and indexes of this version; indexes by their columns, whatever "
        "they are called.",
    ),
    Check(
        "outbox-locks", Room.DELIVERY, "SKIP LOCKED",
        "Senders pass by rows that another one holds; where the database cannot, one sender that "
        "hangs holds up all others.",
        "PostgreSQL, MariaDB from 10.6 and MySQL from 8.0.1 can.",
    ),
    Check(
        "outbox-keep", Room.DELIVERY, "How long an outbox keeps what was sent",
        "A stream is rebuilt from these rows: those that are deleted before their message expires "
        "cannot bring it back.",
        "Where a stream's source is this outbox: `keep` against the retention of its topic.",
    ),
    Check(
        "outbox-stream", Room.DELIVERY, "A stream and its outbox",
        "A rebuild places each message where it was sent at first: it must know the same cluster "
        "and partitioner as the sender.",
    ),
    Check(
        "late", Room.DELIVERY, "Messages that are late",
        "What was committed is told to nobody until they are sent.",
        "Older than `late`, though Kafka answers. Later messages of a parked one's key wait for "
        "it, and are told with it.",
    ),
    Check(
        "parked", Room.DELIVERY, "Parked messages",
        "A message that failed as often as it may is tried no more, until somebody takes it up; in "
        "an outbox it holds up its key.",
    ),
    Check(
        "look-back-topic", Room.DELIVERY, "The topic of look-back",
        "Applications prepare their messages on it, keyed by business id: what is lost there, was "
        "never prepared.",
        "Retention, copies and `min.insync.replicas` are judged as those of a stream's topic.",
    ),
    Check(
        "look-back-keep", Room.DELIVERY, "How long look-back knows what has ended",
        "A message that is read again after it was forgotten is a new one, and is sent again.",
        "Offsets are read again after a reset, or when the group's commits have expired.",
    ),
    Check(
        "look-back-tables", Room.DELIVERY, "The tables of look-back",
        "What is prepared is stored by day; without a partition for today nothing can be stored.",
        "`lookback run` makes tables, and partitions three days ahead.",
    ),
    Check(
        "look-back-database", Room.DELIVERY, "The database of look-back",
        "SQLite is for trying out: instances on other hosts cannot share it.",
    ),
    Check(
        "look-back-service", Room.DELIVERY, "Services that look-back asks",
        "Of an application that falls silent only its service knows what became of a transaction.",
        "Its name is resolved and compared with the addresses that may be asked; nobody is asked.",
    ),
    Check(
        "rights", Room.RIGHTS, "What the tool may do",
        "What a recovery needs is asked for before anything is touched: a missing right stops it.",
        "By job, in docs/permissions.md.",
    ),
    Check(
        "unread", Room.RIGHTS, "What could not be read",
        "What was not read cannot be judged: no finding is no proof here.",
    ),
    Check(
        "ledger", Room.TOOL, "The ledger",
        "Gaps, plans, approvals and progress are in it: without it nothing is planned or run.",
    ),
    Check(
        "clock", Room.TOOL, "Clocks",
        "Leases, holds, windows and forecasts compare times of several hosts.",
        "The clock of the cluster's controller (DescribeQuorum, KIP-836) and of a PostgreSQL "
        "ledger are compared with this host's.",
    ),
    Check(
        "staging-disk", Room.TOOL, "Disk of staging",
        "Rebuilt messages lie in `staging.dir` until they are verified.",
    ),
    Check(
        "versions", Room.TOOL, "Versions",
        "With versions that it was never tried with, the tool may fail when it is needed.",
        "Tested: Kafka 4.3, Java 17. Java 21 is taken; older brokers may work.",
    ),
    Check(
        "spark", Room.TOOL, "Java and Spark",
        "A rebuild starts Spark, which needs Java and a few libraries.",
    ),
    Check(
        "sources", Room.TOOL, "Source tables",
        "A rebuild reads them: it has to reach them, and an index on the time column decides "
        "between seconds and hours of load on the database.",
    ),
)  # fmt: skip
CATALOGUE: Mapping[str, Check] = {check.name: check for check in _CHECKS}
