"""The revision of the ledger's tables: what it is, what it must be, how to get there."""

from __future__ import annotations

import logging
import secrets
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import wraps
from itertools import starmap
from pathlib import Path
from types import FunctionType, NoneType
from typing import Any, Protocol, TypeVar, get_args, get_origin, get_type_hints

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Dialect,
    Enum,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    Text,
    cast,
    inspect,
    text,
)
from sqlalchemy.engine import RowMapping
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

from backlogctl.clock import format_time, read_time
from backlogctl.errors import BacklogError, InvalidTransition, LedgerError, Refused
from backlogctl.values import Gap, LedgerEvent, Recovery
from backlogctl_delivery import database
from backlogctl_delivery.database import JsonText, UtcTime
from backlogctl_delivery.database_failures import Trouble, clean_reason, find_trouble
from backlogctl_delivery.visible import quote_word

# The ledger's tables: each is made of the value that its rows are read into.
#
# Names start with `backlog_`, so that a shared database stays tidy. Triggers (transitions, fixed
# columns, append-only events) are in the migrations. Tables that only one module uses stand
# there.

T = TypeVar("T")
metadata = MetaData()

# Words of the values that are words of SQL, or say too little in it.
COLUMN_NAMES = {
    "group": "group_id",
    "start": "start_offset",
    "end": "end_offset",
    "offset": "at_offset",
}
TYPES: Mapping[Any, Callable[[], TypeEngine[Any]]] = {
    str: Text,
    int: BigInteger,
    float: Float,
    bool: Boolean,
    datetime: UtcTime,
}


class Tuples(JsonText):
    """A tuple of dataclasses as JSON: an array of each one's fields."""

    cache_ok = True

    def __init__(self, item: type) -> None:
        super().__init__()
        self.item = item
        self._hints = get_type_hints(item)
        hints = enumerate(self._hints.values())
        self._times = [number for number, hint in hints if datetime in get_args(hint)]

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        rows = [[getattr(item, name) for name in self._hints] for item in value]
        texts = [[format_time(v) if isinstance(v, datetime) else v for v in row] for row in rows]
        return super().process_bind_param(texts, dialect)

    def process_result_value(self, value: Any, dialect: Dialect) -> tuple[Any, ...]:
        rows = super().process_result_value(value, dialect)
        for number in self._times:
            for row in rows:
                row[number] = row[number] and read_time(row[number])
        return tuple(starmap(self.item, rows))


def among(
    query: Select[Any], column: Column[str], names: str | Collection[str] | None
) -> Select[Any]:
    """The rows of one name, of some, or of all."""
    if names is None:
        return query
    return query.where(column == names if isinstance(names, str) else column.in_(names))


def table_of(
    name: str,
    value: type,
    *more: SchemaItem,
    key: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
) -> Table:
    """A table with a column for each field of a dataclass, of the field's type.

    Args:
        more: columns, constraints and indexes besides them.
        key: the fields of the primary key; without any, rows get a number `id`.
        without: fields that have no column of their own.
    """
    hints = get_type_hints(value)
    columns = [
        _make_column(each.name, hints[each.name], each.default, each.name in key)
        for each in fields(value)
        if each.name not in without
    ]
    if not key:
        columns.append(Column("id", RowId, primary_key=True))
    return Table(name, metadata, *columns, *more)


def _make_column(name: str, hint: Any, default: Any, is_key: bool) -> Column[Any]:
    is_optional = NoneType in get_args(hint)
    has_default = default is not MISSING and isinstance(default, str | int | float)
    return Column(
        COLUMN_NAMES.get(name, name),
        choose_type(get_args(hint)[0] if is_optional else hint),
        *([ForeignKey("backlog_recoveries.id")] if name == "recovery_id" else []),
        key=name,
        primary_key=is_key,
        autoincrement=False,
        nullable=is_optional,
        server_default=str(default) if has_default and not isinstance(default, bool) else None,
    )


def choose_type(hint: Any) -> TypeEngine[Any]:
    """The column type of a field."""
    if get_origin(hint) is tuple:
        return Tuples(get_args(hint)[0])
    if get_origin(hint) is not None:
        return JsonText()
    if issubclass(hint, StrEnum):
        return Enum(
            hint, native_enum=False, length=32, values_callable=lambda known: [*map(str, known)]
        )
    return TYPES[hint]()


