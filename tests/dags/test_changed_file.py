"""backlog.yaml is changed while a run waits."""

from __future__ import annotations

import json

from backlog.values import RecoveryState
from tests.dags.airflow import Airflow
from tests.dags.conftest import TakeShop
from tests.dags.slots import Slots

RECOVER, APPROVE = "recover_backlog", "rebuild.approve"


def test_a_stream_that_is_removed_while_its_plan_waits(
    airflow: Airflow, slots: Slots, take_shop: TakeShop
) -> None:
    """Its answer counts, at the first try; then the run says what is wrong, and goes on later."""
    shop = take_shop("named")
    planned = shop.plan()
    form = {"stream": shop.stream, "action": "rebuild", "recovery": planned.id}
    run = airflow.trigger(RECOVER, form)
    airflow.await_question(run, APPROVE)
    with slots.without(shop.stream):
        airflow.answer(run, APPROVE, user="second")
        airflow.await_state(run, APPROVE, {"success"})
        assert airflow.read_task(run, APPROVE)["try_number"] == 1
        ledger = shop.open().ledger
        assert ledger.recoveries.get(planned.id).approved_by == "second"
        airflow.await_run(run, {"failed"})
        reason = airflow.xcom(run, "report", "reason")
        assert f"rebuild.carry_out: stream {shop.stream}: there is no such stream" in reason
        assert "upstream" not in reason
        told = airflow.logs(run, "rebuild.carry_out")
        assert "Traceback" not in told
    airflow.clear(run, "rebuild.carry_out")
    airflow.await_run(run, {"success"}, within=300)
    assert ledger.recoveries.get(planned.id).state is RecoveryState.VERIFIED
    shop.check_same_set()


def test_what_is_asked_for_wrongly_makes_no_run(airflow: Airflow, slots: Slots) -> None:
    """Without a stream there is no default; a field that does not exist is not left out."""
    for conf in ({}, {"strem": "named-1"}):
        answer = airflow.ask(RECOVER, conf)
        assert answer.status_code == 400, answer.text
        assert "stream" in json.dumps(answer.json())
    run = airflow.trigger(RECOVER, {"stream": slots.take("asked"), "acton": "expand"})
    airflow.await_run(run, {"failed"})
    reason = airflow.xcom(run, "report", "reason")
    assert reason.startswith("choose: conf: the form has no field 'acton'")
    assert "`action`" in reason
