"""A source that does not let us in: said by the part of its URL that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from backlog.errors import ConfigurationError, SourceError
from backlogctl_delivery.database_failures import explain_refusal


@contextmanager
def telling_access(engine: Engine, database: str) -> Iterator[None]:
    """Turns a failed connection inside into a sentence about the URL; other errors stay.

    Raises:
        ConfigurationError: database, user, password or file are wrong.
        SourceError: the server cannot be reached now.
    """
    key = f"sources.{database}.url"
    try:
        yield
    except DBAPIError as error:
        original = error.orig
        if getattr(original, "sqlite_errorname", "") == "SQLITE_NOTADB":
            raise ConfigurationError(
                "the file is not an SQLite database", subject=key, hint="name another file"
            ) from None
        if getattr(original, "sqlstate", None):
            raise
        found = explain_refusal(str(original), engine.url, key)
        if found is None:
            raise
        if found.is_wrong_url:
            raise ConfigurationError(found.message, subject=key, hint=found.hint) from None
        raise SourceError(
            found.message, subject=f"database {database}", hint=found.hint, retryable=True
        ) from None
