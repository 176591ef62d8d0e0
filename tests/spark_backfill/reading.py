"""Reads the messages that a stream's rules make of a table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from backlogctl.config import Stream
from backlogctl.spark_backfill.messages.candidates import (
    SourceAccess,
    count_rows,
    drop_duplicates,
    read_rows,
)
from backlogctl.spark_backfill.messages.rules import MessageRules, build_messages, check_rules
from backlogctl.spark_backfill.messages.windows import check_wanted, filter_wanted
from backlogctl.spark_backfill.sources.reflection import make_access, open_engine, reflect_table
from tests.spark_backfill import world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_stream(
    spark: SparkSession, url: str, stream: Stream, **settings: Any
) -> tuple[SourceAccess, MessageRules]:
    assert stream.source is not None
    source = world.make_source(url, **settings)
    engine = open_engine(source, "shop")
    table = reflect_table(engine, "shop", stream.source.table)
    check_wanted(table, stream.source.where, "streams.orders.source.where")
    wanted = filter_wanted(table, stream.source.where)
    jdbc = make_access(source, "shop")
    access = SourceAccess(spark, engine, jdbc, table, source.timezone, 3, wanted)
    rules = check_rules(
        spark, stream, table, partitions=3, targets=(0, 2), max_bytes=2000, timezone=source.timezone
    )
    return access, rules


def read_messages(
    spark: SparkSession, url: str, stream: Stream, where: str = "", **settings: Any
) -> list[dict[str, Any]]:
    access, rules = open_stream(spark, url, stream, **settings)
    rows = read_rows(access, rules, where, rows=count_rows(access, where), min_rows=1)
    unique = access.table.is_unique(rules.source.primary_key)
    built = drop_duplicates(build_messages(rows, rules), rules, unique=unique)
    access.engine.dispose()
    return [row.asDict() for row in built.orderBy("p0", "value").collect()]


def values_of(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {m["p0"]: m["reason"] or json.loads(bytes(m["value"])) for m in messages}
