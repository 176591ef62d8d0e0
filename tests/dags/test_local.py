"""Airflow on this machine: it starts, its DAGs are there, and nothing of it stays."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from rich.console import Console

from backlog.config import load_config
from backlog.errors import EmbeddedError, UsageError
from backlogctl_airflow.local import demo, keeper, standalone
from backlogctl_airflow.local.standalone import AirflowStandalone
from tests.dags.airflow import Airflow
from tests.kafka_tools import wait_until

# It starts a process in a session of its own, which loses its parent at once, as consumers do.
_COMPONENT = """
import subprocess, sys, time
again = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
sleep = [sys.executable, "-c", "import time; time.sleep(300)", "{mark}"]
subprocess.run([sys.executable, "-c", again, *sleep], check=True)
time.sleep(300)
"""


class Kept:
    """A keeper of components that only sleep."""

    def __init__(self, directory: Path, mark: str, **components: str) -> None:
        self.mark = mark
        self._spec = directory / "spec.json"
        spec = {
            "prepare": [sys.executable, "-c", "pass"],
            "components": {
                name: [sys.executable, "-c", text.replace("{mark}", mark), mark]
                for name, text in components.items()
            },
            "logs": str(directory),
        }
        self._spec.write_text(json.dumps(spec))

    @property
    def command(self) -> list[str]:
        """Starts it."""
        return [sys.executable, "-I", "-S", keeper.__file__, str(self._spec)]

    def start(self) -> subprocess.Popen[str]:
        """Starts it from this process."""
        return subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def list_processes(self) -> list[int]:
        """What of it runs."""
        found = []
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if self.mark in words and process.pid != os.getpid():
                found.append(process.pid)
        return found

    def await_count(self, count: int) -> None:
        """Waits until so many of its processes run."""
        wait_until(lambda: len(self.list_processes()) == count, 60, f"{count} processes run")


def test_all_ends_with_its_starter(tmp_path: Path, unique: str) -> None:
    """The starter is killed: what it started ends too, also what left its group and its parent."""
    kept = Kept(tmp_path, unique, scheduler=_COMPONENT, api=_COMPONENT)
    starter = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], "
    starter += "stdin=subprocess.PIPE, start_new_session=True); time.sleep(300)"
    process = subprocess.Popen([sys.executable, "-c", starter, *kept.command])
    kept.await_count(4)
    process.kill()
    process.wait()
    kept.await_count(0)


def test_one_that_ends_ends_all(tmp_path: Path, unique: str) -> None:
    """A component that ends by itself is told, with its exit code; the others do not go on."""
    kept = Kept(tmp_path, unique, scheduler=_COMPONENT, api="import time; time.sleep(300)")
    process = kept.start()
    assert process.stdout is not None
    pids = json.loads(process.stdout.readline())["pids"]
    kept.await_count(3)
    os.kill(pids["api"], signal.SIGTERM)
    assert json.loads(process.stdout.readline()) == {"ended": "api", "code": -signal.SIGTERM}
    assert process.wait(60) == 1
    assert not kept.list_processes()
    process.communicate()


def test_one_is_killed_and_started_again(tmp_path: Path, unique: str) -> None:
    """When it is asked for; the others go on."""
    kept = Kept(tmp_path, unique, scheduler="import time; time.sleep(300)", api=_COMPONENT)
    process = kept.start()
    assert process.stdout is not None
    assert process.stdin is not None
    pids = json.loads(process.stdout.readline())["pids"]
    kept.await_count(3)
    for line in ("kill scheduler", "start scheduler"):
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        said = json.loads(process.stdout.readline())
        assert (said["pid"] == pids["scheduler"]) == line.startswith("kill")
        assert psutil.pid_exists(said["pid"]) == line.startswith("start")
    kept.await_count(3)
    process.communicate()
    assert process.returncode == 0
    assert not kept.list_processes()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """Somebody listens on it: nothing is started."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(EmbeddedError, match=rf"127.0.0.1:{port}: the port is taken.*--port"):
            AirflowStandalone.start(tmp_path, config=tmp_path / "backlog.yaml", port=port)


@pytest.mark.airflow
def test_a_wrong_setting_is_explained(tmp_path: Path) -> None:
    """A component ends while it starts: the end of its log is in the error."""
    wrong = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite:////not/there/airflow.db"}
    with pytest.raises(EmbeddedError, match=r"(?s)prepare ended.*unable to open database file"):
        AirflowStandalone.start(tmp_path, config=tmp_path / "backlog.yaml", extra_env=wrong)


