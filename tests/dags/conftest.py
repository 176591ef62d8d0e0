"""One Airflow for all tests of this folder, and a stream for each of them."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import psutil
import pytest
import structlog
from airflow.sdk import Context
from confluent_kafka.cimpl import NewTopic

from backlogctl.dags import detection, nights, questions, recoveries, task_context
from backlogctl.dags.local.standalone import AirflowStandalone
from backlogctl.dags.task_context import translated_errors
from backlogctl.kafka.clients import make_admin
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import Approver, acting_as
from backlogctl.sandbox.embedded import EmbeddedKafka
from examples.stage import SHORT_LIVED_JVM
from tests.dags.airflow import Airflow, TaskStates
from tests.dags.slots import Slots, SlotShop, SlotWorld
from tests.kit.processes import ROOT
from tests.replay.runbooks.desks import AIRFLOW_USER, QUIET, RUN, TOPIC_ID, open_shop

TakeShop = Callable[..., SlotShop]
TakeWorld = Callable[[], SlotWorld]

_SETTINGS = {
    "PYTHONPATH": str(ROOT),
    "JDK_JAVA_OPTIONS": SHORT_LIVED_JVM,
    # Nothing starts by itself: a test asks for each run.
    "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
    # An answer that did not come in time is noticed soon.
    "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",
    # Files do not change while the tests run.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
    # A file that was read slowly is still there: its DAGs would be taken for deleted.
    "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "600",
    "AIRFLOW__DAG_PROCESSOR__STALE_DAG_THRESHOLD": "3600",
    # Nobody kills a supervisor or the scheduler here: on a busy machine one is only slow.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "180",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "180",
    "AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS": "60",
}
_LONG = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use Airflow are marked, and have time: one of them starts it."""
    for item in items:
        if "airflow" in getattr(item, "fixturenames", ()):
            item.add_marker("airflow")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_LONG))


def make_slots(directory: Path, bootstrap: str, ledger: str = "") -> Slots:
    """Streams and their topics, before Airflow is started."""
    made = Slots(directory, bootstrap, uuid.uuid4().hex[:6], ledger)
    topics = [NewTopic(name, partitions, 1) for name, partitions in made.topics]
    admin = make_admin({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics(topics, operation_timeout=30).values():
        future.result(30)
    made.write_config()
    return made


@pytest.fixture(scope="package")
def slots(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Slots:
    return make_slots(tmp_path_factory.mktemp("streams"), kafka.bootstrap)


@contextmanager
def start_airflow(home: Path, config: Path, **settings: str) -> Iterator[Airflow]:
    """An Airflow with the runbooks; nothing of it stays."""
    with AirflowStandalone.start(home, config=config, extra_env=_SETTINGS | settings) as started:
        client = Airflow(started)
        yield client
        client.close()
        leader = psutil.Process(started.pid)
        family = [leader, *leader.children(recursive=True)]
    # Whose parent has ended before them are reaped a moment later.
    _, left = psutil.wait_procs(family, 30)
    assert not left, f"Airflow was stopped, but these still run: {left}"


@pytest.fixture(scope="package")
def airflow(slots: Slots, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """On SQLite, as `airflow standalone` has it."""
    with start_airflow(tmp_path_factory.mktemp("airflow"), slots.config) as started:
        yield started


@pytest.fixture
def take_shop(airflow: Airflow, slots: Slots) -> TakeShop:
    """`take_shop(kind)`: a shop that has lost its orders; its stream is this test's alone."""
    return slots.take_shop


@pytest.fixture
def take_world(
    airflow: Airflow, slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TakeWorld]:
    """`take_world()`: a backlog with slow consumers that run; its stream is this test's alone."""
    taken: list[SlotWorld] = []

    def take() -> SlotWorld:
        taken.append(slots.take_world(monkeypatch))
        return taken[-1]

    yield take
    for world in taken:
        world.end()


# Tasks without Airflow around them.


@pytest.fixture
def mystery_context() -> dict[str, Any]:
    """Of the run `RUN`, for every task."""
    instance = MagicMock(try_number=1, max_tries=2, map_index=-1)
    instance.xcom_pull.return_value = None
    instance.get_task_states.return_value = {}
    instance.get_dagrun_state.return_value = "failed"
    run = SimpleNamespace(
        dag_id=RUN.dag_id,
        run_id=RUN.run_id,
        triggering_user_name="grace",
        conf={},
        run_type="manual",
    )
    return {
        "ti": instance,
        "dag_run": run,
        "params": {"stream": "orders"},
        "task_state_store": TaskStates(),
    }


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mystery_context: dict[str, Any]
) -> Workspace:
    """Tasks without Airflow around them, whose looks need no Kafka."""
    workspace = open_shop(tmp_path, auto_plan=True)

    @contextmanager
    def open_it(context: Context, person: Approver | None = None) -> Iterator[Workspace]:
        with translated_errors(context), acting_as(person or AIRFLOW_USER):
            yield workspace

    def look(desk: Workspace, stream: Any, *_: Any) -> tuple[Any, dict[str, Any]]:
        seen = SimpleNamespace(sample=SimpleNamespace(topic_id=TOPIC_ID))
        words = {"verdict": "ok", "course": "ok", "sentence": "told", "warnings": []}
        return seen, {
            **QUIET,
            **words,
            "lag": 0,
            "lag_at_least": None,
            "lost": None,
            "seconds_to_loss": None,
        }

    for module in (recoveries, nights, detection, questions):
        monkeypatch.setattr(module, "opened", open_it)
    for module in (recoveries, nights, detection):
        monkeypatch.setattr(module, "get_current_context", lambda: mystery_context)
    for module in (recoveries, detection, task_context):
        monkeypatch.setattr(module, "find_deployment", lambda: RUN.deployment)
    monkeypatch.setattr("backlogctl.replay.runbooks.detection.sample_stream", look)
    monkeypatch.setattr(
        "backlogctl.replay.runbooks.detection.reach_clusters",
        lambda _, streams: {stream.cluster: {} for stream in streams},
    )
    variables = MagicMock()
    variables.get.return_value = ""
    monkeypatch.setattr(detection, "Variable", variables)
    mystery_context["outlet_events"] = MagicMock()
    return workspace


@contextmanager
def task_log() -> Iterator[io.StringIO]:
    """What a task's log says, written as Airflow writes it."""
    out, before = io.StringIO(), structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()],
        logger_factory=structlog.PrintLoggerFactory(out),
    )
    try:
        yield out
    finally:
        structlog.configure(**before)
