"""Messages from rows: key, value, headers, identity, message id and partition.

All of it is built inside Spark's JVM.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from backlogctl.clock import format_time
from backlogctl.config import Expr, Part, Stream, StreamSource
from backlogctl.errors import ConfigurationError
from backlogctl.spark_backfill.failures import find_first_cause
from backlogctl.spark_backfill.messages.encoding import (
    ROWS,
    Encoder,
    encode_parts,
    render_row,
)
from backlogctl.spark_backfill.messages.windows import CLOCKS
from backlogctl.spark_backfill.request import Growth
from backlogctl.spark_backfill.sources.columns import REASON
from backlogctl.spark_backfill.sources.databases import (
    TIME_FORMAT,
    ColumnKind,
    SourceColumn,
    parse_time_text,
)
from backlogctl.spark_backfill.sources.reflection import (
    SourceTable,
    check_columns,
    list_named_columns,
)
from backlogctl.spark_backfill.spark.frames import make_empty, quote, quote_column
from backlogctl.spark_backfill.spark.topic import HEADERS

# A row's headers: those that it lists itself, then those that the stream's rules name.

# Spark reads a number as text, and nothing that stands behind the list. No quantifier gives
# anything back: a long text would exhaust the stack.
_NAME = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_ONE = "[A-Za-z0-9+/]"
_VALUE = rf'(?:"(?:{_ONE}{{4}})*+(?:{_ONE}{{2}}==|{_ONE}{{3}}=)?+"|null)'
_PAIR = rf"\s*+\[\s*+{_NAME}\s*+,\s*+{_VALUE}\s*+\]\s*+"
_LIST = rf"^\s*+\[(?:{_PAIR}(?:,{_PAIR})*+)?+\s*+\]\s*+$"
BROKEN = "its headers are no JSON list of [name, value in base64 or null]"


def parse_list(text: str) -> str:
    """Spark SQL of the headers in a JSON list of `[name, value in base64 or null]`, in their order.

    No text is no headers. NULL where it is something else.
    """
    pair = "named_struct('name', get(p, 0), 'value', try_to_binary(get(p, 1), 'base64'))"
    parsed = f"transform(from_json({text}, 'array<array<string>>'), p -> {pair})"
    return (
        f"CASE WHEN coalesce({text}, '') = '' THEN CAST(array() AS {HEADERS}) "
        f"WHEN {text} RLIKE {quote(_LIST)} THEN CAST({parsed} AS {HEADERS}) END"
    )


def join_headers(names: Sequence[str], *, listed: bool) -> Column:
    """All headers of a message of `build_messages`, as one list.

    Args:
        names: those of the columns `header_values`.
        listed: whether there is a column `header_list`.
    """
    named = ", ".join(
        f"named_struct('name', {quote(name)}, 'value', element_at(header_values, {i}))"
        for i, name in enumerate(names, 1)
    )
    own = f"CAST(array({named}) AS {HEADERS})"
    return F.expr(f"concat(header_list, {own})" if listed else own)


_LIST_BYTES = (
    "coalesce(aggregate(transform(header_list, item -> "
    "octet_length(item.name) + coalesce(octet_length(item.value), 0) + 8), 0, "
    "(total, size) -> total + size), 0)"
)


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
        empty.select(quote_column(known[0]), made.cast("string"))
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
    topic got partitions, for the rows whose messages are older. `encoders`: of the parts that have
    a schema.
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
    encoders: Mapping[Part, Encoder] = field(default_factory=dict)

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
        return (*self.source.message.headers, *(name for name, _ in self.schema_headers))

    @property
    def schema_headers(self) -> tuple[tuple[str, bytes], ...]:
        """Headers that name schemas, behind all others."""
        made = (encoder.to_header() for encoder in self.encoders.values())
        return tuple(header for header in made if header is not None)

    @property
    def identified_by_key(self) -> bool:
        """Whether the bytes of an encoded key identify a message: no column has those."""
        return "key" in self.encoders and self.source.identity.header is None

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
    encoders: Mapping[Part, Encoder] | None = None,
) -> MessageRules:
    """Checks every column and expression by analysis, before a row is read (fault 33).

    Raises:
        ConfigurationError: names the column or expression, and where it stands in the file.
    """
    encoders = encoders or {}
    source = stream.source
    assert source is not None
    at = f"streams.{stream.name}.source"
    for place, names in list_named_columns(source, at):
        check_columns(table, names, place)
    _check_time_column(table, source, at)
    empty = make_empty(
        spark, T.StructType([T.StructField(c.name, c.spark_type) for c in table.columns])
    )
    # Rows that `order_by` leaves equal are in the order of their primary key, as typed.
    order = (*source.order_by, *source.primary_key)
    used = {source.time_column, *order}
    message = source.message
    for part, encoder in encoders.items():
        used |= _check_row(empty, table, encoder, f"{at}.message.{part}.{encoder.format.kind}")
    if message.key is not None and "key" not in encoders:
        used |= check_expr(empty, table, message.key, f"{at}.message.key")
    if message.partition is not None:
        used.add(message.partition)
    value = message.value
    if value.json_columns is not None:
        used |= set(value.json_columns)
    elif "value" not in encoders:
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
        encoders=encoders,
    )


def _check_row(empty: DataFrame, table: SourceTable, encoder: Encoder, at: str) -> set[str]:
    """The columns that a typed row reads; the schema must have no field that it lacks."""
    encoded = encoder.encoded
    if encoded.columns is not None:
        check_columns(table, encoded.columns, f"{at}.columns")
        encoder.check_fields(encoded.columns, at)
        return set(encoded.columns)
    read = check_expr(empty, table, Expr(column=None, sql=encoded.sql), at)
    kind = empty.select(F.expr(str(encoded.sql))).schema.fields[0].dataType
    if isinstance(kind, T.StructType):
        encoder.check_fields(kind.names, at)
    return read


def build_messages(rows: DataFrame, rules: MessageRules) -> DataFrame:
    """One message a row.

    Returns:
        p0.. the primary key as text, time string, identity binary, message_id string, key binary,
        value binary, header_values array<binary>, header_list (where the stream has one; NULL where
        it cannot be read), slot int (the partition it is put back into),
        home int (the one it was sent to; NULL where unknown), reason string (why the row cannot be
        built; NULL where it can), o0.. the sort columns.
    """
    source, message = rules.source, rules.source.message
    rows, bytes_of = read_bytes(rows, _list_exprs(rules))
    typed = {
        part: F.expr(render_row(encoder.encoded)).alias(ROWS[part])
        for part, encoder in rules.encoders.items()
    }
    rows = rows.select("*", *typed.values()) if typed else rows
    identity, time = bytes_of[source.identity.row], time_text(rules)
    pk = _list_key(rules)
    parts: dict[Part, str] = {}
    if "key" not in typed:
        parts["key"] = bytes_of[message.key] if message.key else "CAST(NULL AS binary)"
    if "value" not in typed:
        parts["value"] = _build_value(rules, bytes_of)
    headers = [bytes_of[Expr(column=None, sql=sql)] for sql in message.headers.values()]
    headers += [f"X'{raw.hex()}'" for _, raw in rules.schema_headers]
    listed = []
    if message.header_list is not None:
        text = f"CAST({bytes_of[message.header_list]} AS string)"
        listed = [f"{parse_list(text)} AS header_list"]
    version = identity if rules.is_event else f"CAST({time} AS binary)"
    built = rows.selectExpr(
        *(f"{part} AS p{i}" for i, part in enumerate(pk)),
        f"{time} AS time",
        f"{identity} AS identity",
        f"{hash_message_id(rules.stream.topic, pk, version)} AS message_id",
        *(f"{sql} AS {part}" for part, sql in parts.items()),
        *(ROWS[part] for part in typed),
        f"{_find_sent(rules)} AS {_SENT}",
        f"CAST(array({', '.join(headers)}) AS array<binary>) AS header_values",
        *listed,
        f"{_find_reason(time, identity, rules)} AS reason",
        f"{_measure_rest([*filter(None, [parts.get('key')]), *headers], rules)} AS {_REST}",
        *(
            f"{_sort_column(item)} AS {name}"
            for item, name in zip(rules.order, rules.order_names(), strict=True)
            if name != "time"
        ),
    )
    if rules.encoders:
        built = encode_parts(built, rules.encoders)
    if rules.identified_by_key:
        built = built.withColumn("identity", F.col("key"))
    return _judge(_place(built, rules), rules)


def _list_exprs(rules: MessageRules) -> list[Expr]:
    """All that the rules read as bytes."""
    message = rules.source.message
    found: list[Expr | None] = [rules.source.identity.row, message.header_list]
    if "key" not in rules.encoders:
        found.append(message.key)
    found += [Expr(column=None, sql=sql) for sql in message.headers.values()]
    if message.value.json_columns is None and "value" not in rules.encoders:
        found.append(Expr(column=message.value.column, sql=message.value.sql))
    return [expr for expr in found if expr is not None]


def _list_key(rules: MessageRules) -> list[str]:
    kinds = {c.name: c.kind for c in rules.columns}
    return [
        f"hex({quote_column(name)})"
        if kinds[name] is ColumnKind.BYTES
        else f"CAST({quote_column(name)} AS string)"
        for name in rules.source.primary_key
    ]


def _judge(placed: DataFrame, rules: MessageRules) -> DataFrame:
    """Adds what else keeps a row from being built."""
    rest = f"{_REST} + {_LIST_BYTES}" if rules.lists_headers else _REST
    if "key" in rules.encoders:
        rest += " + coalesce(octet_length(key), 0)"
    tombstone = "its value is NULL: it would be a tombstone"
    large = f"larger than the topic allows ({rules.max_bytes} bytes with its overhead)"
    reasons = ["reason"]
    if rules.lists_headers:
        reasons.append(f"CASE WHEN header_list IS NULL THEN {quote(BROKEN)} END")
    if not rules.source.message.tombstones:
        reasons.append(f"CASE WHEN value IS NULL THEN {quote(tombstone)} END")
    reasons.append(
        f"CASE WHEN coalesce(octet_length(value), 0) > {rules.max_bytes} - ({rest}) "
        f"THEN {quote(large)} END"
    )
    return placed.selectExpr(
        f"* EXCEPT (reason, {_REST}, {_SENT})", f"coalesce({', '.join(reasons)}) AS reason"
    )


def read_bytes(rows: DataFrame, exprs: Sequence[Expr]) -> tuple[DataFrame, Mapping[Expr, str]]:
    """Adds the expressions to the rows, and the SQL of the value of each as bytes: text in UTF-8,
    bytes as they are. Each is read by itself: it is no part of our text."""
    found = list(dict.fromkeys(exprs))
    names = [quote_column(e.column) if e.column else f"__e{i}" for i, e in enumerate(found)]
    made = [F.expr(e.sql).alias(f"__e{i}") for i, e in enumerate(found) if e.sql]
    rows = rows.select("*", *made) if made else rows
    kinds = rows.selectExpr(*names).schema.fields
    return rows, {
        expr: name
        if isinstance(kind.dataType, T.BinaryType)
        else f"CAST(CAST({name} AS string) AS binary)"
        for expr, name, kind in zip(found, names, kinds, strict=True)
    }


def time_text(rules: MessageRules) -> str:
    """Spark SQL of the row's time in the normal form; NULL where it has none that can be read."""
    item = next(c for c in rules.columns if c.name == rules.source.time_column)
    plain = quote_column(item.name)
    if item.kind is ColumnKind.TIME:
        return plain
    if item.kind is ColumnKind.INTEGER:
        return _count_time(plain, rules.source.time_unit)
    if item.kind is ColumnKind.DATE:
        plain = f"concat({plain}, ' 00:00:00')"
    return parse_time_text(plain, rules.timezone)


