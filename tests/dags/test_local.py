"""Airflow on this machine: it starts, its DAGs are there, and nothing of it stays."""

from __future__ import annotations

import io
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

from backlogctl.config import load_config
from backlogctl.dags.local import demo, guard, standalone
from backlogctl.dags.local.standalone import AirflowStandalone
from backlogctl.errors import EmbeddedError, UsageError
from tests.dags.airflow import Airflow
from tests.kafka_tools import wait_until

# It starts a process in a session of its own, which loses its parent at once, as consumers do.
_PROGRAM = """
import subprocess, sys, time
again = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
sleep = [sys.executable, "-c", "import time; time.sleep(99)", "{mark}"]
subprocess.run([sys.executable, "-c", again, *sleep], check=True)
time.sleep(300)
"""


class Guarded:
    """A guard of a program that only sleeps, with a child that has left it."""

    def __init__(self, mark: str, program: str = _PROGRAM) -> None:
        self.mark = mark
        text = program.replace("{mark}", mark)
        self.command = [sys.executable, guard.__file__, sys.executable, "-c", text, mark]

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Starts it from this process."""
        return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def list_processes(self) -> list[int]:
        """What of the program runs."""
        found = []
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if words and words[-1] == self.mark and guard.__file__ not in words:
                found.append(process.pid)
        return found

    def await_count(self, count: int) -> None:
        """Waits until so many of its processes run."""
        wait_until(lambda: len(self.list_processes()) == count, 60, f"{count} processes run")


@pytest.mark.parametrize("ending", ["starter killed", "stdin closed", "SIGTERM", "SIGINT"])
def test_all_ends_with_its_starter(unique: str, ending: str) -> None:
    """What left its session and its parent ends too."""
    guarded = Guarded(unique)
    starter = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], "
    starter += "stdin=subprocess.PIPE, start_new_session=True); time.sleep(300)"
    before = [sys.executable, "-c", starter] if ending == "starter killed" else []
    process = guarded.start([*before, *guarded.command])
    guarded.await_count(2)
    assert process.stdin is not None
    if not before:
        states = {one.status() for one in psutil.Process(process.pid).children(recursive=True)}
        assert psutil.STATUS_ZOMBIE not in states, "who lost its parent and ended is reaped"
    if ending == "starter killed":
        process.kill()
    elif ending == "stdin closed":
        process.stdin.close()
    else:
        process.send_signal(getattr(signal, ending))
    assert process.wait(60) == (-signal.SIGKILL if before else 0)
    guarded.await_count(0)
    process.communicate()


def test_one_that_ends_by_itself_ends_all(unique: str) -> None:
    guarded = Guarded(unique, _PROGRAM.replace("time.sleep(300)", "sys.exit(7)"))
    process = guarded.start(guarded.command)
    assert process.wait(60) == 7
    assert not guarded.list_processes()
    process.communicate()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """Somebody listens on it: nothing is started."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(EmbeddedError, match=rf"127.0.0.1:{port}: the port is taken.*--port"):
            AirflowStandalone.start(tmp_path, config=tmp_path / "backlog.yaml", port=port)


@pytest.mark.airflow
def test_a_wrong_setting_is_explained(tmp_path: Path) -> None:
    """It ends while it starts: the end of its log is in the error."""
    wrong = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite:////not/there/airflow.db"}
    with pytest.raises(
        EmbeddedError, match=r"(?s)could not make its database.*unable to open database file"
    ):
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
            assert not standalone._is_healthy(client)
            assert standalone._list_dags(client) == set()
            answers.pop(0)
        parts = ("metadatabase", "scheduler", "dag_processor", "triggerer")
        healthy = {part: {"status": "healthy"} for part in parts}
        answers.append(httpx.Response(200, json=healthy))
        assert standalone._is_healthy(client)
        answers[0] = httpx.Response(200, json={**healthy, "scheduler": {"status": "unhealthy"}})
        assert not standalone._is_healthy(client)
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


def test_the_shops_configuration(tmp_path: Path) -> None:
    """It is one that everything else takes; nothing in it needs the environment."""
    config = load_config(demo.write_demo_configuration(tmp_path, "127.0.0.1:9092"), {})
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
