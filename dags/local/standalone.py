"""A real Airflow on this machine: `airflow standalone` on free ports, with nothing left behind.

It ends with the process that started it, however that ends (`backlogctl.dags.local.guard`).
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from backlogctl.dags.local import guard
from backlogctl.errors import EmbeddedError
from backlogctl.formats import Say
from backlogctl.sandbox.secured import HOST, free_port, listens

DAGS = ("detect_backlog", "emergency_offload", "recover_backlog")
_RUNBOOKS = {
    "name": "backlogctl",
    "classpath": "backlogctl.dags.bundle.RunbookBundle",
    "kwargs": {},
}
_AIRFLOW = (sys.executable, "-m", "airflow")
_HEALTHY = ("metadatabase", "scheduler", "dag_processor", "triggerer")
_PASSWORDS = "passwords.json"
_UP_WITHIN = 300.0
_DOWN_WITHIN = 60.0
_TICK = 0.2
_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may log in; `role` is one of Airflow's: viewer, user, op, admin."""

    name: str
    role: str
    password: str


def make_users() -> tuple[User, ...]:
    """An administrator and two people on call, with new passwords."""
    roles = {"admin": "admin", "oncall": "op", "second": "op"}
    return tuple(User(name, role, secrets.token_urlsafe(9)) for name, role in roles.items())


def check_port(port: int) -> None:
    """Raises EmbeddedError where somebody listens on it already; 0 is always free."""
    if port and listens(port):
        raise EmbeddedError(
            "the port is taken",
            subject=f"{HOST}:{port}",
            hint="choose another with --port, or none for a free one",
        )


def make_airflow_environment(
    home: Path, ports: tuple[int, int], config: Path, users: Iterable[User]
) -> dict[str, str]:
    """The environment of Airflow, without the user's own settings of it.

    `ports`: of the pages and the API, and of the API that tasks use. Tasks have a server of their
    own: what people do is noted by the event loop, which waits for SQLite meanwhile, and a task's
    request that holds SQLite could not end in the same loop.
    """
    port, execution_port = ports
    own = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    address = f"http://{HOST}:{port}"
    sections = {
        "core": {
            # 32 would be started, of 130 MB each.
            "parallelism": "4",
            "executor": "LocalExecutor",
            "load_examples": "False",
            "dags_folder": str(home / "dags"),
            "dags_are_paused_at_creation": "False",
            "execution_api_server_url": f"http://{HOST}:{execution_port}/execution/",
            "simple_auth_manager_users": ",".join(f"{user.name}:{user.role}" for user in users),
            "simple_auth_manager_passwords_file": str(home / _PASSWORDS),
            # A changed file's DAG is there at once.
            "min_serialized_dag_update_interval": "1",
        },
        # One that Airflow makes itself is too short for its own taste, in every log.
        "api_auth": {"jwt_secret": secrets.token_urlsafe(64)},
        "database": {
            # Several processes write: on a busy machine they wait for each other for long.
            "sql_alchemy_conn": f"sqlite:///{home}/airflow.db?timeout=20",
            "load_default_connections": "False",
        },
        "api": {"host": HOST, "port": str(port), "base_url": f"{address}/", "workers": "1"},
        "dag_processor": {
            "dag_bundle_config_list": json.dumps([_RUNBOOKS]),
            "parsing_processes": "1",
            "min_file_process_interval": "10",
            "refresh_interval": "10",
        },
        "scheduler": {
            "scheduler_idle_sleep_time": "0.5",
            # Of a task whose process and supervisor were killed: 5 minutes otherwise.
            "task_instance_heartbeat_timeout": "30",
            "task_instance_heartbeat_timeout_detection_interval": "5",
            # Tasks of a scheduler that was killed: 5 minutes otherwise.
            "orphaned_tasks_check_interval": "10",
        },
        # A task that has parked itself holds its process for as long, and an answer that comes
        # before it is gone costs the task a try.
        "workers": {"min_heartbeat_interval": "1"},
        # Logs are read from the disk; another Airflow may have the usual ports.
        "logging": {"worker_log_server_port": "0", "trigger_log_server_port": "0"},
        "usage_data_collection": {"enabled": "False"},
    }
    return {
        **own,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), own.get("PATH", os.defpath))),
        "AIRFLOW_HOME": str(home),
        "BACKLOG_CONFIG": str(config),
        # A Python worker of Spark is the interpreter that has our packages.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        **{
            f"AIRFLOW__{section}__{option}".upper(): value
            for section, options in sections.items()
            for option, value in options.items()
        },
    }


