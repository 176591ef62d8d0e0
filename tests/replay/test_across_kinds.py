"""Several kinds of recoveries on one stream, in any order and state (fault 84).

"Drain now, rebuild tonight": what one kind leaves in the ledger, in Kafka and in the group is
nothing that the other stumbles over.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession
from rich.console import Console

from backlogctl.clock import utc_now
from backlogctl.kafka.admin import committed_offsets
from backlogctl.replay.cli import main, shared
from backlogctl.replay.consumers.fleet import fleet_of, launcher_of
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.plan import name_origin
from backlogctl.replay.runbooks.detection import detect_backlog
from backlogctl.replay.runbooks.requests import find_or_plan, read_request
from backlogctl.replay.runbooks.work import carry_on
from backlogctl.values import Recovery, RecoveryState
from tests.kit.kafka import move_log_start, set_offsets_raw
from tests.kit.shop import DONE, LOST, PARTITIONS, TOTAL, Shop, count_by_partition
from tests.kit.shortened import WORLD, shorten
from tests.replay.expand.world import CONSUMER
from tests.spark_backfill.world import fill_table, make_order, publish_orders

pytestmark = pytest.mark.timeout(600)
MORE = 60  # orders that are published later; the first half of them is lost
# The archive of a test lies on the broker's own disk.
_OPTIONS = {"expand": ("--rate", "200"), "offload": ("--allow", "disk")}
NOTHING = "CREATE TABLE IF NOT EXISTS processed (order_id BIGINT NOT NULL)"


class Stream:
    """One stream that is behind and has lost orders, driven by the command line."""

    def __init__(self, shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
        self.shop = shop
        self.log = shop.directory / "orders.log"
        self._output = capfd

    def call(self, *words: str, code: int = 0) -> dict[str, Any]:
        """The document of one call of the command."""
        self._output.readouterr()
        stdout = os.dup(1)  # `--json` turns it; each call is a process of its own else
        shared.SESSION = shared.Session()
        got = main([*words, "--config", str(self.shop.directory / "backlog.yaml"), "--json"])
        os.dup2(stdout, 1)
        os.close(stdout)
        said = self._output.readouterr()
        assert got == code, f"{words}: {said}"
        document: dict[str, Any] = json.loads(said.out)
        return document

    def plan(self, kind: str, *more: str) -> str:
        """Plans, and gives the id."""
        options = _OPTIONS.get(kind, ())
        document = self.call("plan", kind, "orders", *options, *more)
        assert (document["kind"], document["state"]) == (kind, "planned")
        return str(document["id"])

    def carry_out(self, kind: str, *more: str) -> dict[str, Any]:
        """Plans, approves, runs; it ends verified."""
        recovery = self.plan(kind, *more)
        self.call("approve", recovery, "--by", "Ada")
        document = self.call("run", recovery)
        assert document["state"] == "verified"
        shown = self.call("show", recovery)
        assert shown["events_intact"]
        assert all(step["state"] == "done" for step in shown["progress"]["steps"])
        return document

    def lose_more(self, handled: Iterable[int] = range(TOTAL)) -> None:
        """Later orders: half of them expire unread. What was handled before is on record."""
        self.call("consumers", "stop", "orders")
        numbers, now = range(TOTAL, TOTAL + MORE), utc_now()
        shop, rows = self.shop, [{**make_order(n), "updated_at": now} for n in numbers]
        before = shop.read_ends()
        engine = sa.create_engine(shop.url)
        with engine.begin() as connection:
            connection.execute(sa.text("DELETE FROM processed"))
        engine.dispose()
        fill_table(shop.url, NOTHING, [{"order_id": n} for n in handled], "processed")
        fill_table(shop.url, "SELECT 1", rows)
        set_offsets_raw(shop.properties, shop.group, shop.topic, before)
        publish_orders(shop.bootstrap, shop.topic, rows)
        lost = count_by_partition(range(TOTAL, TOTAL + MORE // 2))
        move_log_start(shop.properties, shop.topic, {n: before[n] + lost[n] for n in before})

    def count_put_back(self) -> Counter[int]:
        """How often each order was put back, of what is in the topic now."""
        return Counter(int(key or b"-1") for _, key, _ in self.shop.read_injected())

    def count_handled(self) -> int:
        """Different orders that the consumers handled."""
        return len(self.list_handled())

    def list_handled(self) -> set[int]:
        """Orders that the consumers handled."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return {int(line.split(" ")[0]) for line in lines}

    def find_rest(self) -> int:
        """Offsets that the group has not committed past; markers are among them."""
        shop = self.shop
        done = committed_offsets(shop.properties, shop.group, shop.topic, range(PARTITIONS))
        return sum(end - (done[number] or 0) for number, end in shop.read_ends().items())


