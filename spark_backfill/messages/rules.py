"""Messages from rows: key, value, headers, identity, message id and partition.

All of it is built inside Spark's JVM.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from backlogctl.clock import format_time
from backlogctl.config import Expr, Stream, StreamSource
from backlogctl.errors import ConfigurationError
from backlogctl.spark_backfill.failures import find_first_cause
from backlogctl.spark_backfill.messages.windows import CLOCKS
from backlogctl.spark_backfill.request import Growth
from backlogctl.spark_backfill.sources.columns import (
    REASON,
    TIME_FORMAT,
    parse_time_text,
    spark_type,
)
from backlogctl.spark_backfill.sources.reflection import (
    ColumnKind,
    SourceColumn,
    SourceTable,
    check_columns,
    list_named_columns,
)
from backlogctl.spark_backfill.spark.frames import make_empty

# A row's headers: those that it lists itself, then those that the stream's rules name.

HEADERS = "array<struct<name:string,value:binary>>"
# Spark reads a number as text, and nothing that stands behind the list. No quantifier gives
# anything back: a long text would exhaust the stack.
_NAME = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_ONE = "[A-Za-z0-9+/]"
_VALUE = rf'(?:"(?:{_ONE}{{4}})*+(?:{_ONE}{{2}}==|{_ONE}{{3}}=)?+"|null)'
_PAIR = rf"\s*+\[\s*+{_NAME}\s*+,\s*+{_VALUE}\s*+\]\s*+"
_LIST = rf"^\s*+\[(?:{_PAIR}(?:,{_PAIR})*+)?+\s*+\]\s*+$"
BROKEN = "its headers are no JSON list of [name, value in base64 or null]"


def parse_list(text: Column) -> Column:
    """Headers of a JSON list of `[name, value in base64 or null]`, in their order.

    No text is no headers. NULL where it is something else.
    """
    pairs = F.from_json(text, "array<array<string>>")
    parsed = F.transform(
        pairs,
        lambda pair: F.struct(
            F.get(pair, 0).alias("name"),
            F.try_to_binary(F.get(pair, 1), F.lit("base64")).alias("value"),
        ),
    ).cast(HEADERS)
    none = F.coalesce(text, F.lit("")) == ""
    return F.when(none, F.array().cast(HEADERS)).when(text.rlike(_LIST), parsed)


def join_headers(names: Sequence[str], *, listed: bool) -> Column:
    """All headers of a message of `build_messages`, as one list.

    Args:
        names: those of the columns `header_values`.
        listed: whether there is a column `header_list`.
    """
    named = F.array(
        *(
            F.struct(F.lit(name).alias("name"), F.element_at("header_values", i).alias("value"))
            for i, name in enumerate(names, 1)
        )
    ).cast(HEADERS)
    return F.concat("header_list", named) if listed else named


def measure_list(headers: Column) -> Column:
    """Its bytes in a record, at most."""
    sizes = F.transform(
        headers,
        lambda item: (
            F.octet_length(item["name"]) + F.coalesce(F.octet_length(item["value"]), F.lit(0)) + 8
        ),
    )
    return F.coalesce(F.aggregate(sizes, F.lit(0), lambda total, size: total + size), F.lit(0))


# The partitioners of Kafka's clients as Spark columns: no key leaves the JVM.

_KAFKA_UTILS = "org.apache.kafka.common.utils.Utils"


def _hash_murmur2(key: Column) -> Column:
    """Kafka's own `murmur2`, called by the code that Spark generates; NULL for a NULL key.

    Spark's SQL has no such call, and the same in SQL's arithmetic takes many times as long.
    """
    jvm = SparkSession.active()._jvm
    assert jvm is not None
    catalyst = jvm.org.apache.spark.sql.catalyst.expressions.objects
    utils = jvm.org.apache.spark.sql.classic.ExpressionUtils
    call = catalyst.StaticInvoke(
        jvm.org.apache.spark.util.Utils.classForName(_KAFKA_UTILS, True, True),
        jvm.org.apache.spark.sql.types.DataType.fromDDL("int"),
        "murmur2",
        jvm.PythonUtils.toSeq([utils.expression(key._jc)]),
        jvm.PythonUtils.toSeq([]),
        True,  # NULL for NULL
        True,  # may be NULL
        True,  # deterministic
        jvm.scala.Option.empty(),
    )
    return Column(utils.column(call))


def _place_murmur2(key: Column, partitions: int) -> Column:
    return _hash_murmur2(key).bitwiseAND(F.lit(0x7FFFFFFF)) % F.lit(partitions)


def _place_crc32(key: Column, partitions: int) -> Column:
    return (F.crc32(key) % F.lit(partitions)).cast("int")


# What `backlogctl.partitioners` says, to the bit.
PLACES: Mapping[str, Callable[[Column, int], Column]] = {
    "murmur2": _place_murmur2,
    "crc32": _place_crc32,
}


# Columns and SQL expressions of the configuration, checked by analysis before a row is read.

_CALLS_CODE = re.compile(r"\b(reflect|java_method|try_reflect)\(", re.IGNORECASE)
_UNKNOWN = re.compile(r"column, variable, or function parameter with name `(.+?)` cannot")


def column(name: str) -> Column:
    """A column by its exact name, whatever characters it has."""
    return F.col("`" + name.replace("`", "``") + "`")


def check_expression(analysed: Any) -> str:
    """Why an expression that Spark has analysed is refused; "" where it is not."""
    text = analysed.toString()
    if _CALLS_CODE.search(text):
        return "calls code by reflection, which is refused"
    if not analysed.deterministic():
        return "gives another result each time, so nothing could be proved"
    if "Generate" in text or "Subquery" in text or "subquery#" in text:
        return "makes several rows of one, or reads another table"
    return ""


def check_expr(empty: DataFrame, table: SourceTable, expr: Expr, subject: str) -> set[str]:
    """The columns that an expression reads."""
    if expr.column is not None:
        check_columns(table, [expr.column], subject)
        return {expr.column}
    assert expr.sql is not None
    known = [c.name for c in table.columns]
    try:
        made = F.expr(expr.sql)
        analysed: Any = empty.select(made)._jdf.queryExecution().analyzed()
        # An aggregate alone is legal, beside a column of the row it is not.
        empty.select(column(known[0]), made.cast("string"))
    except PySparkException as error:
        cause, _ = find_first_cause(error)
        unknown = _UNKNOWN.search(cause)
        if unknown:
            name = unknown.group(1).replace("`.`", ".")
            check_columns(table, [name], subject, more=f"; a fixed text is written \"'{name}'\"")
        raise ConfigurationError(
            f"is not an SQL expression that Spark takes: {cause.split(' SQLSTATE')[0]}",
            subject=subject,
            hint="times and decimals are text here, see docs/messages.md",
        ) from None
    if why := check_expression(analysed):
        raise ConfigurationError(why, subject=subject)
    names = analysed.references().toSeq()
    return {names.apply(i).name() for i in range(names.size())}


ORIGINAL = "original"
RESTATED = "restated"
# Record and batch headers, with room to spare, and five stamps; the broker counts them too.
OVERHEAD_BYTES = 512
DEFAULT_MAX_BYTES = 1_048_588
_REST, _SENT = "__rest", "__sent"
# 0002-01-01 and 9999-12-30, between which databases and Spark mean the same.
_FIRST_SECOND, _LAST_SECOND = -62_104_060_800, 253_402_128_000


@dataclass(frozen=True, slots=True)
class MessageRules:
    """Checked rules of one stream: how a row becomes a message.

    `columns` are those that the rules need, in the table's order; `order` the sort columns.
    `targets` are the partitions over which messages without a key are spread. `growth`: when the
    topic got partitions, for the rows whose messages are older.
    """

    stream: Stream
    source: StreamSource
    columns: tuple[SourceColumn, ...]
    order: tuple[SourceColumn, ...]
    partitions: int
    targets: tuple[int, ...]
    max_bytes: int
    timezone: str
    growth: tuple[Growth, ...] = ()

    @property
    def is_event(self) -> bool:
        """Whether a row is one message for ever, not the state of something."""
        return self.source.stale != "restate"

    @property
    def fidelity(self) -> str:
        """How faithful the messages are: original, or restated from the row as it is now."""
        return ORIGINAL if self.is_event or not self.source.mutable else RESTATED

    @property
    def lists_headers(self) -> bool:
        """Whether rows have headers of their own."""
        return self.source.message.header_list is not None

    @property
    def header_names(self) -> tuple[str, ...]:
        return tuple(self.source.message.headers)

    def order_names(self) -> tuple[str, ...]:
        """Names of the sort columns in what `build_messages` makes."""
        return tuple(
            # Always as it was parsed: raw text may hold several formats, or zones.
            "time" if c.name == self.source.time_column else f"o{i}"
            for i, c in enumerate(self.order)
        )

    @property
    def own_order(self) -> tuple[SourceColumn, ...]:
        """The sort columns that the stream names: the primary key behind them only makes the order
        of rows the same each time."""
        return self.order[: len(dict.fromkeys(self.source.order_by))]

    def key_names(self) -> tuple[str, ...]:
        """Names of the primary key's columns in what `build_messages` makes."""
        return tuple(f"p{i}" for i in range(len(self.source.primary_key)))


