"""Audits with the rights of `see`, and with less: a clear error, and nothing is left or recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from backlog.clock import utc_now
from backlog.config import load_config
from backlog.kafka.admin import create_topic
from backlog.kafka.rights import Operation, Resource
from replay.around.rights import list_seeing
from replay.audits import AUDITS
from replay.opening import open_workspace
from tests.kafka_tools import set_offsets_raw
from tests.replay.calling import call_main
from tests.replay.shop import LOCAL_SPARK, PROCESSED
from tests.secured import PASSWORD, SecuredKafka, start_secured
from tests.spark_backfill.world import FIELDS, ORDERS, fill_table, make_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
GROUP = "order-service"
# What an audit does without one of the rights that it has.
MISSING = (
    (Resource.TOPIC, Operation.READ),
    (Resource.TOPIC, Operation.DESCRIBE_CONFIGS),
    (Resource.GROUP, Operation.DESCRIBE),
)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A broker with a topic and a group that has read all of it."""
    with start_secured(tmp_path_factory.mktemp("secured")) as found:
        create_topic(found.properties, "orders", partitions=1, config={"retention.ms": "-1"})
        producer = Producer(found.properties)
        at = round((utc_now() - timedelta(hours=1)).timestamp() * 1000)
        for number in range(30):
            producer.produce("orders", b"{}", b"%d" % number, 0, timestamp=at)
        assert producer.flush(60) == 0
        set_offsets_raw(found.properties, GROUP, "orders", {0: 30})
        yield found


@pytest.fixture
def shop(
    secured: SecuredKafka, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with backlog.yaml, a table of orders, and one of those that were handled."""
    del spark
    monkeypatch.setenv("TOOL_PASSWORD", PASSWORD)
    url = f"sqlite:///{tmp_path}/shop.db"
    sent = utc_now() - timedelta(hours=1)
    rows = [{**make_order(number), "updated_at": sent} for number in range(30)]
    fill_table(url, ORDERS, rows)
    fill_table(url, PROCESSED, [{"order_id": number} for number in range(30)], "processed")
    source = {
        "database": "shop",
        "table": "orders",
        "primary_key": ["order_id"],
        "time_column": "updated_at",
        "mutable": False,
        "message": {"key": "order_id", "value": {"json": FIELDS}},
        "identity": {"row": "order_id", "message": "key"},
        "consumed": {"database": "shop", "table": "processed", "column": "order_id"},
    }
    document = {
        "ledger": "sqlite:///ledger.db",
        "staging": {"dir": "./staging"},
        "spark": LOCAL_SPARK,
        "clusters": {"main": {}},
        "sources": {"shop": {"url": url}},
        "streams": {
            "orders": {"cluster": "main", "topic": "orders", "group": GROUP, "source": source}
        },
    }
    (tmp_path / "backlog.yaml").write_text(json.dumps(document))
    return tmp_path


def log_in(shop: Path, secured: SecuredKafka, user: str) -> None:
    path = shop / "backlog.yaml"
    document = json.loads(path.read_text())
    document["clusters"]["main"] = secured.login(user, "${env:TOOL_PASSWORD}")
    path.write_text(json.dumps(document))


def audit(shop: Path, name: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the document; nothing else was said that is not for people."""
    code, out, err = call_main(("audit", name, "orders", "--json"), shop, {})
    assert "Traceback" not in err
    assert PASSWORD not in out + err
    assert list(shop.glob("staging/audit-*")) == []
    return code, json.loads(out)


def list_recorded(shop: Path) -> set[str]:
    workspace = open_workspace(load_config(shop / "backlog.yaml"))
    return {one.audit for one in workspace.ledger.audits.list_latest("orders")}


def test_audits_need_the_rights_of_see(secured: SecuredKafka, shop: Path) -> None:
    """With each one missing it is an error that names what was refused, and nothing on record."""
    log_in(shop, secured, "auditor")
    config = load_config(shop / "backlog.yaml")
    rights = list_seeing(config.stream("orders"))
    secured.add_user("auditor", rights)
    for one in AUDITS:
        _, document = audit(shop, one.name)
        assert "error" not in document, document
        assert document["figures"]["messages"] == 30, document
    assert list_recorded(shop) == {one.name for one in AUDITS}


@pytest.mark.parametrize(("resource", "operation"), MISSING)
def test_a_missing_right_is_named(
    secured: SecuredKafka, shop: Path, resource: Resource, operation: Operation
) -> None:
    user = f"without-{resource}-{operation}".lower()
    log_in(shop, secured, user)
    rights = list_seeing(load_config(shop / "backlog.yaml").stream("orders"))
    secured.add_user(
        user, [r for r in rights if (r.resource, r.operation) != (resource, operation)]
    )
    for one in AUDITS:
        code, document = audit(shop, one.name)
        print(one.name, user, code, json.dumps(document)[:1500])
    print(list_recorded(shop))
    assert 0