def make_value(row: RowMapping, cls: type[T], **given: Any) -> T:
    """A value of a row's columns; fields that are `given` are not looked for."""
    names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
    return cls(**{name: row[name] for name in names if name not in given}, **given)


def read_values(
    connection: Connection, query: Select[Any], make: Callable[..., T]
) -> tuple[T, ...]:
    """The values of a query's rows: of a dataclass, or of a function of the row."""
    result = connection.execute(query)
    if not is_dataclass(make):
        return tuple(map(make, result.mappings()))
    # By position: a group's samples of some hours are hundreds.
    names: list[str] = [each.name for each in fields(make)]
    cls: Any = make
    return tuple(starmap(cls, result.columns(*names).all()))


def read_value(connection: Connection, query: Select[Any], make: Callable[..., T]) -> T | None:
    """The value of the first row; None where there is none."""
    return next(iter(read_values(connection, query.limit(1), make)), None)


RowId = BigInteger().with_variant(Integer(), "sqlite")

ACTIVE_RECOVERY = (
    "state IN ('approved', 'running', 'paused') OR (state = 'failed' AND holds_when_failed)"
)
LIVE = "end_offset IS NOT NULL AND state NOT IN ('waived', 'verified')"


def make_unique(name: str, *columns: str, where: str) -> Index:
    """A unique index of the rows of which `where` holds."""
    return Index(
        name, *columns, unique=True, sqlite_where=text(where), postgresql_where=text(where)
    )


counters = Table(
    "backlog_counters",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", BigInteger, nullable=False),
)

transitions = Table(
    "backlog_transitions",
    metadata,
    Column("subject", String(16), primary_key=True),
    Column("from_state", String(16), primary_key=True),
    Column("to_state", String(16), primary_key=True),
)

recoveries = table_of(
    "backlog_recoveries",
    Recovery,
    Column("events_head", String(64), nullable=False),
    Column("events_length", BigInteger, nullable=False, server_default="0"),
    Column("lease_host", Text),
    Column("lease_pid", BigInteger),
    Column("lease_started", Text),
    Column("lease_token", Text),
    Column("lease_acquired_at", UtcTime),
    Column("lease_renewed_at", UtcTime),
    CheckConstraint("requested IN ('pause', 'cancel')", name="backlog_recoveries_requested"),
    CheckConstraint(
        "state IN ('planned', 'rejected') OR (approved_by IS NOT NULL AND approved_hash IS NOT NULL"
        " AND approved_hash = plan_hash AND approval_expires_at IS NOT NULL)",
        name="backlog_recoveries_approval",
    ),
    Index("backlog_recoveries_by_stream", "stream", "state"),
    make_unique("backlog_one_active_per_topic", "cluster", "topic", where=ACTIVE_RECOVERY),
    make_unique("backlog_one_active_per_group", "cluster", "group", where=ACTIVE_RECOVERY),
    key=("id",),
    without=("runner",),
)
runner = (recoveries.c.lease_host + ":" + cast(recoveries.c.lease_pid, Text)).label("runner")

gaps = table_of(
    "backlog_gaps",
    Gap,
    Column("changed_at", UtcTime, nullable=False),
    Column("producer", Text),
    Column("epoch", BigInteger),
    Column("first_sequence", BigInteger),
    Column("last_sequence", BigInteger),
    CheckConstraint(
        "end_offset IS NULL OR (start_offset IS NOT NULL AND end_offset > start_offset)",
        name="backlog_gaps_range",
    ),
    CheckConstraint(
        "state <> 'waived' OR length(trim(reason)) > 0", name="backlog_gaps_waived_reason"
    ),
    CheckConstraint(
        "state IN ('open', 'waived') OR recovery_id IS NOT NULL", name="backlog_gaps_recovery"
    ),
    # Ranges of gaps that are not over are disjoint, so a start names one.
    make_unique(
        *("backlog_gaps_one_per_start", "stream", "group", "topic_id", "partition", "start"),
        where=LIVE,
    ),
    Index("backlog_gaps_by_state", "stream", "state"),
    key=("id",),
    without=("sequences",),
)

recovery_gaps = Table(
    "backlog_recovery_gaps",
    metadata,
    Column("recovery_id", Text, ForeignKey("backlog_recoveries.id"), primary_key=True),
    Column("gap_id", Text, ForeignKey("backlog_gaps.id"), primary_key=True),
)