def check_rules(
    spark: SparkSession,
    stream: Stream,
    table: SourceTable,
    *,
    partitions: int,
    targets: Sequence[int],
    max_bytes: int,
    timezone: str,
    growth: Sequence[Growth] = (),
) -> MessageRules:
    """Checks every column and expression by analysis, before a row is read (fault 33).

    Raises:
        ConfigurationError: names the column or expression, and where it stands in the file.
    """
    source = stream.source
    assert source is not None
    at = f"streams.{stream.name}.source"
    for place, names in list_named_columns(source, at):
        check_columns(table, names, place)
    _check_time_column(table, source, at)
    empty = make_empty(
        spark, T.StructType([T.StructField(c.name, spark_type(c)) for c in table.columns])
    )
    # Rows that `order_by` leaves equal are in the order of their primary key, as typed.
    order = (*source.order_by, *source.primary_key)
    used = {source.time_column, *order}
    message = source.message
    if message.key is not None:
        used |= check_expr(empty, table, message.key, f"{at}.message.key")
    if message.partition is not None:
        used.add(message.partition)
    value = message.value
    if value.json_columns is not None:
        used |= set(value.json_columns)
    else:
        expr = Expr(column=value.column, sql=value.sql)
        used |= check_expr(empty, table, expr, f"{at}.message.value")
    if message.header_list is not None:
        used |= check_expr(empty, table, message.header_list, f"{at}.message.header_list")
    for name, sql in message.headers.items():
        used |= check_expr(empty, table, Expr(column=None, sql=sql), f"{at}.message.headers.{name}")
    used |= check_expr(empty, table, source.identity.row, f"{at}.identity.row")
    return MessageRules(
        stream=stream,
        source=source,
        columns=tuple(column for column in table.columns if column.name in used),
        order=tuple(table.column(name) for name in dict.fromkeys(order)),
        partitions=partitions,
        targets=tuple(targets),
        max_bytes=max_bytes,
        timezone=timezone,
        growth=tuple(growth),
    )