@pytest.fixture
def stream(
    shop: Shop,
    spark: SparkSession,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Stream]:
    """60 orders handled, 90 lost, 110 unread; consumers that can be launched."""
    made = Stream(shop, capfd)
    monkeypatch.setenv(WORLD, str(shop.directory))
    shorten(monkeypatch.setattr, keep_topic=False)
    shop.write_config(
        consumers={
            "launcher": "process",
            "command": [sys.executable, str(CONSUMER)],
            "replicas": 2,
            "environment": {"ORDER_LOG": str(made.log)},
        },
        expand={"factor": 2, "max_lag_at_cutover": 50},
    )
    yield made
    workspace = shop.open()
    section = workspace.config.stream("orders")
    launcher = launcher_of(workspace, section, lambda _: None)
    for recovery in [None, *workspace.ledger.recoveries.list("orders")]:
        launcher.stop(_find_fleet(workspace, section, recovery), lambda: None)


def _find_fleet(workspace: Any, section: Any, recovery: Recovery | None) -> Any:
    from backlogctl.fanout.launchers import Role

    if recovery is None:
        return fleet_of(workspace, section, Role.ORIGINAL)
    return fleet_of(workspace, section, Role.RECOVERY, recovery.id)


def test_fault_84_a_rebuild_after_expansions_of_any_state(stream: Stream) -> None:
    """Rejected, cancelled, verified; then what was lost is rebuilt, exactly and once."""
    stream.call("reject", stream.plan("expand"), "--reason", "not now")
    cancelled = stream.plan("expand")
    stream.call("approve", cancelled, "--by", "Ada")
    stream.call("cancel", cancelled)
    assert stream.call("gaps")["gaps"]
    planned = stream.call("plan", "rebuild", "orders")
    assert (planned["verdict"], planned["counts"]["rebuilt"]) == ("exact", LOST)
    # A plan of the other kind takes the place of one that nobody approved, and opens its gaps.
    drained = stream.carry_out("expand")
    assert drained["counts"]["handled"] == TOTAL - DONE - LOST
    assert stream.call("show", planned["id"])["state"] == "rejected"
    assert stream.carry_out("rebuild")["counts"]["injected"] == LOST
    stream.shop.check_same_set()


def test_fault_84_an_expansion_after_a_rebuild_and_both_again(stream: Stream) -> None:
    """What was put back is drained with the rest; later losses are told from it."""
    assert stream.carry_out("rebuild")["counts"]["injected"] == LOST
    drained = stream.carry_out("expand")
    assert drained["counts"]["relayed"] == TOTAL - DONE
    assert stream.count_handled() == TOTAL - DONE
    stream.lose_more()
    assert stream.carry_out("rebuild")["counts"]["injected"] == MORE // 2
    expected = dict.fromkeys(range(TOTAL, TOTAL + MORE // 2), 1)
    assert stream.count_put_back() == expected
    drained = stream.carry_out("expand")
    assert drained["counts"]["relayed"] == MORE
    assert stream.count_handled() == TOTAL - DONE + MORE


def test_fault_84_auto_drains_first_and_puts_back_then(stream: Stream, tmp_path: Path) -> None:
    """What a run of `recover_backlog` does, without its scheduler."""
    workspace = stream.shop.open()
    form = {"stream": "orders", "action": "auto", "rate": 200}
    request = read_request(workspace, form)
    found = detect_backlog(workspace, workspace.config.stream("orders"))
    assert found.actions == ("expand", "rebuild")
    origin, console = name_origin("recover_backlog", "manual__1"), Console(quiet=True)
    for kind in found.actions:
        planned = find_or_plan(workspace, request, kind, origin)
        assert find_or_plan(workspace, request, kind, origin).id == planned.id, "a second try"
        approve_plan(workspace, planned, by="Grace")
        carried = carry_on(workspace, planned.id, console)
        assert carried.recovery.state is RecoveryState.VERIFIED
    stream.shop.check_same_set()
