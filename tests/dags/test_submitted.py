"""What a task gives to spark-submit, and what it refuses to; a stand-in for it records that."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.providers.apache.spark.hooks import spark_submit
from pydantic import SecretStr

from backlogctl.dags import submission
from backlogctl.dags.configuration import load
from backlogctl.dags.submission import call
from backlogctl.errors import BacklogError, ConfigurationError, PlanStale, Refused
from backlogctl.replay.engine.brakes import CANARY, PausedBecause
from backlogctl.replay.engine.kind import Traits
from backlogctl.replay.engine.plan import acting_as
from backlogctl.replay.opening import open_workspace
from backlogctl.replay.runbooks.driver import main, read_outcome, stop_with_task, write_submission
from backlogctl_delivery.errors import UsageError
from tests.dags.submitting import GRACE, know
from tests.kit.recoveries import open_desk

SECRET = "hunter2@hunter2"
SPARK = Traits(uses_spark=True)
AUDIT = {"stream": "orders", "audit": "consumed"}
CLUSTER, CLIENT = {"deploy-mode": "cluster"}, {"deploy-mode": "client"}
KUBERNETES = {"conn_type": "k8s", "host": "https://api.example", "port": 6443}
_STAND_IN = f"""#!{sys.executable}
import json, os, pathlib, sys
place = pathlib.Path(sys.argv[-1].removeprefix("local://")).parent
files = [place, *place.iterdir()]
pathlib.Path(os.environ["SEEN"]).write_text(json.dumps({{
    "argv": sys.argv[1:],
    "connections": os.environ.get("BACKLOG_CONNECTIONS"),
    "open": [str(file) for file in files if file.stat().st_mode & 0o077],
    "texts": [file.read_text() for file in files[1:]],
}}))
print("Exit code: 0; \\033[31mreads as hunter2@hunter2")
if outcome := os.environ.get("LEAVES"):
    (place / "outcome.json").write_text(outcome)
else:
    sys.exit("no executor for hunter2@hunter2")
"""


class Worker:
    """A worker whose spark-submit is the stand-in."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        open_desk(directory).ledger.close()
        self._seen, self._patch = directory / "seen.json", patch
        binaries = directory / "bin"
        binaries.mkdir()
        (binaries / "spark-submit").write_text(_STAND_IN)
        (binaries / "spark-submit").chmod(0o755)
        for name, value in {
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "SEEN": str(self._seen),
            "LEAVES": '{"value": "done"}',
            "BACKLOG_CONFIG": str(directory / "backlog.yaml"),
        }.items():
            patch.setenv(name, value)

    def use_spark(self) -> None:
        """Spark's own spark-submit in its place."""
        binaries = Path(sys.executable).parent
        self._patch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")

    def know(self, **fields: Any) -> None:
        for name, value in know("backlogctl_spark", **fields).items():
            self._patch.setenv(name, value)

    def call(self, traits: Traits = SPARK, ledger: str = "") -> Any:
        opened = open_workspace(load())
        if ledger:
            config = opened.config.model_copy(update={"ledger": SecretStr(ledger)})
            opened = replace(opened, config=config)
        with acting_as(GRACE):
            return call(opened, "audit", AUDIT, traits)

    @property
    def seen(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._seen.read_text())
        return found


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(tmp_path, monkeypatch)


