"""The plan of an offload: what is unread, where it goes, and what is done to whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field

from backlogctl.replay.engine.options import list_words
from backlogctl.replay.engine.plan import AllowedWords, Options, Plan, PlanPart

# What an operator says of an offload.

ALLOW_DISK, ALLOW_LOSE, ALLOW_UNKNOWN = "disk", "lose", "unknown-groups"
ALLOW_NOTHING = "frees-nothing"
ALLOW_OTHERS = "other-groups"  # said with a name: `other-groups:NAME`


class OffloadOptions(Options):
    """Whether it is archived, and what is allowed by name."""

    discard: bool = Field(
        default=False,
        title="Discard",
        description="Archive nothing: what is unread is deleted, and can at best be rebuilt from "
        "the tables.",
    )
    allow: AllowedWords = Field(
        default=(),
        title="Allow",
        description="Go on in spite of it; may be said again. `disk`: the archive's place has not "
        "enough room, or that is unknown, or it is on a broker's own disk. `frees-nothing`: "
        "perhaps no disk space is freed. `lose`: discard though the stream has no source. "
        "`other-groups:NAME`: group NAME loses what it has not read. `unknown-groups`: there may "
        "be groups that the tool may not see.",
    )

    _check_allow = list_words(
        "allow", (ALLOW_DISK, ALLOW_NOTHING, ALLOW_LOSE, ALLOW_UNKNOWN), named=(ALLOW_OTHERS,)
    )


NAME: Final = "offload"
# What a run puts on record, for whoever goes on or reports.
GIVEN_UP = "it could not be finished"
THROWN_AWAY = "the archive is thrown away"
EXPIRED = "retention removed messages before they were archived"
FORWARD = "from here on it goes forward"
COVERED = "an older gap has messages of the archive"


class PlannedPartition(PlanPart):
    """Offsets of a partition as the plan saw them; `end` is the last stable offset.

    `unread` are offsets, so an upper bound on messages. `bytes` are those of one replica that the
    unread messages take, about; None is unknown.
    """

    partition: int
    log_start: int
    committed: int
    end: int
    high: int
    unread: int
    bytes: int | None


class PlannedBroker(PlanPart):
    """A broker's disks, in bytes; None is unknown."""

    broker: int
    usable: int | None
    total: int | None


class PlannedDisks(PlanPart):
    """When the first disk is full at the present rate; None: not in sight, or unknown."""

    brokers: tuple[PlannedBroker, ...]
    seconds_to_full: float | None
    told: str


class PlannedFreeing(PlanPart):
    """Bytes that are freed, of all replicas, about; None is unknown. Of `most`, `kept` may stay.

    `ended`: partitions whose last segment ends for it.
    """

    most: int | None
    kept: int | None
    told: str
    ended: tuple[int, ...] = ()

    @property
    def least(self) -> int | None:
        """What is freed at least; None where it may be anything."""
        return None if self.most is None or self.kept is None else self.most - self.kept

    @property
    def problem(self) -> str:
        """Why nothing may be freed; "" where something is."""
        return "" if self.least or (self.least is None and self.ended) else self.told


class PlannedPlace(PlanPart):
    """Where the archive goes, in bytes; None is unknown.

    `enough` is None where it is not known; `on_broker` whether it is on a broker's own disk.
    """

    location: str
    needed: int | None
    free: int | None
    enough: bool | None
    on_broker: bool | None
    told: str

    @property
    def problem(self) -> str:
        """Why an archive should not go there; "" where nothing speaks against it."""
        if self.on_broker or self.enough is None:
            return self.told
        return "" if self.enough else f"there is not enough room: {self.told}"


class CutGroup(PlanPart):
    """Another group, and how many messages it would lose, at most, by partition."""

    group: str
    messages: int
    partitions: Mapping[int, int]


class OffloadPlan(Plan):
    """What is approved and carried out.

    `stopped`, `moved`, `freed` and `given_back` are sentences for the approver.
    """

    version: int = 1
    kind: Literal["offload"] = NAME
    partitions: tuple[PlannedPartition, ...]
    unread: int
    bytes: int | None
    has_source: bool
    place: PlannedPlace | None
    disks: PlannedDisks
    freeing: PlannedFreeing
    cut_groups: tuple[CutGroup, ...]
    replicas: int
    members: tuple[str, ...]
    stopped: tuple[str, ...]
    moved: tuple[str, ...]
    freed: tuple[str, ...]
    given_back: tuple[str, ...]
    other_topics: tuple[str, ...] = ()
    launch: Mapping[str, Any]
    options: OffloadOptions

    @property
    def allowed_groups(self) -> frozenset[str]:
        """Those that may lose what they have not read."""
        begin = f"{ALLOW_OTHERS}:"
        return frozenset(word[len(begin) :] for word in self.allowed if word.startswith(begin))
