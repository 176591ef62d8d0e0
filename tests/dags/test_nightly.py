"""`nightly_backfill`: what a night does for each stream, and how the next one goes on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession

from backlogctl.replay.engine.cancelling import cancel_work
from backlogctl.replay.kinds.rebuild.plan import RebuildOptions
from backlogctl.replay.kinds.rebuild.planning import plan_rebuild
from backlogctl.replay.observe.stream import note_stream
from backlogctl.values import Recovery, RecoveryState
from tests.dags.airflow import Airflow, DagRun
from tests.dags.conftest import TakeShop
from tests.dags.slots import MINUTE_ZONE, NIGHT_ZONE, Slots, SlotShop, drop_table

NIGHT = "nightly_backfill"
RECOVER = "recover_backlog"
# Shorter than the injection takes, and enough for Airflow and Spark to start on a busy machine.
START_WITHIN = tuple(timedelta(seconds=seconds) for seconds in (60, 75))
# Of the plan before it, by a Spark that runs.
PLAN_WITHIN = timedelta(seconds=12)
CLOSED_FOR = timedelta(seconds=20)
# What is asked for first comes first: the order of the file.
GOOD, ASKED, BROKEN, LATER = range(4)


@dataclass(frozen=True)
class Crossing:
    """A run whose window closes in the middle of its injection, for a while."""

    run: DagRun
    planned: Recovery


@pytest.mark.timeout(900)
def test_nights(airflow: Airflow, slots: Slots, take_shop: TakeShop, spark: SparkSession) -> None:
    """Two zones at once: streams that do not wait for each other, and a window that closes."""
    good, asked = take_shop("night"), take_shop("night-asked")
    broken, later, minute = take_shop("night-broken"), take_shop("night-later"), take_shop("minute")
    drop_table(broken)
    find_gaps(good, asked, broken, later, minute)
    # Planned earlier than the night, so that only two of them start Spark to plan.
    assert plan(asked).state is RecoveryState.PLANNED
    assert plan(later).state is RecoveryState.APPROVED

    audited = take_shop("audited")
    audit = airflow.trigger("nightly_audit", {"streams": [audited.stream]})
    crossing = cross_closing(airflow, slots, minute)
    first, planned = crossing.run, crossing.planned
    streams = {"streams": [shop.stream for shop in (good, asked, broken, later)]}
    night = airflow.trigger(NIGHT, streams)

    # Fault 42: it ends between two chunks, well, and the next night goes on.
    airflow.await_run(first, {"success"})
    paused = read(minute, planned.id)
    assert (paused.state, paused.detail["why"]) == (RecoveryState.PAUSED, "window")
    assert 0 < len(minute.read_injected()) < 90
    second = airflow.trigger(NIGHT, {"streams": [minute.stream]})

    airflow.await_mapped(night, "stream.put_back", GOOD, {"success"})
    good.check_same_set()
    airflow.await_mapped(night, "stream.ask", ASKED, {"success"})
    airflow.await_mapped(night, "stream.plan_night", BROKEN, {"up_for_retry", "failed"})
    told = airflow.logs_of_mapped(night, "stream.plan_night", BROKEN)
    assert "looking at the source" in told
    assert "starting Spark" not in told
    # Without a worker, until its window opens.
    airflow.await_mapped(night, "stream.put_back", LATER, {"up_for_reschedule"})
    assert not later.read_injected()
    question = DagRun(
        RECOVER, f"nightly__{asked.open().ledger.recoveries.list(asked.stream)[0].id}"
    )
    airflow.await_question(question, "rebuild.approve")
    airflow.mark(night, "failed")

    # Fault 39: old dates send nothing, and ask nothing twice.
    date = datetime(2026, 3, 2, tzinfo=ZoneInfo(NIGHT_ZONE))
    old = airflow.trigger_at(NIGHT, date, streams)
    airflow.await_mapped(old, "stream.put_back", GOOD, {"skipped"})
    airflow.await_mapped(old, "stream.ask", ASKED, {"skipped"})
    good.check_same_set()
    assert not asked.read_injected()
    airflow.mark(old, "failed")
    airflow.answer(question, "rebuild.approve", "Reject")

    airflow.await_run(second, {"success"}, within=300)
    assert read(minute, planned.id).state is RecoveryState.VERIFIED
    minute.check_same_set()

    airflow.await_run(audit, {"success"}, within=400)
    records = audited.open().ledger.audits.list_latest(audited.stream)
    assert {one.audit for one in records} == {"producers", "consumed"}


def cross_closing(airflow: Airflow, slots: Slots, shop: SlotShop) -> Crossing:
    """Has begun to inject before its window closes, and will not be done by then.

    A plan freezes its window: where a busy machine was too slow to start within it, another one is
    planned.
    """
    for start_within in START_WITHIN:
        closes = datetime.now(ZoneInfo(MINUTE_ZONE)) + PLAN_WITHIN + start_within
        reopens = closes + CLOSED_FOR
        window = {"from": f"{reopens:%T}", "to": f"{closes:%T}", "timezone": MINUTE_ZONE}
        slots.change_stream(shop.stream, off_peak=window)
        planned = plan(shop)
        assert planned.state is RecoveryState.APPROVED
        # Not so early that it is done before.
        time.sleep(max(0.0, (closes - start_within - datetime.now(closes.tzinfo)).total_seconds()))
        run = airflow.trigger(NIGHT, {"streams": [shop.stream]})
        if begins(airflow, run, shop):
            return Crossing(run, planned)
        workspace = shop.open()
        assert not shop.read_injected()
        cancel_work(workspace, planned.id, wait=60)
    raise AssertionError("its injection never began before the window closed")


def begins(airflow: Airflow, run: DagRun, shop: SlotShop) -> bool:
    """Waits until it injects; False where the window closed before. Nothing of it runs then."""
    limit = time.monotonic() + 240
    while not shop.read_injected():
        assert time.monotonic() < limit, airflow.explain(run)
        if airflow.read_states(run).get("stream.put_back[0]") == "up_for_reschedule":
            airflow.mark(run, "failed")
            return False
        if airflow.await_run(run, {"running", "queued", "success"}) == "success":
            return bool(shop.read_injected())
        time.sleep(0.5)
    return True


def plan(shop: SlotShop) -> Recovery:
    """A plan of the shop's stream, made in this process."""
    workspace = shop.open()
    return plan_rebuild(workspace, workspace.config.stream(shop.stream), RebuildOptions())


def read(shop: SlotShop, recovery_id: str) -> Recovery:
    """A recovery as it is now."""
    return shop.open().ledger.recoveries.get(recovery_id)


def find_gaps(*shops: SlotShop) -> None:
    """Samples the streams, so that their gaps are known before the night."""
    for shop in shops:
        workspace = shop.open()
        note_stream(workspace, workspace.config.stream(shop.stream))
