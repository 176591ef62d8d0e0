"""Audits with the rights of `see`, and with less: a clear error, and nothing is left or recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from backlogctl.clock import utc_now
from backlogctl.config import load_config
from backlogctl.errors import Refused
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.rights import Operation, Resource
from backlogctl.replay.audits import AUDITS, carrying
from backlogctl.replay.observe.rights import list_seeing
from backlogctl.replay.opening import open_workspace
from tests.kafka_tools import set_offsets_raw
from tests.replay.calling import call_main
from tests.replay.shop import LOCAL_SPARK, PROCESSED
from tests.secured import PASSWORD, SecuredKafka, start_secured
from tests.spark_backfill.world import FIELDS, ORDERS, fill_table, make_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
GROUP = "order-service"
MISSING = ((Resource.TOPIC, Operation.READ), (Resource.GROUP, Operation.DESCRIBE))


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
    """They read all, and are on record."""
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
    """Before Spark starts; of who writes, a group's rights say nothing."""
    user = f"without-{resource.name}"
    log_in(shop, secured, user)
    rights = list_seeing(load_config(shop / "backlog.yaml").stream("orders"))
    (lacking,) = (r for r in rights if (r.resource, r.operation) == (resource, operation))
    secured.add_user(user, [right for right in rights if right != lacking])
    free = {"producers"} if resource is Resource.GROUP else set()
    for one in AUDITS:
        code, document = audit(shop, one.name)
        if one.name not in free:
            assert (code, document["error"]["code"]) == (Refused.exit_code, "refused")
            assert str(lacking) in document["error"]["message"]
    assert list_recorded(shop) == free


@pytest.mark.parametrize("name", ["sequence", "consumed", "counts"])
def test_what_is_refused_only_when_spark_reads_is_one_error(
    secured: SecuredKafka, shop: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As with a login that cannot be asked for its rights."""
    user = f"unasked-{name}"
    log_in(shop, secured, user)
    rights = list_seeing(load_config(shop / "backlog.yaml").stream("orders"))
    secured.add_user(user, [right for right in rights if right.operation is not Operation.READ])
    monkeypatch.setattr(carrying, "require_rights", lambda *said: ["its rights are unknown"])
    code, document = audit(shop, name)
    assert (code, document["error"]["code"]) == (2, "kafka"), document
    assert "Not authorized" in document["error"]["message"], document
    assert list_recorded(shop) == set()
