"""`detect_backlog`: gaps, events of assets, and a recovery that starts by itself."""

from __future__ import annotations

import json
from datetime import timedelta

from backlog.clock import format_time, utc_now
from backlog.values import GapState
from tests.dags.airflow import Airflow, DagRun
from tests.dags.conftest import TakeShop
from tests.dags.slots import Slots, drop_table

DETECT, RECOVER = "detect_backlog", "recover_backlog"


def test_a_real_gap_is_found_and_planned_once(
    airflow: Airflow, slots: Slots, take_shop: TakeShop
) -> None:
    """Also beside a cluster that is not there; who made the look asks for the plan."""
    shop, gone = take_shop("planned"), slots.take("gone")
    beside = airflow.trigger(DETECT, {"streams": [gone, shop.stream]})
    airflow.await_mapped(beside, "look", 1, {"success"})
    ledger = shop.open().ledger
    found = ledger.gaps.list(stream=shop.stream)
    assert {gap.state for gap in found} == {GapState.OPEN}
    assert sum(gap.count or 0 for gap in found) == 90

    events = airflow.get("/api/v2/assets/events", source_dag_id=DETECT, limit=100)["asset_events"]
    mine = [event for event in events if event["source_run_id"] == beside.run_id]
    assert [event["name"] for event in mine] == [f"backlog/{shop.stream}"]
    assert set(mine[0]["extra"]["new_gaps"]) == {gap.id for gap in found}
    assert mine[0]["extra"]["verdict"] == "lost"

    first = airflow.trigger(DETECT, {"streams": [shop.stream]})
    airflow.await_run(first, {"success"})
    told = airflow.get("/api/v2/assets/events", source_dag_id=DETECT, limit=100)["asset_events"]
    assert [event for event in told if event["source_run_id"] == first.run_id] == []
    newest = max(gap.id for gap in found)
    started = [run for run in airflow.list_runs(RECOVER) if newest in run.run_id]
    assert [run.run_id.split("__")[:2] for run in started] == [["detect", shop.stream]]
    # Its plan is not made yet when the next look comes.
    second = airflow.trigger(DETECT, {"streams": [shop.stream]})
    airflow.await_run(second, {"success"})
    assert airflow.read_states(second)["start_recovery"] == "skipped"
    assert len([run for run in airflow.list_runs(RECOVER) if newest in run.run_id]) == 1
    airflow.mark(started[0], "failed")

    # The look at the other cluster fails alone.
    airflow.await_mapped(beside, "look", 0, {"up_for_retry", "failed"})
    assert "127.0.0.1" in airflow.logs_of_mapped(beside, "look", 0)
    airflow.mark(beside, "failed")


def test_a_technical_failure_is_tried_again_and_a_persons_no_is_not(
    airflow: Airflow, take_shop: TakeShop
) -> None:
    """The source is broken, so there is no plan; the next look waits a while, then starts again."""
    shop = take_shop("planned")
    drop_table(shop)
    first = look(airflow, shop.stream)
    airflow.await_run(first, {"failed"}, within=300)
    told = airflow.logs(first, "rebuild.plan")
    assert "Traceback" not in told
    reason = airflow.xcom(first, "rebuild.plan", "reason")
    assert reason in told
    assert reason in airflow.xcom(first, "report", "reason")

    assert look(airflow, shop.stream, started=1) == first, "its pause is not over"
    name = f"backlogctl_started__{shop.stream}"
    kept = json.loads(airflow.get(f"/api/v2/variables/{name}")["value"])
    kept["at"] = format_time(utc_now() - timedelta(minutes=11))
    body = {"key": name, "value": json.dumps(kept)}
    assert airflow.client().patch(f"/api/v2/variables/{name}", json=body).is_success
    second = look(airflow, shop.stream, started=2)
    assert second.run_id == f"{first.run_id}__2"

    # A person ends it: that is no technical failure.
    airflow.mark(second, "failed")
    airflow.await_run(second, {"failed"})
    body["value"] = json.dumps({**kept, "run_id": second.run_id, "tries": 2})
    assert airflow.client().patch(f"/api/v2/variables/{name}", json=body).is_success
    look(airflow, shop.stream, started=2)


def look(airflow: Airflow, stream: str, started: int = 1) -> DagRun:
    """A detection; the last of so many runs that were started for the stream by then."""
    run = airflow.trigger(DETECT, {"streams": [stream]})
    airflow.await_run(run, {"success"})
    found = [one for one in airflow.list_runs(RECOVER) if f"__{stream}__" in one.run_id]
    assert len(found) == started
    return found[-1]
