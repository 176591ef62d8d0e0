"""An expansion while its ledger is away, a broker refuses its commits, or its copy is not safe."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress

import pytest

from backlogctl.errors import LeaseHeld, LedgerError
from backlogctl.fanout.launchers import Role
from backlogctl.ledger import upgrade
from backlogctl.replay.engine import brakes
from tests.kit.kafka import wait_until
from tests.kit.services import Postgres
from tests.replay.expand.oracle import judge
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
