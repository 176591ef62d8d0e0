"""What tasks say of what they read and write, to Airflow's collector and to OpenLineage."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from backlogctl.dags import lineage
from backlogctl.dags.lineage import (
    Flow,
    find_flow,
    name_archive,
    name_table,
    report_audit,
    report_recovery,
)
from backlogctl.dags.local.standalone import AirflowStandalone
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import Plan
from backlogctl.replay.kinds.offload.plan import OffloadPlan, PlannedPlace
from backlogctl.replay.kinds.redrive.plan import PlannedSource, RedrivePlan
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.dags.airflow import Airflow
from tests.kit.kafka import wait_until
from tests.kit.processes import ROOT
from tests.kit.recoveries import keep_plan, make_expand_plan, make_rebuild_plan, open_desk
from tests.replay.runbooks.desks import GROUP, SOURCE

TABLE = "postgres://db:5433/shop/sales/orders"
URL = "postgresql+psycopg://app:s3cr3t-word@db:5433/shop"


def open_lineage_desk(directory: Path, bootstrap: str = "SASL_SSL://k1:9093,k2:9093") -> Workspace:
    (directory / "password").write_text("s3cr3t-word")
    return open_desk(
        directory,
        clusters={"main": {"bootstrap.servers": bootstrap}},
        sources={"shop": {"url": URL.replace("s3cr3t-word", f"${{file:{directory}/password}}")}},
        streams={
            "orders": {
                "cluster": "main",
                "topic": "orders",
                "group": GROUP,
                "source": {**SOURCE, "table": "sales.orders"},
            }
        },
    )


@pytest.mark.parametrize(
    ("url", "table", "named"),
    [
        (URL, "sales.orders", TABLE),
        ("postgresql://db/shop", "orders", "postgres://db:5432/shop/public/orders"),
        ("postgresql://u:p@[::1]/shop", "a/b", "postgres://[::1]:5432/shop/public/a%2Fb"),
        ("mariadb+pymysql://u:p@db/shop", "orders", "mysql://db:3306/shop/orders"),
        ("sqlite:////tmp/shop.db", "orders", None),
        ("postgresql:///shop?host=/run/postgresql", "orders", None),
    ],
)
def test_a_table_has_a_name_without_its_password(url: str, table: str, named: str | None) -> None:
    assert name_table(url, table) == named


def test_an_archive_has_one_name_for_every_client() -> None:
    assert name_archive("s3a://bucket/backlog/r-1") == "s3://bucket/backlog/r-1"
    assert name_archive("/var/archives/r 1") == "file:///var/archives/r%201"


def test_what_is_read_and_written_is_that_of_the_plan(tmp_path: Path) -> None:
    desk = open_lineage_desk(tmp_path)
    topic = "kafka://k1:9093/orders"
    rebuild = keep_plan(desk, make_rebuild_plan(group=GROUP))
    assert find_flow(desk, rebuild) == Flow((TABLE,), (topic,))
    expand = keep_plan(desk, make_expand_plan(group=GROUP))
    assert find_flow(desk, expand) == Flow((topic,))


def test_an_archive_is_written_by_an_offload_and_read_by_a_redrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = open_lineage_desk(tmp_path)
    planned = keep_plan(desk, make_rebuild_plan(group=GROUP))
    topic, place = "kafka://k1:9093/orders", f"s3a://bucket/{planned.id}"
    of_topic: dict[str, Any] = {"cluster": "main", "topic": "orders"}
    digest = "0" * 64
    desk.ledger.archives.record(
        planned.id, stream="orders", topic_id="id", location=place, manifest_sha256=digest,
        messages=0, bytes=0, ranges=(), **of_topic,
    )  # fmt: skip

    def find(plan: Plan) -> Flow:
        monkeypatch.setattr(Workspace, "plan_of", lambda *_: plan)
        return find_flow(desk, planned)

    written = PlannedPlace.model_construct(location=place)
    archive = (f"s3://bucket/{planned.id}",)
    assert find(OffloadPlan.model_construct(**of_topic, place=written)) == Flow((topic,), archive)
    assert find(OffloadPlan.model_construct(**of_topic, place=None)) == Flow((topic,))
    sources: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"topic": "orders", "archive": planned.id}, archive),
        ({"topic": "orders-dlt"}, ("kafka://k1:9093/orders-dlt",)),
    ]
    for source, read in sources:
        planned_source = PlannedSource.model_construct(**source)
        plan = RedrivePlan.model_construct(**of_topic, source=planned_source)
        assert find(plan) == Flow(read, (topic,))


def test_lineage_never_ends_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = open_lineage_desk(tmp_path)
    planned = keep_plan(desk, make_rebuild_plan(group=GROUP))
    monkeypatch.setattr(lineage, "_is_collected", lambda: True)
    report_recovery(desk, replace(planned, kind="mystery"))
    assert f"no lineage of {planned.id}: " in caplog.text


def test_an_audit_reads_the_table_and_the_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.lineage import HookLineageCollector

    desk, make = open_lineage_desk(tmp_path), cast("Any", HookLineageCollector)
    collector = make()
    monkeypatch.setattr(lineage, "_is_collected", lambda: True)
    monkeypatch.setattr("airflow.sdk.lineage.get_hook_lineage_collector", lambda: collector)
    report_audit(desk, desk.config.stream("orders"))
    collected = collector.collected_assets
    assert {one.asset.uri for one in collected.inputs} == {TABLE, "kafka://k1:9093/orders"}
    assert not collected.outputs


def test_nobody_collects_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow without a reader: its collector is not even made."""
    from airflow.sdk.lineage import get_hook_lineage_collector

    get_hook_lineage_collector.cache_clear()
    desk = open_lineage_desk(tmp_path)
    planned = keep_plan(desk, make_rebuild_plan(group=GROUP))
    monkeypatch.setattr(lineage, "find_flow", lambda *_: pytest.fail("nobody asked for it"))
    monkeypatch.setattr("airflow.sdk.plugins_manager.get_hook_lineage_readers_plugins", list)
    report_recovery(desk, planned)
    assert get_hook_lineage_collector.cache_info().currsize == 0


