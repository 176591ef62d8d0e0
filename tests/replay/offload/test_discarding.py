"""What an offload records of what it takes off the brokers, where that is odd."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backlogctl.archive_manifest import ArchivedRange
from backlogctl.errors import Refused
from backlogctl.ledger import open_ledger
from backlogctl.replay.kinds.offload.context import OffloadContext
from backlogctl.replay.kinds.offload.gaps import record_discarded
from tests.kernel.ledger.makers import make_gap, plan
from tests.replay.offload.world import OffloadWorld


def test_an_empty_range_that_an_older_gap_cuts_leaves_no_open_gap(tmp_path: Path) -> None:
    with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        recovery = plan(ledger, kind="offload")
        older = ledger.gaps.record(make_gap(40, 60))
        told: list[str] = []
        context = SimpleNamespace(
            archive=SimpleNamespace(ranges=(ArchivedRange(0, 10, 100, 0, None, None),)),
            plan=SimpleNamespace(topic_id="topic-id", place="somewhere"),
            recovery=recovery,
            say=told.append,
            stream=SimpleNamespace(name="orders"),
            workspace=SimpleNamespace(ledger=ledger),
        )
        for _ in range(2):
            record_discarded(cast(OffloadContext, context))
        found = [(gap.start, gap.end, str(gap.state)) for gap in ledger.gaps.list()]
        assert found == [(10, 40, "waived"), (40, 60, "open"), (60, 100, "waived")]
        assert ledger.gaps.get(older.id) == older


def test_a_source_that_is_gone_since_the_plan_stops_a_discard(idle: OffloadWorld) -> None:
    """Nobody said that it may be lost for good."""

    def add_source(document: dict[str, Any]) -> None:
        document["sources"] = {"shop": {"url": "postgresql://localhost/shop"}}
        document["streams"]["orders"]["source"] = {
            "database": "shop",
            "table": "orders",
            "primary_key": ["order_id"],
            "time_column": "updated_at",
            "mutable": False,
            "message": {"key": "order_id", "value": {"json": ["order_id"]}},
            "identity": {"row": "order_id", "message": "key"},
            "stale": "restate",
        }

    idle.change_config(add_source)
    recovery = idle.plan_approved(discard=True)
    idle.write_config()
    with pytest.raises(Refused, match="never comes back"):
        idle.run(recovery)
    assert "stop_consumers" not in {s.step for s in idle.open().ledger.steps.list(recovery.id)}
    assert idle.read_lows() == {0: 0, 1: 0}
