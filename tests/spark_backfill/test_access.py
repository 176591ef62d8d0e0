"""URLs and properties as JDBC and Java's Kafka clients want them; bounds."""

from __future__ import annotations

import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backlogctl.errors import ConfigurationError, UsageError
from backlogctl.spark_backfill.messages.windows import CLOCKS, find_windows
from backlogctl.spark_backfill.sources.reflection import make_access
from backlogctl.spark_backfill.spark.kafka_options import make_java_options
from tests.spark_backfill import world

MARGIN = timedelta(minutes=10)


def test_a_postgres_url_becomes_jdbcs() -> None:
    source = world.make_source(
        "postgresql+psycopg://us%40er:p%2Fw@db.example:6432/my%20shop?sslmode=require&connect_timeout=3",
        limits={"connections": 2, "fetch_size": 77, "statement_timeout": "90s"},
    )
    access = make_access(source, "shop")
    assert access.url == "jdbc:postgresql://db.example:6432/my%20shop"
    assert access.properties["user"] == "us@er"
    assert access.properties["password"] == "p/w"
    assert access.properties["fetchsize"] == "77"
    assert access.properties["queryTimeout"] == "90"
    assert "statement_timeout=90000" in access.properties["options"]
    assert "default_transaction_read_only=on" in access.properties["options"]
    assert access.properties["sslmode"] == "require"
    assert access.properties["connectTimeout"] == "3"
    assert access.properties["socketTimeout"] == "150"  # seconds: the server's own limit is sooner


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql+psycopg:///shop?host=/run/postgresql", "socket"),
        ("postgresql+psycopg://db/shop?passfile=/x", "passfile"),
        ("sqlite://", "in-memory"),
        ("sqlite:////nowhere/shop.db", "no file"),
    ],
)
def test_what_jdbc_cannot_do_is_said(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make_access(world.make_source(url), "shop")


def test_client_properties_become_javas(tmp_path: Path) -> None:
    make = ("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
    key = subprocess.run(make, capture_output=True, text=True, check=True).stdout
    (tmp_path / "key.pem").write_text(key)
    java = make_java_options(
        {
            "bootstrap.servers": "a:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "me",
            "sasl.password": 'p"w\\',
            "ssl.ca.location": "/ca.pem",
            "ssl.certificate.pem": "CERT",
            "ssl.key.location": str(tmp_path / "key.pem"),
            "linger.ms": "5",
        }
    )
    assert java == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="p\\"w\\\\";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "CERT",
        "kafka.ssl.keystore.key": key,
    }
    with pytest.raises(ConfigurationError, match=r"ssl\.crl\.location"):
        make_java_options({"ssl.crl.location": "/x"})


def bounds_of(*times: tuple[Any, Any], **settings: Any) -> tuple[str | None, str | None]:
    gaps = tuple(world.make_gap("t", i, 0, 1, first, last) for i, (first, last) in enumerate(times))
    options: dict[str, Any] = {
        "since": None, "until": None, "margin": MARGIN, "drift": (MARGIN, timedelta(0)),
        "mutable": False, "has_consumed": False,
        **settings,
    }  # fmt: skip
    return find_windows(gaps, **options).read.to_text()


def test_bounds_are_the_gaps_own_widened_by_the_margin() -> None:
    one, two, three = (world.START + timedelta(hours=h) for h in range(3))
    low, high = "2026-11-20T11:50:00.000000Z", "2026-11-20T14:10:00.000000Z"
    assert bounds_of((one, two), (two, three)) == (low, high)
    # A later change moves a mutable row's time.
    assert bounds_of((one, two), mutable=True) == (low, None)
    # One gap without an end leaves all of them open.
    assert bounds_of((one, two), (two, None)) == (low, None)
    assert bounds_of((two, two), since=one, until=three) == (low, high)
    assert bounds_of((None, three), has_consumed=True) == (None, high)
    with pytest.raises(UsageError, match="--since"):
        bounds_of((one, two), (None, three))
    with pytest.raises(UsageError, match="lies before"):
        bounds_of((one, two), since=three, until=one)
    with pytest.raises(UsageError, match="no row can lie between"):
        bounds_of((two, three), until=one)
    assert bounds_of((one, two), (two, three), until=one) == (low, "2026-11-20T12:10:00.000000Z")


def test_rows_that_are_marked_after_their_message_lie_later() -> None:
    first, last = world.START, world.START + timedelta(hours=1)
    gaps = (world.make_gap("t", 0, 0, 1, first, last),)
    options: dict[str, Any] = {"margin": MARGIN, "mutable": False, "has_consumed": False}
    before = find_windows(gaps, since=None, until=None, drift=(MARGIN, timedelta(0)), **options)
    marked = find_windows(gaps, since=None, until=None, drift=(timedelta(0), MARGIN), **options)
    assert before.anywhere.lower == first - MARGIN
    assert before.anywhere.upper == last + CLOCKS
    assert marked.anywhere.lower == first - CLOCKS
    assert marked.anywhere.upper == last + MARGIN
    asked = find_windows(gaps, since=first, until=last, drift=(timedelta(0), MARGIN), **options)
    assert (asked.anywhere.lower, asked.anywhere.upper) == (first - MARGIN, last + MARGIN)
