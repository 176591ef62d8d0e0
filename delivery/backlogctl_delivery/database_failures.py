"""What an error of a database means to a user: PostgreSQL, SQLite, MariaDB and MySQL.

libpq gives a refused connection no SQLSTATE, so its English text is read. What is not recognised is
reported as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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


_Make = Callable[[URL, str], ConnectionRefusal]


def explain_refusal(reason: str, url: URL, key: str) -> ConnectionRefusal | None:
    """What a failed connection means; None where that is not known.

    Args:
        reason: libpq's text, all of its lines.
        key: the configuration key that holds the URL.
    """
    for pattern, make in _KNOWN:
        if re.search(pattern, reason, re.IGNORECASE):
            return make(url, key)
    return None


def _place(url: URL) -> str:
    return f"{url.host or 'localhost'}:{url.port or 5432}"


def _no_database(url: URL, key: str) -> ConnectionRefusal:
    return ConnectionRefusal(
        f"the server at {_place(url)} has no database {url.database or url.username!r}",
        f"correct the name at the end of `{key}`, or create the database",
    )


def _no_user(url: URL, key: str) -> ConnectionRefusal:
    return ConnectionRefusal(
        f"the server at {_place(url)} has no user {url.username!r}",
        f"correct the user in `{key}`, or create the role",
    )


def _wrong_password(url: URL, key: str) -> ConnectionRefusal:
    return ConnectionRefusal(
        f"the server at {_place(url)} does not let user {url.username!r} in: wrong password, or "
        "no such user",
        f"correct user and password in `{key}`",
    )


def _no_password(url: URL, key: str) -> ConnectionRefusal:
    return ConnectionRefusal(
        f"the server at {_place(url)} asks for the password of user {url.username!r}, and there "
        "is none",
        f"add the password to `{key}`",
    )


def _not_admitted(url: URL, key: str) -> ConnectionRefusal:
    return ConnectionRefusal(
        f"the server at {_place(url)} admits no user {url.username!r} to database "
        f"{url.database!r} from this host",
        f"add a line to the server's pg_hba.conf, or correct `{key}`",
    )


def _no_host(url: URL, key: str) -> ConnectionRefusal:
    return ConnectionRefusal(
        f"the database cannot be reached: there is no host {url.host!r}",
        f"correct the host in `{key}`, or look at the name service",
        is_wrong_url=False,
    )


def _nobody_listens(url: URL, key: str) -> ConnectionRefusal:
    return ConnectionRefusal(
        f"the database cannot be reached: nothing listens at {_place(url)}",
        f"check that it runs, and host and port in `{key}`",
        is_wrong_url=False,
    )


def _silent(url: URL, key: str) -> ConnectionRefusal:
    return ConnectionRefusal(
        f"the database cannot be reached: {_place(url)} did not answer in time",
        f"check host and port in `{key}`, and the firewall",
        is_wrong_url=False,
    )


_KNOWN: tuple[tuple[str, _Make], ...] = (
    (r'database "[^"]*" does not exist', _no_database),
    (r'role "[^"]*" does not exist', _no_user),
    (r"authentication failed for user", _wrong_password),
    (r"no password supplied", _no_password),
    (r"no pg_hba\.conf entry", _not_admitted),
    (r"could not translate host name|failed to resolve host|name or service not known", _no_host),
    (r"connection refused", _nobody_listens),
    (r"timeout expired|timed out", _silent),
)


# PostgreSQL's SQLSTATEs (its manual, appendix A): read-only as after a failover, not in the state
# for it, a session that was ended, a full disk, no memory, a time limit, I/O.
_PASSING = ("25006", "25P03", "25P04", "53100", "53200", "55000", "57014", "58030")
# MariaDB's and MySQL's numbers (their manuals, "Error reference").
_MISSING, _LOCKED, _LOGINS = (1146, 1054), (1205, 1213), (1044, 1045, 1049)
_DENIED = (1142, 1143)  # of a table, a column
_AWAY = (0, 1040, 1047, 1053, 1203, 1226, 1927, 2002, 2003, 2005, 2006, 2013, 2014, 2055, 4031)
_PASSING_NUMBERS = (1021, 1114, 1290, 1836, 3024)  # a full disk or table, read-only, a time limit


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


def find_trouble(error: DBAPIError, url: URL) -> Trouble:
    """Which kind an error is, by the codes of its database."""
    original: Any = error.orig
    name = str(getattr(original, "sqlite_errorname", "") or "")
    state = str(getattr(original, "sqlstate", "") or "")
    number = original.args[0] if getattr(original, "args", ()) else None
    reason = str(original)
    if state == "23505" or name in ("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY"):
        return Trouble.UNIQUE
    is_busy = name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
    if is_busy or state[:2] == "40" or state == "55P03" or number in _LOCKED:
        return Trouble.LOCKED
    is_missing = "no such table" in reason or "no such column" in reason
    if is_missing or state in ("42P01", "42703") or number in _MISSING:
        return Trouble.MISSING
    if name.startswith("SQLITE_NOTADB"):
        return Trouble.NO_DATABASE
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
        return Trouble.NO_RIGHTS
    if state[:2] == "28" or number in _LOGINS:
        return Trouble.LOGIN
    if state == "42501" or number in _DENIED:
        return Trouble.DENIED
    is_full = name.startswith(("SQLITE_FULL", "SQLITE_IOERR"))
    if is_full or state in _PASSING or number in _PASSING_NUMBERS:
        return Trouble.PASSING
    # Lost connections, which have no state; no room for another one; a server that starts or stops.
    is_lost = isinstance(error, OperationalError | InterfaceError) and not state
    is_lost &= url.get_backend_name() == "postgresql"
    if is_lost or state[:2] in ("08", "53", "57") or number in _AWAY:
        return Trouble.AWAY
    return Trouble.OTHER


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
    is_passing = trouble in (Trouble.LOCKED, Trouble.AWAY, Trouble.PASSING)
    message, hint = _word(trouble, reason, place)
    return make(message, subject=place.label, hint=hint, retryable=is_passing)


def _word(trouble: Trouble, reason: str, place: DatabasePlace) -> tuple[str, str]:
    match trouble:
        case Trouble.LOCKED:
            return (
                f"it is locked by another process for too long: {reason}",
                "try again; look for another process that hangs",
            )
        case Trouble.MISSING:
            return f"its tables are missing: {reason}", place.make_tables_hint
        case Trouble.NO_DATABASE:
            return "the file is not an SQLite database", "name another file"
        case Trouble.NO_RIGHTS:
            return reason, "check the rights of the file and folder"
        case Trouble.AWAY:
            return (
                f"the database cannot be reached: {reason}",
                f"check that it runs, and host and port in `{place.key}`",
            )
        case Trouble.PASSING:
            return (
                f"the database does not do it now: {reason}",
                "try again; look at the server's log and its disk",
            )
        case Trouble.LOGIN:
            return (
                f"the database does not let us in: {reason}",
                f"check user, password and database in `{place.key}`",
            )
        case Trouble.DENIED:
            return (
                f"the user may not do this: {reason}",
                f"give this right to the user in `{place.key}`, or use another one",
            )
    return reason, ""


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
