"""Proves an injection: what a read_committed reader sees is what was staged, each once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure, VerificationFailed
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import make_admin
from backlogctl.manifests import Manifest, read_chunk
from backlogctl.spark_backfill.failures import list_secrets, translating
from backlogctl.spark_backfill.injection.exact_match import count_exact
from backlogctl.spark_backfill.injection.job import HIDDEN_SECONDS, await_visible, check_target
from backlogctl.spark_backfill.injection.newer import drop_rows
from backlogctl.spark_backfill.spark.frames import last_header, make_empty
from backlogctl.spark_backfill.spark.topic import TopicReader
from backlogctl.values import Chunk, OffsetRange
from backlogctl_delivery.stamps import MESSAGE_ID, RECOVERY_ID

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# A message's fingerprint: SHA-256 over its partition, key, value and headers.
#
# All parts are joined twice, with other marks for a border and for NULL. Where the two texts
# differ there is a mark, and nowhere else, so no two messages are written alike, whatever bytes
# they hold.
#
# A topic is read by Spark, a staged file by Python, which reads it to check its hash anyway; so
# the same is said twice here.

# Border, NULL: the second pair is the first one swapped.
_MARKS = (("\0", "\1"), ("\1", "\0"))


def fingerprint_read() -> Column:
    """Of a message as Spark reads it from a topic. No lambda: Spark interprets those."""

    def text(name: str, kind: str) -> Column:
        # The cast keeps the bytes as they are, also where they are no UTF-8.
        return F.col(name).cast(kind)

    own = F.array(*(text(name, "string") for name in ("partition", "key", "value")))
    headers = (text(name, "array<string>") for name in ("headers.name", "headers.value"))
    parts = F.concat(own, *headers)
    twice = F.concat(*(F.array_join(parts, border, null) for border, null in _MARKS))
    return F.unhex(F.sha2(twice.cast("binary"), 256))


def fingerprint_staged(batch: pa.RecordBatch) -> pa.Array:
    """Of each message of a staged chunk, or of a part of one."""
    own = [batch[name].cast(pa.binary()) for name in ("key", "value")]
    own = [batch["partition"].cast(pa.string()).cast(pa.binary()), *own]
    headers = batch["headers"]
    # A slice's offsets count from the whole column's start.
    offsets = pa.compute.subtract(headers.offsets, headers.offsets[0])
    columns = [column.cast(pa.binary()) for column in headers.flatten().flatten()]

    def join(border: bytes, null: bytes) -> Any:
        lists = [pa.ListArray.from_arrays(offsets, c.fill_null(null)) for c in columns]
        texts = [pa.compute.binary_join(items, border) for items in lists]
        # Without headers there is no part to join, not an empty one.
        plain = _join_all([*own], border, null)
        full = _join_all([*own, *texts], border, null)
        return pa.compute.if_else(pa.compute.equal(headers.value_lengths(), 0), plain, full)

    twice = _join_all([join(border.encode(), null.encode()) for border, null in _MARKS], b"", b"")
    return pa.array([hashlib.sha256(text).digest() for text in twice.to_pylist()], pa.binary())


def _join_all(columns: list[Any], border: bytes, null: bytes) -> Any:
    return pa.compute.binary_join_element_wise(
        *columns, border, null_handling="replace", null_replacement=null
    )


class ReadBackFailed(KafkaFailure):
    """What was injected could not be read: it may all be as it should."""

    code = "read_back_failed"
    retryable = True


MAX_IDS = 100
_KINDS = ("missing", "doubled", "different", "unexpected")


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """Counts of messages; `ids` has at most 100 ids of each kind of mismatch.

    `missing`: staged, not in the topic. `doubled`: there more than once, whichever recovery sent
    it. `different`: there once, with another key, value, header or partition. `unexpected`: there
    under this recovery's id, and not to be sent. `left_out`: staged, and not sent, as a newer
    message is there, or the row is gone; the other counts are without them. `removed`: offsets
    `[start, end)` by partition that retention removed before they could be read.
    """

    staged: int
    found: int
    matched: int
    missing: int
    doubled: int
    different: int
    unexpected: int
    ids: Mapping[str, tuple[str, ...]]
    start_offsets: Mapping[int, int]
    end_offsets: Mapping[int, int]
    left_out: int = 0
    removed: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def is_exact(self) -> bool:
        """Something was staged, all of it that was to be sent is there once, as staged, and nothing
        else of ours."""
        return (
            self.staged + self.left_out > 0
            and self.staged == self.matched
            and not (self.missing or self.doubled or self.different or self.unexpected)
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "exact": self.is_exact,
            "staged": self.staged,
            "found": self.found,
            "matched": self.matched,
            "left_out": self.left_out,
            **{kind: getattr(self, kind) for kind in _KINDS},
            "ids": {kind: list(ids) for kind, ids in self.ids.items()},
        }

    def require_exact(self, subject: str) -> None:
        """Raises VerificationFailed, naming ids, unless everything matches."""
        if self.is_exact:
            return
        parts = [
            f"{getattr(self, kind)} {kind}: {', '.join(self.ids.get(kind, ())[:10])}"
            for kind in _KINDS
            if getattr(self, kind)
        ]
        if self.missing and self.removed:
            places = ", ".join(f"[{p}] {a} to {b}" for p, (a, b) in sorted(self.removed.items()))
            parts.append(f"retention has removed offsets that may have held them ({places})")
        raise VerificationFailed(
            f"{self.matched} of {self.staged} staged messages read back as staged; "
            f"{'; '.join(parts) or 'nothing was staged'}",
            subject=subject,
            hint="the gap stays open; look these ids up by the header backlog-message-id",
        )


def verify_injection(
    spark: SparkSession,
    *,
    properties: Mapping[str, str],
    topic: str,
    topic_id: str,
    partitions: int,
    manifest: Manifest,
    directory: Path,
    start_offsets: Mapping[int, int],
    known_ends: Mapping[int, int] | None = None,
    left_out: Mapping[tuple[int, int], Sequence[int]] | None = None,
    hidden_wait: float = HIDDEN_SECONDS,
    deadline: Deadline | None = None,
    look: Callable[[], None] | None = None,
) -> VerificationResult:
    """Reads the topic from `start_offsets` to its last stable offsets and compares.

    It first waits until the last stable offsets are past what was injected, since open transactions
    of others may hide some of it.

    Every staged file is hashed again when it is read, so that what is compared with is what was
    approved.
    Nothing but counts and at most 100 ids of each kind comes to the driver.

    Args:
        directory: the recovery's staging directory.
        start_offsets: of before the injection; see `record_target_ends`.
        known_ends: the offset after the last injected message, by partition; where it is not
            known, it waits for all that is in the partition now.
        left_out: by slot and number of a chunk its messages that were not sent, counted from 0.
        hidden_wait: seconds for open transactions.
        look: called while waiting for them, and before Spark reads; may raise.

    Returns:
        The result, good or bad; `require_exact` raises for a bad one.

    Raises:
        Paused: somebody's open transaction hides what was injected.
        ReadBackFailed: the messages could not be read.
        PlanStale, StagingError, KafkaFailure, ClusterUnreachable.
    """
    admin = make_admin(properties)
    limit = deadline or Deadline(60.0)
    check_target(admin, topic, topic_id, partitions, limit)
    lows = list_offsets(admin, topic, range(partitions), "earliest", deadline=limit)
    highs = list_offsets(admin, topic, range(partitions), "latest", "read_uncommitted", limit)
    needed = {
        slot: min(highs[slot], (known_ends or {}).get(slot, highs[slot]))
        for slot in manifest.list_slots()
    }
    await_visible(admin, topic, needed, hidden_wait, look=look)
    if look is not None:
        look()
    ends = list_offsets(admin, topic, range(partitions), "latest", "read_committed")
    wanted = {p: start_offsets.get(p, 0) for p in range(partitions)}
    starts = {p: max(lows[p], wanted[p]) for p in range(partitions)}
    removed = {p: (wanted[p], lows[p]) for p in needed if lows[p] > wanted[p]}
    subject = f"topic {topic}"
    with translating(
        "read the injected messages back",
        subject=subject,
        hint="nothing is known to be wrong, and nothing is proved yet: run it again",
        kind=ReadBackFailed,
        secrets=list_secrets(properties),
    ):
        unsent = sum(map(len, (left_out or {}).values()))
        count = count_exact(
            spark,
            properties=properties,
            topic=topic,
            ranges=[OffsetRange(p, starts[p], ends[p]) for p in sorted(starts)],
            manifest=manifest,
            directory=directory,
            left_out=left_out or {},
        )
        if count is not None:
            counts = (count, count, count, 0, 0, 0, 0)
            return VerificationResult(*counts, {}, starts, ends, unsent, removed)
        staged = _read_staged(spark, directory, manifest, left_out or {})
        found = _read_topic(spark, properties, topic, manifest.recovery_id, starts, ends)
        try:
            compared = _compare(staged, found, starts, ends)
            return replace(compared, removed=removed, left_out=unsent)
        except PySparkException:
            # Spark turns an executor's error into text: a staged file's own error says more.
            _check_staged(spark, directory, manifest)
            raise


def _check_staged(spark: SparkSession, directory: Path, manifest: Manifest) -> None:
    def check(chunks: Any) -> Any:
        try:
            for chunk in chunks:
                read_chunk(directory, chunk)
        except BacklogError as error:
            yield error  # as a value: Spark would turn a raised one into text

    chunks: list[Chunk] = list(manifest.chunks)
    if chunks:
        slices = min(len(chunks), 4 * spark.sparkContext.defaultParallelism)
        for error in spark.sparkContext.parallelize(chunks, slices).mapPartitions(check).take(1):
            raise error


def _read_staged(
    spark: SparkSession,
    directory: Path,
    manifest: Manifest,
    left_out: Mapping[tuple[int, int], Sequence[int]],
) -> DataFrame:
    """Checks and reads in one pass, in Python: so what is compared is what was hashed."""
    schema = "message_id string, fingerprint binary"
    chunks = list(manifest.chunks)
    if not chunks:
        return make_empty(spark, schema)

    def read(batches: Any) -> Any:
        import pyarrow as pa

        for batch in batches:
            for number in batch["id"].to_pylist():
                chunk = chunks[number]
                rows = left_out.get((chunk.slot, chunk.number), ())
                table = drop_rows(read_chunk(directory, chunk), rows)
                for part in table.to_batches(max_chunksize=10_000):
                    columns = [part["message_id"], fingerprint_staged(part)]
                    yield pa.RecordBatch.from_arrays(columns, ["message_id", "fingerprint"])

    slices = min(len(chunks), 4 * spark.sparkContext.defaultParallelism)
    return spark.range(0, len(chunks), 1, slices).mapInArrow(read, schema)


def _read_topic(
    spark: SparkSession,
    properties: Mapping[str, str],
    topic: str,
    recovery_id: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
) -> DataFrame:
    """What has our headers, of other recoveries too: they may hold a copy of a staged message."""
    ranges = [OffsetRange(p, start, ends[p]) for p, start in sorted(starts.items())]
    raw = TopicReader(spark, properties, topic).read(ranges, spark.sparkContext.defaultParallelism)
    named = raw.select(
        last_header(MESSAGE_ID).cast("string").alias("message_id"),
        F.coalesce(last_header(RECOVERY_ID).cast("string") == recovery_id, F.lit(False)).alias(
            "is_ours"
        ),
        fingerprint_read().alias("fingerprint"),
    )
    return named.where(F.col("is_ours") | F.col("message_id").isNotNull()).withColumn(
        "message_id", F.coalesce("message_id", F.lit("(no message id)"))
    )


def _compare(
    staged: DataFrame, found: DataFrame, starts: Mapping[int, int], ends: Mapping[int, int]
) -> VerificationResult:
    zero, one = F.lit(0), F.lit(1)
    both = staged.select(
        "message_id", "fingerprint", one.alias("s"), zero.alias("f"), F.lit(False).alias("is_ours")
    ).unionAll(
        found.select("message_id", "fingerprint", zero.alias("s"), one.alias("f"), "is_ours")
    )
    # Sums alone, by an id and its fingerprints first: Spark aggregates those without sorting.
    sums = [F.sum("s").alias("s"), F.sum("f").alias("f"), F.max("is_ours").alias("is_ours")]
    forms = both.repartition("message_id").groupBy("message_id", "fingerprint").agg(*sums)
    by_id = forms.groupBy("message_id").agg(*sums, F.count(F.lit(1)).alias("forms"))
    kind = (
        F.when(F.col("s") == 0, "unexpected")
        .when(F.col("f") == 0, "missing")
        # Ids are unique in a good staging; the same one staged twice must not pass as matched.
        .when((F.col("f") > 1) | (F.col("s") > 1), "doubled")
        .when(F.col("forms") > 1, "different")
        .otherwise("matched")
    )
    judged = (
        # Another recovery's own messages are no concern of ours.
        by_id.where((F.col("s") > 0) | F.col("is_ours"))
        # What matched needs no id: only mismatches are kept for the second look.
        .select(kind.alias("kind"), "message_id", "s", "f")
        .groupBy("kind", F.when(F.col("kind") != "matched", F.col("message_id")).alias("id"))
        .agg(F.count(one).alias("ids"), F.sum("s").alias("staged"), F.sum("f").alias("found"))
        .cache()
    )
    try:
        totals = {
            row["kind"]: row
            for row in judged.groupBy("kind")
            .agg(*(F.sum(name).alias(name) for name in ("ids", "staged", "found")))
            .collect()
        }
        ids = {
            name: tuple(
                row["id"]
                for row in judged.where(F.col("kind") == name)
                .select("id")
                .orderBy("id")
                .limit(MAX_IDS)
                .collect()
            )
            for name in _KINDS
            if name in totals
        }
    finally:
        judged.unpersist()
    count = {name: int(row["ids"]) for name, row in totals.items()}
    return VerificationResult(
        staged=sum(int(row["staged"]) for row in totals.values()),
        found=sum(int(row["found"]) for row in totals.values()),
        matched=count.get("matched", 0),
        missing=count.get("missing", 0),
        doubled=count.get("doubled", 0),
        different=count.get("different", 0),
        unexpected=count.get("unexpected", 0),
        ids=ids,
        start_offsets=dict(starts),
        end_offsets=dict(ends),
    )
