"""`nightly_audit`: each audit that a stream asks for, one by one, on record."""

from __future__ import annotations

from tests.dags.airflow import Airflow
from tests.dags.conftest import TakeShop


def test_a_night_audits_what_the_configuration_says(airflow: Airflow, take_shop: TakeShop) -> None:
    shop = take_shop("audited")
    run = airflow.trigger("nightly_audit", {"streams": [shop.stream]})
    airflow.await_run(run, {"success"}, within=400)
    records = shop.open().ledger.audits.list_latest(shop.stream)
    found = {one.audit: one.verdict for one in records}
    assert set(found) == {"producers", "consumed"}
    told = [airflow.logs_of_mapped(run, "audit", number) for number in (0, 1)]
    for name, text in zip(("producers", "consumed"), told, strict=True):
        assert f"{name} of {shop.stream}: {found[name]}: " in text
