"""What tests do to a real Airflow, by its public API as a user of a role, and to its processes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import psutil
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from backlogctl.dags.local.standalone import AirflowStandalone

Found = TypeVar("Found")
FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
RUN_FINISHED = frozenset({"success", "failed"})
# Airflow needs 30 to 125 ms of a core for an answer, and does all the work meanwhile.
_TICK = 0.5
# How much longer than on a quiet machine all may take.
_BUSY = 2.0


@dataclass(frozen=True)
class DagRun:
    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        return f"/api/v2/dags/{self.dag_id}/dagRuns/{quote(self.run_id, safe='')}"

    def task(self, task_id: str) -> str:
        return f"{self.path}/taskInstances/{task_id}"


class TaskStates(dict[str, Any]):
    """What Airflow keeps for a task through its tries, without Airflow."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


def no_such_run() -> AirflowRuntimeError:
    """What a task gets that asks for a run which was deleted."""
    detail = {"status_code": 404}
    return AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail))


class Patient(httpx.HTTPTransport):
    """Asks again where Airflow's SQLite was locked for too long: nothing was done then."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Sends it, three times at most."""
        for left in (2, 1, 0):
            answer = super().handle_request(request)
            if answer.status_code != httpx.codes.INTERNAL_SERVER_ERROR or not left:
                break
            answer.read()
            answer.close()
            time.sleep(1)
        return answer


