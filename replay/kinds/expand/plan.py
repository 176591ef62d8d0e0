"""The plan of an expansion: what is behind, the temporary layout, and what is done to whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from backlogctl.fanout.layout import MAX_FACTOR
from backlogctl.formats import format_bytes, format_duration, format_plural
from backlogctl.replay.engine.options import list_words
from backlogctl.replay.engine.plan import (
    AllowedWords,
    Options,
    Plan,
    PlannedDisk,
    PlanPart,
    Timestamp,
)

if TYPE_CHECKING:
    from backlogctl.config import Stream
    from backlogctl.fanout.keys import Skew
    from backlogctl.fanout.layout import Layout
    from backlogctl.fanout.retention import TimeToLoss, UnreadRange
    from backlogctl.kafka.groups import GroupState
    from backlogctl.kafka.log_dirs import LogDirs
    from backlogctl.kafka.peek import Peeked
    from backlogctl.kafka.topics import TopicInfo
    from backlogctl.monitoring.verdict.judge import Pace
    from backlogctl.replay.observe.snapshot import StreamSnapshot
    from backlogctl.values import Sample

# What an operator says of an expansion.

ALLOW_DISK = "disk"
ALLOWED = (ALLOW_DISK,)
# Ways to cancel.
ORDERS = ("key", "round_robin")
STARTS = ("earliest", "latest")


class ExpandOptions(Options):
    """Speed, size and order of the temporary layout; None takes the configuration's."""

    rate: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        title="Rate",
        description="Messages one consumer handles a second. Else as measured from samples.",
    )
    factor: int | None = Field(
        default=None,
        ge=1,
        le=MAX_FACTOR,
        title="Factor",
        description="Temporary partitions for each partition. Else `expand.factor`.",
    )
    order: str | None = Field(
        default=None,
        title="Order",
        description="`key` keeps messages of a key in order; `round_robin` spreads evenly. "
        "Else `expand.order`.",
        json_schema_extra={"words": list(ORDERS)},
    )
    start: str = Field(
        default=STARTS[0],
        description="Where partitions without a commit begin: `earliest` or `latest`.",
        json_schema_extra={"words": list(STARTS)},
    )
    allow: AllowedWords = Field(
        default=(), title="Allow", description="`disk`: go on though the copy does not fit."
    )

    try_one: bool = Field(
        default=False,
        title="Try one consumer first",
        description="Start one consumer on an empty topic: whom it joins, and what it reads. "
        "Nobody is stopped.",
        json_schema_extra={"option": "try"},
    )

    _check_allow = list_words("allow", ALLOWED)
    _check_order = list_words("order", ORDERS)
    _check_start = list_words("start", STARTS)


NAME: Final = "expand"


class PlannedPartition(PlanPart):
    """A partition of the source: the relay begins at `start`; `lag` offsets are unread."""

    partition: int
    log_start: int
    committed: int | None
    end: int
    lag: int
    lost: int | None
    start: int
    oldest_unread_at: Timestamp | None


class TemporaryLayout(PlanPart):
    """The temporary topic."""

    topic: str
    partitions: int
    replication: int


class PlannedCanary(PlanPart):
    """The first share: messages by source partition."""

    messages: int
    partitions: Mapping[int, int]


class SettingChange(PlanPart):
    """A topic setting while the retention is held."""

    before: str = Field(alias="from")
    to: str


class PlannedHold(PlanPart):
    """Whether the source's retention is raised, and which settings."""

    needed: bool
    changes: Mapping[str, SettingChange]

    @property
    def settings(self) -> dict[str, str]:
        """What is set; empty where nothing is."""
        return {name: change.to for name, change in self.changes.items()}


class ExpandPlan(Plan):
    """What is approved and carried out.

    Rates are in messages a second, durations in seconds; None is unknown, or never. `stopped`,
    `created`, `raised` and `given_back` are sentences for the approver.
    """

    version: int = 1
    kind: Literal["expand"] = NAME
    partitions: tuple[PlannedPartition, ...]
    lag: int
    lost: int | None
    temporary: TemporaryLayout
    recovery_group: str
    order: Literal["key", "round_robin"]
    partitioner: str
    engine: Literal["wire", "record"] = "record"
    engine_why: str = ""
    isolation: str
    factor: int
    replicas: int
    consumers: int
    rate_per_consumer: float
    rate_source: str
    consumed_per_second: float | None
    produced_per_second: float | None
    seconds_to_drain_now: float | None
    seconds_to_drain_expanded: float | None
    seconds_to_loss: float | None
    loss_by: str | None
    wins: bool | None
    smallest_factor: int | None
    canary: PlannedCanary
    hold: PlannedHold
    disk: PlannedDisk
    members: tuple[str, ...]
    stopped: tuple[str, ...]
    created: tuple[str, ...]
    raised: tuple[str, ...]
    given_back: tuple[str, ...]
    max_lag_at_cutover: int
    other_topics: tuple[str, ...] = ()
    launch: Mapping[str, Any]
    transactional_prefix: str
    options: ExpandOptions
    writes: str = ""  # how fast it may, of its quota; where a share of it is asked for
    tried: str = ""  # what a dry run of one consumer showed


