"""How things stand after an expansion ended badly: said at the end of the run, and ever after."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from backlogctl.fanout.launchers import Role
from backlogctl.kafka.admin import delete_topic
from backlogctl.replay.present.status import find_status
from tests.replay.expand.oracle import judge
from tests.replay.expand.world import REPLICAS, WITHIN, World

SLOW = 5.0  # of each recovery consumer, messages a second


def show(world: World, recovery_id: str) -> dict[str, Any]:
    found = world.call("show", recovery_id, "--json").document["standing"]
    assert isinstance(found, dict)
    return found


def test_a_consumer_that_came_back_ends_with_who_reads_and_what_is_where(world: World) -> None:
    """The same in the error, `show`, `status` and `consumers status`; `consumers stop` knows us."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    runner = world.start("run", recovery.id, "--json")
    world.wait_for_drain(recovery, runner)

    # While it runs: a runner is at it, and our guard is no stranger in the group.
    seen = show(world, recovery.id)
    assert seen["reads"] == "recovery"
    assert seen["recovery_consumers"] == recovery.plan["consumers"]
    assert seen["runner"]
    assert seen["next_commands"] == [f"backlogctl show {recovery.id} --watch"]
    stopped = world.call("consumers", "stop", "orders", "--json")
    assert stopped.document["members"] == []
    assert len(stopped.document["guards"]) == 1
    assert "still has" not in stopped.err

    world.start_intruder()
    out, err = runner.communicate(timeout=WITHIN)
    assert runner.returncode == 1, err

    told = json.loads(out)
    assert told["error"]["code"] == "consumer_came_back", told
    standing = told["standing"]
    assert standing["state"] == "failed"
    assert standing["reads"] == "originals"  # the intruder is a member of that group
    assert standing["originals"] == 1
    assert standing["stopped"] == f"the {REPLICAS} consumers of group {world.group}"
    only = standing["temporary"]
    assert only["topic"] == recovery.plan["temporary"]["topic"]
    assert 0 < only["messages"] <= 1_600
    assert standing["retention_held"] == []
    assert standing["next_commands"] == [f"backlogctl run {recovery.id}"]

    # On record, for the page and the report, which do not ask the brokers.
    workspace = world.open()
    kept = find_status(workspace, world.read(recovery), ask=False)
    assert kept == standing

    said = world.call("show", recovery.id).out
    assert "only in the temporary topic" in said
    (status,) = world.call("status", "--json", "orders").document["streams"]
    assert [one["recovery"] for one in status["standings"]] == [recovery.id]
    left = show(world, recovery.id)["temporary"]["messages"]
    assert status["standings"][0]["temporary"]["messages"] == left
    assert f"backlogctl run {recovery.id}" in world.call("status", "orders").out
    consumers = world.call("consumers", "status", "orders")
    assert f"{recovery.id} is failed" in consumers.out
    assert f"backlogctl run {recovery.id}" in consumers.out


def test_a_runner_that_was_killed_is_told_by_everybody_who_looks(world: World) -> None:
    """Nobody works on it; its local consumers read on what was relayed."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    runner = world.start("run", recovery.id)
    world.wait_for_drain(recovery, runner)
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait(WITHIN)

    standing = show(world, recovery.id)
    assert (standing["state"], standing["runner"]) == ("running", None)
    assert standing["reads"] == "recovery"
    assert standing["recovery_consumers"] == recovery.plan["consumers"]
    assert standing["temporary"]["messages"] > 0
    assert standing["next_commands"] == [f"backlogctl run {recovery.id}"]
    for command in (("show", recovery.id), ("consumers", "status", "orders")):
        said = world.call(*command).out
        assert "nobody works on it" in " ".join(said.replace("│", " ").split())

    world.set_speed(Role.RECOVERY, None)
    world.run(recovery)
    assert judge(world, recovery) == []
    assert world.call("show", recovery.id, "--json").document["standing"] is None


def test_what_is_in_the_temporary_topic_is_unknown_once_that_is_gone(world: World) -> None:
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    runner = world.start("run", recovery.id, "--json")
    world.wait_for_drain(recovery, runner)
    known = world.open().ledger.temporary_topics.get(recovery.id)
    assert known is not None
    assert known.topic_id is not None
    delete_topic(world.properties, known.name, known.topic_id)
    out, _ = runner.communicate(timeout=WITHIN)

    standing = json.loads(out)["standing"]
    assert standing["reads"] == "nobody"
    assert standing["temporary"]["messages"] is None
    assert "is gone" in standing["problem"]
    assert standing["temporary"]["last"]["messages"] > 0
    assert standing["temporary"]["last"]["at"]
