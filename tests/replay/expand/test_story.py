"""The whole story, its oracle, and the rights that `backlogctl acl` lists for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from backlogctl.errors import Refused, VerificationFailed
from backlogctl.fanout.launchers import Role
from backlogctl.kafka.admin import committed_offsets, create_topic, read_topic_overrides
from backlogctl.kafka.clients import make_consumer, make_producer
from backlogctl.replay.kinds import KINDS
from backlogctl.replay.kinds.expand import closing as expand_closing
from backlogctl.replay.kinds.expand import context as expand_context
from backlogctl.replay.kinds.expand.context import ExpandContext
from backlogctl.replay.observe.rights import list_rights
from examples.issuer import start_issuer
from tests.kit.kafka import set_offsets_raw, wait_until
from tests.kit.secured import PASSWORD, SecuredKafka, start_secured, start_with_tokens
from tests.kit.shortened import WORLD, shorten
from tests.replay.expand.conftest import MakeWorld
from tests.replay.expand.oracle import (
    await_handled,
    find_disorder,
    find_layout_problems,
    find_unhandled,
    judge,
    read_log,
)
from tests.replay.expand.world import PARTITIONS, WITHIN, World


def test_fault_64_by_the_command_line_with_nothing_shortened(make_world: MakeWorld) -> None:
    """Set retention is raised and given back; another group's offsets are left alone."""
    world = make_world(config={"retention.ms": "600000"})
    world.set_speed(Role.ORIGINAL, 5)  # the backlog outlasts the start of three commands
    audit = f"{world.group}-audit"
    set_offsets_raw(world.properties, audit, world.topic, {0: 5, 1: 7})
    planned = world.call("plan", "expand", "orders", "--rate", "20", "--json", whole=True).document
    assert planned["other_groups"] == [audit]
    world.call("approve", planned["id"], "--by", "Ada", whole=True)
    done = world.call("run", planned["id"], "--json", whole=True).document
    assert done["state"] == "verified"
    assert done["counts"]["relayed"] == done["counts"]["handled"] > 1000
    rate = done["counts"]["drained_per_second"]
    assert rate is None or rate > 0, "None where it took less than two samples"
    again = world.call("run", planned["id"], "--json", whole=True).document
    assert again["already_done"]
    shown = world.call("show", planned["id"], "--json", whole=True).document
    assert shown["events_intact"]
    report = world.call("report", planned["id"], "--json", whole=True).document
    relayed = done["counts"]["relayed"]
    assert report["unexplained"]["told"] == (
        f"Nothing: relayed = written = handled, {relayed:,} messages."
    )
    assert sum(row[2] for row in report["verification"]["partitions"]) == relayed
    assert report["steps"][-1]["step"] == "remove_topic"
    assert report["burndown"]
    assert report["record"]["intact"]

    recovery = world.open().ledger.recoveries.get(planned["id"])
    await_handled(world)
    assert find_unhandled(world) == []
    assert find_disorder(world) == []
    retention = {"retention.ms": "600000", "retention.bytes": None}
    assert find_layout_problems(world, recovery, retention, "verified") == []
    assert committed_offsets(world.properties, audit, world.topic, range(2)) == {0: 5, 1: 7}


def test_producers_go_on_meanwhile(world: World) -> None:
    """What was aborted last in the temporary topic stays in its lag, and is no backlog."""
    recovery = world.plan_approved(rate=40)
    world.set_speed(Role.RECOVERY, 100)
    aborted: list[str] = []

    def abort_some() -> None:
        topic = recovery.plan["temporary"]["topic"]
        producer = make_producer(world.properties, transactional_id=f"other-{topic}")
        producer.init_transactions(90)
        producer.begin_transaction()
        for _ in range(500):
            producer.produce(topic, b"0", b"aborted", 0)
        producer.flush(90)
        producer.abort_transaction(90)
        aborted.append(topic)

    world.at("p4.9.fenced", abort_some)
    with world.publishing(each_second=100):  # the consumers are faster, also on a busy machine
        world.run(recovery)
    assert aborted
    assert judge(world, recovery) == []
    assert "cut over" in world.told.getvalue()


class NoGuard:
    """Relays that commit without a membership (generation -1), as one would without P4.5."""

    def __init__(self, properties: dict[str, str], group: str, *_: object) -> None:
        self._consumer = make_consumer(properties, {"group.id": group})

    def join(self, look: Callable[[], None]) -> bytes:
        """Joins nothing."""
        return bytes(self._consumer.consumer_group_metadata())

    def check(self) -> None:
        """Sees nothing."""

    def leave(self) -> None:
        """Has not been there."""
        self._consumer.close()


