"""One stream: its verdict, its past, where each partition stands, and what was lost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from backlog.config import Config, Stream
from backlog.ledger import Hold, Ledger
from backlog.values import Gap, GapState
from monitoring.board import TopicPartitionState
from monitoring.looking import read_timeline
from replay.console.page.audits import AuditView, read_audits
from replay.console.page.histories import History, read_history
from replay.console.page.offsets import Kind, PartitionMap, map_partitions
from replay.console.page.overview import RecoveryRow
from replay.console.page.statuses import NextCommand, Statuses, StreamView
from replay.recovery.states import ACTIVE

MOST_PARTITIONS = 200
MOST_GAPS = 100
MOST_RECOVERIES = 20
# Up to so many partitions each has a line of its own.
FEW_PARTITIONS = 16


@dataclass(frozen=True, slots=True)
class StreamPage:
    """All that the page of a stream shows; lists are cut, and say how many they leave out.

    Attributes:
        first_sample: since when it is watched; None without a sample.
        troubled: partitions of the topic that have no leader or too few copies in sync.
    """

    row: StreamView
    maps: tuple[PartitionMap, ...]
    more_partitions: int
    history: History
    gaps: tuple[Gap, ...]
    more_gaps: int
    recoveries: tuple[RecoveryRow, ...]
    more_recoveries: int
    holds: tuple[Hold, ...]
    first_sample: datetime | None
    troubled: tuple[TopicPartitionState, ...]
    audits: tuple[AuditView, ...]

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of segments that are there: the legend has no others."""
        return frozenset(segment.kind for one in self.maps for segment in one.segments)

    @property
    def mixed(self) -> bool:
        """Whether a segment stands for several kinds."""
        return any(segment.mixed for one in self.maps for segment in one.segments)

    @property
    def compact(self) -> bool:
        """Whether there are too many partitions for a line each."""
        return len(self.maps) > FEW_PARTITIONS


def read_stream(
    ledger: Ledger,
    config: Config,
    stream: Stream,
    statuses: Statuses,
    next_command: NextCommand,
    now: datetime,
) -> StreamPage:
    """Reads it.

    Raises:
        LedgerError.
    """
    found = ledger.recoveries.list(stream.name)
    commands = {recovery.id: next_command(recovery) for recovery in found}
    active = tuple(recovery for recovery in found if recovery.state in ACTIVE)
    row = statuses.view(stream, active, commands)
    samples = read_timeline(ledger, stream)
    gaps = ledger.gaps.list(stream.name)
    parts = () if row.status is None else row.status.partitions
    maps = map_partitions(parts, gaps, samples, stream.group)
    retention = None if row.status is None else row.status.retention.time
    newest = sorted(found, key=lambda one: (one.state in ACTIVE, one.created_at), reverse=True)
    topics = statuses.seen.clusters.get(stream.cluster)
    states = () if topics is None else topics.topics.get(stream.topic, ())
    return StreamPage(
        row=row,
        maps=maps[:MOST_PARTITIONS],
        more_partitions=max(0, len(maps) - MOST_PARTITIONS),
        history=read_history(samples, stream.isolation, retention, now - config.watch.horizon),
        gaps=_sort_gaps(gaps)[:MOST_GAPS],
        more_gaps=max(0, len(gaps) - MOST_GAPS),
        recoveries=tuple(RecoveryRow(r, commands[r.id]) for r in newest[:MOST_RECOVERIES]),
        more_recoveries=max(0, len(newest) - MOST_RECOVERIES),
        holds=ledger.holds.list(stream=stream.name),
        first_sample=samples[0].taken_at if samples else None,
        troubled=tuple(one for one in states if one.leader < 0 or one.in_sync < one.replicas),
        audits=read_audits(ledger, stream.name),
    )


def _sort_gaps(gaps: tuple[Gap, ...]) -> tuple[Gap, ...]:
    """Those that need somebody first, then the newest."""
    settled = (GapState.VERIFIED, GapState.WAIVED)
    return tuple(sorted(gaps, key=lambda g: (g.state in settled, -g.detected_at.timestamp())))
