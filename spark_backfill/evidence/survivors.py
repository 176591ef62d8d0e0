"""Evidence of the log: messages that are still in the topic, read committed, every partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import make_admin
from backlogctl.spark_backfill.evidence.injected import SURVIVING, Places, list_injected_offsets
from backlogctl.spark_backfill.failures import translating
from backlogctl.spark_backfill.request import PriorChunk, Stretch, count_offsets
from backlogctl.spark_backfill.spark.frames import last_header, make_empty, mark_within, read_frozen
from backlogctl.spark_backfill.spark.topic import (
    HEADERS,
    MESSAGE_SCHEMA,
    TopicReader,
    known_time,
)
from backlogctl.values import OffsetRange
from backlogctl_delivery import stamps

# Where survivors are read from and to: frozen once, and sampled again when retention moves.

_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """Log start, last stable offset and high watermark of each partition."""

    starts: Mapping[int, int]
    ends: Mapping[int, int]
    highs: Mapping[int, int]

    @property
    def undecided(self) -> int:
        """Offsets above the last stable one: of transactions that are still open."""
        return sum(max(0, self.highs[p] - self.ends[p]) for p in self.ends)


def read_current_offsets(
    client_properties: Mapping[str, str], topic: str, partitions: int
) -> LogOffsets:
    """The offsets now, log starts first.

    Raises:
        KafkaFailure, ClusterUnreachable.
    """
    admin, limit, numbers = make_admin(client_properties), Deadline(_SECONDS), range(partitions)
    starts = list_offsets(admin, topic, numbers, "earliest", deadline=limit)
    ends = list_offsets(admin, topic, numbers, "latest", isolation="read_committed", deadline=limit)
    highs = list_offsets(
        admin, topic, numbers, "latest", isolation="read_uncommitted", deadline=limit
    )
    missing = [p for p in numbers if p not in starts or p not in ends]
    if missing:
        raise KafkaFailure(
            f"the broker gave no offsets of partitions {missing}",
            subject=f"topic {topic}",
            retryable=True,
        )
    return LogOffsets(starts, ends, highs)


def describe_moves(before: Mapping[int, int], after: Mapping[int, int]) -> str:
    """Log starts that moved, with both bounds (fault 23); empty where none did."""
    moved = [
        f"partition {p} from {before[p]:,} to {after[p]:,}"
        for p in sorted(before)
        if after.get(p, before[p]) > before[p]
    ]
    return ", ".join(moved)


# Identities whose messages are kept in full for the proof, at about this many.
SAMPLE_IDENTITIES = 1_000
_HASH_BUCKETS = 1_000_000
_FROZEN = (
    "identity binary, partition int, offset long, timestamp long, ours boolean, stamp string, "
    "in_archive boolean, content struct<key:binary,value:binary,"
    f"headers:{HEADERS}>"
)


@dataclass(frozen=True, slots=True)
class LogSpan:
    """One partition of the survivors.

    Attributes:
        start, end: frozen before the first message is read; `end` is the last stable offset.
        records: data records found between them; ours: those that recoveries wrote.
        records_before_ours, span_before_ours: the same below our first injected message.
        first_ours: its offset; None where we injected nothing that survives.
    """

    partition: int
    start: int
    end: int
    records: int = 0
    records_before_ours: int = 0
    ours: int = 0
    first_ours: int | None = None

    @property
    def span_before_ours(self) -> int:
        """Offsets below our first injected message."""
        return (self.end if self.first_ours is None else self.first_ours) - self.start


@dataclass(frozen=True, slots=True)
class SurvivorEvidence:
    """Reads the topic once into a frozen copy under `work`: identities, and a sample in full.

    Messages that were moved into an archive survive there: they are read as if the log still had
    them.

    Messages within `lost` ranges still in the log (a group skipped them) are not survivors: the
    group will never read those. Our own injected messages are survivors like any others.

    Attributes:
        header: the header that identifies a message; None for the key.
        restated: rows change, and their newest version is what counts. A message that the group
            read before it skipped some then explains a row only if it did not change later.
        archived: messages of archives, in the columns of `read_messages`; None for none.
        archived_starts: their first offset in each partition.
    """

    label: ClassVar[str] = SURVIVING
    matches: ClassVar[str] = "identity"
    spark: SparkSession
    topic: str
    header: str | None
    client_properties: Mapping[str, str]
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    lost: Sequence[OffsetRange]
    work: Path
    restated: bool = False
    archived: DataFrame | None = None
    archived_starts: Mapping[int, int] = field(default_factory=dict)

    def freeze(self) -> None:
        """Copies identity and place of every survivor.

        Raises:
            KafkaFailure: the topic could not be read in full; retention that removes messages
                meanwhile is one reason.
        """
        if (self.work / "_SUCCESS").exists():
            return
        rate = min(1.0, SAMPLE_IDENTITIES / max(1, self.count_offsets()))
        chosen = f"pmod(xxhash64(identity), {_HASH_BUCKETS}) < {int(rate * _HASH_BUCKETS)}"
        frame = self.read_messages().selectExpr(
            *("identity", "partition", "offset", "timestamp", "ours", "stamp", "in_archive"),
            f"CASE WHEN {chosen} THEN struct(key, value, headers) END AS content",
        )
        with self._translating("read the messages that survive"):
            frame.write.mode("overwrite").parquet(str(self.work))

    def collect_keys(self) -> DataFrame:
        """Identities of the survivors outside of the lost ranges.

        Where `restated` and messages survive below a lost range: also `until`, NULL where a
        newer message of the identity survives.
        """
        known = self.read_frozen().where(F.col("identity").isNotNull())
        known = known.withColumnRenamed("identity", "key")
        place = {"partition": "partition", "offset": "offset"}
        keys = mark_within(known, self.lost, "inside", **place).where("not inside")
        below = [
            OffsetRange(item.partition, low, item.start)
            for item in self.lost
            if self.restated and (low := self._find_start(item)) < item.start
        ]
        if not below:
            return keys.select("key").distinct()
        newer = F.max(~F.col("below"))
        marked = mark_within(keys, below, "below", **place)
        # Of a time that is not known any later change counts: what is said twice does no harm.
        last = F.coalesce(F.max("timestamp"), F.lit(0))
        return marked.groupBy("key").agg(F.when(~newer, last).alias("until"))

    def _find_start(self, item: OffsetRange) -> int:
        known = (self.starts, self.archived_starts)
        return min(starts.get(item.partition, item.start) for starts in known)

    def locate_ours(self, partitions: Sequence[int]) -> Places:
        """Where each surviving message of a recovery is in the log."""
        chosen = F.col("partition").isin(list(partitions)) & ~F.col("in_archive")
        ours = self.read_frozen().where(F.col("ours") & chosen)
        found = ours.select("partition", "stamp", "offset").collect()
        return list_injected_offsets(tuple(row) for row in found)

    def count_offsets(self) -> int:
        """Offsets between the frozen starts and ends."""
        return sum(max(0, self.ends[p] - self.starts[p]) for p in self.starts)

    def read_frozen(self) -> DataFrame:
        """identity binary, partition, offset, timestamp, ours, stamp, in_archive, content (of a
        sample, else NULL)."""
        return read_frozen(self.spark, _FROZEN, str(self.work))

    def read_messages(self) -> DataFrame:
        """The log's messages between the frozen offsets, as Kafka has them now, and archived ones.

        Returns:
            identity binary, key, value, headers array<struct<name, value>>, partition, offset,
            timestamp (ms; NULL where it is no time), ours (a message of a recovery), stamp (its
            message id, else NULL), in_archive.
        """
        log = self._read_log().withColumn("in_archive", F.lit(False))
        if self.archived is None:
            return log
        return log.unionByName(self.archived.withColumn("in_archive", F.lit(True)))

    def _read_log(self) -> DataFrame:
        ranges = [OffsetRange(p, start, self.ends[p]) for p, start in sorted(self.starts.items())]
        left = [item for item in ranges if item.count > 0]
        frame = make_empty(self.spark, MESSAGE_SCHEMA)
        if left:
            with self._translating("read the topic"):
                frame = TopicReader(self.spark, self.client_properties, self.topic).read(left)
        return as_survivors(frame, self.header)

    def measure_spans(self) -> tuple[LogSpan, ...]:
        """What was found in each partition of the log."""
        rows = self.spark.sql(
            """
            WITH log AS (SELECT partition, offset, ours FROM {frozen} WHERE NOT in_archive),
            firsts AS (
                SELECT partition AS home, min(CASE WHEN ours THEN offset END) AS first
                FROM log GROUP BY partition
            )
            SELECT /*+ BROADCAST(firsts) */ partition, first, count(*) AS n,
                count_if(first IS NULL OR offset < first) AS before, count_if(ours) AS ours
            FROM log JOIN firsts ON partition = home GROUP BY partition, first
            """,
            frozen=self.read_frozen(),
        ).collect()
        found = {row["partition"]: row for row in rows}
        spans = []
        for partition in sorted(self.starts):
            row = found.get(partition)
            spans.append(
                LogSpan(
                    partition,
                    self.starts[partition],
                    max(self.starts[partition], self.ends[partition]),
                    records=row["n"] if row else 0,
                    records_before_ours=row["before"] if row else 0,
                    ours=row["ours"] if row else 0,
                    first_ours=row["first"] if row else None,
                )
            )
        return tuple(spans)

    def _translating(self, doing: str):  # type: ignore[no-untyped-def]
        return translating(
            doing,
            subject=f"topic {self.topic}",
            hint="if retention removes messages right now, hold it, take a new sample and plan "
            "again",
            kind=KafkaFailure,
            secrets=[
                value
                for name, value in self.client_properties.items()
                if "password" in name or "secret" in name
            ],
        )


def as_survivors(messages: DataFrame, header: str | None) -> DataFrame:
    """In the columns of `SurvivorEvidence.read_messages`, but `in_archive`.

    Args:
        messages: in the columns of `MESSAGE_SCHEMA`.
        header: the header that identifies a message; None for the key.
    """
    return messages.select(
        (F.col("key") if header is None else last_header(header)).alias("identity"),
        "key",
        "value",
        "headers",
        "partition",
        "offset",
        known_time().alias("timestamp"),
        F.array_contains(F.col("headers.name"), stamps.MESSAGE_ID).alias("ours"),
        last_header(stamps.MESSAGE_ID).cast("string").alias("stamp"),
    )


# Surviving offsets that are no messages: control, aborted and compacted records.


@dataclass(frozen=True, slots=True)
class Holes:
    """Surviving `offsets` that no recovery wrote; `missing` of them are no messages."""

    offsets: int = 0
    missing: int = 0

    @property
    def share(self) -> float:
        """0 to 1; 0 where nothing survives."""
        return self.missing / self.offsets if self.offsets else 0.0


def measure_holes(
    spans: Sequence[LogSpan], prior: Sequence[PriorChunk], ours: Sequence[Stretch]
) -> Holes:
    """What survives, without what earlier recoveries wrote.

    Args:
        prior: their chunks; in a partition where the place of one is not known, only offsets below
            the first of our messages are judged.
        ours: the places that are known.
    """
    unknown = {chunk.slot for chunk in prior if chunk.first_offset is None}
    offsets = messages = 0
    for span in spans:
        if span.partition in unknown:
            offsets += span.span_before_ours
            messages += span.records_before_ours
        else:
            here = [item for item in ours if item.partition == span.partition]
            offsets += count_offsets(span.start, span.end, here)
            messages += span.records - span.ours
    return Holes(offsets, max(0, offsets - messages))
