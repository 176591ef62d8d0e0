"""A stream whose backlog runs of `emergency_offload` move into an archive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from backlogctl.fanout.launchers import Role
from backlogctl.replay.kinds.offload.plan import ALLOW_DISK
from tests.dags.airflow import Airflow
from tests.dags.expansion import AskedRecovery
from tests.dags.slots import Slots, SlotWorld
from tests.kit.kafka import wait_until
from tests.replay.offload.world import OffloadWorld

OFFLOAD = "emergency_offload"
PLAN, APPROVE, WORK, RESTORE = (
    f"offload.{task}" for task in ("plan", "approve", "carry_out", "restore_layout")
)


@dataclass
class SlotOffload(SlotWorld, OffloadWorld):
    """A world to offload, whose stream is one of many in the configuration."""


def take_offload(slots: Slots, patch: pytest.MonkeyPatch) -> SlotOffload:
    """A backlog with consumers that have begun, and are slow from now on."""
    world = slots.take_world(patch, kind="offload", make=SlotOffload)
    wait_until(lambda: None not in world.read_commits().values(), what="commits everywhere")
    world.set_speed(Role.ORIGINAL, 1)
    return world


def start_offload(airflow: Airflow, world: SlotOffload, **form: Any) -> AskedRecovery:
    """A run whose plan waits for its approval; the archive lies beside the broker's log."""
    run = airflow.trigger(OFFLOAD, {"stream": world.stream, "allow": [ALLOW_DISK], **form})
    airflow.await_question(run, APPROVE, within=300)
    return AskedRecovery.of(airflow, world, run, PLAN)
