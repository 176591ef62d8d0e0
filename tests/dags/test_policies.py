"""The DAGs' names and schedules, Airflow's connections, and Airflow on this machine."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pendulum
import psutil
import pytest
from airflow import settings
from airflow.models.variable import Variable as Metadata
from airflow.sdk import Connection, Variable
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.timetables.interval import CronDataIntervalTimetable
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from sqlalchemy import create_engine, make_url, select
from sqlalchemy.orm import Session

from backlogctl.config import OffPeak, SparkSection, load_config
from backlogctl.config.root import Outline, StreamOutline, read_outline
from backlogctl.dags import configuration
from backlogctl.dags.configuration import find_field, load, read_spark
from backlogctl.dags.local import demo, guard, standalone
from backlogctl.dags.local.standalone import AirflowStandalone
from backlogctl.dags.notes import on_starting
from backlogctl.dags.policies import DEPLOYMENT, find_cron, find_zone
from backlogctl.errors import ConfigurationError, EmbeddedError, UsageError
from tests.dags.airflow import Airflow
from tests.kit.kafka import wait_until
from tests.kit.recoveries import write_config

BERLIN, SHANGHAI = "Europe/Berlin", "Asia/Shanghai"
TIMES = st.times().map(lambda at: at.replace(second=0, microsecond=0))


def make(*windows: str | None, zone: str = BERLIN, rebuilds: bool = True) -> Outline:
    """One stream for each window, `22:30-06:00` or with its zone behind."""
    return Outline(Path("backlog.yaml"), tuple(_make_stream(w, zone, rebuilds) for w in windows))


def _make_stream(window: str | None, zone: str, rebuilds: bool) -> StreamOutline:
    if window is None:
        return StreamOutline("any-time", rebuilds, None)
    hours, _, own = window.partition(" ")
    start, end = hours.split("-")
    off_peak = OffPeak.model_validate({"from": start, "to": end, "timezone": own or zone})
    return StreamOutline("orders", rebuilds, off_peak)


@pytest.mark.parametrize(
    ("windows", "cron"),
    [
        ([], "30 0 * * *"),
        ([None, None], "30 0 * * *"),
        (["22:30-06:00"], "30 22 * * *"),
        (["00:30-06:00"], "30 0 * * *"),
        # Both are open from one on.
        (["22:30-06:00", "01:00-05:00"], "0 1 * * *"),
        (["01:00-05:00", "22:30-06:00"], "0 1 * * *"),
        # Two of three.
        (["20:00-21:00", "01:00-05:00", "02:00-03:00"], "0 2 * * *"),
        # Across midnight and before it.
        (["23:00-01:00", "23:30-00:30", "04:00-05:00"], "30 23 * * *"),
        # Never two at once: the first of the day.
        (["03:00-04:00", "01:00-02:00"], "0 1 * * *"),
        # One ends where the other begins.
        (["01:00-02:00", "02:00-03:00"], "0 1 * * *"),
        (["00:00-23:59", "23:59-00:00"], "0 0 * * *"),
    ],
)
def test_it_runs_when_most_windows_are_open(windows: list[str | None], cron: str) -> None:
    zone = BERLIN if any(windows) else "UTC"
    assert find_cron(make(*windows), zone) == cron


@given(st.lists(st.tuples(TIMES, TIMES).filter(lambda w: w[0] != w[1]), min_size=1, max_size=5))
def test_no_other_minute_has_more_of_them_open(windows: list[tuple[time, time]]) -> None:
    outline = make(*(f"{start:%H:%M}-{end:%H:%M}" for start, end in windows))
    minute, hour, *rest = find_cron(outline, BERLIN).split()
    assert rest == ["*", "*", "*"]

    def count_open(at: time) -> int:
        day = datetime.combine(date(2026, 1, 15), at, ZoneInfo(BERLIN))
        found = [stream.off_peak for stream in outline.streams]
        return sum(window.window().contains(day) for window in found if window)

    best = count_open(time(int(hour), int(minute)))
    # More are open only where one opens.
    assert best == max(count_open(start) for start, _ in windows) >= 1


def test_streams_of_another_zone_or_without_a_source_do_not_count() -> None:
    outline = make("22:30-06:00", f"03:00-04:00 {SHANGHAI}", f"02:00-04:00 {SHANGHAI}", None)
    assert find_cron(outline, BERLIN) == "30 22 * * *"
    assert find_cron(outline, SHANGHAI) == "0 3 * * *"
    assert find_cron(outline, "UTC") == "30 0 * * *"
    silent = make("22:30-06:00", rebuilds=False)
    assert find_zone(silent) == "UTC"
    assert find_cron(silent, BERLIN) == "30 0 * * *"


def test_the_zone_is_that_of_most_streams_that_can_be_rebuilt() -> None:
    assert find_zone(make()) == "UTC"
    assert find_zone(make(None, None)) == "UTC"
    assert find_zone(make("22:30-06:00", f"01:00-02:00 {SHANGHAI}")) == BERLIN, "the first of two"
    assert find_zone(make("22:30-06:00", *[f"01:00-02:00 {SHANGHAI}"] * 2)) == SHANGHAI
    assert find_zone(make("22:30-06:00", None, None)) == BERLIN, "any time is no zone"


@pytest.mark.parametrize("day", ["2026-03-28", "2026-10-24"])
def test_fault_40_a_missing_or_doubled_hour_costs_no_night(day: str) -> None:
    """In Berlin 02:30 is missing on 29 March 2026, and there twice on 25 October."""
    timetable = CronDataIntervalTimetable(find_cron(make("02:30-05:00"), BERLIN), timezone=BERLIN)
    at = pendulum.instance(datetime.fromisoformat(day).replace(hour=12, tzinfo=ZoneInfo(BERLIN)))
    nights = [at := timetable._get_next(at) for _ in range(3)]
    days = [date.fromisoformat(day), *(night.in_timezone(BERLIN).date() for night in nights)]
    assert all(later - earlier == timedelta(days=1) for earlier, later in pairwise(days))


def test_a_bad_file_still_has_its_night(tmp_path: Path) -> None:
    for content in ("", "{", "streams: {orders: {source: {}, off_peak: {timezone: Mars}}}"):
        file = tmp_path / "backlog.yaml"
        file.write_text(content)
        outline = read_outline(file, {})
        assert find_zone(outline) == "UTC"
        assert find_cron(outline, "UTC") == "30 0 * * *"
    assert find_zone(read_outline(tmp_path / "nowhere.yaml", {})) == "UTC"


Know = Callable[..., None]


@pytest.fixture
def know(monkeypatch: pytest.MonkeyPatch) -> Know:
    """Adds a connection to those that Airflow knows."""
    known: dict[str, Connection] = {}

    def get(connection_id: str) -> Connection:
        if connection_id not in known:
            raise AirflowNotFoundException(f"The conn_id `{connection_id}` isn't defined")
        return known[connection_id]

    def add(conn_id: str, **fields: Any) -> None:
        known[conn_id] = Connection(conn_id=conn_id, **fields)

    monkeypatch.setattr(Connection, "get", get)
    monkeypatch.delenv(configuration.SPARK_CONNECTION, raising=False)
    return add


def test_a_field_of_a_connection(know: Know) -> None:
    extra = json.dumps({"sasl.username": "app", "depth": 3})
    know("shop", conn_type="postgres", host="db", port=5433, login="me", password="p@ss",
         schema="public", extra=extra)  # fmt: skip
    fields = {
        "host": "db",
        "port": "5433",
        "login": "me",
        "password": "p@ss",
        "schema": "public",
        "extra.sasl.username": "app",
        "extra.depth": "3",
        "extra.nothing": "",
    }
    for field, value in fields.items():
        assert find_field(f"shop.{field}") == value


def test_there_may_be_dots_in_a_connections_id(know: Know) -> None:
    know("prod.kafka.main", conn_type="kafka", password="s3cr3t", extra='{"a.extra.b": "c"}')
    assert find_field("prod.kafka.main.password") == "s3cr3t"
    assert find_field("prod.kafka.main.extra.a.extra.b") == "c"


@pytest.mark.parametrize("name", ["shop", "shop.", ".password", "shop.user", "."])
def test_what_is_no_field_is_told_so(know: Know, name: str) -> None:
    know("shop", conn_type="postgres", host="db")
    with pytest.raises(LookupError, match="names no field of a connection"):
        find_field(name)


def test_what_is_not_there_is_told_so(know: Know) -> None:
    know("odd", conn_type="kafka", extra="[1]")
    assert find_field("odd.host") == find_field("odd.extra.x") == ""
    with pytest.raises(LookupError, match="no connection shop: add it under Admin"):
        find_field("shop.password")


def test_the_file_is_read_with_connections(
    know: Know, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://reader:${airflow:shop.password}@${airflow:shop.host}/shop"
    file = write_config(tmp_path, sources={"shop": {"url": url, "timezone": "UTC"}})
    monkeypatch.setenv("BACKLOG_CONFIG", str(file))
    with pytest.raises(ConfigurationError) as caught:
        load()
    assert "sources.shop.url" in str(caught.value)
    assert "no connection shop" in str(caught.value)
    know("shop", conn_type="postgres", host="db.example", password="hunter2@hunter2")
    config = load()
    assert "reader:hunter2%40hunter2@db.example" in config.sources["shop"].reveal_url()
    assert config.mask_secrets("it is hunter2@hunter2") == "it is ***"
    assert config.spark == SparkSection()
    know("backlogctl_spark", conn_type="spark", host="spark://master", port=7077)
    assert load().spark.master == "spark://master:7077"
    know("own", conn_type="spark", host="yarn")
    monkeypatch.setenv(configuration.SPARK_CONNECTION, "own")
    assert load().spark.master == "yarn"
    know("own", conn_type="k8s", host="https://api.example", port=6443)
    assert load().spark.master == "k8s://https://api.example:6443"
    know("own", conn_type="k8s")
    assert load().spark.master == "local[*]"


def test_a_cluster_and_a_database_are_connections(
    know: Know, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the providers of Kafka and of databases have them, whose `Test` works."""
    file = write_config(
        tmp_path,
        clusters={"main": {"conn_id": "kafka", "socket.timeout.ms": "9000"}},
        sources={"shop": {"conn_id": "shop", "timezone": "UTC"}},
    )
    monkeypatch.setenv("BACKLOG_CONFIG", str(file))
    with pytest.raises(ConfigurationError) as caught:
        load()
    assert "clusters.main.conn_id" in str(caught.value)
    assert "no connection kafka: add it" in str(caught.value)
    extra = {
        "bootstrap.servers": "broker:9093",
        "group.id": "of the provider",
        "auto.offset.reset": "latest",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.password": "hunter3hunter3",
        "socket.timeout.ms": 1000,
        "enable.ssl.certificate.verification": True,
    }
    know("kafka", conn_type="kafka", extra=json.dumps(extra))
    know("shop", conn_type="postgres", host="db.example", login="reader", schema="sold",
         password="p@ss/word", port=5433, extra='{"sslmode": "require", "a": 1}')  # fmt: skip
    config = load()
    assert config.clusters["main"].client_properties() == {
        "bootstrap.servers": "broker:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.password": "hunter3hunter3",
        "socket.timeout.ms": "9000",
        "enable.ssl.certificate.verification": "true",
    }
    url = make_url(config.sources["shop"].reveal_url())
    assert (url.drivername, url.host, url.port) == ("postgresql+psycopg", "db.example", 5433)
    assert (url.password, url.database, url.query) == ("p@ss/word", "sold", {"sslmode": "require"})
    shown = config.mask_secrets("hunter3hunter3 p@ss/word db.example broker:9093")
    assert shown == "*** *** db.example broker:9093"
    with pytest.raises(ConfigurationError, match="known to Airflow only"):
        load_config(file)