# An Airflow that collects: by a plugin of its own, and by OpenLineage's where that is installed.

_READER = """
import json
from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin
from airflow.sdk.lineage import HookLineageReader, get_hook_lineage_collector

class Listener:
    @hookimpl
    def on_task_instance_success(self, previous_state, task_instance):
        found = get_hook_lineage_collector().collected_assets
        told = {side: [one.asset.uri for one in getattr(found, side)] for side in ("inputs", "outputs")}
        with open(PLACE, "a") as file:
            file.write(json.dumps({"task": task_instance.task_id, **told}) + "\\n")

class ReaderPlugin(AirflowPlugin):
    name = "reader"
    hook_lineage_readers = [HookLineageReader]
    listeners = [Listener()]
"""
HAS_OPENLINEAGE = importlib.util.find_spec("openlineage") is not None


def read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


@pytest.mark.airflow
def test_a_run_tells_its_table_and_its_topic(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    desk = open_lineage_desk(tmp_path, kafka.bootstrap)
    planned = keep_plan(desk, make_rebuild_plan(group=GROUP))
    plugins, told, events = (tmp_path / name for name in ("plugins", "told", "events"))
    plugins.mkdir()
    (plugins / "reader.py").write_text(_READER.replace("PLACE", repr(str(told))))
    transport = {"type": "file", "log_file_path": str(events), "append": True}
    environment = {
        "PYTHONPATH": str(ROOT),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
        "AIRFLOW__OPENLINEAGE__NAMESPACE": "tests",
    }
    topic = f"kafka://{kafka.bootstrap}/orders"
    with AirflowStandalone.start(
        tmp_path / "airflow", config=tmp_path / "backlog.yaml", extra_env=environment
    ) as started:
        airflow = Airflow(started)
        form = {"stream": "orders", "action": "rebuild", "recovery": planned.id}
        run = airflow.trigger("recover_backlog", form)
        airflow.await_state(run, "rebuild.plan", {"success"})
        wait_until(lambda: "rebuild.plan" in [one["task"] for one in read_lines(told)], 60)
        if HAS_OPENLINEAGE:
            wait_until(lambda: any(find_datasets(one) for one in read_lines(events)), 60)
        airflow.close()
    [plan] = [one for one in read_lines(told) if one["task"] == "rebuild.plan"]
    assert (plan["inputs"], plan["outputs"]) == ([TABLE], [topic])
    if HAS_OPENLINEAGE:
        found = [datasets for one in read_lines(events) if (datasets := find_datasets(one))]
        table = ("postgres://db:5433", "shop.sales.orders")
        assert ([table], [(f"kafka://{kafka.bootstrap}", "orders")]) in found
    for file in (told, events):
        assert not file.exists() or "s3cr3t-word" not in file.read_text()


def find_datasets(event: dict[str, Any]) -> tuple[list[Any], list[Any]] | None:
    """Of the plan's task: what it read, and what it wrote."""
    if not event["job"]["name"].endswith("rebuild.plan") or not event.get("outputs"):
        return None
    read, written = (
        [(one["namespace"], one["name"]) for one in event[side]] for side in ("inputs", "outputs")
    )
    return read, written
