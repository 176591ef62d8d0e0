"""An expansion while its ledger is away, a broker refuses its commits, or its copy is not safe."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from backlogctl.clock import utc_now
from backlogctl.errors import LeaseHeld, LedgerError, PlanStale, VerificationFailed
from backlogctl.fanout.launchers import Role
from backlogctl.formats import format_moment
from backlogctl.kafka.admin import committed_offsets, list_offsets, read_topic_overrides
from backlogctl.ledger import OPERATOR, upgrade
from backlogctl.replay.consumers import kept_copy
from backlogctl.replay.engine import brakes
from backlogctl.replay.engine.plan import REWIND
from backlogctl.replay.kinds.expand.closing import LONGEST_HOLD
from backlogctl.sandbox.secured import HOST
from backlogctl.values import Certainty, Recovery
from tests.kit.kafka import move_log_start, set_config, wait_until
from tests.kit.services import EmbeddedPostgres, Postgres
from tests.replay.expand.oracle import await_handled, find_unhandled, judge
from tests.replay.expand.test_outsiders import leave_in_the_drain
from tests.replay.expand.test_requests import find_left
from tests.replay.expand.test_rewinding import count_repeats, fail_the_canary, find_problems
from tests.replay.expand.world import World

SLOW = 5.0  # of each recovery consumer: the drain lasts until the test lets it go


@pytest.fixture
def away(postgres: Postgres, pg_url: str, world: World) -> Outage:
    """A world whose ledger is a PostgreSQL database that can be taken away."""
    upgrade(pg_url)
    path = world.directory / "backlog.yaml"
    path.write_text(json.dumps({**json.loads(path.read_text()), "ledger": pg_url}))
    return Outage(postgres, pg_url.rpartition("/")[2])


class Outage:
    """A database that lets nobody in: those that are there are put out."""

    def __init__(self, postgres: Postgres, database: str) -> None:
        self._postgres, self._database = postgres, database

    def begin(self) -> None:
        self._allow(False)
        self._postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname = '{self._database}'"
        )

    def end(self) -> None:
        self._allow(True)

    def _allow(self, yes: bool) -> None:
        self._postgres.execute(f"ALTER DATABASE {self._database} ALLOW_CONNECTIONS {yes}")


@pytest.mark.postgres
@pytest.mark.parametrize("point", ["p4.7.consumers.started", "p4.9.guard.left"])
def test_fault_121_a_ledger_that_is_away_is_waited_for(
    world: World, away: Outage, point: str
) -> None:
    """For longer than a lease lasts: the relays and consumers go on meanwhile, and it is said."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    drained: list[bool] = []

    def come_back() -> None:
        time.sleep(17.0)  # a lease lasts for 15 s
        world.set_speed(Role.RECOVERY, None)
        wait_until(lambda: "has not answered since" in world.told.getvalue(), 60)
        if point == "p4.7.consumers.started":
            wait_until(lambda: world.find_rest() == 0, 60, what="the relays go on")
        drained.append(True)
        away.end()

    back = threading.Thread(target=come_back, daemon=True)

    def begin() -> None:
        away.begin()
        back.start()

    world.at(point, begin)
    world.run(recovery)
    back.join()
    assert drained, "it was away"
    assert "answers again, after" in world.told.getvalue()
    assert judge(world, recovery) == []


@pytest.mark.postgres
def test_fault_121_a_ledger_that_stays_away_ends_the_run(
    world: World, away: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery = world.plan_approved(rate=1)
    monkeypatch.setattr(brakes, "LEDGER_SECONDS", 2.0)
    world.at("p4.7.consumers.started", away.begin)
    with pytest.raises(LedgerError):
        world.run(recovery)
    away.end()

    def run() -> bool:
        with suppress(LeaseHeld):  # the one that could not be given back
            world.run(recovery)
        return world.read(recovery).state == "verified"

    wait_until(run)
    assert judge(world, recovery) == []


@pytest.fixture
def servers() -> Iterator[list[EmbeddedPostgres]]:
    """Two, of which the second follows the first."""
    with EmbeddedPostgres() as primary, primary.make_standby() as standby:
        yield [primary, standby]


@pytest.mark.postgres
def test_fault_121_a_ledger_that_fails_over(servers: list[EmbeddedPostgres], world: World) -> None:
    """To its standby, which the run finds by the second address when it takes the other's place."""
    primary, standby = servers
    hosts = "&".join(f"host={HOST}:{one.port}" for one in servers)
    url = f"postgresql+psycopg://postgres@/postgres?{hosts}&target_session_attrs=read-write"
    upgrade(url)
    path = world.directory / "backlog.yaml"
    path.write_text(json.dumps({**json.loads(path.read_text()), "ledger": url}))
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)

    def promote() -> None:
        wait_until(lambda: "has not answered since" in world.told.getvalue(), 60)
        standby.execute("SELECT pg_promote()")
        world.set_speed(Role.RECOVERY, None)

    promoting = threading.Thread(target=promote, daemon=True)

    def begin() -> None:
        primary.kill()
        promoting.start()

    world.at("p4.7.consumers.started", begin)
    world.run(recovery)
    promoting.join()
    assert "answers again, after" in world.told.getvalue()
    assert judge(world, recovery) == []


