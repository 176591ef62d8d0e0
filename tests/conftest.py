"""Fixtures: real services shared by the run; a topic, a group and a database for each test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from backlogctl.clock import Deadline
from backlogctl.config import root
from backlogctl.jars import ensure_jars
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import Admin, make_admin
from backlogctl.ledger import Ledger, open_ledger
from backlogctl.sandbox.embedded import EmbeddedKafka
from examples.stage import SHORT_LIVED_JVM
from tests.borrowing import Lender, borrow, start_kafka
from tests.durations import Durations
from tests.kit.registry import EmbeddedRegistry
from tests.kit.services import BorrowedKafka, EmbeddedMariaDb, EmbeddedPostgres, Postgres
from tests.quick import Long, Quick

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kit.kubelet import Kubelet
    from tests.sharing import Shares
    from tests.spark_backfill.standalone import StandaloneSpark

MakeTopic = Callable[..., str]

_TOPIC_SECONDS = 90.0
_MARKED_BY = {name: name for name in ("kafka", "kubernetes", "postgres", "spark")}
# Each starts a dozen processes, one after the other.
_STORIES, _LONG = ("tests/replay/expand/", "tests/replay/offload/"), 900

settings.register_profile(
    "quick", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", parent=settings.get_profile("quick"), derandomize=True)
settings.register_profile("thorough", max_examples=2000, deadline=None)
# A run of several processes judges a change: it has the same examples each time.
_JUDGES = "CI" in os.environ or "PYTEST_XDIST_WORKER" in os.environ
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if _JUDGES else "quick"))


# Everything is compiled once, also where whoever started us wants no byte code kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Each broker or Spark of a test lives for seconds: without the optimizing compiler it takes half
# the CPU.
os.environ.setdefault("JDK_JAVA_OPTIONS", SHORT_LIVED_JVM)
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN",
)

_LENDER = pytest.StashKey[Lender]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """What `make test ARGS=...` takes beside pytest's own options."""
    parser.addoption("--quick", action="store_true", help="leave out whole stories and big tools")
    parser.addoption("--write-clients", action="store_true", help="write docs/clients.md anew")
    parser.addoption(
        "--record-durations", action="store_true", help="write tests/durations.json anew"
    )


