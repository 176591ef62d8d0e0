"""Columns and SQL expressions of the configuration, checked by analysis before a row is read."""

from __future__ import annotations

import re
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from backlog.config import Expr
from backlog.errors import ConfigurationError
from spark_backfill.failures import find_first_cause
from spark_backfill.sources.reflection import SourceTable, check_columns

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