def _count_time(number: str, unit: str | None) -> str:
    """Whole seconds or milliseconds since 1970; NULL for what no time in the normal form is."""
    size, make = (1000, "timestamp_millis") if unit == "ms" else (1, "timestamp_seconds")
    first, last = _FIRST_SECOND * size, _LAST_SECOND * size
    known = f"CASE WHEN {number} BETWEEN {first} AND {last} THEN {number} END"
    return f"date_format({make}({known}), {quote(TIME_FORMAT)})"


def hash_message_id(topic: str, primary_key: Sequence[str], version: str) -> str:
    """`stamps.make_message_id` in Spark SQL, bit for bit.

    Args:
        primary_key: SQL of each part's text; version: of bytes.
    """
    name = topic.encode()
    parts = [f"coalesce(CAST({part} AS binary), X'FF')" for part in primary_key]
    pieces = [f"X'{(len(name).to_bytes(4, 'big') + name).hex()}'"]
    for raw in (*parts, f"coalesce({version}, X'')"):
        pieces += [f"unhex(lpad(hex(octet_length({raw})), 8, '0'))", raw]
    return f"substring(sha2(concat({', '.join(pieces)}), 256), 1, 32)"


def _build_value(rules: MessageRules, bytes_of: Mapping[Expr, str]) -> str:
    value = rules.source.message.value
    if value.json_columns is None:
        return bytes_of[Expr(column=value.column, sql=value.sql)]
    fields = ", ".join(f"{quote(name)}, {quote_column(name)}" for name in value.json_columns)
    options = "map('ignoreNullFields', 'false')"
    return f"CAST(to_json(named_struct({fields}), {options}) AS binary)"