def pytest_configure(config: pytest.Config) -> None:
    """SIGTERM ends the run as Ctrl-C does, so that no service stays."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if config.getoption("record_durations") and not _is_led(config):
        config.pluginmanager.register(Durations())
    if config.getoption("write_clients") and not _is_led(config):
        from tests.clients.table import Table

        config.pluginmanager.register(Table())
    if config.getoption("quick"):
        config.pluginmanager.register(Quick())
    if os.environ.get("LEAVE_OUT_LONG"):
        config.pluginmanager.register(Long())


def pytest_unconfigure(config: pytest.Config) -> None:
    """All processes of the run have ended."""
    if lender := config.stash.get(_LENDER, None):
        lender.close()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Called by the process that leads several, before each of them starts."""
    if _LENDER not in node.config.stash:
        node.config.stash[_LENDER] = Lender(_find_place(node.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares | None:
    """Several processes share the files as `tests.sharing` tells, if they share by file."""
    from tests.sharing import Shares

    is_by_file = config.getoption("dist") == "loadfile"
    return Shares(config, log, _find_place(config)) if is_by_file else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """The process that leads several collects no tests itself."""
    if _is_led(session.config):
        from tests.sharing import write_needs

        process = session.config.workerinput["workerid"]  # type: ignore[attr-defined]
        write_needs(_find_place(session.config), process, session.items)


def _is_led(config: pytest.Config) -> bool:
    """Whether this is one of several processes, and another one leads."""
    return hasattr(config, "workerinput")


def _find_place(config: Any) -> Path:
    """Where the processes of this run talk: the leader's folder holds those of all."""
    folder: Path = config._tmp_path_factory.getbasetemp()
    return (folder.parent if _is_led(config) else folder) / "shared"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the services that its fixtures use."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in _MARKED_BY:
                item.add_marker(_MARKED_BY[fixture])
                if item.nodeid.startswith(_STORIES):
                    item.add_marker(pytest.mark.timeout(_LONG))


@pytest.fixture(autouse=True)
def own_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process masks the secrets of every configuration it read: not those of other tests."""
    monkeypatch.setattr(root, "_SECRETS", set())


@pytest.fixture(scope="session")
def kafka(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedKafka]:
    """One broker for the whole run. A test that stops brokers starts its own instead.

    Tests of other processes use it too: names are a test's own, and lists hold those of others.
    """
    if _is_led(request.config):
        yield BorrowedKafka(borrow(_find_place(request.config), "kafka"))
        return
    with start_kafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="session")
def admin(kafka: EmbeddedKafka) -> Admin:
    """An admin client of the shared broker; it does not tell stderr that the broker has ended."""
    return make_admin({"bootstrap.servers": kafka.bootstrap, "log_level": 0})


@pytest.fixture
def properties(kafka: EmbeddedKafka) -> dict[str, str]:
    """Client properties for the shared broker."""
    return {"bootstrap.servers": kafka.bootstrap}


@pytest.fixture
def unique() -> str:
    """A short id that no other test has."""
    return uuid.uuid4().hex[:8]


@pytest.fixture
def topic(admin: Admin, unique: str) -> Iterator[MakeTopic]:
    """Make topics: `topic(partitions=3, config={...})` gives the name of a new one.

    The broker knows it and leads its partitions: the controller answers before that.
    """
    made: list[str] = []

    def make(
        partitions: int = 3, config: Mapping[str, str] | None = None, name: str = "topic"
    ) -> str:
        full = f"{name}-{unique}-{len(made)}"
        create_topic(
            admin,
            full,
            partitions=partitions,
            replication=1,
            config=config,
            deadline=Deadline(_TOPIC_SECONDS),
        )
        made.append(full)
        return full

    yield make
    if made:
        await_tasks()
        for future in admin.delete_topics(made, operation_timeout=_TOPIC_SECONDS).values():
            # Some tests delete their topics themselves.
            future.exception(_TOPIC_SECONDS)


def await_tasks(seconds: float = 20.0) -> None:
    """Until Spark is idle, if it runs here.

    Others of a task that has failed are still at work. Where their topic goes meanwhile they look
    for it for a minute, and the next tests wait for a free core.
    """
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        return
    executors = context._jsc.sc().statusStore().executorList(True)
    limit = time.monotonic() + seconds
    while executors.nonEmpty() and executors.head().activeTasks() and time.monotonic() < limit:
        time.sleep(0.05)
        executors = context._jsc.sc().statusStore().executorList(True)


@pytest.fixture
def group(unique: str) -> str:
    """The name of a consumer group that no other test uses."""
    return f"group-{unique}"


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """One PostgreSQL server for the whole run."""
    if _is_led(request.config):
        yield Postgres(int(borrow(_find_place(request.config), "postgres")))
        return
    with EmbeddedPostgres() as running:
        yield running


@pytest.fixture
def pg_url(postgres: Postgres, unique: str) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database of the test's own."""
    database = f"test_{unique}"
    postgres.execute(f"CREATE DATABASE {database}")
    yield postgres.url(database)
    postgres.execute(f"DROP DATABASE {database} WITH (FORCE)")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger of the test's own."""
    with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as opened:
        yield opened


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with few bytes."""
    place = tmp_path / "small"
    place.mkdir()
    mount: list[Any] = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", place]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield place
    finally:
        # Lazily: after a failed test a task of Spark may still have a file open there.
        subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[EmbeddedMariaDb]:
    """One MariaDB server for this process."""
    with EmbeddedMariaDb() as running:
        yield running


@pytest.fixture
def mariadb_url(mariadb: EmbeddedMariaDb, unique: str) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database of the test's own."""
    database = f"test_{unique}"
    mariadb.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
    yield mariadb.url(database)
    mariadb.execute(f"DROP DATABASE {database}")


@pytest.fixture(scope="session")
def registry() -> Iterator[EmbeddedRegistry]:
    """One schema registry for this process; each test has subjects of its own."""
    with EmbeddedRegistry() as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small local SparkSession for the whole run, with the Kafka connector and JDBC drivers."""
    conf = {
        # MySQL's JDBC driver, as a user brings it.
        "spark.jars": ",".join(map(str, ensure_jars(Path(__file__).parent / "kit/mysql.jars"))),
        "spark.sql.shuffle.partitions": "4",
        # Of each query's plan as text for a page that nobody sees.
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    # Functions of the test modules are pickled by name, so the workers must be able to import them.
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from backlogctl.config import SparkSection
    from backlogctl.spark_backfill.spark.session import open_session

    session = open_session(SparkSection(master="local[2]", conf=conf), "backlogctl tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[Kubelet]:
    """An API server with its controllers and one node, for this process."""
    from tests.kit.kubelet import Kubelet
    from tests.kit.kubernetes import Kubernetes

    with Kubernetes() as running, Kubelet(running) as node:
        yield node


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneSpark]:
    """A Spark cluster of these tests: one master and one worker."""
    from tests.spark_backfill.standalone import StandaloneSpark

    with StandaloneSpark(tmp_path_factory.mktemp("cluster")) as running:
        yield running
