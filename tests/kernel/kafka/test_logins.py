"""Logins by passwords and certificates: all three clients, on a broker that takes each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import make_admin
from backlogctl.spark_backfill.spark.topic import TopicReader
from backlogctl.values import OffsetRange
from backlogctl_delivery.kafka import AccessDenied, LoginRefused
from tests.kit.kafka import publish
from tests.kit.secured import (
    LOGINS,
    PASSWORDS,
    RIGHTS,
    TLS,
    TOPIC,
    SecuredKafka,
    start_with_each_login,
    use_both_clients,
)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with start_with_each_login(tmp_path_factory.mktemp("logins"), "ada", RIGHTS) as found:
        create_topic(found.properties, TOPIC, partitions=1)
        yield found


@pytest.mark.parametrize("way", LOGINS)
def test_both_clients_log_in(kafka: SecuredKafka, way: str) -> None:
    properties = kafka.login_by(way, "ada")
    use_both_clients(properties)
    if way != TLS:
        with pytest.raises(AccessDenied):  # by who it is, not as nobody
            create_topic(make_admin(properties), "bills", partitions=1)


@pytest.mark.parametrize("way", PASSWORDS)
def test_a_wrong_password_is_refused(kafka: SecuredKafka, way: str) -> None:
    with pytest.raises(LoginRefused):
        create_topic({**kafka.login_by(way, "ada"), "sasl.password": "x"}, TOPIC, partitions=1)


@pytest.mark.parametrize("way", LOGINS)
def test_spark_logs_in(spark: SparkSession, kafka: SecuredKafka, way: str) -> None:
    properties = kafka.login_by(way, "ada")
    publish(properties, TOPIC, {0: 10})
    assert TopicReader(spark, properties, TOPIC).read([OffsetRange(0, 0, 10)]).count() == 10
