"""A real Airflow on this machine: API servers, scheduler with local workers, DAG processor.

The parts of `airflow standalone`, each with a log of its own, on a free port, and with nothing left
behind: they end with the process that started them, however that ends (see
`backlogctl_airflow.local.keeper`).
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
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import httpx

from backlog.errors import EmbeddedError
from backlog.progress import Say
from backlogctl_airflow.local import keeper
from backlogctl_airflow.local.settings import (
    PASSWORDS,
    RUNBOOKS,
    Bundle,
    User,
    make_environment,
)
from sandbox.ports import HOST, free_port, listens

DAGS = ("detect_backlog", "emergency_offload", "recover_backlog")
_UP_WITHIN = 300.0
_DOWN_WITHIN = 60.0
_TICK = 0.1
_TAIL_LINES = 15


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


def _list_components(execution_port: int) -> dict[str, list[str]]:
    # Logs are read from the disk, so nobody has to serve them, on a fixed port.
    here = "--skip-serve-logs"
    return {
        "api-server": ["api-server", "--apps", "core"],
        # Of its own: what people do is noted by the event loop, which waits for SQLite meanwhile,
        # and a task's request that holds SQLite could not end in the same loop.
        "execution-api": ["api-server", "--apps", "execution", "--port", str(execution_port)],
        "scheduler": ["scheduler", here],
        "dag-processor": ["dag-processor"],
        "triggerer": ["triggerer", here],
    }


class AirflowStandalone:
    """An Airflow of this process: `with AirflowStandalone.start(home, config=...) as airflow:`."""

    def __init__(self, home: Path, port: int, users: tuple[User, ...]) -> None:
        self.home = home
        self.port = port
        self.users = users
        self._process: subprocess.Popen[str] | None = None
        self._pids: dict[str, int] = {}
        self._execution_port = free_port()

    @classmethod
    def start(
        cls,
        home: Path | str,
        *,
        config: Path,
        users: Iterable[User] = (),
        port: int = 0,
        dags: Iterable[str] = DAGS,
        bundles: Iterable[Bundle] = (RUNBOOKS,),
        extra_env: Mapping[str, str] | None = None,
        progress: Say = lambda _: None,
    ) -> Self:
        """Starts the components and waits until they are healthy and the DAGs are there.

        Args:
            home: AIRFLOW_HOME: its database (SQLite), logs and passwords.
            config: the backlog.yaml that the tasks read.
            port: of the API and the pages; 0 takes a free one.
            dags: ids that must be there before it counts as started.
            extra_env: settings of Airflow and variables of the tasks, stronger than ours.

        Raises:
            EmbeddedError: the port is taken, a component ended, or a DAG file is wrong.
        """
        check_port(port)
        self = cls(Path(home).absolute(), port or free_port(), tuple(users) or make_users())
        environment = make_environment(
            self.home,
            (self.port, self._execution_port),
            config.absolute(),
            self.users,
            bundles,
            extra_env,
        )
        try:
            components = _list_components(self._execution_port)
            self._spawn(environment, components, progress)
            self._wait_until_up(set(dags), progress)
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def address(self) -> str:
        """Where its pages and its API are."""
        return f"http://{HOST}:{self.port}"

    @property
    def pids(self) -> Mapping[str, int]:
        """The components' process ids, by name."""
        return dict(self._pids)

    @property
    def group(self) -> int:
        """The process group of all of it, but for what leaves it by itself."""
        return self._keeper.pid

    @property
    def logs(self) -> Path:
        """The components' logs, one each; `tasks` beside them holds those of the tasks."""
        return self.home / "logs"

    def password_of(self, name: str) -> str:
        """A user's password."""
        return next(user.password for user in self.users if user.name == name)

    def log_in(self, name: str) -> str:
        """A bearer token of a user, for the API."""
        body = {"username": name, "password": self.password_of(name)}
        answer = httpx.post(f"{self.address}/auth/token", json=body, timeout=30)
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def kill(self, component: str) -> None:
        """SIGKILL to one component; its children go on, as they do when it crashes."""
        self._ask(f"kill {component}")
        del self._pids[component]

    def restart(self, component: str) -> None:
        """Starts a component that was killed."""
        self._pids[component] = self._ask(f"start {component}")["pid"]

    def wait(self) -> None:
        """Until a component ends by itself.

        Raises:
            EmbeddedError: that is what happened.
        """
        while self._keeper.poll() is None:
            time.sleep(_TICK)
        self._hear()

    def stop(self) -> None:
        """Ends everything that was started, tasks and what they started included."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_DOWN_WITHIN)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()
        self._process = None
        self._pids = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _keeper(self) -> subprocess.Popen[str]:
        assert self._process is not None, "it was stopped"
        return self._process

    def _spawn(
        self,
        environment: Mapping[str, str],
        components: Mapping[str, list[str]],
        progress: Say,
    ) -> None:
        (self.home / "dags").mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(exist_ok=True)
        _write_private(self.home / PASSWORDS, {user.name: user.password for user in self.users})
        airflow = [sys.executable, "-m", "airflow"]
        spec = {
            "prepare": [*airflow, "db", "migrate"],
            "components": {name: [*airflow, *words] for name, words in components.items()},
            "logs": str(self.logs),
        }
        _write_private(self.home / "keeper.json", spec)
        progress("Airflow's database is made")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(self.home / "keeper.json")],
            cwd=self.home,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C is ours: we stop it when we are ready.
            start_new_session=True,
            text=True,
        )
        self._pids = self._hear()["pids"]
        progress("Airflow's components start")

    def _ask(self, line: str) -> dict[str, Any]:
        stdin = self._keeper.stdin
        assert stdin is not None
        stdin.write(f"{line}\n")
        stdin.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        stdout: IO[str] | None = self._keeper.stdout
        assert stdout is not None
        line = stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"ended": "keeper"}
        if "ended" in answer:
            raise self._explain(f"{answer['ended']} ended", str(answer["ended"]))
        return answer

    def _wait_until_up(self, dags: set[str], progress: Say) -> None:
        parts = ["metadatabase", "scheduler", "dag_processor", "triggerer"]
        limit = time.monotonic() + _UP_WITHIN
        with httpx.Client(base_url=self.address, timeout=30) as client:
            while not (_is_healthy(client, parts) and listens(self._execution_port)):
                self._check(limit, "it is not healthy")
            progress("Airflow is healthy; its DAGs are read")
            client.headers["Authorization"] = f"Bearer {self.log_in(self.users[0].name)}"
            while missing := dags - _list_dags(client):
                if wrong := _list_import_errors(client):
                    raise EmbeddedError(
                        f"it could not be read: {wrong[0]['stack_trace'].strip()}",
                        subject=f"DAG file {wrong[0]['filename']}",
                    )
                self._check(limit, f"{', '.join(sorted(missing))} is not there")

    def _check(self, limit: float, otherwise: str) -> None:
        if self._keeper.poll() is not None:
            self._hear()
        if time.monotonic() > limit:
            raise self._explain(f"{otherwise} after {_UP_WITHIN:.0f} s", "api-server")
        time.sleep(_TICK)

    def _explain(self, what: str, component: str) -> EmbeddedError:
        log = self.logs / f"{component}.log"
        tail = ""
        with suppress(FileNotFoundError):
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        return EmbeddedError(
            f"{what}; the end of its log:\n{tail}\n" if tail else what,
            subject=f"Airflow at {self.address}",
            hint=f"read {log}",
        )


def _is_healthy(client: httpx.Client, parts: list[str]) -> bool:
    found = _ask_early(client, "/api/v2/monitor/health")
    return all(found.get(part, {}).get("status") == "healthy" for part in parts)


def _list_dags(client: httpx.Client) -> set[str]:
    return {dag["dag_id"] for dag in _ask_early(client, "/api/v2/dags", limit=100).get("dags", ())}


def _list_import_errors(client: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _ask_early(client, "/api/v2/importErrors").get(
        "import_errors", []
    )
    return found


def _ask_early(client: httpx.Client, path: str, **params: Any) -> dict[str, Any]:
    """The answer; nothing while nobody listens, or the database is locked by other components."""
    try:
        answer = client.get(path, params=params)
        found: dict[str, Any] = answer.json()
    except (httpx.TransportError, ValueError):
        return {}
    if answer.is_client_error:
        answer.raise_for_status()
    return found


def _write_private(path: Path, document: object) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(document, file)
