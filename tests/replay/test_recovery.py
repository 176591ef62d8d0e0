"""The whole way to `verified`, by the command line, on SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.kit.kafka import commit, wait_until
from tests.kit.registry import EmbeddedRegistry
from tests.kit.shop import (
    CONSUMED,
    DONE,
    LOST,
    PARTITIONS,
    SOURCE,
    TOTAL,
    Shop,
    count_by_partition,
    upgrade_ledger,
)
from tests.kit.shortened import MODULE, SHORTENED, VERIFICATION, WAVE
from tests.spark_backfill.test_formats import Producer
from tests.spark_backfill.world import FIELDS

HELD = {"module": MODULE, SHORTENED: "held"}
WITHIN = 400.0  # seconds
# Each starts Java several times, and has the Spark of this process.
pytestmark = [pytest.mark.timeout(900), pytest.mark.spark]


def test_whole_way_on_sqlite(shop: Shop) -> None:
    """Every verb with --json is one document; the gap is verified; a second run does nothing."""
    plan = shop.run("plan", "rebuild", "orders", "--json").document
    assert plan["verdict"] == "exact"
    assert plan["state"] == "planned"
    assert plan["counts"]["expected"] == plan["counts"]["rebuilt"] == LOST
    assert plan["counts"]["candidates"] == TOTAL
    assert plan["counts"]["consumed"] == DONE
    recovery = plan["id"]
    assert shop.read_injected() == []

    assert shop.call("run", recovery, "--json", code=3).error["code"] == "approval_needed"
    approved = shop.run("approve", recovery, "--by", "Ada", "--json").document
    assert approved["state"] == "approved"
    assert approved["approved_by"] == "Ada"
    assert approved["approved_identity"].startswith("os:")

    done = shop.run("run", recovery, "--json").document
    assert done["state"] == "verified"
    assert done["counts"] == {"injected": LOST, "skipped": 0, "left_out": 0, "quarantined": 0}
    shop.check_same_set()
    assert {g["state"] for g in shop.call("gaps", "--json").document["gaps"]} == {"verified"}

    again = shop.run("run", recovery, "--json").document
    assert again["state"] == "verified"
    assert again["already_done"]
    assert again["counts"]["injected"] == LOST
    shop.check_same_set()
    assert "verified before" in shop.call("run", recovery).out

    shown = shop.call("show", recovery, "--json").document
    assert shown["events_intact"]
    lines = [(event["action"], event["detail"].get("step")) for event in shown["events"]]
    wanted = [
        ("planned", None),
        ("approved", None),
        ("running", None),
        ("step completed", "inject"),
        ("step completed", "verify"),
        ("verified", None),
    ]
    assert [line for line in lines if line in wanted] == wanted
    steps = [(step["step"], step["state"]) for step in shown["progress"]["steps"]]
    names = ("check_target", "stage_check", "inject", "verify")
    assert steps == [(name, "done") for name in names]
    assert shop.call("recoveries", "--json").document["recoveries"][0]["id"] == recovery
    assert recovery in shop.call("recoveries").out
    check_report(shop, recovery)
    refused = shop.call("plan", "rebuild", "orders", "--json", code=5).error
    assert refused["code"] == "refused"
    ends = shop.read_ends()
    commit(shop.properties, shop.group, shop.topic, {p: end - 1 for p, end in ends.items()})
    assert shop.call("status", "--json").document["streams"][0]["verdict"] == "ok"


def check_report(shop: Shop, recovery: str) -> None:
    """It says what was lost, put back and read back, partition by partition, and who approved."""
    document = shop.call("report", recovery, "--json", "--html", "report.html").document
    lost = count_by_partition(range(DONE, DONE + LOST))
    assert document["verdict"] == "exact"
    assert document["losses"]["count"] == LOST
    rows = {row[0]: row[1:4] for row in document["verification"]["partitions"]}
    assert rows == {partition: [count] * 3 for partition, count in lost.items() if count}
    assert document["injection"]["points"][-1]["total"] == LOST
    assert document["verification"]["result"] == "passed"
    assert [check["value"] for check in document["verification"]["checks"]] == [
        LOST,
        LOST,
        *[0] * 4,
    ]
    assert document["unexplained"]["items"] == document["unexplained"]["reasons"] == []
    assert document["people"]["approved_by"] == "Ada"
    assert document["record"]["intact"]
    page = (shop.directory / "report.html").read_text()
    assert f"{LOST:,} lost messages" in page
    assert "The chain was verified" in page


def test_whole_way_on_postgres_and_fault_59(empty_shop: Shop, pg_url: str) -> None:
    """Source and ledger in PostgreSQL; the password is in nothing that is printed or kept."""
    secret = "hunter2-of-the-shop"
    shop = empty_shop
    shop.url = pg_url
    shop.lose_orders()
    shop.url = pg_url.replace("postgres@", "postgres:${env:SHOP_PASSWORD}@")
    shop.ledger = shop.url
    shop.environment["SHOP_PASSWORD"] = secret
    shop.write_config()
    assert "db upgrade" in shop.call("recoveries", "--json", code=1).error["hint"]
    shop.call("db", "upgrade")
    said = [shop.call("plan", "rebuild", "orders", "--json", BACKLOG_DEBUG="1")]
    recovery = said[0].document["id"]
    said.append(shop.call("approve", recovery, "--by", "Ada"))
    said.append(shop.call("run", recovery, BACKLOG_DEBUG="1"))
    said.append(shop.call("show", recovery, "--json"))
    assert said[-1].document["state"] == "verified"
    shop.check_same_set()
    assert not [one for one in said if secret in one.out + one.err]
    for path in (shop.directory / "staging").rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes()
    upgrade_ledger(pg_url)


def test_whole_way_with_protobuf_from_mariadb(
    empty_shop: Shop, mariadb_url: str, registry: EmbeddedRegistry
) -> None:
    """What is put back has the bytes that its producer would write."""
    shop = empty_shop
    shop.url = mariadb_url
    shop.encode = Producer(registry, shop.topic, "protobuf").open()
    shop.registries = {"main": {"url": registry.url}}
    value = {"protobuf": {"columns": FIELDS, "registry": "main"}}
    source = {**SOURCE, **CONSUMED, "message": {"key": "order_id", "value": value}}
    shop.extra["source"] = source
    shop.lose_orders()
    planned = shop.call("plan", "rebuild", "orders", "--json").document
    assert planned["verdict"] == "exact"
    assert planned["proof"]["rate"] == 1.0
    (told,) = planned["schemas"]
    assert told.startswith("value: protobuf, schema ")
    assert told[:30] in shop.call("show", planned["id"]).out
    shop.call("approve", planned["id"], "--by", "Ada")
    shop.call("run", planned["id"])
    shop.check_same_set()


def test_pause_resume_and_interrupt(shop: Shop) -> None:
    """A pause waits for `resume`; Ctrl-C stops between two chunks; both exit with 4."""
    shop.write_config(limits={"messages_per_second": 30})
    recovery = shop.plan_approved().id
    ledger = shop.open().ledger

    runner = shop.start("run", recovery, "--json", **HELD, HELD_AT=WAVE)
    wait_until(lambda: ledger.recoveries.get(recovery).injected > 0, WITHIN, "the first chunk")
    shop.call("pause", recovery)
    out, err = runner.communicate(timeout=WITHIN)
    assert runner.returncode == 4, (out, err)
    assert json.loads(out)["error"]["code"] == "paused"
    assert ledger.recoveries.get(recovery).state == "paused"
    held = shop.call("run", recovery, "--json", code=4).error
    assert "resume" in held["hint"]

    before = ledger.recoveries.get(recovery).injected
    runner = shop.start("resume", recovery, **HELD, HELD_AT=WAVE)
    wait_until(lambda: ledger.recoveries.get(recovery).injected > before, WITHIN, "another chunk")
    os.kill(runner.pid, signal.SIGINT)
    out, err = runner.communicate(timeout=WITHIN)
    assert runner.returncode == 4, (out, err)
    assert f"backlogctl run {recovery}" in err
    assert "Traceback" not in err

    shop.call("run", recovery)
    shop.check_same_set()


def test_an_interrupt_of_what_only_reads_is_at_once(shop: Shop) -> None:
    """While it reads back: Spark's jobs are not waited for, and the next run reads again."""
    recovery = shop.plan_approved().id
    ledger = shop.open().ledger

    def list_actions() -> list[str]:
        return [event.action for event in ledger.events.list(recovery)]

    runner = shop.start("run", recovery, **HELD, HELD_AT=VERIFICATION)
    wait_until(lambda: ledger.steps.get(recovery, "verify"), WITHIN, "the verification")
    os.kill(runner.pid, signal.SIGTERM)
    out, err = runner.communicate(timeout=WITHIN)
    assert runner.returncode == 4, (out, err)
    assert "Traceback" not in err
    assert f"backlogctl run {recovery}" in err
    assert ledger.recoveries.get(recovery).injected == LOST
    assert "read back" not in list_actions()

    shop.call("run", recovery)
    shop.check_same_set()


