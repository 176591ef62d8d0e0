"""The tables that a stream is rebuilt from."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from backlog.config import Config, Stream
from backlog.errors import BacklogError
from monitoring.doctor.finding import Finding, Level, Room


@Room.TOOL.check(
    "sources",
    "Source tables",
    "A rebuild reads them: it has to reach them, and an index on the time column decides "
    "between seconds and hours of load on the database.",
)
def judge_sources(config: Config, stream: Stream) -> Iterator[Finding]:
    """Whether they can be read, and have an index on the time column."""
    if (source := stream.source) is None or find_spec("pyspark") is None:
        return  # the check of this host says that nothing is rebuilt without Spark
    from spark_backfill.sources.reflection import open_engine, reflect_table

    places: list[tuple[str, str, str | None]] = [
        (source.database, source.table, source.time_column)
    ]
    if (consumed := source.consumed) is not None:
        places.append((consumed.database, consumed.table, None))
    for database, name, column in places:
        subject = f"table {database}.{name}"
        try:
            engine = open_engine(config.sources[database], database)
            try:
                table = reflect_table(engine, database, name)
            finally:
                engine.dispose()
        except BacklogError as error:
            yield Finding(
                *("sources", Level.STOPS, subject, f"it could not be read: {error.message}"),
                error.hint or f"check `sources.{database}.url`",
            )
            continue
        names = {one.name for one in table.columns}
        if column is not None and column not in names:
            yield Finding(
                *("sources", Level.STOPS, subject, f"it has no column {column}"),
                f"`streams.{stream.name}.source.time_column` must be one of "
                + ", ".join(sorted(names)),
            )
        elif column is not None and column not in table.indexed:
            index = f"{table.label}_{column}".replace(".", "_")
            yield Finding(
                *("sources", Level.WARNS, subject),
                f"no index begins with its time column {column}: a rebuild reads all of it",
                "",
                (f"CREATE INDEX {index} ON {table.label} ({column})",),
            )