def _place(built: DataFrame, rules: MessageRules) -> DataFrame:
    """Adds `slot`, `homes` (the partitions that a row's message may have been sent to) and `home`.

    By its key: the hash is taken modulo the number of partitions of its time. Without a key the one
    that the row says; NULL where it says none.
    """
    has_key = rules.source.message.key is not None
    counts = [growth.before for growth in rules.growth] + [rules.partitions]
    names = [f"__by_key{i}" for i in range(len(counts))]
    if has_key:
        place = PLACES[rules.stream.partitioner]
        columns = [place(F.col("key"), count).alias(name) for count, name in
                   zip(counts, names, strict=True)]  # fmt: skip
        built = built.select("*", *columns)
    spread = _SENT
    if rules.targets:
        number = "CAST(conv(substring(message_id, 1, 8), 16, 10) AS long)"
        targets = f"array({', '.join(map(str, rules.targets))})"
        at = f"CAST({number} % {len(rules.targets)} + 1 AS int)"
        spread = f"coalesce({_SENT}, element_at({targets}, {at}))"
    slot = f"CASE WHEN key IS NULL THEN {spread} ELSE {names[-1]} END" if has_key else spread
    homes = f"CASE WHEN {_SENT} IS NOT NULL THEN array({_SENT}) END"
    if has_key:
        possible = _find_homes(rules, names)
        homes = f"CASE WHEN key IS NOT NULL THEN {possible} ELSE {homes} END"
    placed = built.selectExpr("*", f"{slot} AS slot", f"{homes} AS homes").drop(*names)
    return placed.selectExpr("*", "CASE WHEN size(homes) = 1 THEN element_at(homes, 1) END AS home")