def test_cancel_of_a_live_runner(shop: Shop) -> None:
    """The runner stops, every slot is fenced, the gaps open; a new plan finds the rest only."""
    shop.write_config(limits={"messages_per_second": 30})
    recovery = shop.plan_approved().id
    ledger = shop.open().ledger
    runner = shop.start("run", recovery, "--json", **HELD, HELD_AT=WAVE)
    wait_until(lambda: ledger.recoveries.get(recovery).injected > 0, WITHIN, "the first chunk")
    cancelled = shop.call("cancel", recovery, "--json").document
    assert cancelled["state"] == "cancelled"
    out, _ = runner.communicate(timeout=WITHIN)
    assert runner.returncode == 1
    assert json.loads(out)["error"]["code"] == "cancelled"
    injected = len(shop.read_injected())
    assert 0 < injected < LOST
    assert {gap.state for gap in ledger.gaps.list()} == {"open"}
    assert shop.call("run", recovery, "--json", code=5).error["code"] == "refused"
    assert shop.read_closed(recovery) == set(range(PARTITIONS)), "a zombie of any slot is told"

    shop.write_config(limits={})
    second = shop.plan_approved()
    counts = second.plan["outcome"]["counts"]
    assert counts["already_injected"] == injected
    assert counts["rebuilt"] == LOST - injected
    shop.call("run", second.id)
    shop.check_same_set()