events = table_of("backlog_events", LedgerEvent, key=("recovery_id", "sequence"))


# The ledger's database, whose triggers and constraints refuse what must not be.

_STEPS = 10_000  # of SQLite's machine between two looks at the clock: some microseconds
REFUSAL = "backlog refuses: "  # how the triggers' messages start
UPGRADE_HINT = "run `backlogctl db upgrade`"


class UniqueConflict(InvalidTransition):
    """A unique index refused the row; managers say which other row has it."""


_DAMAGE_HINT = (
    "nothing in Kafka is touched. Stop every backlogctl that uses the file, and keep it: copy it, "
    "with its -wal and -shm, aside. Then make another one of all that can be read: `sqlite3 {file} "
    ".dump | sed 's/^ROLLBACK;.*/COMMIT;/' | sqlite3 {file}.new`; name that in `ledger`, or a "
    "backup. `backlogctl status` says meanwhile what the brokers say"
)


class LedgerPatience(Protocol):
    """What a verb does while the ledger is away; see `Ledger.outlasting`."""

    def wait(self, error: LedgerError, since: float) -> None:
        """Returns when it is time to try again, or raises; `since`: `time.monotonic()` of the
        verb's first try."""

    def end(self, since: float) -> None:
        """A verb that had to wait has succeeded."""


class LedgerDatabase(database.Database):
    """One ledger database. Errors come out as LedgerError (unreachable, locked, not upgraded) or
    as refusals (a trigger, a constraint)."""

    what = key = "ledger"
    make_tables_hint = UPGRADE_HINT
    failure = LedgerError
    patience: LedgerPatience | None = None

    def lock_name(self, connection: Connection, name: str) -> None:
        """Waits for the others that hold `name`, to the end of the transaction.

        SQLite's writers already come one after the other.
        """
        if not self.is_sqlite:
            connection.execute(
                text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"),
                {"name": f"backlog:{name}"},
            )

    def explain(self, error: SQLAlchemyError) -> BacklogError:
        """What a database error means to a user."""
        if not isinstance(error, DBAPIError):
            return super().explain(error)
        reason = clean_reason(error.orig or error, self.url)
        if str(getattr(error.orig, "sqlite_errorname", "")).startswith("SQLITE_CORRUPT"):
            return self._tell_damage(reason)
        if REFUSAL in reason:
            return InvalidTransition(reason.split(REFUSAL, 1)[1], subject=self.label)
        if find_trouble(error, self.url) is Trouble.UNIQUE:
            return UniqueConflict(reason, subject=self.label)
        if isinstance(error, IntegrityError):
            return Refused(f"the ledger refuses this: {reason}", subject=self.label)
        return super().explain(error)

    def check_pages(self, seconds: float) -> bool:
        """Looks through an SQLite file for pages that are damaged (`PRAGMA quick_check`), which may
        be read much later otherwise; some 300 MB/s.

        Returns:
            Whether all of it was looked at within the time; False of other databases.

        Raises:
            LedgerError: it is damaged.
        """
        if not self.is_sqlite:
            return False
        end = time.monotonic() + seconds
        with self.read() as connection:
            raw: Any = connection.connection.driver_connection
            raw.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
            try:
                (found,) = raw.execute("PRAGMA quick_check(1)").fetchone()
            except sqlite3.OperationalError:
                if time.monotonic() > end:
                    return False
                raise
            except sqlite3.DatabaseError as error:
                found = str(error)
            finally:
                raw.set_progress_handler(None, 0)
        if found != "ok":
            raise self._tell_damage(clean_reason(found, self.url))
        return True

    def _tell_damage(self, reason: str) -> LedgerError:
        return LedgerError(
            f"the file is damaged: {reason}",
            subject=self.label,
            hint=_DAMAGE_HINT.format(file=quote_word(str(self.url.database))),
        )


class Manager:
    """The verbs on one subject of the ledger; each is one transaction, and may be tried again."""

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database

    def __init_subclass__(cls) -> None:
        for name, verb in list(vars(cls).items()):
            if isinstance(verb, FunctionType) and not name.startswith("_"):
                setattr(cls, name, _outlast(verb))

    def _list(self, query: Select[Any], make: Callable[..., T]) -> tuple[T, ...]:
        with self._database.read() as connection:
            return read_values(connection, query, make)

    def _first(self, query: Select[Any], make: Callable[..., T]) -> T | None:
        with self._database.read() as connection:
            return read_value(connection, query, make)


