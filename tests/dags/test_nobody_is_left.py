"""Nobody is ever left without consumers: where no teardown will run, the next look restores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from backlogctl.fanout.launchers import Role
from backlogctl.replay.observe.stream import sample_stream
from tests.dags.airflow import Airflow
from tests.dags.conftest import TakeWorld
from tests.dags.expansion import RESTORE, relaying, start
from tests.replay.expand.oracle import judge

RECOVER = "recover_backlog"


@contextmanager
def paused(airflow: Airflow, dag_id: str) -> Iterator[None]:
    """The scheduler leaves the DAG alone meanwhile."""
    path = f"/api/v2/dags/{dag_id}"
    assert airflow.client().patch(path, json={"is_paused": True}).is_success
    try:
        yield
    finally:
        assert airflow.client().patch(path, json={"is_paused": False}).is_success


def test_a_paused_dag_whose_run_is_marked_failed(airflow: Airflow, take_world: TakeWorld) -> None:
    """Its teardown is never scheduled. It is said at once, and the next look gives all back."""
    world = take_world()
    one = start(airflow, world)
    with relaying(one), paused(airflow, RECOVER):
        process = one.find_process()
        process.suspend()  # it does not see the mark
        airflow.mark(one.run, "failed")
        process.kill()
        assert world.list_pids(Role.ORIGINAL) == []
        workspace = world.open()
        entry = sample_stream(workspace, workspace.config.stream(world.stream))[1]
        assert entry["verdict"] in ("stop", "warn")
        assert f"its consumers are stopped by expand {one.recovery.id}" in entry["sentence"]
        assert f"only in {one.recovery.plan['temporary']['topic']}" in entry["sentence"]

        one.go_on()
        look = airflow.trigger("detect_backlog", {"streams": [world.stream]})
        airflow.await_state(look, "restore_left_open", {"success"}, within=300)
        told = airflow.logs(look, "restore_left_open")
        assert f"{one.recovery.id}: no task works on it, or will" in told
        assert airflow.read_states(one.run)[RESTORE] != "success"
    assert judge(world, one.recovery, state="cancelled") == []
    airflow.await_run(look, {"success", "failed"})