def _find_homes(rules: MessageRules, names: Sequence[str]) -> str:
    if not rules.growth:
        return f"array({names[-1]})"
    early, late = (side or CLOCKS for side in rules.source.drift)
    possible = []
    for name, (before, after) in zip(names, pairwise([None, *rules.growth, None]), strict=True):
        there = ["true"]
        if before is not None:
            at = format_time(before.earliest - early)
            there.append(f"coalesce(time >= '{at}', true)")
        if after is not None:
            # A row may be older than its message by the margin; no message than its row. Where
            # rows are marked it is the other way round.
            at = format_time(after.latest + late)
            there.append(f"coalesce(time <= '{at}', false)")
        possible.append(f"CASE WHEN {' AND '.join(there)} THEN {name} END")
    return f"array_distinct(array_compact(array({', '.join(possible)})))"


def _find_sent(rules: MessageRules) -> str:
    """The partition that the row says its message was sent to; NULL where it says none."""
    name = rules.source.message.partition
    if name is None:
        return "CAST(NULL AS int)"
    number = f"try_cast({quote_column(name)} AS int)"
    return f"CASE WHEN {number} BETWEEN 0 AND {rules.partitions - 1} THEN {number} END"


def _find_reason(time: str, identity: str, rules: MessageRules) -> str:
    untimed = quote(f"column {rules.source.time_column}: no time")
    return (
        f"coalesce({REASON}, CASE WHEN {time} IS NULL THEN {untimed} END, "
        f"CASE WHEN {identity} IS NULL THEN 'its identity is NULL' END)"
    )


def _measure_rest(parts: Sequence[str], rules: MessageRules) -> str:
    """Bytes of a record beside its value, with room for what the broker adds."""
    names = sum(len(name.encode()) + 8 for name in rules.header_names)
    sizes = [f"coalesce(octet_length({part}), 0)" for part in parts]
    return " + ".join([str(names + OVERHEAD_BYTES), *sizes])


def _sort_column(item: SourceColumn) -> str:
    plain = quote_column(item.name)
    # As text 10 would sort before 9; beyond 38 digits the double has to do.
    return f"try_cast({plain} AS decimal(38, 12))" if item.kind is ColumnKind.DECIMAL else plain


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