def _outlast(verb: Callable[..., T]) -> Callable[..., T]:
    """The verb, tried again for as long as the database's patience lasts."""

    @wraps(verb)
    def call(manager: Manager, *args: Any, **kwargs: Any) -> T:
        since, patience = time.monotonic(), manager._database.patience
        is_late = False
        while True:
            try:
                found = verb(manager, *args, **kwargs)
            except LedgerError as error:
                if patience is None or not error.retryable:
                    raise
                is_late = True
                patience.wait(error, since)
            else:
                if is_late and patience is not None:
                    patience.end(since)
                return found

    return call


# Ids such as `g-20261121-0001-k7qm2p`. The database counts the number, which says what came first.
# The letters are drawn, so that no other ledger makes the same id, nor this one after a restore.
# Left out is what looks alike at 3 a.m., 0 and o, 1, i and l; and u, so that there are fewer words.
_LETTERS = "23456789abcdefghjkmnpqrstvwxyz"
_DRAWN = 6

_TAKE = text(
    "INSERT INTO backlog_counters (name, value) VALUES (:name, 1)"
    " ON CONFLICT (name) DO UPDATE SET value = backlog_counters.value + 1 RETURNING value"
)


def take_id(connection: Connection, letter: str, at: datetime) -> str:
    """The next id of a UTC day: `<letter>-YYYYMMDD-NNNN-xxxxxx`; gaps are possible."""
    prefix = f"{letter}-{at.astimezone(UTC):%Y%m%d}"
    number = connection.execute(_TAKE, {"name": prefix}).scalar_one()
    drawn = "".join(secrets.choice(_LETTERS) for _ in range(_DRAWN))
    return f"{prefix}-{int(number):04d}-{drawn}"


VERSION_TABLE = "backlog_revision"
# A test compares them with the migrations; importing Alembic costs 0.2 s.
REVISIONS = ("0001",)
HEAD = REVISIONS[-1]


def upgrade(url: str) -> str:
    """Makes or upgrades the ledger's tables; nothing happens to one that is up to date.

    Returns:
        The revision that the ledger now has.

    Raises:
        LedgerError: the database cannot be reached, or was made by a newer backlogctl.
        ConfigurationError: the URL is not one of SQLite or PostgreSQL.
    """
    database = LedgerDatabase(url)
    try:
        upgrade_database(database)
    finally:
        database.close()
    return HEAD


def upgrade_database(database: LedgerDatabase) -> None:
    """One transaction under a lock: of two that start at once, the second finds nothing to do."""
    with database.write() as connection:
        database.lock_name(connection, "upgrade")
        revision = read_revision(connection)
        if revision == HEAD:
            # Until the first release tables and columns may be added to the first revision.
            metadata.create_all(connection)
            _add_columns(connection)
            return
        _refuse_newer(revision, database)
        from alembic import command
        from alembic.config import Config

        # Where the host program logs what is told, this would stand among what a command prints.
        logging.getLogger("alembic").setLevel(logging.WARNING)
        config = Config()
        folder = str(Path(__file__).with_name("migrations"))
        config.set_main_option("script_location", folder.replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _add_columns(connection: Connection) -> None:
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    operations = Operations(MigrationContext.configure(connection))
    known = inspect(connection)
    for table in metadata.sorted_tables:
        there = {column["name"] for column in known.get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                operations.add_column(table.name, column._copy())


def check_revision(database: LedgerDatabase) -> None:
    """Looks whether the tables are those this program knows.

    Raises:
        LedgerError: they are missing, older, or newer; the hint says what to do.
    """
    with database.read() as connection:
        revision = read_revision(connection)
    if revision == HEAD:
        return
    _refuse_newer(revision, database)
    state = "has no tables yet" if revision is None else f"is at revision {revision}, not {HEAD}"
    raise LedgerError(f"the ledger {state}", subject=database.label, hint=UPGRADE_HINT)


def read_revision(connection: Connection) -> str | None:
    """The revision of the tables; None where there are none."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if found is None else str(found)


def _refuse_newer(revision: str | None, database: LedgerDatabase) -> None:
    if revision is not None and revision not in REVISIONS:
        raise LedgerError(
            f"the ledger is at revision {revision}, which this backlogctl does not know",
            subject=database.label,
            hint="it was made by a newer backlogctl: install that one",
        )
