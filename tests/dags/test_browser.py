"""The form, the approval and the page, by clicks in a real browser."""

from __future__ import annotations

import pytest

from backlogctl.values import RecoveryState
from tests.dags.airflow import Airflow
from tests.dags.browsing import RECOVER, Visit, open_browser
from tests.dags.slots import Slots
from tests.dags.test_approvals import Asked


@pytest.mark.browser
def test_a_person_triggers_looks_and_answers(airflow: Airflow, slots: Slots) -> None:
    """Five clicks: opening, two choices, a section, sending; the first choice of both needs two."""
    asked = Asked.take(slots)
    standalone = airflow.standalone
    with open_browser() as browser:
        visit = Visit(browser, standalone.address)
        visit.log_in("oncall", standalone.password_of("oncall"))
        visit.open_form()
        visit.choose("stream", asked.stream)
        visit.choose("action", "rebuild")
        visit.fill_existing("Approval and record", "recovery", asked.first)
        run_id = visit.trigger()
        assert visit.clicks == 5

        run = airflow.list_runs(RECOVER)[-1]
        airflow.await_question(run, "rebuild.approve")
        visit.open_question(run_id, "rebuild.approve")
        # The buttons may be there before the text is.
        visit.page.get_by_text("All figures and ranges").first.wait_for()
        assert visit.sees_buttons()
        told = visit.page.locator("body").inner_text()
        assert asked.first in told
        assert asked.read().plan_hash[:12] in told

        page = visit.open_backlogs()
        page.get_by_text(asked.stream).first.wait_for()
        page.get_by_role("link", name=asked.first).first.click()
        page.get_by_text("planned by").wait_for()

        visit.open_question(run_id, "rebuild.approve")
        airflow.await_parked(run, "rebuild.approve")
        visit.answer("Reject")
        airflow.await_run(run, {"success"})
        assert asked.read().state is RecoveryState.REJECTED
        assert asked.read().detail["by"] == "oncall"