def test_what_is_not_there_yet_is_waited_for() -> None:
    """While Airflow starts its components lock the database for each other."""
    answers: list[Any] = [
        httpx.ConnectError("nobody listens"),
        httpx.ReadTimeout("busy"),
        httpx.Response(500, json={"detail": "database is locked"}),
        httpx.Response(502, text="no JSON"),
    ]

    def answer(request: httpx.Request) -> httpx.Response:
        if isinstance(found := answers[0], Exception):
            raise found
        return httpx.Response(found.status_code, content=found.content)

    with httpx.Client(base_url="http://x", transport=httpx.MockTransport(answer)) as client:
        while answers:
            assert not standalone._is_healthy(client, ["scheduler"])
            assert standalone._list_dags(client) == set()
            assert standalone._list_import_errors(client) == []
            answers.pop(0)
        answers.append(httpx.Response(200, json={"scheduler": {"status": "healthy"}}))
        assert standalone._is_healthy(client, ["scheduler"])
        assert not standalone._is_healthy(client, ["scheduler", "dag_processor"])
        answers[0] = httpx.Response(200, json={"dags": [{"dag_id": "a"}]})
        assert standalone._list_dags(client) == {"a"}
        answers[0] = httpx.Response(403, json={})
        with pytest.raises(httpx.HTTPStatusError):
            standalone._list_dags(client)


def test_the_runbooks_are_there(airflow: Airflow) -> None:
    """Every DAG file was read, and what one sees first is there."""
    assert airflow.get("/api/v2/importErrors")["import_errors"] == []
    found = {dag["dag_id"] for dag in airflow.get("/api/v2/dags", user="oncall")["dags"]}
    assert {"detect_backlog", "recover_backlog"} < found
    assert any(name.startswith("nightly_backfill") for name in found)


def test_tasks_have_an_api_of_their_own(airflow: Airflow) -> None:
    """One event loop for both would wait for SQLite while one of its own requests holds it."""
    assert set(airflow.standalone.pids) == {
        "api-server", "execution-api", "scheduler", "dag-processor", "triggerer",
    }  # fmt: skip
    told = Path(f"/proc/{airflow.standalone.pids['scheduler']}/environ").read_text()
    settings = dict(word.split("=", 1) for word in told.split("\0") if "=" in word)
    execution = settings["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]
    answer = httpx.get(f"{execution}health", timeout=30)
    assert answer.json() == {"status": "healthy"}
    # Where people are, any other path is the UI's.
    answer = httpx.get(f"{airflow.standalone.address}/execution/health", timeout=30)
    assert not answer.headers["content-type"].startswith("application/json")
    with pytest.raises(httpx.HTTPError):
        httpx.get(
            f"{execution.removesuffix('execution/')}api/v2/version", timeout=30
        ).raise_for_status()


def test_what_the_tests_do_to_it(airflow: Airflow) -> None:
    """A run is triggered, answered as soon as it asks, killed, cleared, and marked."""
    run = airflow.trigger("trial", {"seconds": 300}, user="oncall")
    airflow.answer(run, "ask", user="second")
    airflow.await_state(run, "work", {"running"})
    folder = airflow.standalone.home / "logs"
    wait_until(
        lambda: any("it works" in log.read_text() for log in folder.rglob("task_id=work/*.log")),
        60,
        "it works",
    )
    airflow.find_task(run, "work").kill()
    airflow.await_state(run, "work", {"failed"})
    airflow.await_run(run, {"failed"})
    airflow.clear(run, "work")
    airflow.await_state(run, "work", {"running"})
    airflow.mark(run, "failed")
    airflow.await_run(run, {"failed"})
    quick = airflow.trigger("trial")
    airflow.answer(quick, "ask")
    airflow.await_run(quick, {"success"})
    assert airflow.xcom(quick, "work") == "worked"


def test_the_shops_configuration(tmp_path: Path) -> None:
    """It is one that everything else takes; nothing in it needs the environment."""
    config = load_config(demo.write_configuration(tmp_path, "127.0.0.1:9092"), {})
    assert set(config.streams) == {"orders", "payments"}
    assert config.stream("orders").source is not None
    consumers = config.stream("payments").consumers
    assert consumers is not None
    assert consumers.directory == tmp_path
    properties = config.clusters["main"].client_properties()
    assert properties["bootstrap.servers"] == "127.0.0.1:9092"


def test_where_the_shop_has_its_files(tmp_path: Path) -> None:
    """They go at the end, also after Ctrl-C; they stay where something failed, or if asked to."""
    console = Console(file=io.StringIO(), width=200)
    with demo.open_place(None, console) as place:
        assert place.is_dir()
    assert not place.exists()
    with pytest.raises(KeyboardInterrupt), demo.open_place(None, console) as place:
        raise KeyboardInterrupt
    assert not place.exists()
    with pytest.raises(EmbeddedError), demo.open_place(None, console) as place:
        raise EmbeddedError("the port is taken")
    assert not place.exists()
    with pytest.raises(EmbeddedError), demo.open_place(None, console) as place:
        raise EmbeddedError(f"the scheduler ended: {(place / 'log').write_text('why')}")
    assert str(place) in console.file.getvalue()  # type: ignore[attr-defined]
    shutil.rmtree(place)
    with demo.open_place(tmp_path / "kept", console) as place:
        (place / "file").touch()
    assert place.is_dir()
    with (
        pytest.raises(UsageError, match="there is something in it"),
        demo.open_place(tmp_path / "kept", console),
    ):
        pass
