"""backlog.yaml for tasks and the page, with fields of Airflow's connections; the Airflow's id."""

from __future__ import annotations

import json
import os
import secrets
from typing import Any

from airflow.sdk import Connection, Variable
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.exceptions import AirflowRuntimeError as RuntimeFailure
from pydantic import ValidationError
from sqlalchemy import URL

from backlogctl.config import Config, SparkSection, load_config
from backlogctl.config.base import explain
from backlogctl.dags.policies import DEPLOYMENT, DEPLOYMENT_OF
from backlogctl.errors import ConfigurationError

# Where it exists, it says where Spark runs; `spark:` of the file otherwise.
SPARK_CONNECTION = "BACKLOG_SPARK_CONN_ID"
_DEFAULT_SPARK = "backlogctl_spark"
# Of its extra, as Airflow's Spark provider names them: how a driver is submitted.
DEPLOY_MODE, BINARY = "deploy-mode", "spark-binary"
_FIELDS = ("host", "port", "login", "password", "schema", "extra", "url")
# SQLAlchemy's names for Airflow's types of connections.
_DRIVERS = {
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "sqlite": "sqlite",
}
_EXTRA = "extra."


def load() -> Config:
    """The file that `BACKLOG_CONFIG` names, else ./backlog.yaml.
    Raises ConfigurationError, Refused: there is none, or it is wrong; the message says where.
    """
    config = load_config(find_connection=find_field)
    spark = find_spark_connection()
    if spark is None:
        return config
    return config.model_copy(update={"spark": read_spark(spark, config.spark)})


def find_spark_connection() -> Connection | None:
    """That says where Spark runs; None where the file alone does."""
    return _find_connection(os.environ.get(SPARK_CONNECTION) or _DEFAULT_SPARK)


def list_taken_fields() -> dict[str, str]:
    """The fields of connections that the file takes, secrets among them, by `CONNECTION.FIELD`."""
    taken: dict[str, str] = {}

    def find(name: str) -> str:
        taken[name] = find_field(name)
        return taken[name]

    load_config(find_connection=find)
    return taken


def find_field(name: str) -> str:
    """`CONNECTION.FIELD`: host, port, login, password, schema, extra, `extra.KEY`, or a database's
    url. Raises LookupError: there is no such connection or field; says what to do.
    """
    connection_id, field = _split(name)
    if not connection_id or not (field in _FIELDS or field.startswith(_EXTRA)):
        known = ", ".join((*_FIELDS, "extra.KEY"))
        raise LookupError(f"{name} names no field of a connection: CONNECTION.FIELD, of {known}")
    connection = _find_connection(connection_id)
    if connection is None:
        raise LookupError(
            f"Airflow has no connection {connection_id}: add it under Admin, Connections"
        )
    value: Any
    if field == "url":
        value = _make_url(connection)
    elif field in _FIELDS:
        value = getattr(connection, field)
    else:
        value = read_extra(connection).get(field.removeprefix(_EXTRA))
    return "" if value is None else str(value)


def _make_url(connection: Connection) -> str:
    """What `extra` has of text becomes the URL's query, such as `sslmode`."""
    driver = _DRIVERS.get(connection.conn_type or "")
    if driver is None:
        raise LookupError(
            f"the connection {connection.conn_id} is of the type {connection.conn_type}, no "
            f"database: {', '.join(_DRIVERS)}"
        )
    is_file = driver == "sqlite"
    url = URL.create(
        driver,
        connection.login or None,
        connection.password or None,
        None if is_file else connection.host or None,
        connection.port or None,
        connection.host if is_file else connection.schema,
        {key: item for key, item in read_extra(connection).items() if isinstance(item, str)},
    )
    return url.render_as_string(hide_password=False)


def read_spark(connection: Connection, section: SparkSection) -> SparkSection:
    """The master and settings of a connection over those of the file.

    Host and port as Airflow's Spark provider takes them: `spark://host` and a port, `yarn`,
    `local[*]`. `extra` is a JSON object of settings whose names begin with `spark.`.
    """
    host = connection.host or section.master
    if connection.conn_type == "k8s" and connection.host and not host.startswith("k8s://"):
        # Of a URI, whose scheme is no part of the host.
        host = f"k8s://{host}"
    if connection.conn_type in ("spark", "spark_connect") and "://" not in host and connection.port:
        host = f"spark://{host}"
    master = f"{host}:{connection.port}" if connection.port and "://" in host else host
    settings = {
        name: value for name, value in read_extra(connection).items() if name.startswith("spark.")
    }
    made = {"master": master, "conf": {**section.conf, **settings}}
    try:
        return SparkSection.model_validate(made)
    except ValidationError as error:
        found = [explain(item) for item in error.errors(include_url=False)]
        told = "; ".join(f"{'.'.join(item.path)}: {item.text}" for item in found)
    # Raised here: an exception's context would carry what the connection holds.
    raise ConfigurationError(
        f"its settings are not taken: {told}",
        subject=f"connection {connection.conn_id}",
        hint="see `spark` in docs/configuration.md",
    )


def _split(name: str) -> tuple[str, str]:
    """Connection and field; there may be dots in a connection's id, and in a key of `extra`."""
    before, extra, key = name.partition(f".{_EXTRA}")
    if extra:
        return before, f"{_EXTRA}{key}"
    connection_id, _, field = name.rpartition(".")
    return connection_id, field


def _find_connection(connection_id: str) -> Connection | None:
    try:
        found: Connection = Connection.get(connection_id)
        return found
    except AirflowNotFoundException:
        return None
    except RuntimeFailure as error:
        if "NOT_FOUND" in str(error):
            return None
        raise


def read_extra(connection: Connection) -> dict[str, Any]:
    try:
        found = json.loads(connection.extra or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# Which Airflow this is: others may share its ledger.


def read_deployment() -> str:
    """The id that this Airflow keeps in its own metadata; "" where it is not there."""
    return str(Variable.get(DEPLOYMENT, default=""))


def find_deployment() -> str:
    """The same, for tasks. The scheduler has made it; `airflow dags test` may have none.
    Raises ConfigurationError: it is there, and could not be read: that looks like none.
    """
    if known := read_deployment():
        return known
    if DEPLOYMENT in Variable.keys(prefix=DEPLOYMENT):
        # Another id would disown all recoveries.
        raise ConfigurationError(
            "it is there, and could not be read",
            subject=f"variable {DEPLOYMENT}",
            hint="try again",
            retryable=True,
        )
    Variable.set(DEPLOYMENT, secrets.token_hex(4), description=DEPLOYMENT_OF)
    return read_deployment()
