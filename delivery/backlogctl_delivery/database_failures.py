"""What an error of a database means to a user: PostgreSQL, SQLite, MariaDB and MySQL.

libpq gives a refused connection no SQLSTATE, so its English text is read. What is not recognised is
reported as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from sqlalchemy import URL
from sqlalchemy.exc import (
    DBAPIError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
    TimeoutError,  # noqa: A004 - of the pool
)

from backlogctl_delivery.errors import BacklogError


@dataclass(frozen=True, slots=True)
class ConnectionRefusal:
    """One sentence and what to do; `is_wrong_url`: it stays so until the URL is corrected."""

    message: str
    hint: str
    is_wrong_url: bool = True


_SERVER, _AWAY_TEXT = "the server at {place} ", "the database cannot be reached: "
# By libpq's text, and PyMySQL's: what it means, what to do, and whether it stays so until the URL
# is corrected.
_REFUSALS: tuple[tuple[str, str, str, bool], ...] = (
    (
        r'database "[^"]*" does not exist|unknown database ',
        _SERVER + "has no database {database}",
        "correct the name at the end of `{key}`, or create the database",
        True,
    ),
    (
        r'role "[^"]*" does not exist',
        _SERVER + "has no user {user}",
        "correct the user in `{key}`, or create the role",
        True,
    ),
    (
        r"authentication failed for user|access denied for user '[^']*'@'[^']*' \(using",
        _SERVER + "does not let user {user} in: wrong password, or no such user",
        "correct user and password in `{key}`",
        True,
    ),
    (
        r"no password supplied",
        _SERVER + "asks for the password of user {user}, and there is none",
        "add the password to `{key}`",
        True,
    ),
    (
        r"no pg_hba\.conf entry",
        _SERVER + "admits no user {user} to database {named} from this host",
        "add a line to the server's pg_hba.conf, or correct `{key}`",
        True,
    ),
    (
        r"could not translate host name|failed to resolve host|name or service not known",
        _AWAY_TEXT + "there is no host {host}",
        "correct the host in `{key}`, or look at the name service",
        False,
    ),
    (
        r"connection refused",
        _AWAY_TEXT + "nothing listens at {place}",
        "check that it runs, and host and port in `{key}`",
        False,
    ),
    (
        r"timeout expired|timed out",
        _AWAY_TEXT + "{place} did not answer in time",
        "check host and port in `{key}`, and the firewall",
        False,
    ),
)


def explain_refusal(reason: str, url: URL, key: str) -> ConnectionRefusal | None:
    """What a failed connection means; None where that is not known.

    Args:
        reason: the text of libpq or PyMySQL, all of its lines.
        key: the configuration key that holds the URL.
    """
    usual = 5432 if url.get_backend_name() == "postgresql" else 3306
    said = {
        "place": f"{url.host or 'localhost'}:{url.port or usual}",
        "host": repr(url.host),
        "user": repr(url.username),
        "database": repr(url.database or url.username),
        "named": repr(url.database),
        "key": key,
    }
    for pattern, message, hint, is_wrong_url in _REFUSALS:
        if re.search(pattern, reason, re.IGNORECASE):
            return ConnectionRefusal(message.format(**said), hint.format(**said), is_wrong_url)
    return None


@dataclass(frozen=True, slots=True)
class DatabasePlace:
    """A database, as texts name it.

    Attributes:
        what: such as `ledger`.
        key: what holds its URL, of the configuration or the command line.
        make_tables_hint: what to do where its tables are missing.
    """

    what: str
    url: URL
    key: str
    make_tables_hint: str

    @property
    def label(self) -> str:
        """Its name and the URL without its password."""
        return f"{self.what} {mask_url(self.url)}"


class Trouble(Enum):
    """Which kind an error is."""

    UNIQUE = auto()
    LOCKED = auto()
    COLLIDED = auto()  # with another transaction: a deadlock, or a row that was read before
    MISSING = auto()  # a table or a column
    NO_DATABASE = auto()  # a file that is none
    NO_RIGHTS = auto()  # of a file
    AWAY = auto()
    PASSING = auto()  # it answers, and cannot: read-only, a full disk, a time limit
    LOGIN = auto()
    DENIED = auto()  # of a user
    OTHER = auto()


def mask_url(url: URL) -> str:
    """The URL without password and without query (which may hold one as well)."""
    return url.set(query={}).render_as_string(hide_password=True)


# By what each database says, the first that fits: SQLite's names of errors and PostgreSQL's
# SQLSTATEs (its manual, appendix A), both by their beginnings; MariaDB's and MySQL's numbers (their
# manuals, "Error reference").
_SIGNS: tuple[tuple[Trouble, tuple[str, ...], tuple[str, ...], tuple[int, ...]], ...] = (
    (Trouble.UNIQUE, ("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY"), ("23505",), ()),
    (Trouble.LOCKED, ("SQLITE_BUSY", "SQLITE_LOCKED"), ("55P03",), (1205,)),
    (Trouble.COLLIDED, (), ("40",), (1020, 1213)),
    (Trouble.MISSING, (), ("42P01", "42703"), (1146, 1054)),
    (Trouble.NO_DATABASE, ("SQLITE_NOTADB",), (), ()),
    (Trouble.NO_RIGHTS, ("SQLITE_READONLY", "SQLITE_CANTOPEN"), (), ()),
    (Trouble.LOGIN, (), ("28",), (1044, 1045, 1049)),
    (Trouble.DENIED, (), ("42501",), (1142, 1143)),  # of a table, a column
    (
        # Read-only as after a failover, not in the state for it, a session that was ended, a full
        # disk or table, no memory, a time limit, I/O. Below 100 are the errors of the files and the
        # memory that MariaDB itself uses.
        Trouble.PASSING,
        ("SQLITE_FULL", "SQLITE_IOERR"),
        ("25006", "25P03", "25P04", "53100", "53200", "55000", "57014", "58030"),
        (*range(1, 100), 1021, 1114, 1290, 1836, 3024),
    ),
    (
        # No room for another connection; a server that starts or stops.
        Trouble.AWAY,
        (),
        ("08", "53", "57"),
        (0, 1040, 1047, 1053, 1203, 1226, 1927, 2002, 2003, 2005, 2006, 2013, 2014, 2055, 4031),
    ),
)


def find_trouble(error: DBAPIError, url: URL) -> Trouble:
    """Which kind an error is, by the codes of its database."""
    original: Any = error.orig
    name = str(getattr(original, "sqlite_errorname", "") or "")
    state = str(getattr(original, "sqlstate", "") or "")
    number = original.args[0] if getattr(original, "args", ()) else None
    # SQLite names no kind for it.
    if not state and re.search("no such (table|column)", str(original)):
        return Trouble.MISSING
    for trouble, names, states, numbers in _SIGNS:
        if name.startswith(names) or state.startswith(states) or number in numbers:
            return trouble
    # Lost connections, which have no state.
    is_lost = isinstance(error, OperationalError | InterfaceError) and not state
    is_lost &= url.get_backend_name() == "postgresql"
    return Trouble.AWAY if is_lost else Trouble.OTHER


def explain_failure(
    error: SQLAlchemyError, place: DatabasePlace, make: type[BacklogError]
) -> BacklogError:
    """The error as it is told, with what to do next."""
    if not isinstance(error, DBAPIError):
        # Of the pool: all connections are in use, by statements that hang.
        is_passing = isinstance(error, TimeoutError)
        return make(clean_reason(error, place.url), subject=place.label, retryable=is_passing)
    reason = clean_reason(error.orig or error, place.url)
    has_state = bool(getattr(error.orig, "sqlstate", None))
    refusal = None if has_state else explain_refusal(str(error.orig), place.url, place.key)
    trouble = find_trouble(error, place.url)
    if trouble is Trouble.AWAY and refusal is not None:
        return make(
            clean_reason(refusal.message, place.url),
            subject=place.label,
            hint=refusal.hint,
            retryable=not refusal.is_wrong_url,
        )
    is_passing = trouble in _PASSING
    message, hint = _WORDS.get(trouble, ("{reason}", ""))
    said = {"reason": reason, "key": place.key, "tables": place.make_tables_hint}
    return make(
        message.format(**said), subject=place.label, hint=hint.format(**said), retryable=is_passing
    )


_PASSING = (Trouble.LOCKED, Trouble.COLLIDED, Trouble.AWAY, Trouble.PASSING)
_WORDS: Mapping[Trouble, tuple[str, str]] = {
    Trouble.LOCKED: (
        "it is locked by another process for too long: {reason}",
        "try again; look for another process that hangs",
    ),
    Trouble.COLLIDED: (
        "another transaction was at the same rows, and this one was rolled back: {reason}",
        "try again",
    ),
    Trouble.MISSING: ("its tables are missing: {reason}", "{tables}"),
    Trouble.NO_DATABASE: ("the file is not an SQLite database", "name another file"),
    Trouble.NO_RIGHTS: ("{reason}", "check the rights of the file and folder"),
    Trouble.AWAY: (
        "the database cannot be reached: {reason}",
        "check that it runs, and host and port in `{key}`",
    ),
    Trouble.PASSING: (
        "the database does not do it now: {reason}",
        "try again; look at the server's log and its disk",
    ),
    Trouble.LOGIN: (
        "the database does not let us in: {reason}",
        "check user, password and database in `{key}`",
    ),
    Trouble.DENIED: (
        "the user may not do this: {reason}",
        "give this right to the user in `{key}`, or use another one",
    ),
}


def clean_reason(error: object, url: URL) -> str:
    """The first line of an error's text, without the URL's secrets."""
    match getattr(error, "args", ()):
        case (int(number), str(said)):  # of PyMySQL
            text = f"{said} ({number})"
        case _:
            text = str(error)
    lines = (part.strip() for part in text.splitlines())
    line = next((part for part in lines if part), "no reason given")
    secrets = [url.password or "", *(v for v in url.query.values() if isinstance(v, str))]
    for secret in secrets:
        if len(str(secret)) >= 4:
            line = line.replace(str(secret), "***")
    return line