def build_messages(rows: DataFrame, rules: MessageRules) -> DataFrame:
    """One message a row.

    Returns:
        p0.. the primary key as text, time string, identity binary, message_id string, key binary,
        value binary, header_values array<binary>, header_list (where the stream has one; NULL where
        it cannot be read), slot int (the partition it is put back into),
        home int (the one it was sent to; NULL where unknown), reason string (why the row cannot be
        built; NULL where it can), o0.. the sort columns.
    """
    source = rules.source
    pk = [column(name).cast("string") for name in source.primary_key]
    types = {c.name: c.kind for c in rules.columns}
    pk = [
        F.hex(column(name)) if types[name] is ColumnKind.BYTES else text
        for name, text in zip(source.primary_key, pk, strict=True)
    ]
    time = time_text(rules)
    identity = as_bytes(rows, source.identity.row)
    version = identity if rules.is_event else time.cast("binary")
    key = F.lit(None).cast("binary")
    if source.message.key is not None:
        key = as_bytes(rows, source.message.key)
    headers = [
        as_bytes(rows, Expr(column=None, sql=sql)) for sql in source.message.headers.values()
    ]
    listed = []
    if (own := source.message.header_list) is not None:
        listed = [parse_list(as_bytes(rows, own).cast("string")).alias("header_list")]
    order = [
        _sort_column(c).alias(name)
        for c, name in zip(rules.order, rules.order_names(), strict=True)
        if name != "time"
    ]
    built = rows.select(
        *(part.alias(f"p{i}") for i, part in enumerate(pk)),
        time.alias("time"),
        identity.alias("identity"),
        hash_message_id(rules.stream.topic, pk, version).alias("message_id"),
        key.alias("key"),
        _find_sent(rules).alias(_SENT),
        _build_value(rows, rules).alias("value"),
        (F.array(*headers) if headers else F.array().cast("array<binary>")).alias("header_values"),
        *listed,
        _find_reason(time, identity, rules).alias("reason"),
        _measure_rest(key, headers, rules).alias(_REST),
        *order,
    )
    rest, tombstone = F.col(_REST), F.col("value").isNull()
    if rules.lists_headers:
        rest = rest + measure_list(F.col("header_list"))
    if source.message.tombstones:
        tombstone = F.lit(False)
    too_large = F.coalesce(F.octet_length("value"), F.lit(0)) > F.lit(rules.max_bytes) - rest
    reason = F.coalesce(
        F.col("reason"),
        F.when(F.col("header_list").isNull(), F.lit(BROKEN)) if listed else F.lit(None),
        F.when(tombstone, F.lit("its value is NULL: it would be a tombstone")),
        F.when(
            too_large,
            F.lit(f"larger than the topic allows ({rules.max_bytes} bytes with its overhead)"),
        ),
    )
    placed = built.withColumn("slot", _place(rules)).withColumn("homes", _find_homes(rules))
    only = F.when(F.size("homes") == 1, F.element_at("homes", 1))
    placed = placed.withColumn("home", only)
    return placed.withColumn("reason", reason).drop(_REST, _SENT)


