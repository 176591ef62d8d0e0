"""Errors of a database that pass, peers that vanished, and what works without an extra."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, make_url
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    InternalError,
    OperationalError,
    TimeoutError,  # noqa: A004 - of the pool
)

from backlogctl.config import Source
from backlogctl.errors import LedgerError
from backlogctl.extras import ExtraMissing, explain_import
from backlogctl.spark_backfill.sources.reflection import open_engine
from backlogctl_delivery import database
from backlogctl_delivery.database import LIVENESS, add_liveness, make_engine
from backlogctl_delivery.database_failures import DatabasePlace, explain_failure
from tests.kit.services import Postgres

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
        (POSTGRES, make(OperationalError, "not serialized", sqlstate="40001"), "rolled back"),
        (POSTGRES, make(OperationalError, "lock timeout", sqlstate="55P03"), "locked"),
        (POSTGRES, make(InternalError, "read-only", sqlstate="25006"), "does not do it now"),
        (POSTGRES, make(OperationalError, "disk full", sqlstate="53100"), "does not do it now"),
        (POSTGRES, make(OperationalError, "time limit", sqlstate="57014"), "does not do it now"),
        (POSTGRES, make(OperationalError, "I/O", sqlstate="58030"), "does not do it now"),
        (POSTGRES, TimeoutError("QueuePool limit of size 2 reached"), "QueuePool"),
        (MARIADB, make(OperationalError, "", 1213, "deadlock"), "rolled back"),
        (MARIADB, make(OperationalError, "", 1205, "lock wait"), "locked"),
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


def test_what_the_user_says_wins() -> None:
    url = add_liveness(make_url("postgresql+psycopg://h/d?keepalives_idle=60&sslmode=require"))
    assert url.query == {**LIVENESS, "keepalives_idle": "60", "sslmode": "require"}


@contextmanager
def find_socket(engine: Engine) -> Iterator[socket.socket]:
    with engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        with socket.socket(fileno=os.dup(raw.fileno())) as one:
            yield one
    engine.dispose()


@pytest.mark.postgres
@pytest.mark.parametrize("whose", ["ledger", "source"])
def test_the_sockets_have_limits(whose: str, postgres: Postgres) -> None:
    url = postgres.url()
    engine = (
        make_engine(make_url(url))
        if whose == "ledger"
        else open_engine(Source.model_validate({"url": url}), "shop")
    )
    with find_socket(engine) as one:
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 5
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


@pytest.mark.postgres
def test_a_statement_that_hangs_ends_and_may_be_tried_again(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "STATEMENT_SECONDS", 1)
    url = postgres.url()
    engine = make_engine(make_url(url))
    with engine.connect() as connection, pytest.raises(OperationalError) as caught:
        connection.exec_driver_sql("SELECT pg_sleep(60)")
    engine.dispose()
    found = explain(url, caught.value)
    assert found.retryable
    assert "the database does not do it now" in found.message


# What is named is as if it were not installed.
_WITHOUT = """
import importlib, pkgutil, sys
class Missing:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("airflow", "pandas", "py4j", "pyspark"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing)
"""
_LIGHT = (
    _WITHOUT
    + """
for name in ("config", "kafka", "ledger", "fanout", "monitoring", "replay.cli", "replay.web",
             "replay.kinds.expand", "replay.consumers", "replay.observe"):
    package = importlib.import_module(f"backlogctl.{name}")
    for one in pkgutil.walk_packages(package.__path__, f"backlogctl.{name}."):
        if not one.name.endswith((".__main__", ".env")) and ".versions." not in one.name:
            importlib.import_module(one.name)
"""
)
_PLAN = (
    _WITHOUT
    + """
from backlogctl.replay.cli.shared import show_error
try:
    import backlogctl.spark_backfill.rebuild
except ImportError as error:
    sys.exit(show_error(error, as_json=False))
"""
)


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )


def test_what_looks_and_expands_needs_no_extra() -> None:
    done = run(_LIGHT)
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_command_names_the_extra_that_is_missing() -> None:
    done = run(_PLAN)
    assert done.returncode == 2
    assert done.stderr == (
        "error: extra spark: library pyspark is not installed\n"
        "hint: pip install 'backlogctl[spark]'\n"
    )


@pytest.mark.parametrize(
    "error", [ImportError("a circle"), ModuleNotFoundError("x", name="ours"), OSError("no disk")]
)
def test_other_errors_are_no_missing_extras(error: Exception) -> None:
    assert explain_import(error) is None


def test_a_module_of_a_library_names_its_extra() -> None:
    error = explain_import(ModuleNotFoundError("x", name="pyspark.sql"))
    assert isinstance(error, ExtraMissing)
    assert error.hint == "pip install 'backlogctl[spark]'"
