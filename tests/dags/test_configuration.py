"""backlog.yaml with Airflow's connections."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from backlogctl.config import SparkSection
from backlogctl.dags import configuration
from backlogctl.dags.configuration import find_field, load, read_spark
from backlogctl.errors import ConfigurationError
from tests.replay.makers import write_config

Know = Callable[..., None]


@pytest.fixture
def know(monkeypatch: pytest.MonkeyPatch) -> Know:
    """Adds a connection to those that Airflow knows."""
    known: dict[str, Connection] = {}

    def get(connection_id: str) -> Connection:
        if connection_id not in known:
            raise AirflowNotFoundException(f"The conn_id `{connection_id}` isn't defined")
        return known[connection_id]

    def add(conn_id: str, **fields: Any) -> None:
        known[conn_id] = Connection(conn_id=conn_id, **fields)

    monkeypatch.setattr(Connection, "get", get)
    monkeypatch.delenv(configuration.SPARK_CONNECTION, raising=False)
    return add


def test_a_field_of_a_connection(know: Know) -> None:
    extra = json.dumps({"sasl.username": "app", "depth": 3})
    know("shop", conn_type="postgres", host="db", port=5433, login="me", password="p@ss",
         schema="public", extra=extra)  # fmt: skip
    fields = {
        "host": "db",
        "port": "5433",
        "login": "me",
        "password": "p@ss",
        "schema": "public",
        "extra.sasl.username": "app",
        "extra.depth": "3",
        "extra.nothing": "",
    }
    for field, value in fields.items():
        assert find_field(f"shop.{field}") == value


def test_there_may_be_dots_in_a_connections_id(know: Know) -> None:
    know("prod.kafka.main", conn_type="kafka", password="s3cr3t", extra='{"a.extra.b": "c"}')
    assert find_field("prod.kafka.main.password") == "s3cr3t"
    assert find_field("prod.kafka.main.extra.a.extra.b") == "c"


@pytest.mark.parametrize("name", ["shop", "shop.", ".password", "shop.user", "shop.extra", "."])
def test_what_is_no_field_is_told_so(know: Know, name: str) -> None:
    know("shop", conn_type="postgres", host="db")
    with pytest.raises(LookupError, match="names no field of a connection"):
        find_field(name)


def test_what_is_not_there_is_told_so(know: Know) -> None:
    know("odd", conn_type="kafka", extra="[1]")
    assert find_field("odd.host") == find_field("odd.extra.x") == ""
    with pytest.raises(LookupError, match="no connection shop: add it under Admin"):
        find_field("shop.password")


def test_the_file_is_read_with_connections(
    know: Know, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://reader:${airflow:shop.password}@${airflow:shop.host}/shop"
    file = write_config(tmp_path, sources={"shop": {"url": url, "timezone": "UTC"}})
    monkeypatch.setenv("BACKLOG_CONFIG", str(file))
    with pytest.raises(ConfigurationError) as caught:
        load()
    assert "sources.shop.url" in str(caught.value)
    assert "no connection shop" in str(caught.value)
    know("shop", conn_type="postgres", host="db.example", password="hunter2@hunter2")
    config = load()
    assert "reader:hunter2%40hunter2@db.example" in config.sources["shop"].reveal_url()
    assert config.mask_secrets("it is hunter2@hunter2") == "it is ***"
    assert config.spark == SparkSection()
    know("backlogctl_spark", conn_type="spark", host="spark://master", port=7077)
    assert load().spark.master == "spark://master:7077"
    know("own", conn_type="spark", host="yarn")
    monkeypatch.setenv(configuration.SPARK_CONNECTION, "own")
    assert load().spark.master == "yarn"


@pytest.mark.parametrize(
    ("fields", "master"),
    [
        ({}, "local[2]"),
        ({"host": "local[*]"}, "local[*]"),
        ({"host": "yarn"}, "yarn"),
        ({"host": "master", "port": 7077}, "spark://master:7077"),
        ({"host": "spark://master", "port": 7077}, "spark://master:7077"),
        ({"host": "spark://master:7077"}, "spark://master:7077"),
        ({"host": "k8s://https://api", "port": 6443}, "k8s://https://api:6443"),
    ],
)
def test_where_spark_runs(fields: dict[str, Any], master: str) -> None:
    section = SparkSection(master="local[2]", conf={"spark.a": "1", "spark.b": "2"})
    found = read_spark(Connection(conn_id="s", conn_type="spark", **fields), section)
    assert found == SparkSection(master=master, conf=section.conf)


def test_settings_of_a_connection_go_over_the_files() -> None:
    extra = {"spark.b": 3, "spark.c": True, "deploy-mode": "client", "queue": "x"}
    connection = Connection(conn_id="s", conn_type="spark", host="yarn", extra=json.dumps(extra))
    section = SparkSection(conf={"spark.a": "1", "spark.b": "2"})
    assert read_spark(connection, section).conf == {
        "spark.a": "1",
        "spark.b": "3",
        "spark.c": "true",
    }


@pytest.mark.parametrize(
    "extra",
    [
        {"spark.speculation": "true"},
        {"spark.hadoop.fs.s3a.secret.key": "hunter2hunter2"},
        {"spark.driver.extraJavaOptions": "-javaagent:hunter2hunter2.jar"},
        {"spark.a": ["hunter2hunter2"]},
    ],
)
def test_fault_59_a_setting_that_is_refused_is_named_and_not_shown(extra: dict[str, Any]) -> None:
    connection = Connection(conn_id="s", conn_type="spark", extra=json.dumps(extra))
    with pytest.raises(ConfigurationError) as caught:
        read_spark(connection, SparkSection())
    assert caught.value.subject == "connection s"
    assert next(iter(extra)) in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None
