"""The plan of an expansion: what is behind, the temporary layout, and what is done to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from backlogctl.fanout.layout import MAX_FACTOR
from backlogctl.replay.engine.options import list_words
from backlogctl.replay.engine.plan import AllowedWords, Options, Plan, PlanPart, Timestamp

if TYPE_CHECKING:
    from backlogctl.fanout.keys import Skew
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
REWIND = "rewind"
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


class PlannedDisk(PlanPart):
    """Room on the brokers, in bytes; `enough` is None where it is not known."""

    needed: int | None
    usable: int | None
    enough: bool | None
    told: str


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