def test_a_kubernetes_is_a_connection(
    know: Know, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its provider has them, of today and of before Airflow 2.3."""
    pods = {"workload": "deployment/shop", "conn_id": "pods", "namespace": "till"}
    consumers = {"launcher": "kubernetes", "replicas": 2, "kubernetes": pods}
    stream = {"cluster": "main", "topic": "orders", "group": "shop", "consumers": consumers}
    file = write_config(tmp_path, streams={"orders": stream})
    monkeypatch.setenv("BACKLOG_CONFIG", str(file))
    content = json.dumps({"users": [{"user": {"token": "hunter2"}}]})
    extra = {"kube_config": content, "namespace": "shop", "extra__kubernetes__cluster_context": "a"}
    know("pods", conn_type="kubernetes", extra=json.dumps({**extra, "in_cluster": False}))
    read = load().stream("orders").consumers
    assert read is not None
    assert read.kubernetes is not None
    assert read.kubernetes.kubeconfig_text is not None
    assert read.kubernetes.kubeconfig_text.get_secret_value() == content
    assert (read.kubernetes.namespace, read.kubernetes.context) == ("till", "a")
    assert "hunter2" not in read.model_dump_json()
    know("pods", conn_type="kubernetes", extra=json.dumps({"kube_config_path": "/etc/kube"}))
    read = load().stream("orders").consumers
    assert read is not None
    assert read.kubernetes is not None
    assert (read.kubernetes.kubeconfig_text, read.kubernetes.kubeconfig) == (
        None,
        Path("/etc/kube"),
    )


def test_a_connection_that_is_no_database_is_told(know: Know) -> None:
    know("web", conn_type="http", host="x")
    with pytest.raises(LookupError, match="of the type http, no database"):
        find_field("web.url")
    know("file", conn_type="sqlite", host="/srv/shop.db")
    assert find_field("file.url") == "sqlite:////srv/shop.db"


@pytest.mark.parametrize(
    ("fields", "master"),
    [
        ({}, "local[2]"),
        ({"host": "local[*]"}, "local[*]"),
        ({"host": "yarn"}, "yarn"),
        ({"host": "master", "port": 7077}, "spark://master:7077"),
        ({"host": "spark://master", "port": 7077}, "spark://master:7077"),
        ({"host": "spark://master:7077"}, "spark://master:7077"),
        ({"host": "k8s://https://api", "port": 6443}, "k8s://https://api:6443"),
    ],
)
def test_where_spark_runs(fields: dict[str, Any], master: str) -> None:
    section = SparkSection(master="local[2]", conf={"spark.a": "1", "spark.b": "2"})
    found = read_spark(Connection(conn_id="s", conn_type="spark", **fields), section)
    assert found == SparkSection(master=master, conf=section.conf)


def test_settings_of_a_connection_go_over_the_files() -> None:
    extra = {"spark.b": 3, "spark.c": True, "deploy-mode": "client", "queue": "x"}
    connection = Connection(conn_id="s", conn_type="spark", host="yarn", extra=json.dumps(extra))
    section = SparkSection(conf={"spark.a": "1", "spark.b": "2"})
    assert read_spark(connection, section).conf == {
        "spark.a": "1",
        "spark.b": "3",
        "spark.c": "true",
    }


@pytest.mark.parametrize(
    "extra",
    [
        {"spark.speculation": "true"},
        {"spark.hadoop.fs.s3a.secret.key": "hunter2hunter2"},
        {"spark.driver.extraJavaOptions": "-javaagent:hunter2hunter2.jar"},
        {"spark.a": ["hunter2hunter2"]},
    ],
)
def test_fault_59_a_setting_that_is_refused_is_named_and_not_shown(extra: dict[str, Any]) -> None:
    connection = Connection(conn_id="s", conn_type="spark", extra=json.dumps(extra))
    with pytest.raises(ConfigurationError) as caught:
        read_spark(connection, SparkSection())
    assert caught.value.subject == "connection s"
    assert next(iter(extra)) in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None


def test_fault_155_schedulers_that_start_at_once_give_airflow_one_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find none; its name is there once, and who comes later changes nothing."""
    engine = create_engine(f"sqlite:///{tmp_path / 'airflow.db'}")
    Metadata.__table__.create(engine)
    both = threading.Barrier(2, timeout=30)

    class Late(Session):
        def commit(self) -> None:
            with suppress(threading.BrokenBarrierError):
                both.wait()
            super().commit()

    monkeypatch.setattr(settings, "NonScopedSession", lambda: Late(engine))

    def start(component: object) -> None:
        on_starting(component=component)

    job = type("Job", (), {})()
    with ThreadPoolExecutor() as schedulers:
        list(schedulers.map(start, [job, job]))
    with Session(engine) as session:
        (made,) = session.scalars(select(Metadata))
    both.abort()
    start(job)
    with Session(engine) as session:
        assert [one.val for one in session.scalars(select(Metadata))] == [made.val]
    assert re.fullmatch("x[0-9a-f]{8}", made.val)
    monkeypatch.setattr(settings, "NonScopedSession", None)
    start(object())  # a task has no database


def test_an_id_that_cannot_be_read_is_not_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would disown all recoveries. Where there is none, as in `airflow dags test`, one is made."""
    kept: dict[str, str] = {}
    monkeypatch.setattr(Variable, "get", lambda *_, **__: kept.get(DEPLOYMENT, ""))
    monkeypatch.setattr(Variable, "set", lambda name, value, **_: kept.update({name: value}))
    monkeypatch.setattr(Variable, "keys", lambda **_: [DEPLOYMENT])
    with pytest.raises(ConfigurationError, match="could not be read") as caught:
        configuration.find_deployment()
    assert caught.value.retryable
    monkeypatch.setattr(Variable, "keys", lambda **_: [])
    assert configuration.find_deployment() == kept[DEPLOYMENT]
    assert len(kept[DEPLOYMENT]) == 8


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