def count_read(world: World) -> int:
    """Messages that were handled from the stream's own topic."""
    return sum(line.topic == world.topic for line in read_log(world))


def test_originals_that_start_before_the_rest_is_drained_are_seen(world: World) -> None:
    recovery = world.plan_approved(rate=500)  # it cuts over when all is relayed
    drain = expand_closing._drain_rest

    def start_first(context: ExpandContext) -> None:
        world.set_speed(Role.ORIGINAL, None)
        world.publish(400)
        context.session.leave()
        context.start_originals()
        wait_until(lambda: not world.find_rest(), what="they are ahead")
        world.set_speed(Role.RECOVERY, None)
        drain(context)

    world.patch.setattr(expand_closing, "_drain_rest", start_first)
    world.patch.setattr(expand_closing, "find_others", lambda *_: ())
    world.set_speed(Role.RECOVERY, 20)
    world.at("p4.7.consumers.started", lambda: world.set_speed(Role.RECOVERY, 0))
    world.run(recovery, resumed=True)  # the canary wants 250 a second
    await_handled(world)
    assert "breaks of order" in find_disorder(world)[0]


def test_a_consumer_that_comes_back_without_the_guard_is_seen(world: World) -> None:
    recovery = world.plan_approved(rate=5)
    world.set_speed(Role.RECOVERY, 20)
    world.patch.setattr(expand_context, "GroupGuard", NoGuard)
    world.patch.setattr(expand_closing, "find_others", lambda *_: ())

    def come_back() -> None:
        world.set_speed(Role.RECOVERY, 0)
        before = count_read(world)
        intruder = world.start_intruder()
        with world.publishing(each_second=400):
            wait_until(lambda: count_read(world) > before, what="it handles what is new")
        wait_until(lambda: not world.find_rest(), what="all is read")
        intruder.terminate()
        intruder.wait(WITHIN)
        world.set_speed(Role.RECOVERY, None)

    world.at("p4.7.consumers.started", come_back)
    with suppress(VerificationFailed):  # where the counters show it too
        world.run(recovery)
    assert judge(world, recovery) != []
    assert "breaks of order" in find_disorder(world)[0]


BACKLOG = 800


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["password", "token"])
def test_fault_77_an_expansion_with_the_listed_rights_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """With a token each connection logs in again every few seconds (KIP-368)."""
    with ExitStack() as stack:
        if way == "password":
            secured = stack.enter_context(start_secured(tmp_path))
            login = secured.login("tool", "${env:TOOL_PASSWORD}")
        else:
            issuer = stack.enter_context(start_issuer())
            often = {"connections.max.reauth.ms": "4000"}
            secured = stack.enter_context(start_with_tokens(tmp_path, issuer, often))
            plain = {k: v for k, v in secured.properties.items() if not k.startswith("sasl.")}
            login = {**plain, **issuer.login("tool", "${env:TOOL_PASSWORD}")}
        world = make_world(tmp_path, secured, monkeypatch, login)
        try:
            tell_story(world, secured)
        finally:
            world.end()


def make_world(
    tmp_path: Path, secured: SecuredKafka, patch: pytest.MonkeyPatch, tool_login: dict[str, str]
) -> World:
    patch.setenv(WORLD, str(tmp_path))
    shorten(patch.setattr)
    bootstrap = secured.properties["bootstrap.servers"]
    login = {k: v for k, v in secured.properties.items() if k != "bootstrap.servers"}
    config = {"retention.ms": "600000"}
    create_topic(secured.properties, "orders", partitions=PARTITIONS, config=config)
    world = World(tmp_path, bootstrap, "orders", "order-service", patch, login=login)
    patch.setenv("TOOL_PASSWORD", PASSWORD)
    world.tool_login = tool_login
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
    assert recovery.plan["engine"] == "wire"
    assert recovery.plan["others_unknown"] == ""
    assert not [w for w in recovery.plan["warnings"] if "denied" in w or "granted" in w]
    told = "how many members the brokers let into a group is not known (`group.max.size`"
    assert [w for w in recovery.plan["warnings"] if w.startswith(told)]
    assert world.run(recovery).state == "verified", world.told.getvalue()
    world.set_speed(Role.ORIGINAL, None)
    await_handled(world)
    assert find_unhandled(world) == []
    assert find_disorder(world) == []
    kept = read_topic_overrides(world.properties, "orders", ["retention.ms"])
    assert kept == {"retention.ms": "600000"}