@pytest.fixture
def take_secret(worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration takes a connection's password."""
    document = json.loads((tmp_path / "backlog.yaml").read_text())
    url = "postgresql+psycopg://app:${airflow:shop.password}@db.example/shop"
    document["sources"] = {"shop": {"url": url}}
    (tmp_path / "backlog.yaml").write_text(json.dumps(document))
    for name, value in know("shop", "postgres", password=SECRET).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Airflow's provider for it the hook needs but a name, until a pod is to be deleted."""
    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
    monkeypatch.setattr(submission, "find_spec", lambda _: True)


def list_conf(argv: list[str]) -> dict[str, str]:
    given = [argv[at + 1] for at, word in enumerate(argv) if word == "--conf"]
    return dict(one.partition("=")[::2] for one in given)


def test_fault_160_secrets_go_by_the_environment_of_the_driver_alone(
    worker: Worker,
    take_secret: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Not on the command line, which all see, nor in a file; nor is a keytab open to others."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    keytab = base64.b64encode(b"keytab").decode()
    worker.know(host="local[2]", extra={**CLIENT, "keytab": keytab, "principal": "me"})
    assert worker.call() == "done"
    seen = worker.seen
    assert json.loads(seen["connections"]) == {"shop.password": SECRET}
    assert seen["open"] == []
    (kept,) = tmp_path.glob("airflow_keytab*")
    assert kept.stat().st_mode & 0o077 == 0
    said = capfd.readouterr().out
    for text in (*seen["argv"], *seen["texts"], said):
        assert "hunter2" not in text
        assert "\033" not in text
    assert "reads as ***" in said


def test_a_driver_beside_the_task_starts_with_all_settings(worker: Worker) -> None:
    """A JVM takes some of them, class path and options among them, only when it starts."""
    extra = {**CLIENT, "spark.pyspark.python": "/opt/python", "spark.driver.memory": "2g"}
    worker.know(host="local[2]", extra=extra)
    assert worker.call() == "done"
    argv = worker.seen["argv"]
    assert argv[:2] == ["--master", "local[2]"]
    assert argv[argv.index("--deploy-mode") + 1] == "client"
    conf = list_conf(argv)
    assert conf["spark.driver.memory"] == "2g"
    assert conf["spark.pyspark.driver.python"] == sys.executable
    assert "kafka" in conf["spark.driver.extraClassPath"]
    assert "-Duser.timezone=UTC" in conf["spark.driver.extraJavaOptions"]
    request = json.loads(next(text for text in worker.seen["texts"] if '"verb"' in text))
    assert request["spark"]["conf"] == {
        name: value for name, value in extra.items() if name.startswith("spark.")
    }
    assert request["approver"] == GRACE.to_json()


class ApiServer(ThreadingHTTPServer):
    """Of Kubernetes, as far as to be asked for a pod; it starts none."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Asked)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def find(self, kind: str) -> tuple[str, dict[str, Any]]:
        """The path and the document of the one of this kind."""
        (found,) = [one for one in self.asked if one[1]["kind"] == kind]
        return found


class _Asked(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Made, as it was asked for."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        cast("ApiServer", self.server).asked.append((self.path, body))
        body["metadata"]["uid"] = "1"
        self._answer(201, body)

    do_PATCH = do_POST  # noqa: N815

    def do_GET(self) -> None:
        """Nothing is known of it."""
        self._answer(403, {"kind": "Status", "status": "Failure", "code": 403})

    def _answer(self, code: int, document: dict[str, Any]) -> None:
        answer = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Nowhere."""


@pytest.fixture
def api_server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def test_a_driver_in_a_pod_has_its_own_jars(
    worker: Worker, kubernetes: None, api_server: ApiServer
) -> None:
    """Spark's own spark-submit asks for it. The application lies in the staging directory, which
    the pod has at the same path."""
    worker.use_spark()
    ref = "spark.kubernetes.driver.secretKeyRef.BACKLOG_PASSWORD"
    image = "spark.kubernetes.container.image"
    extra = {**CLUSTER, ref: "backlog:password", image: "backlogctl:1", "namespace": "kafka"}
    host, port = f"http://{api_server.server_address[0]!s}", api_server.server_address[1]
    worker.know(conn_type="k8s", host=host, port=port, extra=extra)
    with pytest.raises(BacklogError, match=r"left no outcome\n(?s:.*)Received 403"):
        worker.call(ledger="postgresql+psycopg://db.example/ledger")
    path, pod = api_server.find("Pod")
    assert path == "/api/v1/namespaces/kafka/pods"
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "backlogctl:1"
    assert container["args"][-1].startswith("local:///")
    assert container["args"][-1].endswith("/main.py")
    environment = {one["name"]: one.get("valueFrom") for one in container["env"]}
    named = {"secretKeyRef": {"key": "password", "name": "backlog"}}
    assert environment["BACKLOG_PASSWORD"] == named
    conf = api_server.find("ConfigMap")[1]["data"]["spark.properties"]
    assert "\nspark.driver.extraJavaOptions=-Duser.timezone\\=UTC\n" in conf
    # The hook reads how the pod ended in lines that a level would take away.
    for name in ("spark.jars=/", "spark.driver.extraClassPath", "spark.log.level"):
        assert name not in conf


def test_without_a_deploy_mode_the_task_is_the_driver(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "VERBS", {"audit": lambda *_: "here"})
    worker.know(host="local[2]")
    assert worker.call() == "here"
    worker.know(host="local[2]", extra=CLIENT)
    assert worker.call(Traits()) == "here", "it needs no Spark"
    stopping = replace(SPARK, stops_consumers=True)
    assert worker.call(stopping) == "here", "consumers would inherit the environment of a driver"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"host": "local", "extra": {"deploy-mode": "Client"}}, "take client or cluster"),
        ({"extra": CLIENT}, "no host"),
        ({"host": "local[2]", "extra": CLUSTER}, "make deploy-mode client"),
        ({"host": "spark://m:7077", "extra": CLUSTER}, "make deploy-mode client"),
        ({**KUBERNETES, "extra": CLIENT}, "airflow-providers-cncf-kubernetes"),
        (
            {"host": "local", "extra": {**CLIENT, "spark-binary": "spark3-submit"}},
            "no spark3-submit on the worker's PATH",
        ),
        ({"host": "yarn", "extra": CLUSTER}, "PostgreSQL for the ledger"),
    ],
)
def test_what_cannot_work_is_refused(worker: Worker, fields: dict[str, Any], told: str) -> None:
    worker.know(**fields)
    with pytest.raises((ConfigurationError, Refused), match=told) as caught:
        worker.call()
    assert caught.value.subject == "connection backlogctl_spark"