def as_bytes(rows: DataFrame, expr: Expr) -> Column:
    """An expression's value as bytes: text in UTF-8, bytes as they are."""
    if expr.column is not None:
        made = column(expr.column)
    else:
        assert expr.sql is not None
        made = F.expr(expr.sql)
    if isinstance(rows.select(made).schema.fields[0].dataType, T.BinaryType):
        return made
    return made.cast("string").cast("binary")


def time_text(rules: MessageRules) -> Column:
    """The row's time in the normal form; NULL where it has none that can be read."""
    item = next(c for c in rules.columns if c.name == rules.source.time_column)
    plain = column(item.name)
    if item.kind is ColumnKind.TIME:
        return plain
    if item.kind is ColumnKind.INTEGER:
        return _count_time(plain, rules.source.time_unit)
    if item.kind is ColumnKind.DATE:
        plain = F.concat(plain, F.lit(" 00:00:00"))
    return parse_time_text(plain, rules.timezone)


def _count_time(number: Column, unit: str | None) -> Column:
    """Whole seconds or milliseconds since 1970; NULL for what no time in the normal form is."""
    size, make = (1000, F.timestamp_millis) if unit == "ms" else (1, F.timestamp_seconds)
    known = F.when(number.between(_FIRST_SECOND * size, _LAST_SECOND * size), number)
    return F.date_format(make(known), TIME_FORMAT)


def hash_message_id(topic: str, primary_key: Sequence[Column], version: Column) -> Column:
    """`stamps.make_message_id` in Spark SQL, bit for bit."""
    name = topic.encode()
    null, pieces = F.lit(b"\xff"), [F.lit(len(name).to_bytes(4, "big") + name)]
    parts = [F.coalesce(part.cast("binary"), null) for part in primary_key]
    for raw in (*parts, F.coalesce(version, F.lit(b""))):
        pieces += [F.unhex(F.lpad(F.hex(F.octet_length(raw)), 8, "0")), raw]
    return F.substring(F.sha2(F.concat(*pieces), 256), 1, 32)


def _build_value(rows: DataFrame, rules: MessageRules) -> Column:
    value = rules.source.message.value
    if value.json_columns is None:
        return as_bytes(rows, Expr(column=value.column, sql=value.sql))
    fields = F.struct(*(column(name).alias(name) for name in value.json_columns))
    return F.to_json(fields, {"ignoreNullFields": "false"}).cast("binary")


