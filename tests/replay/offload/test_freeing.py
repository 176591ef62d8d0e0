"""That an offload frees the disks: it ends the last segments, measures, and says what it may not
free. Nothing is archived here, which changes nothing for the disks."""

from __future__ import annotations

import time
from typing import Any

import pytest

from backlogctl.errors import Refused, VerificationFailed
from backlogctl.fanout.segments import ROLL_MS, SEGMENT_MS
from backlogctl.kafka.admin import alter_topic_config, read_topic_overrides
from backlogctl.kafka.clients import make_producer
from backlogctl.replay.kinds.offload import context
from backlogctl.replay.kinds.offload.context import SEGMENTS_BACK, SEGMENTS_LOWERED
from backlogctl.replay.kinds.offload.plan import PlannedFreeing
from backlogctl.values import Recovery
from tests.kit.kafka import repeating, set_offsets_raw
from tests.replay.offload.conftest import READ, MakeOffload
from tests.replay.offload.world import OffloadWorld

# As by default: nobody fills a segment, and it ends by itself in a week.
LARGE = {SEGMENT_MS: "604800000"}
DISCARD: dict[str, Any] = {"discard": True, "allow": ("lose",)}
LEFT = "leave-consumers"


def find_setting(world: OffloadWorld) -> str | None:
    """What the topic itself sets."""
    return read_topic_overrides(world.properties, world.topic, [SEGMENT_MS])[SEGMENT_MS]


def list_actions(world: OffloadWorld, recovery: Recovery) -> list[str]:
    return [event.action for event in world.open().ledger.events.list(recovery.id)]


def test_fault_124_what_is_in_the_last_segments_is_freed_too(make_idle: MakeOffload) -> None:
    world = make_idle(1200, LARGE)
    recovery = world.plan_approved(**DISCARD)
    freeing = recovery.plan["freeing"]
    assert freeing["kept"] == 0
    assert freeing["ended"] == (0, 1) or freeing["ended"] == [0, 1]
    done = world.run(recovery)
    assert done.state == "verified"
    freed = done.detail["counts"]["freed_bytes"]
    assert freed >= freeing["most"] > 10_000, world.told.getvalue()
    assert find_setting(world) == LARGE[SEGMENT_MS]
    actions = list_actions(world, recovery)
    assert actions.index(SEGMENTS_LOWERED) < actions.index(SEGMENTS_BACK)
    assert world.read_topic() == []


def test_fault_124_while_producers_write(make_idle: MakeOffload) -> None:
    """Some of them in short transactions, so that the last stable offset is behind now and then."""
    world = make_idle(400, LARGE)
    own = {"transactional.id": f"{world.group}-writer", "linger.ms": "0"}
    producer = make_producer(world.properties, own)
    producer.init_transactions(60)

    def write() -> None:
        producer.begin_transaction()
        for number in range(2):
            producer.produce(world.topic, b"9999", b"k0", partition=number)
        producer.flush(60)
        time.sleep(0.05)
        producer.commit_transaction(60)

    with repeating(write, 0.05):
        recovery = world.plan_approved(**DISCARD)
        done = world.run(recovery)
    assert done.state == "verified"
    assert done.detail["counts"]["freed_bytes"] >= recovery.plan["freeing"]["most"] * 0.9


@pytest.mark.parametrize("then", ["run", "cancel"])
def test_fault_124_a_run_that_is_killed_leaves_nothing_lowered(
    make_idle: MakeOffload, then: str
) -> None:
    world = make_idle(400, LARGE)
    recovery = world.plan_approved(**DISCARD)
    killed = world.start("run", recovery.id, crash_at="p5.3.lowered")
    killed.communicate(timeout=400)
    assert killed.returncode == -9
    assert find_setting(world) == str(ROLL_MS)
    if then == "cancel":
        assert world.cancel(recovery, LEFT).state == "cancelled"
        assert world.read_lows() == {0: 0, 1: 0}
    else:
        assert world.run(recovery).state == "verified"
    assert find_setting(world) == LARGE[SEGMENT_MS]


