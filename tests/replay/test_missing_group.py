"""A group tried by mistake: unknown, never nothing lost, and nothing stays on record."""

from __future__ import annotations

from tests.kafka_tools import set_offsets_raw
from tests.replay.shop import Shop


def test_fault_21_a_mistyped_group_leaves_no_gap(shop: Shop) -> None:
    typo = f"tpyo-{shop.group}"
    shop.write_config(group=typo)
    (entry,) = shop.call("status", "--json").document["streams"]
    assert (entry["verdict"], entry["lag"], entry["lost"]) == ("unknown", None, None)
    (warning,) = entry["warnings"]
    assert f"group {typo} does not exist on this cluster (never_committed)" in warning
    refused = shop.call("plan", "rebuild", "orders", "--json", code=5).error
    assert refused["subject"] == f"group {typo}"
    assert "is unknown" in refused["message"]
    assert "is its name right?" in refused["hint"]
    words = ("--bootstrap", shop.bootstrap, "--group", typo, "--topic", shop.topic)
    (entry,) = shop.call("status", *words, "--json").document["streams"]
    assert entry["verdict"] == "unknown"
    assert shop.open().ledger.gaps.list() == ()
    # From the first commit on it is a group like any other.
    set_offsets_raw(shop.properties, typo, shop.topic, {0: 1})
    shop.call("status")
    assert {gap.group for gap in shop.open().ledger.gaps.list()} == {typo}
