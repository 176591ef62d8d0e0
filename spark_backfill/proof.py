"""Proof on survivors: the same rules rebuild messages that are still in the log (P2.8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.clock import read_millis, utc_now
from backlogctl.config import StreamSource
from backlogctl.errors import Refused
from backlogctl.formats import format_duration, format_plural
from backlogctl.kafka.raw_client import cut
from backlogctl.partitioners import PARTITIONERS
from backlogctl.spark_backfill.comparison import (
    Header,
    Ignoring,
    LogMessage,
    RebuiltMessage,
    advise_ignoring,
    compare_messages,
)
from backlogctl.spark_backfill.evidence.survivors import SurvivorEvidence
from backlogctl.spark_backfill.failures import translating
from backlogctl.spark_backfill.messages.candidates import SourceAccess, drop_duplicates, read_rows
from backlogctl.spark_backfill.messages.encoding import count_returns, make_decoder, share_by_schema
from backlogctl.spark_backfill.messages.rules import MessageRules, build_messages, join_headers
from backlogctl.spark_backfill.messages.windows import CLOCKS, join_conditions
from backlogctl.spark_backfill.request import ALLOW_PROOF, Proof
from backlogctl.spark_backfill.sources.databases import ColumnKind
from backlogctl.spark_backfill.sources.reflection import SourceTable
from backlogctl_delivery.stamps import SEQUENCE_HEADERS

# A time column read in the wrong zone, told from messages and their rows.

# Fewer pairs than this agree by chance.
MIN_PAIRS = 5
MIN_SHIFT = timedelta(minutes=30)
# From UTC-12 to UTC+14: no two zones are further apart.
MAX_SHIFT = timedelta(hours=26)
# Every zone is a multiple of this away from UTC.
STEP = timedelta(minutes=15)
# How long a message may follow its row, and how far most pairs may lie from the median.
MAX_DELAY = timedelta(minutes=3)
MAX_SPREAD = timedelta(minutes=2)
# A date tells no hour.
_WITHOUT_ZONE = (ColumnKind.TIME, ColumnKind.TEXT)


@dataclass(frozen=True, slots=True)
class ZoneShift:
    """By how much rows seem to be read too early; negative: too late. `pairs` were compared."""

    by: timedelta
    pairs: int


def find_shift(pairs: Sequence[tuple[datetime, datetime]]) -> ZoneShift | None:
    """The constant shift between the times of messages and of their rows, as another zone makes it.

    Args:
        pairs: a message's time in the log, and the time of its row as it was read.
    """
    if len(pairs) < MIN_PAIRS:
        return None
    differences = [(log - row).total_seconds() for log, row in pairs]
    middle = median(differences)
    spread = median(abs(item - middle) for item in differences)
    steps = round(middle / STEP.total_seconds())
    shift = steps * STEP
    if not MIN_SHIFT <= abs(shift) <= MAX_SHIFT or spread > MAX_SPREAD.total_seconds():
        return None
    if abs(middle - shift.total_seconds()) > MAX_DELAY.total_seconds():
        return None
    return ZoneShift(shift, len(pairs))


def describe_shift(shift: ZoneShift, database: str, timezone: str, at: datetime) -> str:
    """What is wrong, and which key says it.

    Args:
        timezone: what the configuration says.
        at: when the rows were written; a zone's offset depends on it.
    """
    offset = at.astimezone(ZoneInfo(timezone)).utcoffset() or timedelta(0)
    side = "before" if shift.by > timedelta(0) else "after"
    far = format_duration(abs(shift.by).total_seconds())
    return (
        f"the times of rows lie {far} {side} those of their messages in the log "
        f"({shift.pairs} compared): is `sources.{database}.timezone` right? it is {timezone}, and "
        f"the rows look like {_show_offset(offset - shift.by)}"
    )


def suspect_zone(
    times: Sequence[tuple[int | None, str]], rules: MessageRules, table: SourceTable
) -> str:
    """What to say where the rows' time column, which has no zone itself, seems to be read in the
    wrong one; "" for nothing.

    Args:
        times: a message's timestamp in ms, and the time of its row in the normal form.
    """
    time = table.column(rules.source.time_column)
    if time.zoned or time.kind not in _WITHOUT_ZONE:
        return ""
    pairs = _read_times(times)
    shift = find_shift(pairs)
    if shift is None:
        return ""
    return describe_shift(shift, table.database, rules.timezone, pairs[0][0])


def suspect_clocks(times: Sequence[tuple[int | None, str]], source: StreamSource) -> str:
    """What to say where rows that do not change are dated later than their messages, against what
    the gaps' times are widened by (P2.1); "" for nothing.

    Args:
        times: as for `suspect_zone`.
    """
    if source.mutable:
        return ""
    late = source.drift[1] or CLOCKS
    behind = [row - log for log, row in _read_times(times) if row - log > late]
    if len(behind) < MIN_PAIRS:
        return ""
    most = format_duration(max(behind).total_seconds())
    return (
        f"{len(behind)} of {len(times)} compared rows are dated later than their messages in the "
        f"log, by up to {most}: clocks differ, the time is set behind the message "
        "(`sent_time`, `margin`), or rows change (`mutable`); where times alone say which rows "
        "were lost, some of them may be taken for later ones: use a later --until"
    )


def _read_times(times: Sequence[tuple[int | None, str]]) -> list[tuple[datetime, datetime]]:
    return [
        (at, datetime.fromisoformat(row))
        for log, row in times
        if (at := read_millis(log)) is not None
    ]


# Messages in other partitions than the rules say, and which rule puts them there.


def suspect_partitions(
    pairs: Sequence[tuple[LogMessage, RebuiltMessage]], partitioner: str, partitions: int
) -> str:
    """Which partitioner, over how many partitions, puts all keys where they are that the rules put
    elsewhere; "" for none, or too few keys.

    Args:
        partitioner: the stream's.
        partitions: that the topic has now; it may have had fewer.
    """
    known = [
        (log.key, log.partition, made.partition)
        for log, made in pairs
        if log.key is not None and log.key == made.key and made.partition is not None
    ]
    moved = [one for one in known if one[1] != one[2]]
    if len(moved) < MIN_PAIRS:
        return ""
    for name in sorted(PARTITIONERS, key=lambda name: name != partitioner):
        # Another partitioner places all keys; of fewer partitions there are older messages only.
        some = moved if name == partitioner else known
        keys, places = pa.array([one[0] for one in some], pa.binary()), [one[1] for one in some]
        for count in range(partitions, 1, -1):  # all in one partition is no rule
            if PARTITIONERS[name](keys, count).tolist() == places:
                return (
                    f"all {len(moved)} keys that differ in their partition lie where "
                    f"`partitioner: {name}` puts them among {count} partitions (the stream says "
                    f"{partitioner}, the topic has {partitions} now)"
                )
    return ""


@contextmanager
def explaining(said: str, warnings: list[str]) -> Iterator[None]:
    """Adds what is suspected to the hint of a refusal inside; where there is none, it is a warning.

    Args:
        said: "" changes nothing.
    """
    try:
        yield
    except Refused as refused:
        if not said:
            raise
        hint = f"{said}; else {refused.hint}" if refused.hint else said
        raise type(refused)(refused.message, subject=refused.subject, hint=hint) from None
    if said:
        warnings.append(said)


def _show_offset(offset: timedelta) -> str:
    minutes = round(offset.total_seconds() / 60)
    hours, rest = divmod(abs(minutes), 60)
    return f"UTC{'-' if minutes < 0 else '+'}{hours:02}:{rest:02}"


SAMPLE = 200
_AHEAD, _UNIX = timedelta(days=1), datetime(1970, 1, 1, tzinfo=UTC)
MIN_RATE = 0.99


def prove_rules(
    survivors: SurvivorEvidence,
    rules: MessageRules,
    access: SourceAccess,
    candidates: DataFrame,
) -> tuple[Proof, str, timedelta]:
    """Takes a sample of survivors and compares each with what the rules make of its row.

    Args:
        candidates: the frozen candidates, where rows are looked up that SQL identifies.

    Returns:
        The proof, and what the same rows say of clocks, zone and partitioner ("" for nothing),
        and by how much a row is dated before its message at most.
    """
    messages = sample_log(survivors)
    rebuilt: dict[bytes, RebuiltMessage] = {}
    sampled = [(one.identity, one.value, one.headers) for one in messages]
    for some, encoders in share_by_schema(sampled, rules.encoders):
        rebuilt |= _rebuild_sample(some, replace(rules, encoders=encoders), access, candidates)
    pairs = [
        (message, rebuilt[message.identity]) for message in messages if message.identity in rebuilt
    ]
    proof = compare_messages(
        pairs,
        sampled=len(messages),
        mutable=rules.source.mutable and rules.source.stale != "events",
        ignoring=Ignoring(rules.source.message.ignore_headers, rules.source.message.ignore_fields),
        decode=make_decoder(rules.encoders.get("value")),
        mask=rules.stream.mask,
    )
    proof = replace(
        proof,
        repeated=sum(message.repeated for message in messages),
        returns=count_returns(messages, rules.encoders),
    )
    times = [(log.timestamp, made.time) for log, made in pairs if made.time is not None]
    suspected = (
        suspect_zone(times, rules, access.table) or suspect_clocks(times, rules.source),
        suspect_partitions(pairs, rules.stream.partitioner, rules.partitions),
    )
    # A clock that is far off says nothing of how old rows are.
    lags = [at - row for at, row in _read_times(times) if at < utc_now() + _AHEAD and row > _UNIX]
    lag = max(lags, default=timedelta(0))
    return proof, "; ".join(filter(None, suspected)), lag


def require_proof(proof: Proof, allow: frozenset[str], subject: str, *, survivors: int) -> None:
    """Raises Refused where less than 99 % agree, or nothing was compared although messages
    survive, and `proof` was not allowed by name.

    Args:
        survivors: messages in the log that no recovery sent.
    """
    if ALLOW_PROOF in allow:
        return
    if proof.rate is None:
        if survivors or proof.sampled:
            raise Refused(
                f"the rules are not proved: {survivors} messages survive, {proof.sampled} of them "
                "were looked up by their identity, and none belongs to a row that was read",
                subject=subject,
                hint="check `identity` (the header's name, the row's column); where SQL identifies "
                "rows, survivors are looked for between --since and --until alone: use times that "
                "some of them are of, or `--allow proof`",
            )
        return
    if proof.rate >= MIN_RATE:
        return
    shown = "; ".join(
        f"{item.identity}: {item.what} {item.detail}" for item in proof.differences[:3]
    )
    advice = advise_ignoring(proof)
    raise Refused(
        f"the rules rebuild only {proof.matched} of {proof.compared} surviving messages as they "
        f"are in the log ({proof.rate:.1%}): {shown}",
        subject=subject,
        hint="correct `message` (docs/messages.md) or `partitioner`; "
        f"{advice + '; ' if advice else ''}or use `--allow proof`",
    )


# With fewer, no plan is exact: a hundred without an exception mean at most 3 % (rule of three).
ENOUGH_SURVIVORS = 100


def describe_unproved(proof: Proof) -> str:
    """Why the rules are not proved; empty where they are."""
    if proof.rate is None:
        what = "no surviving message belongs to a row" if proof.sampled else "nothing survives"
        return f"{what} to compare with"
    if proof.rate < MIN_RATE:
        told = f"only {proof.matched} of {proof.compared} surviving messages agree"
        return f"{told}, {proof.placed} in key and partition" if places_rows(proof) else told
    if proof.rate < 1:
        told = f"{proof.matched} of {proof.compared} surviving messages agree"
        return f"{told}, so lost ones may differ too"
    if proof.compared < ENOUGH_SURVIVORS:
        survivors = format_plural(proof.compared, "surviving message")
        return (
            f"only {survivors} could be compared with what they make of rows, {ENOUGH_SURVIVORS} "
            "are needed to rely on them"
        )
    return ""


def describe_repeated(proof: Proof) -> str:
    """Counts that fit prove nothing where a row may have several messages; "" where none has."""
    if proof.mutable or not proof.repeated:
        return ""
    return (
        f"of {format_plural(proof.sampled, 'survivor')} {proof.repeated} were sent more than once: "
        "lost ones may have been too, and rows that were never sent stand for the repeats"
    )


def places_rows(proof: Proof) -> bool:
    """Whether rows are known to stand for their messages, in their partitions: to place them takes
    no more, whatever their values and headers are."""
    return proof.compared > 0 and (proof.placed or 0) / proof.compared >= MIN_RATE


def sample_log(survivors: SurvivorEvidence, size: int = SAMPLE) -> tuple[LogMessage, ...]:
    """Up to `size` identities of the log, by a hash of the identity, each with its newest
    message that is not ours."""
    frozen = survivors.read_frozen().where(F.col("identity").isNotNull() & ~F.col("ours"))
    found = _pick(frozen.where(F.col("content").isNotNull()), size)
    if len(found) < size:
        # Few identities with many messages each: the sample kept with the survivors is too thin.
        chosen = [
            row["identity"]
            for row in frozen.select("identity")
            .distinct()
            .orderBy(F.xxhash64("identity"), "identity")
            .limit(size)
            .collect()
        ]
        if len(chosen) > len(found):
            content = F.struct("key", "value", "headers").alias("content")
            again = survivors.read_messages().where(~F.col("ours") & _is_one_of(chosen))
            found = _pick(again.withColumn("content", content), size)
    return tuple(found)


def _pick(messages: DataFrame, size: int) -> list[LogMessage]:
    """The newest message of each of `size` identities."""
    rows = messages.sparkSession.sql(
        f"""
        SELECT identity, partition, offset, timestamp, content, first < last AS repeated FROM (
            SELECT *, row_number() OVER newest AS place,
                min((partition, offset)) OVER same AS first,
                max((partition, offset)) OVER same AS last
            FROM {{messages}}
            WINDOW same AS (PARTITION BY identity),
                newest AS (PARTITION BY identity ORDER BY timestamp DESC, offset DESC)
        ) WHERE place = 1 ORDER BY xxhash64(identity), identity LIMIT {size}
        """,
        messages=messages,
    ).collect()
    return [
        LogMessage(
            identity=bytes(row["identity"]),
            partition=row["partition"],
            offset=row["offset"],
            key=_bytes(row["content"]["key"]),
            value=_bytes(row["content"]["value"]),
            headers=_read_headers(row["content"]["headers"]),
            timestamp=row["timestamp"],
            repeated=row["repeated"],
        )
        for row in rows
    ]


def _is_one_of(identities: Sequence[bytes]) -> Column:
    """As one expression: each literal of its own takes PySpark several calls."""
    literals = ", ".join(f"X'{bytes(one).hex()}'" for one in identities)
    return F.expr(f"identity IN ({literals})")


def _read_headers(headers: Any) -> tuple[Header, ...]:
    """A producer's numbering is no part of what a row says."""
    return tuple(
        (item["name"], _bytes(item["value"]))
        for item in headers or ()
        if item["name"] not in SEQUENCE_HEADERS
    )


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _rebuild_sample(
    identities: Sequence[bytes],
    rules: MessageRules,
    access: SourceAccess,
    candidates: DataFrame,
) -> Mapping[bytes, RebuiltMessage]:
    name = None if rules.identified_by_key else rules.source.identity.row.column
    where = render_identities(identities, name, access.table)
    if where is not None:
        rows = read_rows(access, rules, where, rows=len(identities))
        unique = access.table.is_unique(rules.source.primary_key)
        messages = drop_duplicates(build_messages(rows, rules), rules, unique=unique)
    else:
        messages = candidates
    found = messages.where(_is_one_of(identities))
    found = found.withColumn(
        "headers", join_headers(rules.header_names, listed=rules.lists_headers)
    )
    rebuilt: dict[bytes, RebuiltMessage] = {}
    # Two rows of one identity: the plan refuses that by itself; here the newest is compared.
    for row in found.orderBy("identity", F.asc_nulls_first("time")).collect():
        identity = bytes(row["identity"])
        rebuilt[identity] = RebuiltMessage(
            identity=identity,
            partition=row["home"],
            key=_bytes(row["key"]),
            value=_bytes(row["value"]),
            headers=_read_headers(row["headers"]),
            reason=row["reason"],
            time=row["time"],
        )
    return rebuilt