class Airflow:
    """The API of a started Airflow; a user logs in when first needed."""

    def __init__(self, standalone: AirflowStandalone) -> None:
        self.standalone = standalone
        self._clients: dict[str, httpx.Client] = {}

    def client(self, user: str = "admin") -> httpx.Client:
        if user not in self._clients:
            token = self.standalone.log_in(user)
            self._clients[user] = httpx.Client(
                base_url=self.standalone.address,
                headers={"Authorization": f"Bearer {token}"},
                timeout=90,
                transport=Patient(),
            )
        return self._clients[user]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def get(self, path: str, user: str = "admin", **params: Any) -> dict[str, Any]:
        answer = self.client(user).get(path, params=params)
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
        document: dict[str, Any] = answer.json()
        return document

    # Runs.

    def ask(
        self,
        dag_id: str,
        conf: Mapping[str, Any] | None = None,
        user: str = "oncall",
        at: datetime | None = None,
    ) -> httpx.Response:
        """Asks for a run of the DAG, of now or for a past date; the answer as it is."""
        body = {"logical_date": at and at.isoformat(), "conf": dict(conf or {})}
        return self.client(user).post(f"/api/v2/dags/{dag_id}/dagRuns", json=body)

    def trigger(
        self,
        dag_id: str,
        conf: Mapping[str, Any] | None = None,
        user: str = "oncall",
        at: datetime | None = None,
    ) -> DagRun:
        answer = self.ask(dag_id, conf, user, at)
        assert answer.is_success, f"{dag_id}: {answer.status_code} {answer.text}"
        return DagRun(dag_id, answer.json()["dag_run_id"])

    def list_runs(self, dag_id: str, **params: Any) -> list[DagRun]:
        """Every run of the DAG, the oldest first."""
        found = self.get(f"/api/v2/dags/{dag_id}/dagRuns", order_by="id", limit=100, **params)
        return [DagRun(dag_id, run["dag_run_id"]) for run in found["dag_runs"]]

    def read_run(self, run: DagRun) -> dict[str, Any]:
        return self.get(run.path)

    def read_states(self, run: DagRun) -> dict[str, str | None]:
        """Every task's state; a mapped task counts as `id[index]`."""
        found = self.get(f"{run.path}/taskInstances", limit=100)["task_instances"]
        return {
            t["task_id"] if t["map_index"] < 0 else f"{t['task_id']}[{t['map_index']}]": t["state"]
            for t in found
        }

    def await_run(
        self, run: DagRun, states: Iterable[str] = RUN_FINISHED, within: float = 240
    ) -> str:
        """Waits until the run has one of these states; at another last state it gives up at once."""
        wanted = set(states)

        def find_state() -> str | None:
            state = str(self.read_run(run)["state"])
            assert state in wanted or state not in RUN_FINISHED, f"{state}, not {wanted}"
            return state if state in wanted else None

        return self._await(run, find_state, f"it is one of {wanted}", within)

    # Tasks.

    def read_task(self, run: DagRun, task_id: str) -> dict[str, Any]:
        return self.get(run.task(task_id))

    def await_state(
        self, run: DagRun, task_id: str, states: Iterable[str], within: float = 120
    ) -> dict[str, Any]:
        """Waits until the task has one of these states; a last state that is not ends the wait."""
        wanted = set(states)

        def find_task() -> dict[str, Any] | None:
            # The run first: where that is over, the task's state is its last one.
            over = self.read_run(run)["state"] in RUN_FINISHED
            if (task := self.read_task(run, task_id))["state"] in wanted:
                return task
            over = over or task["state"] in FINISHED
            assert not over, f"{task['state']}, not {wanted}"
            return None

        return self._await(run, find_task, f"{task_id} is one of {wanted}", within)

    def await_mapped(self, run: DagRun, task_id: str, index: int, states: Iterable[str]) -> None:
        name, wanted = f"{task_id}[{index}]", set(states)

        def has_state() -> bool:
            return self.read_states(run).get(name) in wanted

        self._await(run, has_state, f"{name} is one of {wanted}", 240)

    def await_another_try(self, run: DagRun, task_id: str, tried: int) -> None:
        """Waits until the try of this number has ended and the next one is to come, or is there.

        How long a task is `up_for_retry` may be a few seconds.
        """

        def is_tried_again() -> bool:
            task = self.read_task(run, task_id)
            if task["try_number"] > tried or task["state"] == "up_for_retry":
                return True
            assert task["state"] not in FINISHED, f"{task['state']}, no other try"
            return False

        self._await(run, is_tried_again, f"{task_id} is tried again", 120)

    def await_question(self, run: DagRun, task_id: str, within: float = 240) -> dict[str, Any]:
        """Waits until the task waits for a person; its subject, body and options."""
        self.await_state(run, task_id, {"deferred", "awaiting_input"}, within)
        return self.get(f"{run.task(task_id)}/-1/hitlDetails")

    def answer(
        self, run: DagRun, task_id: str, option: str = "Approve", user: str = "second"
    ) -> None:
        """Answers the task's question, once Airflow can take it."""
        self.await_question(run, task_id)
        self.await_parked(run, task_id)
        body: dict[str, Any] = {"chosen_options": [option], "params_input": {}}
        told = self.client(user).patch(f"{run.task(task_id)}/-1/hitlDetails", json=body)
        assert told.is_success, f"{run} {task_id}: {told.status_code} {told.text}"

    def xcom(self, run: DagRun, task_id: str, key: str = "return_value") -> Any:
        return self.get(f"{run.task(task_id)}/xcomEntries/{key}", deserialize=True)["value"]

    def logs(self, run: DagRun, task_id: str, attempt: int | None = None, index: int = -1) -> str:
        """What a task wrote, at its last attempt unless another is named."""
        number = attempt or self.read_task(run, task_id)["try_number"]
        path = f"{run.task(task_id)}/logs/{number}"
        found = self.get(path, map_index=index, full_content=True)["content"]
        return "\n".join(part if isinstance(part, str) else _format(part) for part in found)

    def explain(self, run: DagRun) -> str:
        """Every task's state, and the logs of those that failed, are running or wait."""
        parts = []
        for task_id, state in self.read_states(run).items():
            parts.append(f"  {task_id}: {state}")
            if state in {"failed", "running", "up_for_retry"} and "[" not in task_id:
                parts += [f"    {line}" for line in self.logs(run, task_id).splitlines()[-40:]]
        return "\n".join(parts)

    # What operators do to them.

    def clear(self, run: DagRun, *task_ids: str, downstream: bool = True) -> None:
        body = {
            "dry_run": False,
            "dag_run_id": run.run_id,
            "task_ids": list(task_ids),
            "only_failed": False,
            "include_downstream": downstream,
            "reset_dag_runs": True,
        }
        path = f"/api/v2/dags/{run.dag_id}/clearTaskInstances"
        told = self.client("oncall").post(path, json=body)
        assert told.is_success, f"{path}: {told.status_code} {told.text}"

    def mark(self, run: DagRun, state: str, task_id: str | None = None) -> None:
        """Marks the run, or a task of it, `success` or `failed`."""
        path = run.task(task_id) if task_id else run.path
        body = {"new_state" if task_id else "state": state}
        told = self.client("oncall").patch(path, json=body)
        assert told.is_success, f"{path}: {told.status_code} {told.text}"

    @contextmanager
    def paused(self, dag_id: str) -> Iterator[None]:
        """The scheduler leaves the DAG alone meanwhile."""
        path = f"/api/v2/dags/{dag_id}"
        assert self.client().patch(path, json={"is_paused": True}).is_success
        try:
            yield
        finally:
            assert self.client().patch(path, json={"is_paused": False}).is_success

    # Processes.

    def restart(self) -> None:
        """All of it is killed, tasks too, and started again on the same database."""
        leader = psutil.Process(self.standalone.pid)
        for process in [leader, *leader.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.standalone.stop()
        # The tasks of a scheduler are its successor's once it has been silent for as long.
        self.standalone.environment["AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD"] = "45"
        self.standalone.launch()

    def find_task(self, run: DagRun, task_id: str) -> psutil.Process:
        """The process in which a task's code runs."""
        title = f"worker -- {self.read_task(run, task_id)['id']}"

        def find() -> psutil.Process | None:
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    if " ".join(process.cmdline()).rstrip().endswith(title):
                        return process
            return None

        return self._await(run, find, f"{task_id} has a process", 90)

    def await_parked(self, run: DagRun, task_id: str) -> None:
        """Until the scheduler knows that the task's process has ended.

        Airflow takes an answer as soon as the task is parked. When it then queues the task before
        it hears from the executor about the process that parked it, it fails the task.
        """
        number = self.read_task(run, task_id)["try_number"]
        key = rf"dag_id='{run.dag_id}', task_id='{task_id}', run_id='{re.escape(run.run_id)}'"
        heard = re.compile(
            rf"Received executor event with state success for task instance .*{key}"
            rf", try_number={number}\b"
        )

        def has_heard() -> bool:
            lines = self.standalone.log.read_text(errors="replace").splitlines()
            return any(run.run_id in line and heard.search(line) for line in lines)

        self._await(run, has_heard, f"the scheduler has heard of {task_id}", 120)

    # Waiting.

    def _await(
        self, run: DagRun, look: Callable[[], Found | None], what: str, within: float
    ) -> Found:
        """What the look finds in the end."""
        limit = time.monotonic() + _BUSY * within
        with self.explaining(run):
            while not (found := look()):
                assert time.monotonic() < limit, f"not within {_BUSY * within} s: {what}"
                time.sleep(_TICK)
        return found

    @contextmanager
    def explaining(self, run: DagRun) -> Iterator[None]:
        """What is waited for in vain is told with how the tasks stand."""
        try:
            yield
        except AssertionError as error:
            raise AssertionError(f"{run}: {error}\n{self.explain(run)}") from None


def _format(entry: Mapping[str, Any]) -> str:
    rest = {k: v for k, v in entry.items() if k not in {"timestamp", "event", "level", "logger"}}
    return f"{entry.get('level', '')} {entry.get('event', '')} {rest or ''}".strip()