def test_events_tell_who_and_when(shop: Shop) -> None:
    """The record of a plan that was rejected; its gaps are open again."""
    recovery = shop.plan().id
    rejected = shop.call("reject", recovery, "--reason", "not today", "--json").document
    assert rejected["state"] == "rejected"
    assert {gap.state for gap in shop.open().ledger.gaps.list()} == {"open"}
    shown = shop.call("show", recovery).out
    assert "not today" in shown
    started = time.monotonic()
    assert shop.call("approve", recovery, "--by", "x", "--json", code=5).error["code"] == "refused"
    assert time.monotonic() - started < 60
    assert sum(count_by_partition(range(DONE, DONE + LOST)).values()) == LOST


def test_fault_64_other_readers_are_named_and_must_be_allowed(shop: Shop) -> None:
    """A group that commits on the topic would get the messages again: not without a word."""
    audit = f"audit-{shop.group}"
    commit(shop.properties, audit, shop.topic, {0: shop.read_ends()[0]})
    planned = shop.plan()
    assert planned.plan["other_groups"] == [audit]
    assert audit in shop.call("show", planned.id).out
    refused = shop.call("approve", planned.id, "--by", "Ada", "--json", code=5).error
    assert audit in refused["message"]
    assert "deliver: topic" in refused["hint"]
    assert shop.call("run", planned.id, "--json", code=3).error["code"] == "approval_needed"
    assert shop.read_injected() == []

    shop.write_config(deliver="topic")
    approved = shop.call("approve", planned.id, "--by", "Ada", "--json").document
    assert approved["state"] == "approved", "the same plan: no message of it is another one"