# What a plan is computed from.


@dataclass(frozen=True, slots=True)
class Behind:
    """One partition: where the group is, and where the relay begins (`unread.start`)."""

    unread: UnreadRange
    committed: int | None
    lost: int | None
    lag: int


@dataclass(frozen=True, slots=True)
class StreamBacklog:
    """What is behind, how fast it is read, and when retention reaches it, as it is now."""

    snapshot: StreamSnapshot
    group: GroupState
    other_topics: tuple[str, ...]  # that the group reads too
    partitions: tuple[Behind, ...]
    pace: Pace
    loss: TimeToLoss
    peeked: Mapping[int, tuple[Peeked, ...]]
    skew: Skew
    log_dirs: LogDirs
    recent: tuple[Sample, ...]  # the samples that rates are taken over
    most_members: int | None  # that brokers let into a group; None where they do not say

    def name_cap(self, consumers: int) -> str:
        """The setting that allows no more of them."""
        is_theirs = consumers == self.most_members
        return f"the brokers' `{name_size_limit(self.group)}`" if is_theirs else _MAX_CONSUMERS

    @property
    def topic(self) -> TopicInfo:
        return self.snapshot.topic

    @property
    def lost(self) -> int | None:
        """Messages that expired unread, at most."""
        lost: int | None = self.snapshot.status["lost"]
        return lost

    @property
    def lag(self) -> int:
        """Unread messages, at most; all partitions together."""
        return sum(part.lag for part in self.partitions)


_MAX_CONSUMERS = "`consumers.max_consumers`"


def name_size_limit(group: GroupState) -> str:
    """The brokers' setting of how many members a group of its protocol may have (KIP-389, 848)."""
    return "group.consumer.max.size" if group.type == "consumer" else "group.max.size"


# What an expansion will do to Kafka and to consumers, in sentences that an approver reads.


@dataclass(frozen=True, slots=True)
class Facts:
    """What the sentences are made of.

    `launching` says how the consumers are started and stopped, of the original ones and of those
    on the temporary topic. `changes` is by setting.
    """

    stream: Stream
    layout: Layout
    temporary_topic: str
    recovery_group: str
    replication: int
    members: Sequence[str]
    launching: tuple[str, str]
    changes: Mapping[str, SettingChange]


def describe_stopped(facts: Facts) -> list[str]:
    """Who stops reading, and how."""
    stream = facts.stream
    told = [f"the consumers of group {stream.group}: {facts.launching[0]}"]
    if facts.members:
        told.append(
            f"{format_plural(len(facts.members), 'member')} of it now: {_count(facts.members)}"
        )
    else:
        told.append("the group has no members now")
    return told


def describe_created(facts: Facts) -> list[str]:
    """What is made beside the topic."""
    assert facts.stream.consumers is not None
    layout, ramp = facts.layout, facts.stream.consumers.ramp
    copies = "1 copy" if facts.replication == 1 else f"{facts.replication} copies"
    more = ""
    if layout.consumers > ramp.step:
        more = f", {ramp.step} at a time, {format_duration(ramp.every.total_seconds())} apart"
    return [
        f"topic {facts.temporary_topic}: {format_plural(layout.partitions, 'partition')}, "
        f"{copies} of each, deletes nothing",
        f"{format_plural(layout.consumers, 'consumer')} on it in group {facts.recovery_group}"
        f"{more}: {facts.launching[1]}",
        f"before all others one of them alone handles "
        f"{format_plural(layout.canary.messages, 'message')}, as a trial",
    ]


def describe_raised(facts: Facts) -> list[str]:
    """Which settings of the topic keep more for the time being."""
    return [
        f"{name} of {facts.stream.topic} from {format_setting(name, change.before)} to "
        f"{format_setting(name, change.to)}"
        for name, change in facts.changes.items()
    ]


def describe_given_back(facts: Facts) -> list[str]:
    """What the end looks like, in the order in which it is done."""
    stream = facts.stream
    assert stream.consumers is not None
    told = [
        f"{format_plural(stream.consumers.replicas, 'consumer')} of group {stream.group} on topic "
        f"{stream.topic}, when topic {facts.temporary_topic} is read to its end"
    ]
    told += [
        f"{name} of {stream.topic}: {format_setting(name, change.before)} again, unless somebody "
        "else holds it"
        for name, change in facts.changes.items()
    ]
    told.append(f"topic {facts.temporary_topic} is deleted")
    return told


def _count(names: Sequence[str]) -> str:
    """`3 × rdkafka at 127.0.0.1`."""
    found = Counter(names)
    return ", ".join(name if n == 1 else f"{n} × {name}" for name, n in found.items())


def format_setting(name: str, value: str) -> str:
    """`7 d`, `1.0 GB`, `unlimited`."""
    if int(value) < 0:
        return "unlimited"
    return format_duration(int(value) / 1000) if name.endswith(".ms") else format_bytes(int(value))
