"""A redrive by Airflow: asked for in the form, approved, and put back once."""

from __future__ import annotations

import pytest

from tests.conftest import MakeTopic
from tests.dags.airflow import Airflow
from tests.dags.conftest import TakeShop
from tests.replay.redrive.world import (
    KEEP,
    Letter,
    keys_of,
    make_value,
    publish,
    read_sent,
    spring,
)

FORM, APPROVE = "recover_backlog", "redrive.approve"


@pytest.mark.timeout(600)
def test_dead_letters_of_two_keys(airflow: Airflow, take_shop: TakeShop, topic: MakeTopic) -> None:
    shop, dead = take_shop("letters"), topic(2, KEEP, name="letters-dlt")
    letters = [
        Letter(str(number).encode(), make_value(number), spring(shop.topic, number % 3, number))
        for number in range(6)
    ]
    publish(shop, dead, letters)
    form = {"stream": shop.stream, "source": f"dlq:{dead}", "key": ["2", "4"]}
    stray = airflow.trigger(FORM, {**form, "action": "auto"})
    run = airflow.trigger(FORM, {**form, "action": "redrive", "note": "INC-4712"})
    airflow.await_run(stray, {"failed"})
    assert "the action auto has no such option" in airflow.xcom(stray, "choose", "reason")

    asked = airflow.await_question(run, APPROVE, within=300)
    assert "2 messages" in asked["subject"], asked
    assert dead in asked["body"]
    assert "INC-4712" in asked["body"]
    assert not read_sent(shop)
    airflow.answer(run, APPROVE)
    airflow.await_run(run, {"success"}, within=300)
    assert keys_of(read_sent(shop)) == {b"2": 1, b"4": 1}
    (outcome,) = airflow.xcom(run, "report")["outcomes"]
    assert (outcome["kind"], outcome["state"]) == ("redrive", "verified")
    assert outcome["counts"] == {"planned": 2, "put_back": 2}
    assert airflow.read_states(run)["rebuild.plan"] == "skipped"
