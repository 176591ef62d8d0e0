"""`detect_backlog`: gaps, events of assets, and a recovery that starts by itself."""

from __future__ import annotations

from backlog.values import GapState
from tests.dags.airflow import Airflow
from tests.dags.conftest import TakeShop
from tests.dags.slots import Slots

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
    assert airflow.read_states(second)["start_recovery[0]"] == "skipped"
    assert len([run for run in airflow.list_runs(RECOVER) if newest in run.run_id]) == 1
    airflow.mark(started[0], "failed")

    # The look at the other cluster fails alone.
    airflow.await_mapped(beside, "look", 0, {"up_for_retry", "failed"})
    assert "127.0.0.1" in airflow.logs_of_mapped(beside, "look", 0)
    airflow.mark(beside, "failed")
