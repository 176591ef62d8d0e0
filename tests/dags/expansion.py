"""An expansion that a run of `recover_backlog` carries out, and a witness of its temporary topic."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import psutil
from confluent_kafka import KafkaError, TopicPartition

from backlogctl.clock import Deadline
from backlogctl.fanout.launchers import Role
from backlogctl.kafka.admin import read_topic_id
from backlogctl.kafka.clients import make_consumer
from backlogctl.kafka.errors import TopicMissing
from backlogctl.ledger import BurndownSample, Ledger
from backlogctl.replay.engine.next_commands import LOOKED_AHEAD
from backlogctl.replay.kinds import EXPAND
from backlogctl.values import Recovery
from tests.dags.airflow import Airflow, DagRun
from tests.dags.slots import SlotWorld
from tests.kit.kafka import wait_until

APPROVE, WORK, RESTORE = "expand.approve", "expand.carry_out", "expand.restore_layout"
# As if consumers were so slow that retention would win: it is raised, from unset.
HOLDING = 0.001
ARRIVING = 100
# All four of a recovery together are no faster than what arrives: the canary is done, and the
# backlog does not go before the test has stopped them.
GENTLE = ARRIVING / 4
_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_ID)
# It reads on by itself: it starts again, or a busy broker answered late.
_PASSING = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)


class Witness:
    """Reads a temporary topic from its start until it is deleted, as any other reader could."""

    def __init__(self, world: SlotWorld, recovery: Recovery) -> None:
        self._world = world
        temporary = EXPAND.read_plan(recovery).temporary
        self._topic = temporary.topic
        self._partitions = temporary.partitions
        self._found: list[tuple[str, int, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="witness")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        document = {"messages": self._found, "open": False}
        (self._world.directory / "temporary.json").write_text(json.dumps(document))

    def _read(self) -> None:
        while not self._ended.wait(0.05):
            with suppress(TopicMissing):
                read_topic_id(self._world.properties, self._topic, Deadline(60.0))
                break
        reader = make_consumer(
            self._world.properties,
            {"auto.offset.reset": "earliest", "fetch.wait.max.ms": 20, "log_level": 0},
        )
        try:
            reader.assign([TopicPartition(self._topic, n, 0) for n in range(self._partitions)])
            last, read = False, 1
            # Also what was fetched and waits here when it has ended.
            while not last or read:
                last, read = self._ended.is_set(), 0
                for message in reader.consume(500, 0.1):
                    error, partition = message.error(), message.partition()
                    if error is not None:
                        assert error.code() in (*_GONE, *_PASSING), error
                        continue
                    assert partition is not None
                    read += 1
                    key, value = message.key() or b"", message.value() or 0
                    self._found.append((key.decode(), int(value), partition))
        finally:
            reader.close()


@dataclass(frozen=True)
class AskedRecovery:
    """A run, the recovery that it planned, and the world that it is for."""

    airflow: Airflow
    world: SlotWorld
    run: DagRun
    recovery: Recovery

    @classmethod
    def of(cls, airflow: Airflow, world: SlotWorld, run: DagRun, plan_task: str) -> Self:
        planned = airflow.xcom(run, plan_task)["recovery"]
        return cls(airflow, world, run, world.open().ledger.recoveries.get(planned))

    @cached_property
    def ledger(self) -> Ledger:
        """Opened once: it is looked at again and again."""
        return self.world.open().ledger

    @property
    def now(self) -> Recovery:
        return self.world.read(self.recovery)

    def await_step(self, name: str) -> None:
        """Waits until a step of its work has started."""
        steps = self.ledger.steps
        with self.airflow.explaining(self.run):
            wait_until(
                lambda: steps.get(self.recovery.id, name) is not None, 240, f"{name} has started"
            )


class Expansion(AskedRecovery):
    """One that expands."""

    @property
    def task(self) -> dict[str, Any]:
        """The task that does the work, as Airflow has it."""
        return self.airflow.read_task(self.run, WORK)

    def list_actions(self) -> list[str]:
        actions = [e.action for e in self.ledger.events.list(self.recovery.id)]
        return [action for action in actions if action != LOOKED_AHEAD]

    def find_sample(self) -> BurndownSample | None:
        """The last one of the drain."""
        latest = self.ledger.burndown.latest(self.recovery.id)
        return latest if latest is not None and latest.step == "drain" else None

    def approve(self) -> None:
        """A colleague's answer."""
        self.airflow.answer(self.run, APPROVE)

    def has_canary(self) -> bool:
        """Whether the canary is done, and the relay of the rest begins."""
        step = self.ledger.steps.get(self.recovery.id, "canary")
        if step is None and self.airflow.read_run(self.run)["state"] != "running":
            raise AssertionError(self.airflow.explain(self.run))
        return step is not None and step.is_complete

    def await_relayed(self) -> None:
        """Waits until more was relayed, and is not handled, and the runner goes on."""
        before = self.find_sample()

        def is_relayed() -> bool:
            now = self.find_sample()
            moved = now is not None and (before is None or now.relayed > before.relayed)
            return now is not None and moved and now.temporary_lag > 100

        with self.airflow.explaining(self.run):
            wait_until(is_relayed, 150, "messages are relayed")

    def go_on(self) -> None:
        """The recovery's consumers handle again."""
        self.world.set_speed(Role.RECOVERY, None)

    def find_process(self) -> psutil.Process:
        """Of the task that does the work."""
        return self.airflow.find_task(self.run, WORK)


def start(airflow: Airflow, world: SlotWorld, **form: Any) -> Expansion:
    """A run whose plan waits for its approval."""
    # Hardly any: Airflow needs a while, and the backlog must still be there.
    world.set_speed(Role.ORIGINAL, 1)
    world.set_speed(Role.RECOVERY, GENTLE)
    conf = {"stream": world.stream, "action": "expand", "rate": HOLDING, **form}
    run = airflow.trigger("recover_backlog", conf)
    airflow.await_question(run, APPROVE)
    return Expansion.of(airflow, world, run, "expand.plan")


@contextmanager
def relaying(*begun: Expansion) -> Iterator[None]:
    """Approved, and in the middle of their relay, beside producers that do not stop.

    Messages are in the temporary topics only, and stay: consumers handle nothing until `go_on`.
    """
    with ExitStack() as stack:
        for one in begun:
            stack.enter_context(Witness(one.world, one.recovery))
            stack.enter_context(one.world.publishing(each_second=ARRIVING))
            one.approve()
        left = list(begun)

        def hold() -> bool:
            for one in list(left):
                if one.has_canary():
                    one.world.set_speed(Role.RECOVERY, 0)
                    left.remove(one)
            time.sleep(0.2)  # Airflow is asked each time, and has work to do
            return not left

        wait_until(hold, 240, "the canaries are done")
        for one in begun:
            one.await_relayed()
        yield
