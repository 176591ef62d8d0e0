"""The oracle is seen to fail when what keeps the promise is taken out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from backlogctl.errors import VerificationFailed
from backlogctl.fanout.launchers import Role
from backlogctl.kafka.clients import make_consumer
from backlogctl.replay.kinds.expand import closing as expand_closing
from backlogctl.replay.kinds.expand import context as expand_context
from backlogctl.replay.kinds.expand.context import ExpandContext
from tests.kafka_tools import wait_until
from tests.replay.expand.oracle import await_handled, find_disorder, judge, read_log
from tests.replay.expand.world import WITHIN, World


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
