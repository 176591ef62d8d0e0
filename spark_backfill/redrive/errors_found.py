"""Why dead letters failed: class and first line, counted. The lines may hold what messages hold.

They lie beside the staged messages and expire with these; no plan, ledger or report has them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from backlog.manifest import MESSAGES_FOLDER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FILE = "errors.json"
_MOST = 50


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Dead letters of one error: its class, and the first line of its message ("" for none)."""

    error: str
    line: str
    count: int


def write_errors(labels: DataFrame, directory: Path) -> None:
    """Of the messages that are staged, the commonest."""
    from pyspark.sql import functions as F  # noqa: N812

    from spark_backfill.redrive.labelling import STAGED

    rows = (
        labels.where((F.col("label") == STAGED) & F.col("error_class").isNotNull())
        .groupBy("error_class", F.coalesce("error_line", F.lit("")).alias("line"))
        .count()
        .orderBy(F.desc("count"), "error_class", "line")
        .limit(_MOST)
        .collect()
    )
    if not rows:
        return
    path = directory / MESSAGES_FOLDER / _FILE
    value = [[row["error_class"], row["line"], row["count"]] for row in rows]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False)


def read_errors(directory: Path) -> tuple[ErrorGroup, ...]:
    """What is still there of it; nothing where the staged messages have expired."""
    try:
        value = json.loads((directory / MESSAGES_FOLDER / _FILE).read_text(encoding="utf-8"))
        return tuple(ErrorGroup(*item) for item in value)
    except (OSError, ValueError, TypeError):
        return ()
