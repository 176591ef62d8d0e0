"""An expansion on a secured broker, by a user with exactly the rights that `backlogctl acl` lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from backlogctl.errors import Refused
from backlogctl.fanout.launchers import Role
from backlogctl.kafka.admin import create_topic, read_topic_overrides
from backlogctl.replay.kinds import KINDS
from backlogctl.replay.observe.rights import list_rights
from tests.replay.expand.oracle import await_handled, find_disorder, find_unhandled
from tests.replay.expand.shortened import WORLD, shorten
from tests.replay.expand.world import PARTITIONS, World
from tests.secured import PASSWORD, SecuredKafka, start_secured

BACKLOG = 800


@pytest.mark.timeout(600)
def test_fault_77_an_expansion_with_the_listed_rights_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_secured(tmp_path) as secured:
        world = make_world(tmp_path, secured, monkeypatch)
        try:
            tell_story(world, secured)
        finally:
            world.end()


def make_world(tmp_path: Path, secured: SecuredKafka, patch: pytest.MonkeyPatch) -> World:
    patch.setenv(WORLD, str(tmp_path))
    shorten(patch.setattr)
    bootstrap = secured.properties["bootstrap.servers"]
    login = {k: v for k, v in secured.properties.items() if k != "bootstrap.servers"}
    config = {"retention.ms": "600000"}
    create_topic(secured.properties, "orders", partitions=PARTITIONS, config=config)
    world = World(tmp_path, bootstrap, "orders", "order-service", patch, login=login)
    patch.setenv("TOOL_PASSWORD", PASSWORD)
    world.tool_login = secured.login("tool", "${env:TOOL_PASSWORD}")
    world.write_config()
    world.publish(BACKLOG)
    world.start_originals()
    return world


def tell_story(world: World, secured: SecuredKafka) -> None:
    config = world.open().config
    rights = list_rights(KINDS, "expand", config, config.stream("orders"))
    without = [right for right in rights if "delete the temporary topic" not in right.purpose]
    secured.add_user("tool", without)
    with pytest.raises(Refused, match=r"DELETE on topic orders\.recovery\.\*") as refused:
        world.plan()
    assert "--operation Delete --topic orders.recovery. --resource-pattern-type prefixed" in str(
        refused.value.hint
    )
    assert world.open().ledger.recoveries.list() == ()
    assert len(world.list_pids(Role.ORIGINAL)) == 2, "nobody was stopped"
    secured.add_user("tool", rights)
    recovery = world.plan_approved()
    assert recovery.plan["others_unknown"] == ""
    assert not [w for w in recovery.plan["warnings"] if "denied" in w or "granted" in w]
    assert world.run(recovery).state == "verified", world.told.getvalue()
    world.set_speed(Role.ORIGINAL, None)
    await_handled(world)
    assert find_unhandled(world) == []
    assert find_disorder(world) == []
    kept = read_topic_overrides(world.properties, "orders", ["retention.ms"])
    assert kept == {"retention.ms": "600000"}