@pytest.mark.parametrize("installed", ["airflow.providers", "airflow.providers.apache"])
def test_without_airflows_spark_provider_it_is_said_what_to_install(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, installed: str
) -> None:
    """Also where another provider of Apache's is there, and Spark's alone is not."""
    monkeypatch.setattr(sys.modules[installed], "__path__", [])
    for name in [name for name in sys.modules if name.startswith("airflow.providers.apache")]:
        if name != installed:
            monkeypatch.delitem(sys.modules, name)
    worker.know(host="local[2]", extra=CLIENT)
    with pytest.raises(ConfigurationError, match="Spark provider is not installed") as caught:
        worker.call()
    way_out = "pip install --no-deps apache-airflow-providers-apache-spark, or remove deploy-mode"
    assert way_out in str(caught.value)


def test_a_driver_elsewhere_cannot_ask_airflow(worker: Worker, take_secret: None) -> None:
    worker.know(host="yarn", extra=CLUSTER)
    with pytest.raises(Refused, match=r"cannot ask Airflow for shop.password.*secretKeyRef"):
        worker.call(ledger="postgresql+psycopg://db.example/ledger")


def test_a_driver_elsewhere_stops_no_consumers(worker: Worker) -> None:
    worker.know(host="yarn", extra=CLUSTER)
    with pytest.raises(Refused, match="stopped and started from the worker"):
        worker.call(replace(SPARK, stops_consumers=True), "postgresql+psycopg://db/ledger")


def test_a_driver_that_left_nothing_is_tried_again(
    worker: Worker, take_secret: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAVES", "")
    worker.know(host="local[2]", extra=CLIENT)
    with pytest.raises(
        BacklogError, match=r"left no outcome\n(?s:.*)no executor for \*\*\*"
    ) as caught:
        worker.call()
    assert caught.value.retryable


@pytest.mark.parametrize("ends", ["removed", "silent"])
def test_fault_159_a_driver_is_stopped_where_its_task_is_gone(tmp_path: Path, ends: str) -> None:
    """As long as the task counts it works on."""
    alive, asked, over = tmp_path / "alive", list[int](), threading.Event()
    alive.write_text("0")

    def count() -> None:
        for number in range(8):
            alive.write_text(str(number))
            assert not over.wait(0.5)
            assert asked == []
        if ends == "removed":
            alive.unlink()

    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    counting = threading.Thread(target=count)
    try:
        counting.start()
        stop_with_task(alive, threading.Event(), silent=5.0)
        assert not counting.is_alive(), "it did not wait for the task"
    finally:
        over.set()
        counting.join()
        signal.signal(signal.SIGTERM, before)
    assert asked == [signal.SIGTERM]


def raise_in_driver(folder: Path, error: BaseException, patch: pytest.MonkeyPatch) -> None:
    """The driver's whole program, in this process."""

    def fail(*_: object) -> None:
        raise error

    patch.setattr("backlogctl.replay.runbooks.driver.VERBS", {"audit": fail})
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit):
            main(str(folder))
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "error",
    [
        PausedBecause(CANARY, "too slow", subject="recovery r-1", hint="look"),
        PlanStale("it moved", subject="topic orders", retryable=True),
        UsageError("no such stream"),
    ],
)
def test_an_error_of_the_driver_is_the_tasks(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BacklogError
) -> None:
    error.next_commands = ("backlogctl show r-1",)
    folder = tmp_path / "submission"
    request = {
        "verb": "audit",
        "args": AUDIT,
        "approver": GRACE.to_json(),
        "config": str(tmp_path / "backlog.yaml"),
        "spark": {"master": "local[2]", "conf": {}},
    }
    write_submission(folder, request)
    raise_in_driver(folder, error, monkeypatch)
    with pytest.raises(type(error)) as caught:
        read_outcome(folder)
    left = [one for one in threading.enumerate() if "stop_with_task" in one.name]
    for thread in left:
        thread.join(5)
    assert not any(thread.is_alive() for thread in left), "it would stop who comes after it"
    assert str(caught.value) == str(error)
    assert caught.value.retryable is error.retryable
    assert list(caught.value.next_commands) == ["backlogctl show r-1"]
    assert getattr(caught.value, "why", "") == getattr(error, "why", "")
