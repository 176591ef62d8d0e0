"""Which errors of a database pass by themselves, and what is said of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    InternalError,
    OperationalError,
    TimeoutError,  # noqa: A004 - of the pool
)

from backlogctl.errors import LedgerError
from backlogctl_delivery.database_failures import DatabasePlace, explain_failure

POSTGRES, MARIADB, SQLITE = "postgresql://u@h/d", "mariadb://u@h/d", "sqlite:///f.db"


def explain(url: str, error: Any) -> LedgerError:
    place = DatabasePlace("ledger", make_url(url), "ledger", "make them")
    found = explain_failure(error, place, LedgerError)
    assert isinstance(found, LedgerError)
    return found


def make(kind: type[DBAPIError], said: str, *args: Any, **codes: str) -> DBAPIError:
    original = type("Original", (Exception,), codes)(*(args or (said,)))
    return kind("SELECT 1", None, original)


@pytest.mark.parametrize(
    ("url", "error", "says"),
    [
        (POSTGRES, make(OperationalError, "the connection is lost"), "cannot be reached"),
        (POSTGRES, make(OperationalError, "shutdown", sqlstate="57P01"), "cannot be reached"),
        (POSTGRES, make(OperationalError, "too many", sqlstate="53300"), "cannot be reached"),
        (POSTGRES, make(OperationalError, "not serialized", sqlstate="40001"), "locked"),
        (POSTGRES, make(OperationalError, "lock timeout", sqlstate="55P03"), "locked"),
        (POSTGRES, make(InternalError, "read-only", sqlstate="25006"), "does not do it now"),
        (POSTGRES, make(OperationalError, "disk full", sqlstate="53100"), "does not do it now"),
        (POSTGRES, make(OperationalError, "time limit", sqlstate="57014"), "does not do it now"),
        (POSTGRES, make(OperationalError, "I/O", sqlstate="58030"), "does not do it now"),
        (POSTGRES, TimeoutError("QueuePool limit of size 2 reached"), "QueuePool"),
        (MARIADB, make(OperationalError, "", 1213, "deadlock"), "locked"),
        (MARIADB, make(OperationalError, "", 2013, "lost"), "cannot be reached"),
        (MARIADB, make(OperationalError, "", 1290, "read-only"), "does not do it now"),
        (SQLITE, make(OperationalError, "busy", sqlite_errorname="SQLITE_BUSY"), "locked"),
        (SQLITE, make(OperationalError, "full", sqlite_errorname="SQLITE_FULL"), "not do it now"),
    ],
)
def test_what_passes_may_be_tried_again(url: str, error: Any, says: str) -> None:
    found = explain(url, error)
    assert found.retryable
    assert says in found.message


@pytest.mark.parametrize(
    ("url", "error", "says"),
    [
        (POSTGRES, make(DataError, "text fields cannot contain NUL"), "NUL"),
        (POSTGRES, make(OperationalError, "no table", sqlstate="42P01"), "tables are missing"),
        (POSTGRES, make(OperationalError, "wrong password", sqlstate="28P01"), "let us in"),
        (POSTGRES, make(OperationalError, "no right", sqlstate="42501"), "may not do this"),
        (MARIADB, make(OperationalError, "", 1045, "denied"), "let us in"),
        (SQLITE, make(OperationalError, "no", sqlite_errorname="SQLITE_NOTADB"), "not an SQLite"),
    ],
)
def test_what_does_not_pass_may_not(url: str, error: Any, says: str) -> None:
    found = explain(url, error)
    assert not found.retryable
    assert says in found.message


def test_the_namespace_of_an_error_is_not_shown() -> None:
    error = OperationalError("SELECT secret", {"a": "b"}, SimpleNamespace())  # type: ignore[arg-type]
    assert "secret" not in explain(SQLITE, error).message
