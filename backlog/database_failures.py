"""What an error of a database means to a user: PostgreSQL, SQLite, MariaDB and MySQL."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from backlog.errors import BacklogError
from backlog.postgres_refusals import explain_refusal

# MariaDB's and MySQL's numbers (their manuals, "Error reference").
_MISSING, _LOCKED, _LOGINS = (1146, 1054), (1205, 1213), (1044, 1045, 1049)
_DENIED = (1142, 1143)  # of a table, a column
_AWAY = (1040, 1053, 2002, 2003, 2005, 2006, 2013, 2055)


@dataclass(frozen=True, slots=True)
class Place:
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
    if is_busy or state[:2] in ("40", "55") or number in _LOCKED:
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
    # Lost connections, no room for another one, a server that starts or stops.
    is_postgres = url.get_backend_name() == "postgresql"
    if (is_postgres and (not state or state[:2] in ("08", "53", "57"))) or number in _AWAY:
        return Trouble.AWAY
    return Trouble.OTHER


def explain_failure(error: SQLAlchemyError, place: Place, make: type[BacklogError]) -> BacklogError:
    """The error as it is told, with what to do next."""
    if not isinstance(error, DBAPIError):
        return make(clean_reason(error, place.url), subject=place.label)
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
    is_passing = trouble in (Trouble.LOCKED, Trouble.AWAY)
    message, hint = _word(trouble, reason, place)
    return make(message, subject=place.label, hint=hint, retryable=is_passing)


def _word(trouble: Trouble, reason: str, place: Place) -> tuple[str, str]:
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