def test_fault_124_a_run_that_is_stopped_gives_the_setting_back(make_idle: MakeOffload) -> None:
    """At once: segments of a second would be many files by the next run."""
    world = make_idle(400)
    alter_topic_config(world.properties, world.topic, {SEGMENT_MS: None})
    recovery = world.plan_approved(**DISCARD)
    world.at("p5.3.ended", stop)
    with pytest.raises(Refused, match="stopped here"):
        world.run(recovery)
    assert find_setting(world) is None
    assert world.read_lows() == {0: 0, 1: 0}


def stop() -> None:
    raise Refused("stopped here", subject="test")


def test_fault_124_what_somebody_else_set_meanwhile_stays(make_idle: MakeOffload) -> None:
    world = make_idle(400, LARGE)
    recovery = world.plan_approved(**DISCARD)
    change = {SEGMENT_MS: "7777777"}
    world.at("p5.3.ended", lambda: alter_topic_config(world.properties, world.topic, change))
    assert world.run(recovery).state == "verified"
    assert find_setting(world) == "7777777"
    assert "somebody changed it" in world.told.getvalue()


def test_fault_124_an_open_transaction_keeps_its_segment(make_idle: MakeOffload) -> None:
    """It began in front of all: nothing is freed, and that is what the plan says."""
    world = make_idle(400, LARGE)
    producer = make_producer(
        world.properties,
        {"transactional.id": f"{world.group}-hangs", "transaction.timeout.ms": "600000"},
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(2):
        producer.produce(world.topic, b"1", b"k0", partition=number)
    producer.flush(60)
    with pytest.raises(Refused, match="perhaps no disk space is freed") as caught:
        world.plan(**DISCARD)
    assert "between nothing and about" in caught.value.message
    assert "open transactions hide the end of partitions 0, 1" in caught.value.message
    assert "--allow frees-nothing`" in caught.value.hint
    said: dict[str, Any] = {"discard": True, "allow": ("lose", "frees-nothing")}
    recovery = world.plan_approved(**said)
    assert any("not all of the space" in text for text in recovery.plan["warnings"])
    done = world.run(recovery)
    assert (str(done.state), done.detail["counts"]["freed_bytes"]) == ("verified", 0)
    producer.abort_transaction(60)


def test_fault_124_messages_of_the_future_keep_their_segment(make_idle: MakeOffload) -> None:
    """A segment ends by the time of its first message."""
    late = {**LARGE, "message.timestamp.after.max.ms": str(2**63 - 1)}
    world = make_idle(0, late, None)
    world.begun_ms += 7 * 24 * 3_600_000
    world.publish(400)
    set_offsets_raw(world.properties, world.group, world.topic, {0: READ, 1: READ})
    with pytest.raises(Refused, match="are dated in the future"):
        world.plan(**DISCARD)


def test_fault_124_an_offload_that_frees_nothing_is_not_verified(
    make_idle: MakeOffload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction comes after the plan, and the brokers are slower than they say."""
    world = make_idle(400, LARGE)
    recovery = world.plan_approved(**DISCARD)
    monkeypatch.setattr(context, "end_segments", lambda *_, **__: dict.fromkeys((0, 1), 2**62))
    with pytest.raises(VerificationFailed, match="freed nothing"):
        world.run(recovery)
    assert str(world.read(recovery).state) == "failed"


def test_fault_124_what_is_not_known_is_not_nothing() -> None:
    def judge(most: int | None, kept: int | None, *ended: int) -> str:
        return PlannedFreeing(most=most, kept=kept, told="why", ended=ended).problem

    assert judge(10, 0) == judge(10, 9) == judge(None, None, 0) == ""
    assert judge(10, 10) == judge(0, 0) == judge(None, None) == "why"
