"""What PostgreSQL's refusal of a connection means: which part of the URL is wrong.

libpq gives such an error no SQLSTATE, so its English text is read. What is not recognised is told
as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import URL


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