class AirflowStandalone:
    """An Airflow of this process: `with AirflowStandalone.start(home, config=...) as airflow:`.

    Attributes:
        home: AIRFLOW_HOME: its database (SQLite), logs and passwords.
        environment: of the next `launch`.
    """

    def __init__(
        self,
        home: Path,
        ports: tuple[int, int],
        users: tuple[User, ...],
        environment: dict[str, str],
    ) -> None:
        self.home = home
        self.address = f"http://{HOST}:{ports[0]}"
        self._execution_port = ports[1]
        self.users = users
        self.environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        home: Path | str,
        *,
        config: Path,
        port: int = 0,
        extra_env: Mapping[str, str] | None = None,
        progress: Say = lambda _: None,
    ) -> Self:
        """Starts it and waits until it is healthy and the DAGs are there.

        Args:
            config: the backlog.yaml that the tasks read.
            port: of the API and the pages; 0 takes a free one.
            extra_env: settings of Airflow and variables of the tasks, stronger than ours.

        Raises:
            EmbeddedError: the port is taken, Airflow ended, or a DAG file is wrong.
        """
        check_port(port)
        place, port, users = Path(home).absolute(), port or free_port(), make_users()
        (place / "dags").mkdir(parents=True, exist_ok=True)
        (place / "logs").mkdir(exist_ok=True)
        passwords = place / _PASSWORDS
        passwords.touch(0o600)
        passwords.write_text(json.dumps({user.name: user.password for user in users}))
        ports = (port, free_port())
        environment = make_airflow_environment(place, ports, config.absolute(), users)
        self = cls(place, ports, users, {**environment, **(extra_env or {})})
        self.launch(progress)
        return self

    def launch(self, progress: Say = lambda _: None) -> None:
        """Starts it, also again after it was stopped or killed."""
        with self.log.open("ab") as out:
            # Before all: the second server needs the tables.
            words, env = [*_AIRFLOW, "db", "migrate"], self.environment
            migrated = subprocess.run(words, check=False, env=env, stdout=out, stderr=out)
            if migrated.returncode:
                raise self._explain("could not make its database")
            self._process = subprocess.Popen(
                [
                    *(sys.executable, guard.__file__, *_AIRFLOW, "standalone", "--"),
                    *(*_AIRFLOW, "api-server", "--apps", "execution"),
                    *("--port", str(self._execution_port)),
                ],
                cwd=self.home,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                # Ctrl-C is ours: we stop it when we are ready.
                start_new_session=True,
            )
        try:
            self._wait_until_up(progress)
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Of the process above all others, which is the leader of their group."""
        assert self._process is not None, "it was stopped"
        return self._process.pid

    @property
    def logs(self) -> Path:
        """Its logs, and those of the tasks."""
        return self.home / "logs"

    @property
    def log(self) -> Path:
        return self.logs / "standalone.log"

    def password_of(self, name: str) -> str:
        return next(user.password for user in self.users if user.name == name)

    def log_in(self, name: str) -> str:
        """A bearer token of a user, for the API."""
        body = {"username": name, "password": self.password_of(name)}
        answer = httpx.post(f"{self.address}/auth/token", json=body, timeout=30)
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def wait(self) -> None:
        """Until it ends by itself. Raises EmbeddedError: that is what happened."""
        assert self._process is not None, "it was stopped"
        self._process.wait()
        raise self._explain("ended")

    def stop(self) -> None:
        """Ends everything that was started, tasks and what they started included."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_DOWN_WITHIN)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_up(self, progress: Say) -> None:
        limit = time.monotonic() + _UP_WITHIN
        with httpx.Client(base_url=self.address, timeout=30) as client:
            while not (_is_healthy(client) and listens(self._execution_port)):
                self._check(limit, "is not healthy")
            progress("Airflow is healthy; its DAGs are read")
            client.headers["Authorization"] = f"Bearer {self.log_in(self.users[0].name)}"
            while missing := set(DAGS) - _list_dags(client):
                for wrong in _ask_early(client, "/api/v2/importErrors").get("import_errors", ()):
                    raise EmbeddedError(
                        f"reading failed: {wrong['stack_trace'].strip()}",
                        subject=f"DAG file {wrong['filename']}",
                    )
                self._check(limit, f"has not read {', '.join(sorted(missing))}")

    def _check(self, limit: float, otherwise: str) -> None:
        if self._process is None or self._process.poll() is not None:
            raise self._explain("ended")
        if time.monotonic() > limit:
            raise self._explain(f"{otherwise} after {_UP_WITHIN:.0f} s")
        time.sleep(_TICK)

    def _explain(self, what: str) -> EmbeddedError:
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        return EmbeddedError(
            f"{what}; the end of its log:\n{tail}\n",
            subject=f"Airflow at {self.address}",
            hint=f"read {self.log}",
        )


def _is_healthy(client: httpx.Client) -> bool:
    health = _ask_early(client, "/api/v2/monitor/health")
    return all(health.get(part, {}).get("status") == "healthy" for part in _HEALTHY)


def _list_dags(client: httpx.Client) -> set[str]:
    return {dag["dag_id"] for dag in _ask_early(client, "/api/v2/dags", limit=100).get("dags", ())}


def _ask_early(client: httpx.Client, path: str, **params: Any) -> dict[str, Any]:
    """The answer; nothing while nobody listens, or the database is locked by other components."""
    try:
        answer = client.get(path, params=params)
        document: dict[str, Any] = answer.json()
    except (httpx.TransportError, ValueError):
        return {}
    if answer.is_client_error:
        answer.raise_for_status()
    return document