def render_identities(
    identities: Sequence[bytes], name: str | None, table: SourceTable
) -> str | None:
    """The identities as an IN list that an index serves; None where only Spark can look.

    Args:
        name: the column that identifies a row; None where an expression does.
    """
    if name is None:
        return None
    render = table.engine.find_renderer(table.column(name))
    if render is None:
        return None
    literals = [text for text in (render(i) for i in identities) if text is not None]
    if not literals:
        return "1 = 0"
    return f"{table.engine.quote_name(name)} IN ({', '.join(literals)})"


_AT_ONCE = 500


def find_gone_rows(
    access: SourceAccess, name: str | None, identities: Sequence[bytes]
) -> frozenset[bytes] | None:
    """Those of the identities that no row of the stream has now; None where only Spark can look.

    What the column cannot hold is not asked for, and not known to be gone.

    Raises:
        SourceError: the table could not be read; then nothing is known.
    """
    render = None if name is None else access.table.engine.find_renderer(access.table.column(name))
    if render is None:
        return None
    gone = {identity for identity in identities if render(identity) is not None}
    # Without an index each batch would read the whole table: it is read once.
    size = _AT_ONCE if name in access.table.indexed else max(1, len(identities))
    with (
        translating("look for rows", subject=access.subject, secrets=access.jdbc.secrets),
        access.engine.connect() as connection,
    ):
        for some in cut(identities, size):
            where = render_identities(some, name, access.table)
            assert name is not None
            assert where is not None
            conditions = [access.wanted, where] if size == _AT_ONCE else [access.wanted]
            condition = join_conditions(*conditions)
            statement = (
                f"SELECT {access.table.engine.quote_name(name)} FROM "
                f"{access.table.quoted}" + (f" WHERE {condition}" if condition else "")
            )
            options = {"no_parameters": True, "stream_results": True}
            for (value,) in connection.exec_driver_sql(statement, execution_options=options):
                gone.discard(str(value).encode())
    return frozenset(gone)
