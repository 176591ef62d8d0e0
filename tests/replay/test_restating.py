"""Faults 94 and 112: rows that change or go until the run, or are older than what is read."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from backlogctl.clock import format_time, utc_now
from tests.kit.kafka import commit, move_log_start, read_all
from tests.kit.shop import DONE, LOST, PARTITIONS, SOURCE, TOTAL, Shop, count_by_partition
from tests.spark_backfill.world import (
    ORDERS,
    encode_order,
    fill_table,
    make_order,
    open_database,
    publish_orders,
)

pytestmark = [pytest.mark.timeout(900), pytest.mark.spark]

CHANGED, GONE = range(DONE + 10, DONE + 30), DONE + 40
SHIPPED = timedelta(days=1)
BEGAN = format_time(make_order(DONE)["updated_at"])


def change(shop: Shop, number: int, *, is_sent: bool = True) -> bytes:
    """The order moves on, and its producer says so."""
    before = make_order(number)
    order = {**before, "status": "shipped", "updated_at": before["updated_at"] + SHIPPED}
    statement = "UPDATE orders SET status = 'shipped', updated_at = :at WHERE order_id = :id"
    at = format_time(order["updated_at"]).replace("T", " ").removesuffix("Z")
    with open_database(shop.url).begin() as connection:
        connection.execute(sa.text(statement), {"at": at, "id": number})
    if is_sent:
        publish_orders(shop.bootstrap, shop.topic, [order])
    return encode_order(order)


def read_last(shop: Shop) -> dict[bytes, bytes | None]:
    """The last state that each order's consumer sees."""
    messages = read_all(shop.properties, shop.topic, range(PARTITIONS))
    return {key: message.value() for message in messages if (key := message.key()) is not None}


def test_fault_94_the_newer_state_stays_the_last(shop: Shop) -> None:
    # Its orders are of one day, and their messages of today: survivors show how old rows may be.
    shop.write_config(source={**SOURCE, "mutable": True, "margin": "3650d"})
    plan = shop.call("plan", "rebuild", "orders", "--since", BEGAN, "--json").document
    assert (plan["verdict"], plan["counts"]["rebuilt"] >= LOST) == ("covering", True)
    shop.call("approve", plan["id"], "--by", "Ada")
    newer = {str(number).encode(): change(shop, number) for number in CHANGED}
    late = change(shop, DONE + 50, is_sent=False)
    with open_database(shop.url).begin() as connection:
        connection.execute(sa.text("DELETE FROM orders WHERE order_id = :id"), {"id": GONE})
    said = shop.call("run", plan["id"])
    assert "21 messages left out: a newer message is there, or the row is gone" in said.out
    last = read_last(shop)
    assert {key: last[key] for key in newer} == newer
    injected = [key for _, key, _ in shop.read_injected()]
    assert len(injected) == len(set(injected)) == plan["counts"]["rebuilt"] - 21
    assert str(GONE).encode() not in injected
    # Its newer message is still to come, behind what was planned.
    assert last[str(DONE + 50).encode()] != late
    done = shop.call("run", plan["id"], "--json").document
    assert done["state"] == "verified"
    assert done["counts"]["left_out"] == 21
    shown = shop.call("show", plan["id"], "--json").document
    asked = [one["detail"] for one in shown["events"] if one["action"] == "rows asked for"]
    assert asked == [{"gone": 1}]


def test_fault_94_a_table_that_is_being_filled_is_waited_for(shop: Shop) -> None:
    shop.write_config(source={**SOURCE, "mutable": True})
    planned = shop.call("plan", "rebuild", "orders", "--since", BEGAN, "--json").document["id"]
    shop.call("approve", planned, "--by", "Ada")
    with open_database(shop.url).begin() as connection:
        connection.execute(sa.text("ALTER TABLE orders RENAME TO hidden"))
        connection.execute(sa.text("CREATE TABLE orders AS SELECT * FROM hidden WHERE false"))
    said = shop.call("run", planned, "--json", code=4).error
    assert "rows that it restates are not there now" in said["message"]
    assert shop.read_injected() == []
    with open_database(shop.url).begin() as connection:
        connection.execute(sa.text("INSERT INTO orders SELECT * FROM hidden"))
    assert shop.call("run", planned, "--json").document["state"] == "verified"


def test_fault_94_a_table_that_cannot_be_asked_stops_the_run_before_it_sends(shop: Shop) -> None:
    shop.write_config(source={**SOURCE, "mutable": True})
    planned = shop.call("plan", "rebuild", "orders", "--since", BEGAN, "--json").document["id"]
    shop.call("approve", planned, "--by", "Ada")
    with open_database(shop.url).begin() as connection:
        connection.execute(sa.text("ALTER TABLE orders RENAME TO hidden"))
    shop.call("run", planned, code=2)
    assert shop.read_injected() == []


def test_fault_112_rows_older_than_what_is_read_are_not_covered(empty_shop: Shop) -> None:
    """Every other message is sent a quarter of an hour after its row, and `margin` is ten minutes:
    a plan that has read half of the lost rows says so, and a longer margin finds all."""
    shop, now = empty_shop, utc_now()
    rows = [
        {**make_order(n), "updated_at": now - timedelta(minutes=15 if n % 2 else 5, seconds=TOTAL - n)}
        for n in range(TOTAL)
    ]  # fmt: skip
    fill_table(shop.url, ORDERS, rows)
    source = {**SOURCE, "mutable": True}
    shop.write_config(source=source)
    publish_orders(shop.bootstrap, shop.topic, rows[:DONE])
    commit(shop.properties, shop.group, shop.topic, count_by_partition(range(DONE)))
    shop.call("status")
    publish_orders(shop.bootstrap, shop.topic, rows[DONE:])
    move_log_start(shop.properties, shop.topic, count_by_partition(range(DONE + LOST)))
    lost = {str(number).encode() for number in range(DONE, DONE + LOST)}
    half = shop.call("plan", "rebuild", "orders", "--json").document
    assert half["verdict"] == "short"
    assert any("use a longer `margin`" in reason for reason in half["reasons"])
    shop.write_config(source={**source, "margin": "20m"})
    whole = shop.call("plan", "rebuild", "orders", "--json").document
    assert (whole["verdict"], len(whole["reasons"])) == ("covering", 2)
    shop.call("approve", whole["id"], "--by", "Ada")
    shop.call("run", whole["id"])
    injected = shop.read_injected()
    assert lost <= {key for _, key, _ in injected if key is not None}
    made = {str(row["order_id"]).encode(): encode_order(row) for row in rows}
    assert all(key is not None and made[key] == value for _, key, value in injected)