def _find_homes(rules: MessageRules) -> Column:
    """The partitions that a row's message may have been sent to, by its key: the hash is taken
    modulo the number of partitions of its time. Without a key the one that the row says; NULL where
    it says none."""
    if not rules.growth:
        homes = F.array("slot")
    else:
        time = F.col("time")
        early, late = (side or CLOCKS for side in rules.source.drift)
        possible = []
        for before, after in pairwise([None, *rules.growth, None]):
            there = F.lit(True)
            if before is not None:
                there &= F.coalesce(time >= format_time(before.earliest - early), F.lit(True))
            if after is not None:
                # A row may be older than its message by the margin; no message than its row. Where
                # rows are marked it is the other way round.
                there &= F.coalesce(time <= format_time(after.latest + late), F.lit(False))
            count = rules.partitions if after is None else after.before
            possible.append(F.when(there, _hash_key(rules, count)))
        homes = F.array_distinct(F.array_compact(F.array(*possible)))
    sent = F.when(F.col(_SENT).isNotNull(), F.array(_SENT))
    return F.when(F.col("key").isNotNull(), homes).otherwise(sent)


def _find_sent(rules: MessageRules) -> Column:
    """The partition that the row says its message was sent to; NULL where it says none."""
    name = rules.source.message.partition
    if name is None:
        return F.lit(None).cast("int")
    number = column(name).try_cast("int")
    return F.when(number.between(0, rules.partitions - 1), number)


def _place(rules: MessageRules) -> Column:
    spread = F.lit(None).cast("int")
    if rules.targets:
        targets = F.array(*(F.lit(t) for t in rules.targets))
        number = F.conv(F.substring("message_id", 1, 8), 16, 10).cast("long")
        spread = F.element_at(targets, (number % len(rules.targets) + 1).cast("int"))
    spread = F.coalesce(F.col(_SENT), spread)
    if rules.source.message.key is None:
        return spread
    return F.when(F.col("key").isNull(), spread).otherwise(_hash_key(rules, rules.partitions))


def _hash_key(rules: MessageRules, partitions: int) -> Column:
    return PLACES[rules.stream.partitioner](F.col("key"), partitions)


def _find_reason(time: Column, identity: Column, rules: MessageRules) -> Column:
    return F.coalesce(
        F.col(REASON),
        F.when(time.isNull(), F.lit(f"column {rules.source.time_column}: no time")),
        F.when(identity.isNull(), F.lit("its identity is NULL")),
    )


def _measure_rest(key: Column, headers: Sequence[Column], rules: MessageRules) -> Column:
    """Bytes of a record beside its value, with room for what the broker adds."""
    names = sum(len(name.encode()) + 8 for name in rules.header_names)
    total = F.lit(names + OVERHEAD_BYTES)
    for part in (key, *headers):
        total = total + F.coalesce(F.octet_length(part), F.lit(0))
    return total


def _sort_column(item: SourceColumn) -> Column:
    plain = column(item.name)
    if item.kind is ColumnKind.DECIMAL:
        # As text 10 would sort before 9; beyond 38 digits the double has to do.
        return plain.try_cast("decimal(38,12)")
    return plain


def _check_time_column(table: SourceTable, source: StreamSource, at: str) -> None:
    name = source.time_column
    kind = table.column(name).kind
    if kind is ColumnKind.INTEGER and source.time_unit is None:
        raise ConfigurationError(
            f"the column {name!r} holds no times, it is {kind}",
            subject=f"{at}.time_column",
            hint="name a timestamp column, or say what it counts since 1970: `time_unit: ms`",
        )
    if kind is not ColumnKind.INTEGER and source.time_unit is not None:
        raise ConfigurationError(
            f"the column {name!r} counts nothing, it is {kind}",
            subject=f"{at}.time_unit",
            hint="leave it out",
        )
    known = (ColumnKind.TIME, ColumnKind.DATE, ColumnKind.TEXT, ColumnKind.OTHER)
    if kind not in (*known, ColumnKind.INTEGER):
        raise ConfigurationError(
            f"the column {name!r} holds no times, it is {kind}",
            subject=f"{at}.time_column",
            hint="name a timestamp column",
        )
