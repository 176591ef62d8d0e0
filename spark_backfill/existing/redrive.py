"""The plan of a redrive: messages that exist are read once, chosen, frozen and staged (P9)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.errors import KafkaFailure, PutBackAlready, Refused, StagingError
from backlogctl.formats import Say, format_plural
from backlogctl.kafka.admin import list_offsets
from backlogctl.manifests import Manifest, write_manifest
from backlogctl.spark_backfill.archive.reading import read_archive
from backlogctl.spark_backfill.evidence.consumed import open_consumed
from backlogctl.spark_backfill.evidence.injected import InjectedEvidence
from backlogctl.spark_backfill.existing.conditions import (
    DECODED_HINT,
    UNDECODED,
    WHERE_HINT,
    check_where,
    list_decoded,
    select_keys,
    select_where,
)
from backlogctl.spark_backfill.existing.decoding import find_readable
from backlogctl.spark_backfill.existing.labels import (
    ELSEWHERE,
    ORDER,
    PUT_BACK,
    QUARANTINED,
    REPEATED,
    REPLAYS,
    STAGED,
    UNNAMED,
    distinguish_letters,
    label_messages,
    make_messages,
    write_errors,
)
from backlogctl.spark_backfill.existing.messages import (
    StillThere,
    as_originals,
    read_log,
)
from backlogctl.spark_backfill.existing.request import (
    Named,
    Origin,
    RedriveCounts,
    RedriveOutcome,
    RedriveRequest,
    SourcePartition,
)
from backlogctl.spark_backfill.failures import (
    list_secrets,
    planning_into,
    translating,
)
from backlogctl.spark_backfill.messages.staging import ChunkLimits, stage_messages
from backlogctl.spark_backfill.placing.attribution import take_by_edge
from backlogctl.spark_backfill.plan_log import PlanLog, prepare_staging
from backlogctl.spark_backfill.spark.frames import (
    freeze,
    last_header,
    mark_within,
)
from backlogctl.spark_backfill.spark.topic import known_time
from backlogctl.values import Chunk, OffsetRange
from backlogctl_delivery import stamps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST_NAMES = 20
_SHOWN = 5
_LONGEST_NAME = 249


def stage_redrive(
    spark: SparkSession,
    request: RedriveRequest,
    *,
    progress: Say | None = None,
    limits: ChunkLimits | None = None,
) -> RedriveOutcome:
    """Reads the messages once and stages those that are put back. Changes nothing in Kafka.

    Raises:
        UsageError: the expression is wrong.
        Refused: there is nothing to put back, or too much.
        KafkaFailure, StagingError: something could not be read or written.
    """
    if not list_decoded(request.stream, request.registries, request.where):
        check_where(spark, request.where, is_masked=bool(request.stream.mask))
    _refuse_far_too_many(request)
    log = PlanLog(progress or (lambda line: None), spark)
    with planning_into(str(request.directory)), log.telling():
        work = prepare_staging(request.staging_root, request.directory)
        with log.timed("reading", f"reading {_name_source(request)}"):
            read, warnings, frozen = _freeze(spark, request, work / "matched")
            log.warnings += warnings
            if request.origin_kind is Origin.DEAD_LETTERS:
                with translating("compare the letters", subject=request.topic, kind=StagingError):
                    frozen = distinguish_letters(frozen)
        with log.timed("comparing", "looking for what was put back already"):
            injected = _freeze_injected(spark, request)
            log.warnings += filter(None, [injected.describe_missing()])
            frozen, uncertain = _keep_waiting(frozen, request, injected)
            handled = _read_handled(spark, request, work)
            labelled = label_messages(frozen, injected.collect_keys(), request, handled)
            path = str(work / "labels")
            with translating("compare the messages", subject=path, kind=StagingError):
                labels = freeze(labelled.drop("key", "value", "headers"), path)
            counts = _count(labels, read)
            slots = _count_slots(labels)
        _require_some(request, counts)
        taken = _take_staged(frozen, labels, counts)
        log.warnings += _warn_about_older(spark, request, taken)
        with log.timed("staging", f"staging {format_plural(counts.staged, 'message')}"):
            chunks = stage_messages(
                taken,
                order=("segment", *ORDER),
                counts=slots,
                recovery_id=request.recovery_id,
                directory=request.directory,
                limits=limits,
            )
            if request.origin_kind is Origin.DEAD_LETTERS:
                write_errors(labels, request.directory)
        outcome = _finish(request, labels, counts, slots, chunks, work, log)
        return replace(outcome, uncertain=uncertain)


def _freeze_injected(spark: SparkSession, request: RedriveRequest) -> InjectedEvidence:
    """What earlier recoveries put back: in the target still, read from it, or lost again.

    Raises:
        Refused: an id list is missing.
    """
    there = StillThere(
        spark, request.client_properties, request.target, request.starts, request.prior
    )
    evidence = InjectedEvidence(
        *(spark, request.staging_root, request.prior, request.lost, there),
        may_lack=request.may_lack_ids,
    )
    evidence.freeze()
    return evidence


def _keep_waiting(
    frozen: DataFrame, request: RedriveRequest, injected: InjectedEvidence
) -> tuple[DataFrame, int]:
    """Of an archive what waits in it, or was lost again; and how many of the latter may have been
    read, taken or not (`source.edge`)."""
    if request.waiting is None:
        return frozen, 0
    place = {"partition": "source_partition", "offset": "source_offset"}
    marked = mark_within(frozen, request.waiting, "waits", **place)
    if not injected.has_lost_again:
        return marked.where("waits").drop("waits"), 0
    edge = request.stream.source.edge if request.stream.source else None
    again = injected.collect_lost_again().selectExpr(
        "key AS message_id", "sure", f"{take_by_edge(edge)} AS take"
    )
    joined = marked.join(F.broadcast(again), "message_id", "left")
    uncertain = joined.where(~F.col("sure")).count()
    # What waits is taken too where it was put back before, but not what stays as it was read.
    wanted = F.coalesce("take", "waits")
    return joined.where(wanted).drop("waits", "sure", "take"), uncertain


def _read_handled(spark: SparkSession, request: RedriveRequest, work: Path) -> DataFrame | None:
    """The consumer's own table, now: it may have handled them since they were found; None without
    one, or where the messages were chosen."""
    source = request.stream.source
    if not request.is_unhandled or source is None or source.consumed is None:
        return None
    path = work / "handled"
    with open_consumed(
        spark, request.sources, source.consumed, request.stream.name, path
    ) as evidence:
        evidence.freeze()
        return evidence.collect_keys()


def _name_source(request: RedriveRequest) -> str:
    if request.archived is not None:
        return f"archive {request.archived.manifest.recovery_id}"
    return f"topic {request.topic}"


def _warn_about_undated(count: int) -> list[str]:
    told = (
        f"{format_plural(count, 'message')} without a time that can be read (as of nanoseconds) "
        "are left out: whether they are of the time that was asked for is unknown; --offsets or "
        "--key takes them"
    )
    return [told] if count else []


def _warn_about_undecoded(count: int) -> list[str]:
    told = (
        f"{format_plural(count, 'message')} cannot be decoded, and --where sees no fields of them: "
        "`archive peek`, or --offsets with --to rehearsal, shows what they are"
    )
    return [told] if count else []


def _freeze(
    spark: SparkSession, request: RedriveRequest, path: Path
) -> tuple[int, list[str], DataFrame]:
    """How many messages the ranges and times hold, which of them could not be judged, and a copy of
    those that match.

    What follows comes from this copy: nothing that happens to the source meanwhile changes it.
    """
    seen, dated, decoded = Observation(), Observation(), Observation()
    formats = list_decoded(request.stream, request.registries, request.where)
    unknown = F.count_if(known_time().isNull()).alias("undated")
    timed = _choose_time(_read(spark, request).observe(dated, unknown), request)
    observed = timed.observe(seen, F.count(F.lit(1)).alias("read"))
    by_key = select_keys(observed, request.keys)
    hint = (DECODED_HINT if formats else WHERE_HINT) if request.where else ""
    what = f"read {_name_source(request)}"
    if request.where:
        what += " with --where" + ("" if request.stream.mask else f" {request.where}")
    with translating(
        what,
        subject=_name_source(request),
        hint=hint,
        kind=KafkaFailure if request.archived is None else StagingError,
        secrets=list_secrets(request.client_properties),
        hides_data=bool(request.where),
    ):
        readable = {}
        if formats:
            there = select_keys(_choose_time(_read(spark, request), request), request.keys)
            readable = find_readable(there, formats)
            masked = bool(request.stream.mask)
            check_where(spark, request.where, is_masked=masked, readable=readable)
        made = make_messages(select_where(by_key, request.where, readable, decoded), request)
        frozen = freeze(made, str(path), **{"parquet.enable.dictionary": "false"})
        is_bound = request.since is not None or request.until is not None
        warnings = _warn_about_undated(int(dated.get["undated"]) if is_bound else 0)
        if formats:
            warnings += _warn_about_undecoded(int(decoded.get[UNDECODED]))
        return int(seen.get["read"]), warnings, frozen


def _read(spark: SparkSession, request: RedriveRequest) -> DataFrame:
    if request.archived is not None:
        at = request.archived
        return as_originals(read_archive(spark, at.location, at.manifest, request.ranges))
    return read_log(spark, request.client_properties, request.topic, request.ranges)


def _choose_time(frame: DataFrame, request: RedriveRequest) -> DataFrame:
    if request.since is not None:
        frame = frame.where(known_time() >= round(request.since.timestamp() * 1000))
    if request.until is not None:
        frame = frame.where(known_time() < round(request.until.timestamp() * 1000))
    return frame


def _refuse_far_too_many(request: RedriveRequest) -> None:
    """Before a copy is made of a whole topic. Half of the offsets may be control records."""
    most = request.stream.limits.max_messages
    offsets = sum(item.count for item in request.ranges)
    if request.keys or request.where or request.since or request.until or offsets <= 2 * most:
        return
    if request.origin_kind is not Origin.DEAD_LETTERS:
        raise _refuse_too_many(request, f"at most {offsets}")


def _refuse_too_many(request: RedriveRequest, count: str) -> Refused:
    return Refused(
        f"{count} messages are more than `limits.max_messages` "
        f"({request.stream.limits.max_messages})",
        subject=f"stream {request.stream.name}",
        hint="raise the limit, or choose fewer: --since, --until, --offsets, --key, --where",
    )


def _take_staged(frozen: DataFrame, labels: DataFrame, counts: RedriveCounts) -> DataFrame:
    """What is sent of the frozen copy."""
    if counts.staged == counts.read - counts.filtered:
        return frozen  # all of it, so that nothing is joined
    place = ["source_partition", "source_offset"]
    return frozen.join(labels.where(F.col("label") == STAGED).select(*place), place, "left_semi")


def _warn_about_older(
    spark: SparkSession, request: RedriveRequest, staged: DataFrame
) -> tuple[str, ...]:
    """Where messages are states of rows: how many rows have moved on."""
    source, topic = request.stream.source, request.stream.topic
    if source is None or not source.mutable or source.stale != "restate" or request.target != topic:
        return ()
    try:
        older = _count_older(spark, request, staged)
    except KafkaFailure as failure:
        return (
            f"whether topic {topic} has newer messages of these rows is unknown: {failure.message}",
        )
    if not older:
        return ()
    return (
        f"{format_plural(older, 'row')} of these messages moved on: topic {topic} has newer "
        "messages of them, and their older state comes last; leave them out with --key, --where "
        "or --until",
    )


def _count_older(spark: SparkSession, request: RedriveRequest, staged: DataFrame) -> int:
    """Rows whose last staged message is older than one in the topic that no recovery wrote.

    Behind means a higher offset; of a message without a known offset, a later time.
    """
    source, topic = request.stream.source, request.stream.topic
    assert source is not None
    ends = list_offsets(
        request.client_properties, topic, range(request.stream_partitions), "latest",
        "read_committed",
    )  # fmt: skip
    # Behind the first of them; of a message without a known place, from the log's start on.
    first = F.min(F.coalesce("home_offset", F.lit(0)))
    firsts: dict[int, int] = dict(staged.groupBy("slot").agg(first).collect())
    ranges = [
        OffsetRange(p, max(request.starts.get(p, 0), firsts[p]), end)
        for p, end in ends.items()
        if p in firsts
    ]
    log = read_log(spark, request.client_properties, topic, ranges)
    header = source.identity.header
    identity = (F.col("key") if header is None else last_header(header)).alias("identity")
    places = [F.col("identity"), F.col("partition")]
    newest = (
        log.where(last_header(stamps.MESSAGE_ID).isNull())
        .select(identity, F.col("source_partition").alias("partition"),
                F.col("source_offset").alias("at"), known_time().alias("time"))
        .where(F.col("identity").isNotNull())
        .groupBy(*places)
        .agg(F.max("at").alias("newest"), F.max("time").alias("newest_time"))
    )  # fmt: skip
    last = (
        staged.select(identity, F.col("slot").alias("partition"), "home_offset", "timestamp")
        .groupBy(*places)
        .agg(F.max("home_offset").alias("last"), F.max("timestamp").alias("last_time"))
    )  # fmt: skip
    behind = F.coalesce(F.col("newest") > F.col("last"), F.col("newest_time") > F.col("last_time"))
    with translating("look for newer messages", subject=f"topic {topic}", kind=KafkaFailure):
        return last.join(newest, ["identity", "partition"]).where(behind).count()


def _count(labels: DataFrame, read: int) -> RedriveCounts:
    letter = F.col("error_class").isNotNull()
    of_letters = {"differs", "is_bare"}.issubset(labels.columns)
    corrected, bare = (
        F.col(name) if of_letters else F.lit(False) for name in ("differs", "is_bare")
    )
    left_out = F.col("label").isin(ELSEWHERE, UNNAMED)
    here = letter & ~left_out
    nowhere = F.col("home_offset").isNull()
    row = labels.agg(
        F.count(F.lit(1)).alias("matched"),
        F.count_if(here & (F.col("replayed") > 0)).alias("came_back"),
        F.count_if(here & nowhere & F.col("origin_topic").isNotNull()).alias("unreadable"),
        F.count_if(letter & ~left_out & F.col("origin_topic").isNull()).alias("assumed"),
        F.count_if((F.col("label") == REPEATED) & corrected).alias("corrected"),
        F.count_if((F.col("label") == STAGED) & bare).alias("bare"),
    ).collect()[0]
    by_label = {r["label"]: r["count"] for r in labels.groupBy("label").count().collect()}
    return RedriveCounts(
        read=read,
        filtered=read - row["matched"],
        came_back=row["came_back"],
        unreadable=row["unreadable"],
        assumed=row["assumed"],
        corrected=row["corrected"],
        bare=row["bare"],
        **by_label,
    )


def _count_slots(labels: DataFrame) -> dict[int, int]:
    staged = labels.where(F.col("label") == STAGED).groupBy("slot").count().collect()
    return {row["slot"]: row["count"] for row in staged}


def _require_some(request: RedriveRequest, counts: RedriveCounts) -> None:
    subject = f"stream {request.stream.name}"
    if counts.staged > request.stream.limits.max_messages:
        raise _refuse_too_many(request, str(counts.staged))
    if counts.staged:
        return
    why = {
        "filtered": "match no --key or --where" if request.waiting is None else "are not lost",
        "elsewhere": "are dead letters of other topics",
        "unnamed": "are dead letters that name no topic (`--allow unnamed` takes them as the "
        "stream's)",
        "empty": "are dead letters that hold no message, only its place: `--from log` has it",
        "put_back": "are put back already",
        "handled": "were handled since",
        "replays": "were put back too often (`--allow replays` takes them)",
        "quarantined": f"are larger than topic {request.target} allows",
    }
    told = [f"{n} {words}" for name, words in why.items() if (n := getattr(counts, name))]
    what = f"there is nothing to put back: {format_plural(counts.read, 'message')} read" + (
        f", {', '.join(told)}" if told else ""
    )
    if request.gaps and counts.read == counts.put_back + counts.handled + counts.filtered:
        reason = "put back already" + (", or handled" if request.is_unhandled else "")
        shown = [f'`backlogctl waive {gap} --reason "{reason}"`' for gap, _ in request.gaps]
        more = f"; and {len(shown) - _SHOWN} more gaps" if len(shown) > _SHOWN else ""
        hint = f"close what is on record: {'; '.join(shown[:_SHOWN])}{more}"
        raise PutBackAlready(what, subject=subject, hint=hint)
    raise Refused(
        what,
        subject=subject,
        hint="; ".join(request.told)
        or "check the bounds and filters; times are the timestamps of "
        + ("the letters" if request.origin_kind is Origin.DEAD_LETTERS else "the messages"),
    )


def _finish(
    request: RedriveRequest,
    labels: DataFrame,
    counts: RedriveCounts,
    slots: Mapping[int, int],
    chunks: tuple[Chunk, ...],
    work: Path,
    log: PlanLog,
) -> RedriveOutcome:
    """Writes the manifest, the last file of a plan, and throws the working files away."""
    errors, elsewhere, stripped, hops = _describe_letters(request, labels)
    origin: dict[str, Any] = {
        **request.origin,
        "stream": request.stream.fingerprint(),
        "from": str(request.origin_kind),
        "topic_id": request.topic_id,
        "ranges": [asdict(item) for item in request.ranges],
    }
    outcome = RedriveOutcome(
        recovery_id=request.recovery_id,
        counts=counts,
        partitions=_describe_partitions(request, labels),
        slots=slots,
        errors=errors,
        elsewhere=elsewhere,
        stripped=stripped,
        warnings=tuple(log.warnings),
        manifest_sha256=write_manifest(
            request.directory, Manifest(request.recovery_id, request.target, chunks, origin)
        ),
        chunks=len(chunks),
        bytes=sum(chunk.bytes for chunk in chunks),
        left_open=_find_left_open(request, labels),
        hops=hops,
    )
    shutil.rmtree(work, ignore_errors=True)
    return outcome


def _find_left_open(request: RedriveRequest, labels: DataFrame) -> tuple[str, ...]:
    """Gaps with a message that is not sent and that nobody handled. Of the log, what was put back
    for another group counts too: this one has not handled that copy."""
    if not request.gaps:
        return ()
    missing = F.col("label").isin(REPLAYS, QUARANTINED)
    if request.is_unhandled:
        missing |= (F.col("label") == PUT_BACK) & F.col("is_copy")
    rows = labels.where(missing).select("source_partition", "source_offset").collect()
    return tuple(
        gap
        for gap, item in request.gaps
        if any(
            item is None
            or (
                row["source_partition"] == item.partition
                and item.start <= row["source_offset"] < item.end
            )
            for row in rows
        )
    )


def _describe_letters(
    request: RedriveRequest, labels: DataFrame
) -> tuple[tuple[Named, ...], tuple[Named, ...], tuple[Named, ...], tuple[Named, ...]]:
    """Of dead letters the errors, the topics of others, what is stripped, and the hops."""
    if request.origin_kind is not Origin.DEAD_LETTERS:
        return (), (), (), ()
    staged = labels.where(F.col("label") == STAGED)
    others = labels.where(F.col("label") == ELSEWHERE)
    return (
        _name_most(staged.select(F.col("error_class").alias("name"))),
        _name_most(others.select(F.col("origin_topic").alias("name"))),
        _name_most(staged.select(F.explode("stripped").alias("name"))),
        _name_most(staged.where("hops IS NOT NULL").select(F.col("hops").alias("name"))),
    )


def _name_most(names: DataFrame) -> tuple[Named, ...]:
    """The commonest of the column `name`; the rest together."""
    found = (
        names.groupBy(F.substring("name", 1, _LONGEST_NAME).alias("name"))
        .count()
        .orderBy(F.desc("count"), "name")
        .limit(1000)
        .collect()
    )
    named = [Named(row["name"], row["count"]) for row in found[:_MOST_NAMES]]
    if rest := found[_MOST_NAMES:]:
        named.append(Named(f"{len(rest)} others", sum(row["count"] for row in rest)))
    return tuple(named)


def _describe_partitions(request: RedriveRequest, labels: DataFrame) -> tuple[SourcePartition, ...]:
    rows = (
        labels.groupBy("source_partition")
        .agg(
            F.count(F.lit(1)).alias("matched"),
            F.count_if(F.col("label") == STAGED).alias("staged"),
            F.min("original_time").alias("first"),
            F.max("original_time").alias("last"),
        )
        .collect()
    )
    found = {row["source_partition"]: row for row in rows}
    whole: dict[int, tuple[int, int]] = {}
    for item in request.ranges:
        start, end = whole.get(item.partition, (item.start, item.end))
        whole[item.partition] = min(start, item.start), max(end, item.end)
    return tuple(
        SourcePartition(partition, *span, *(found[partition][1:] if partition in found else ()))
        for partition, span in sorted(whole.items())
    )
