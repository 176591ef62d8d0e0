"""The status of one group on one topic: the values that `status`, /metrics and the page show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.values import to_document

if TYPE_CHECKING:
    # Airflow's scheduler reads the kinds, and with them this, again and again.
    from backlogctl.kafka.transactions import OpenTransaction
    from backlogctl.monitoring.offsets.rhythm import Rhythm

# One word for how a group is doing, the worst that applies.


class Verdict(StrEnum):
    """Best first; `severity` is the place in this list."""

    OK = "ok"  # nothing unread, or what is unread gets less at times
    LAGGING = "lagging"  # something unread, and too few samples yet for a trend
    UNKNOWN = "unknown"  # written, and the group has no committed offset
    WARN = "warn"  # lag never fell in the window, or a recovery has stopped the consumers
    BLOCKED = "blocked"  # behind a transaction that has been open for too long nothing is read
    STALL = "stall"  # members, lag, and the committed offset did not move in the window
    STOP = "stop"  # no members, lag, and no commit in the window
    REWIND = "rewind"  # the committed offset went back, and did not recover
    BEYOND_END = "beyond_end"  # the committed offset lies beyond the end of the log
    LOSING = "losing"  # retention passes the committed offset within the horizon
    LOST = "lost"  # messages are gone that the group never read

    @property
    def severity(self) -> int:
        """0 for `ok`, growing."""
        return _ORDER[self]


_ORDER = {verdict: number for number, verdict in enumerate(Verdict)}


def find_worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of them; `ok` of none."""
    return max(verdicts, key=lambda verdict: verdict.severity, default=Verdict.OK)


class Urgency(StrEnum):
    """How near a loss to come is; the alerts of `monitoring/rules` have the same limits."""

    NOW = "now"  # within an hour: hold the retention first
    SOON = "soon"  # within six hours: somebody is woken
    LATER = "later"  # somebody looks at it in the morning


_URGENT_WITHIN = ((3_600.0, Urgency.NOW), (6 * 3_600.0, Urgency.SOON))


def find_urgency(seconds_to_loss: float | None) -> Urgency | None:
    """None where no loss is in sight."""
    if seconds_to_loss is None:
        return None
    return next((one for limit, one in _URGENT_WITHIN if seconds_to_loss < limit), Urgency.LATER)


# What could not be read of a stream, and what is unknown for that: said, never left out.

What = Literal[
    "retention", "oldest", "disks", "bookmarks", "tails", "transactions", "groups", "ledger"
]
# What is unknown where it cannot be read.
_UNKNOWN: dict[What, str] = {
    "retention": "whether retention will delete unread messages",
    "oldest": "how old the oldest unread message is (the forecast goes by samples only)",
    "disks": "when retention by size reaches the group",
    "bookmarks": "where exactly a loss would begin (a rebuild would count instead)",
    "tails": "whether the last one or two unread offsets hold data (they count as lag)",
    "transactions": "who left a transaction open, and whether anybody will end it",
    "groups": "which other groups there are, and how far behind they are",
    "ledger": "what was lost, how it went until now, what is held and which recoveries there are",
}
# Those that `watch` looks at of each stream: `groups` is of a cluster, and without the ledger it
# does not watch.
STREAM_WHATS: tuple[What, ...] = tuple(
    what for what in _UNKNOWN if what not in ("groups", "ledger")
)


@dataclass(frozen=True, slots=True)
class Unseen:
    """One thing that could not be read; `error` says why."""

    what: What
    error: BacklogError

    @property
    def unknown(self) -> str:
        """What nobody knows now."""
        return _UNKNOWN[self.what]

    def __str__(self) -> str:
        return f"unknown: {self.unknown}: {self.error.subject}: {self.error.message}"

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "unknown": self.unknown, "error": self.error.to_json()}


def make_unseen(what: What, reason: BacklogError | str, subject: str) -> Unseen:
    """From an error, or a reason in words."""
    if isinstance(reason, str):
        return Unseen(what, KafkaFailure(reason, subject=subject))
    return Unseen(what, reason)


LossBy = Literal["time", "size"]
KnownBy = Literal["the commit log", "samples"]
# A lag that is written and read again in so many seconds is the rhythm of commits and fetches.
KEEPS_UP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Retention:
    """What deletes a partition's messages; None where nothing does, or where it is not known."""

    time: timedelta | None = None
    bytes: int | None = None