def delete_half(world: World, recovery: Recovery) -> None:
    """Of each temporary partition, when all is relayed: what the slow consumers have not read."""
    wait_until(lambda: world.find_rest() == 0, what="all is relayed")
    layout = recovery.plan["temporary"]
    name, numbers = layout["topic"], range(layout["partitions"])
    ends = list_offsets(world.properties, name, numbers, "latest")
    move_log_start(world.properties, name, {n: at // 2 for n, at in ends.items() if at > 1})


def cut_copy(world: World) -> Recovery:
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    world.at("p4.7.consumers.started", lambda: delete_half(world, recovery))
    with pytest.raises(PlanStale, match="deleted part of") as caught:
        world.run(recovery)
    assert "--rewind" in caught.value.hint
    with pytest.raises(PlanStale, match="deleted part of"):
        world.run(recovery)
    world.set_speed(Role.RECOVERY, None)
    return recovery


def test_fault_119_what_was_deleted_of_the_copy_is_read_again(world: World) -> None:
    recovery = cut_copy(world)
    assert world.cancel(recovery, REWIND).state == "cancelled"
    assert find_problems(world, recovery) == []


def test_fault_119_what_was_deleted_of_the_copy_is_a_gap(world: World) -> None:
    """Where the group is not set back: the rest is handled, and what is not lies in the gap."""
    recovery = cut_copy(world)
    world.set_wrong(Role.RECOVERY, RESET="latest")  # they would skip what is left
    assert world.cancel(recovery).state == "cancelled"
    gaps = world.open().ledger.gaps.list("orders")
    assert {gap.certainty for gap in gaps} == {Certainty.BOUNDED}
    named = {(g.partition, at) for g in gaps for at in range(g.start or 0, g.end or 0)}
    left = find_left(world)
    assert left <= named
    count = int(gaps[0].reason.partition("at most ")[2].split()[0].replace(",", ""))
    assert 0 < len(left) <= count
    assert "can no longer be counted" in world.told.getvalue()


def test_fault_119_what_is_deleted_in_a_pause_and_was_handled_is_no_loss(world: World) -> None:
    """How far its consumers had come is on record; only the number can be verified no more."""
    recovery = leave_in_the_drain(world, "paused")
    name, group = recovery.plan["temporary"]["topic"], recovery.plan["recovery_group"]
    numbers = range(recovery.plan["temporary"]["partitions"])
    commits = committed_offsets(world.properties, group, name, numbers)
    move_log_start(world.properties, name, {n: at for n, at in commits.items() if at})
    world.set_speed(Role.RECOVERY, None)
    with pytest.raises(VerificationFailed, match="can no longer be counted"):
        world.run(recovery, resumed=True)
    assert "all of that was handled before" in world.told.getvalue()
    await_handled(world)
    assert find_unhandled(world) == []


def test_fault_119_settings_that_would_delete_the_copy_are_set_again(world: World) -> None:
    """A job that gives every topic a retention, and compacts it."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    name = recovery.plan["temporary"]["topic"]
    others = {"retention.ms": "86400000", "cleanup.policy": "compact,delete"}
    world.patch.setattr(kept_copy, "_SETTINGS_EACH", 1.0)

    def change() -> None:
        set_config(world.properties, name, others)
        threading.Thread(target=let_go, daemon=True).start()

    def let_go() -> None:
        wait_until(
            lambda: (
                read_topic_overrides(world.properties, name, others)
                == {"retention.ms": "-1", "cleanup.policy": "delete"}
            ),
            120,
        )
        world.set_speed(Role.RECOVERY, None)

    world.at("p4.7.consumers.started", change)
    world.run(recovery)
    assert "retention.ms is 86400000, not -1" in world.told.getvalue()
    assert "they are set again" in world.told.getvalue()
    assert judge(world, recovery) == []


def test_fault_43_120_a_cancel_sets_the_group_back_and_the_hold_that_is_left_has_an_end(
    world: World,
) -> None:
    """Nobody waits for a consumer that does not work, and nothing is doubled; the hold ends
    however slow the consumers were said to be."""
    recovery = fail_the_canary(world, rate=0.001)
    said = world.call("cancel", recovery.id)
    assert "none of them was handled" in " ".join((said.out + said.err).split())
    (hold,) = world.open().ledger.holds.list(open_only=True)
    assert hold.holder == OPERATOR, "much is unread still"
    assert hold.until is not None
    assert hold.until < utc_now() + LONGEST_HOLD
    assert f"of topic {world.topic} stays raised until {format_moment(hold.until)}" in said.out
    assert find_problems(world, recovery) == []
    assert count_repeats(world) == 0
