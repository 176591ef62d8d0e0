"""To a rehearsal, to another topic, killed in the middle."""

from __future__ import annotations

import signal
from dataclasses import replace
from datetime import timedelta

import pytest

from backlogctl.kafka.admin import create_topic, describe_topic, list_topic_readers, read_metadata
from backlogctl.replay.injection import target
from tests.conftest import MakeTopic
from tests.kafka_tools import commit, delete_topic, set_config
from tests.replay.redrive.world import (
    KEEP,
    carry_out,
    keys_of,
    make_order,
    plan,
    publish,
    read_sent,
    run,
)
from tests.replay.shop import PARTITIONS, Shop

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("spark")]
TOTAL = 60
KEYS = {str(number).encode(): 1 for number in range(TOTAL)}


@pytest.fixture
def filled(empty_shop: Shop) -> Shop:
    set_config(empty_shop.properties, empty_shop.topic, KEEP)
    publish(empty_shop, empty_shop.topic, [make_order(number) for number in range(TOTAL)])
    return empty_shop


def exists(shop: Shop, topic: str) -> bool:
    return topic in read_metadata(shop.properties).topics


def test_a_rehearsal_disturbs_nobody(filled: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A side topic is made, compared, and thrown away when its time is over; the real redrive
    afterwards is neither hindered nor reduced by it."""
    first = carry_out(filled, "--from", "log", "--all", "--to", "rehearsal")
    side = first["target"]["topic"]
    assert side.startswith(f"{filled.topic}.rehearsal.")
    assert keys_of(read_sent(filled, side)) == KEYS
    assert read_sent(filled) == []
    assert describe_topic(filled.properties, side).config["retention.ms"] == str(24 * 3_600_000)
    assert filled.group not in list_topic_readers(filled.properties, side).known
    second = carry_out(filled, "--from", "log", "--all", "--to", "rehearsal")
    assert second["counts"]["staged"] == TOTAL
    assert second["target"]["topic"] != side

    real = carry_out(filled, "--from", "log", "--all")
    assert (real["counts"]["staged"], real["counts"]["put_back"]) == (TOTAL, 0)
    assert keys_of(read_sent(filled)) == KEYS

    workspace = filled.open()
    assert target.clear_rehearsals(workspace, "orders") == ()
    now = workspace.ledger.now() + timedelta(hours=25)
    monkeypatch.setattr(type(workspace.ledger), "now", lambda _: now)
    assert set(target.clear_rehearsals(workspace, "orders")) == {first["id"], second["id"]}
    assert not exists(filled, side)
    assert target.clear_rehearsals(workspace, "orders") == ()


def test_cancel_of_a_rehearsal_deletes_its_topic(filled: Shop) -> None:
    planned = plan(filled, "--from", "log", "--all", "--to", "rehearsal")
    filled.call("approve", planned["id"], "--by", "Ada")
    said = filled.run("run", planned["id"], code=None, BACKLOG_CRASH_AT="p3.7.copy.before:2")
    assert said.code == -signal.SIGKILL
    assert exists(filled, planned["target"]["topic"])
    assert "thrown away" in filled.call("cancel", planned["id"]).out
    assert not exists(filled, planned["target"]["topic"])


def test_another_topic_with_other_partitions(filled: Shop, topic: MakeTopic) -> None:
    """By key, in the order of the source; who reads it is named and does not hinder."""
    other = topic(PARTITIONS - 1, KEEP, name="other")
    publish(filled, other, [replace(make_order(0), partition=0)])
    commit(filled.properties, f"audit-{filled.group}", other, {0: 1})
    planned = carry_out(filled, "--from", "log", "--all", "--to", other)
    assert planned["other_groups"] == [f"audit-{filled.group}"]
    assert "go by their keys" in " ".join(planned["warnings"])


def test_a_topic_that_was_made_anew_has_nothing_yet(filled: Shop, topic: MakeTopic) -> None:
    other = topic(PARTITIONS, KEEP, name="again")
    carry_out(filled, "--from", "log", "--offsets", "0:0-4", "--to", other)
    assert plan(filled, "--from", "log", "--offsets", "0:0-4", "--to", other, code=5)
    delete_topic(filled.properties, other)
    create_topic(filled.properties, other, partitions=PARTITIONS, config=KEEP)
    anew = carry_out(filled, "--from", "log", "--offsets", "0:0-4", "--to", other)
    assert (anew["counts"]["put_back"], anew["counts"]["staged"]) == (0, 5)
    assert len(read_sent(filled, other)) == 5


def test_fault_01_killed_in_the_middle_and_run_again(filled: Shop) -> None:
    """SIGKILL after a commit, before its copy into SQL: the same set, each once."""
    filled.write_config(limits={"messages_per_second": 30})
    planned = plan(filled, "--from", "log", "--all")
    filled.call("approve", planned["id"], "--by", "Ada")
    said = filled.run("run", planned["id"], code=None, BACKLOG_CRASH_AT="p3.7.copy.before:2")
    assert said.code == -signal.SIGKILL
    assert 0 < len(read_sent(filled)) < TOTAL
    filled.write_config(limits={})
    done = filled.call("run", planned["id"], "--json").document
    assert done["state"] == "verified"
    assert done["counts"]["skipped"] > 0
    assert keys_of(read_sent(filled)) == KEYS


def test_other_readers_must_be_allowed(filled: Shop) -> None:
    audit = f"audit-{filled.group}"
    commit(filled.properties, audit, filled.topic, {0: 1})
    planned = plan(filled, "--from", "log", "--offsets", "0:0")
    assert planned["other_groups"] == [audit]
    refused = filled.call("approve", planned["id"], "--by", "Ada", "--json", code=5).error
    assert "deliver: topic" in refused["hint"]
    filled.write_config(deliver="topic")
    run(filled, planned["id"])


def test_a_compacted_topic_takes_no_old_message(filled: Shop) -> None:
    set_config(filled.properties, filled.topic, {"cleanup.policy": "compact"})
    refused = plan(filled, "--from", "log", "--offsets", "0:0", code=5)
    assert "compacted" in refused["message"]
    assert plan(filled, "--from", "log", "--offsets", "0:0", "--to", "rehearsal")