UNLIMITED = Retention()


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What readers of committed data do not get, since a transaction is open in front of it.

    Attributes:
        offset: the last stable offset: they get nothing from there on.
        messages: offsets from there to the high watermark that the group has not read.
        since: when the transaction began; where its coordinator does not tell, when it was first
            seen.
        seconds_open: since then.
        seconds_to_end: until its coordinator aborts it; None where it does not, or is unknown.
        transaction: the one that begins first; None where that could not be read.
        is_certain: whether the group is known to read committed data.
    """

    offset: int
    messages: int
    since: datetime
    seconds_open: float
    seconds_to_end: float | None = None
    transaction: OpenTransaction | None = None
    is_certain: bool = True


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition's figures; None where they are not known or do not apply, never NaN.

    Offsets are upper bounds on messages; times are in seconds, rates in offsets a second.

    Attributes:
        end: where the group's reading ends: the LSO if it reads committed, else the high watermark.
        lag: unread offsets that still exist.
        lag_seconds: how long ago the oldest unread message was written.
        lost: offsets in gaps that are not verified or waived, and what expired since: at most.
        likely: about how many of them, by the pace of the group; None as `lost`.
        undecided: more that are gone, and that its reader may have read: its next commits tell.
        possible: more that were skipped if they were not read by a reader that never joins.
        course: the verdict without what is lost already: that stays until it is put back, and must
            not hide a consumer that stops meanwhile.
        seconds_to_drain: at the window's rates of reading and writing; None without progress, and
            for a small lag that stays: the group keeps up.
        seconds_to_loss: until retention passes the group, at the earliest, if it goes on as in the
            window; None where none is in sight.
        loss_by: which retention comes first.
        expected_loss: how many of the unread offsets will be lost if it goes on like this.
        seconds_retained: until the oldest unread message may be deleted, at the earliest: what is
            left if the group stops reading now.
        needed_per_second: how fast this partition must be read so that nothing is lost.
        held: what lies behind a transaction that has been open for too long; None where none has.
    """

    partition: int
    log_start: int
    committed: int | None
    end: int
    lag: int | None
    lag_seconds: float | None
    lost: int | None
    likely: int | None = None
    undecided: int = 0
    possible: int = 0
    verdict: Verdict = Verdict.OK
    course: Verdict = Verdict.OK
    seconds_to_drain: float | None = None
    seconds_to_loss: float | None = None
    loss_by: LossBy | None = None
    expected_loss: int | None = None
    seconds_retained: float | None = None
    needed_per_second: float | None = None
    consumed_per_second: float | None = None
    produced_per_second: float | None = None
    held: HeldBack | None = None

    @property
    def keeps_up(self) -> bool:
        """Whether what is unread is only what is read again within seconds."""
        rate = min(self.consumed_per_second or 0.0, self.produced_per_second or 0.0)
        return (
            bool(self.lag)
            and self.seconds_to_drain is None
            and ((self.lag or 0) <= KEEPS_UP_SECONDS * rate)
        )


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group on one topic. Totals are of the partitions where they are known, but `lag`.

    Attributes:
        stream: the stream's name; "" for a group that no stream is about.
        group_state: Kafka's, in lower case; "" where unknown.
        sentence: the verdict in words: what, how bad, how long.
        course: the worst of the partitions' courses: the verdict without what is lost already.
        known_by: whether each commit was seen, or only where samples saw the group stand.
        lag: None where it is unknown of a partition that was written; then `lag_at_least` is that
            of the others, None where it is unknown of all.
        next_commands: what to type next, the best first.
        unseen: what could not be read of it: the figures that need it are unknown, not zero.
        consumers_to_win: how many consumers as fast as today's would lose nothing.
        held: offsets that lie behind transactions that have been open for too long.
        rhythm: of a job that comes by, is away now, and is behind; None where it has none, or is
            late.
        stopped_by: kind and id of the recovery that has stopped its consumers; "" where none has.
    """

    stream: str
    cluster: str
    topic: str
    group: str
    group_state: str
    taken_at: datetime
    verdict: Verdict
    partitions: tuple[PartitionStatus, ...]
    lag: int | None
    lag_seconds: float | None
    lost: int | None
    seconds_to_drain: float | None
    seconds_to_loss: float | None
    loss_by: LossBy | None
    expected_loss: int | None
    consumed_per_second: float | None
    produced_per_second: float | None
    sentence: str
    likely: int | None = None
    undecided: int = 0
    possible: int = 0
    known_by: KnownBy = "samples"
    consumers_to_win: int | None = None
    retention: Retention = UNLIMITED
    course: Verdict = Verdict.OK
    next_commands: tuple[str, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    held: int = 0
    lag_at_least: int | None = None
    rhythm: Rhythm | None = None
    stopped_by: str = ""

    @property
    def urgency(self) -> Urgency | None:
        """How near the next loss is; None where none is in sight."""
        return find_urgency(self.seconds_to_loss)

    @property
    def loss_is_unknown(self) -> bool:
        """Whether "no loss in sight" would be a guess; the templates of the page read it."""
        blind = any(one.what in ("retention", "disks") for one in self.unseen)
        return blind and self.seconds_to_loss is None

    def to_json(self) -> dict[str, Any]:
        document = to_document(replace(self, retention=UNLIMITED, unseen=()))
        del document["retention"]
        time = self.retention.time
        return {
            **document,
            "urgency": self.urgency,
            "unseen": [one.to_json() for one in self.unseen],
            "retention_seconds": None if time is None else time.total_seconds(),
            "retention_bytes": self.retention.bytes,
        }
