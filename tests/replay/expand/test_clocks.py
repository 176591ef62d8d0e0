"""Two hosts run one recovery, with clocks that are two hours apart and a ledger on PostgreSQL."""

from __future__ import annotations

import json
import re
import signal
import subprocess

from backlogctl.errors import LeaseHeld
from backlogctl.fanout.launchers import Role
from backlogctl.ledger import upgrade
from tests.kit import shortened
from tests.kit.kafka import wait_until
from tests.kit.processes import start_backlogctl
from tests.kit.shifted import HOST, MODULE, RUNS, SHIFT
from tests.replay.expand.conftest import MakeWorld
from tests.replay.expand.oracle import judge
from tests.replay.expand.world import WITHIN


def test_runners_whose_clocks_differ(make_world: MakeWorld, pg_url: str) -> None:
    """The second is told who holds it and for how long; when that one is killed it goes on."""
    upgrade(pg_url)
    world = make_world()
    path = world.directory / "backlog.yaml"
    path.write_text(json.dumps({**json.loads(path.read_text()), "ledger": pg_url}))
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, 5)

    def start(host: str, seconds: int) -> subprocess.Popen[str]:
        own = {
            shortened.WORLD: str(world.directory),
            shortened.SHORTENED: "expand",
            RUNS: shortened.MODULE,
            HOST: host,
            SHIFT: str(seconds),
        }
        process = start_backlogctl(
            world.directory, "run", recovery.id, environment=own, module=MODULE
        )
        world.started.append(process)
        return process

    first = start("late", 3600)
    world.wait_for_drain(recovery, first)
    second = start("early", -3600)
    _, err = second.communicate(timeout=WITHIN)
    assert second.returncode == LeaseHeld.exit_code, err
    told = re.search(
        rf"is held by late:{first.pid} until .* by the ledger's clock; it was taken (\d+) s ago and "
        r"renewed (\d+) s ago",
        " ".join(err.split()),
    )
    assert told is not None, err
    assert 0 <= int(told[2]) <= int(told[1]) <= 600
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=WITHIN)
    world.set_speed(Role.RECOVERY, None)
    said: list[tuple[int, str]] = []

    def goes_on() -> bool:
        third = start("early", -3600)
        said.append((third.wait(WITHIN), third.communicate()[1]))
        return said[-1][0] != LeaseHeld.exit_code

    wait_until(goes_on, 120.0, "the lease of the killed one has ended")
    assert said[-1][0] == 0, said[-1][1]
    assert judge(world, recovery) == []
