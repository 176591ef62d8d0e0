"""JDBC's view of a source: the URL without secrets, and the properties of a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from sqlalchemy.engine import URL

from backlog.config import Source
from backlog.errors import ConfigurationError
from spark_backfill.sources.reflection import (
    SQLITE,
    find_sqlite_file,
    parse_url,
    postgresql_options,
)

# libpq's parameters that pgjdbc knows under the same name; others are named in an error.
_SAME = frozenset(["sslmode", "sslrootcert", "sslcert", "sslkey", "channel_binding"])
_RENAMED = {
    "connect_timeout": "connectTimeout",
    "application_name": "ApplicationName",
    "target_session_attrs": "targetServerType",
}
# A server that has not even refused a statement this long after its timeout has vanished.
_ANSWER_SECONDS = 60
_TARGETS = {"read-write": "primary", "primary": "primary", "any": "any", "standby": "secondary"}


@dataclass(frozen=True, slots=True)
class JdbcAccess:
    """How Spark reads a source. The password is a property, never a part of the URL."""

    url: str
    properties: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False, default=())


def make_access(source: Source, database: str) -> JdbcAccess:
    """Turns a SQLAlchemy URL into JDBC's.

    Raises:
        ConfigurationError: something in it has no counterpart in JDBC.
    """
    url = parse_url(source.reveal_url(), database)
    limits = source.limits
    common = {
        "fetchsize": str(limits.fetch_size),
        "queryTimeout": str(max(1, int(limits.statement_timeout.total_seconds()))),
    }
    if url.get_backend_name() == SQLITE:
        return JdbcAccess(
            url=f"jdbc:sqlite:{find_sqlite_file(url, database)}",
            properties={**common, "driver": "org.sqlite.JDBC", "open_mode": "1"},
        )
    password = str(url.password) if url.password is not None else ""
    properties = {
        **common,
        **_translate_query(url, database),
        "driver": "org.postgresql.Driver",
        "options": postgresql_options(limits.statement_timeout, url),
        "tcpKeepAlive": "true",
        "socketTimeout": str(int(limits.statement_timeout.total_seconds()) + _ANSWER_SECONDS),
    }
    properties.setdefault("connectTimeout", "10")
    if url.username:
        properties["user"] = url.username
    if password:
        properties["password"] = password
    host = url.host or "localhost"
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    name = quote(url.database or url.username or "postgres", safe="")
    return JdbcAccess(
        url=f"jdbc:postgresql://{host}:{url.port or 5432}/{name}",
        properties=properties,
        secrets=(password,) if password else (),
    )


def _translate_query(url: URL, database: str) -> dict[str, str]:
    subject = f"sources.{database}.url"
    found: dict[str, str] = {}
    for name, value in url.query.items():
        text = value if isinstance(value, str) else ",".join(value)
        if name == "options":
            continue
        if name == "host":
            raise ConfigurationError(
                "a Unix socket or several hosts cannot be read over JDBC",
                subject=subject,
                hint="write one host and its TCP port",
            )
        if name == "target_session_attrs":
            text = _TARGETS.get(text, "any")
        if name not in _SAME and name not in _RENAMED:
            raise ConfigurationError(
                f"the parameter {name} is not supported",
                subject=subject,
                hint=f"known ones are {', '.join(sorted({*_SAME, *_RENAMED, 'options'}))}",
            )
        found[_RENAMED.get(name, name)] = text
    return found
