"""The run itself: its services, which process runs which tests, and second goes."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from sqlalchemy import create_engine, text

from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import listens
from tests import durations, quick, sharing
from tests.borrowing import Lender, borrow
from tests.kit.kafka import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_each_test_has_an_empty_database(pg_url: str) -> None:
    engine = create_engine(pg_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id int)"))
        tables = connection.execute(
            text("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
        )
        assert tables.scalar_one() == 1
    engine.dispose()


def test_postgres_ends_with_an_owner_that_was_killed() -> None:
    """One of several processes of a run may be killed."""
    program = (
        "import time; from tests.kit.services import EmbeddedPostgres as Server;"
        "print(Server().start()._data, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    data = Path(owner.stdout.readline().strip())
    process = Path("/proc", (data / "db" / "postmaster.pid").read_text().split()[0])
    assert process.exists()
    owner.kill()
    owner.communicate()
    wait_until(lambda: not process.exists(), what="the server has ended")
    shutil.rmtree(data, ignore_errors=True)  # its children end a moment later


def test_what_nobody_asks_for_is_not_started_and_what_several_ask_for_once(tmp_path: Path) -> None:
    happened: list[str] = []

    @contextmanager
    def run(folder: Path) -> Iterator[str]:
        happened.append(f"starts {folder.name}")
        yield "localhost:9"
        happened.append(f"stops {folder.name}")

    lender = Lender(tmp_path / "shared", {"one": run, "other": run})
    assert [borrow(tmp_path / "shared", "one") for _ in range(2)] == ["localhost:9"] * 2
    assert happened == ["starts one"]
    lender.close()
    assert happened == ["starts one", "stops one"]


def test_what_could_not_be_started_is_told_to_all(tmp_path: Path) -> None:
    def run(folder: Path) -> AbstractContextManager[str]:
        raise OSError("no disk")

    lender = Lender(tmp_path / "shared", {"one": run})
    for _ in range(2):
        with pytest.raises(AssertionError, match="one: failed: no disk"):
            borrow(tmp_path / "shared", "one")
    lender.close()


def test_what_is_lent_ends_with_a_lender_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tests.borrowing import Lender;"
        "Lender(Path(sys.argv[1])); print(flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "shared"],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    owner.stdout.readline()
    port = int(borrow(tmp_path / "shared", "kafka").rpartition(":")[2])
    assert listens(port)
    owner.kill()
    owner.communicate()
    wait_until(lambda: not listens(port), what="the broker has ended")


def test_spark_reads_kafka_and_postgres(
    spark: SparkSession, kafka: EmbeddedKafka, topic: Callable[..., str], pg_url: str
) -> None:
    name = topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(100):
        producer.produce(name, str(number), key=str(number))
    assert producer.flush(90) == 0
    messages = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("subscribe", name)
        .load()
    )
    assert messages.count() == 100

    engine = create_engine(pg_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders AS SELECT generate_series(1, 7) AS id"))
    engine.dispose()
    url = pg_url.replace("postgresql+psycopg://postgres@", "jdbc:postgresql://")
    rows = spark.read.jdbc(
        url, "orders", properties={"user": "postgres", "driver": "org.postgresql.Driver"}
    )
    assert rows.count() == 7


def test_a_test_is_marked_by_the_services_it_uses(
    request: pytest.FixtureRequest, pg_url: str
) -> None:
    assert pg_url
    marks = {mark.name for mark in request.node.iter_markers()}
    assert marks & {"kafka", "spark", "postgres"} == {"postgres"}


ROOT = Path(__file__).parents[1]
HOLD = "tests/replay/test_approval.py"
LONG = "tests/crash/test_crash.py"
MIXED = "tests/dags/test_mixed.py"
TESTS = [
    *(f"{HOLD}::test_{name}" for name in "abc"),
    f"{MIXED}::test_needs_nothing",
    f"{MIXED}::test_runs[a::b]",
    f"{LONG}::test_long",
    "tests/dags/test_other.py::test_runs",
    *(f"tests/spark_backfill/test_{name}.py::test_reads" for name in "abc"),
]
NEEDS = {test: "airflow" for test in TESTS if "::test_runs" in test} | {
    test: "spark" for test in TESTS if "::test_reads" in test
}
TOOK = {f"{LONG}::test_long": 30.0, **dict.fromkeys(NEEDS, 20.0)}


class Node:
    """A process as xdist sees it."""

    shutting_down = False

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="gw")
        self.sent: list[int] = []

    def send_runtest_some(self, indexes: Sequence[int]) -> None:
        self.sent += indexes

    def shutdown(self) -> None:
        self.shutting_down = True


class Item:
    """A test as pytest collects it."""

    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid = nodeid
        self.marks = [getattr(pytest.mark, name).mark for name in marks]

    def iter_markers(self) -> list[pytest.Mark]:
        return self.marks


def test_what_needs_the_same_goes_to_one_process_and_the_longest_are_begun_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gw0.needs").write_text(json.dumps(NEEDS))
    monkeypatch.setattr(sharing, "read_durations", lambda: TOOK)
    option = SimpleNamespace(loadscopereorder=False)
    config = SimpleNamespace(getvalue=lambda name: ["popen", "popen"], option=option)
    monkeypatch.setattr(sharing, "_STARTS", {"airflow": 1, "spark": 1})
    shares = sharing.Shares(config, None, tmp_path)  # type: ignore[arg-type]
    nodes = [Node(), Node()]
    for node in nodes:
        shares.add_node(node)
        shares.add_node_collection(node, TESTS)
    shares.schedule()
    done = [0, 0]
    while any(done[n] < len(nodes[n].sent) for n in (0, 1)):
        for n, node in enumerate(nodes):
            if done[n] < len(node.sent):
                shares.mark_test_complete(node, node.sent[done[n]])
                done[n] += 1
    ran = [[TESTS[index] for index in node.sent] for node in nodes]
    assert sorted(ran[0] + ran[1]) == sorted(TESTS)
    spark, airflow = (
        [test for test in TESTS if NEEDS.get(test) == need] for need in ("spark", "airflow")
    )
    assert ran[0][:3] == spark
    assert ran[1][:2] == airflow
    begun = [test.partition("::")[0] for test in ran[1][2:] + ran[0][3:]]
    assert begun[0] == LONG


def test_files_that_need_the_same_are_spread_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_STARTS", {"airflow": 1, "spark": 2})
    long, others = "tests/a.py::test", [f"tests/{name}.py::test" for name in "bcd"]
    needs = {long: "spark", **dict.fromkeys(others, "spark"), "tests/e.py::test": "airflow"}
    shares = sharing.spread(needs, {long: 60.0, **dict.fromkeys(others, 20.0)})
    assert {shares[test] for test in others} == {"spark 1"}
    assert (shares[long], shares["tests/e.py::test"]) == ("spark 0", "airflow 0")


def test_what_a_test_needs_is_known_by_its_marks() -> None:
    items = [Item("a"), Item("b", "kafka", "spark"), Item("c", "spark", "airflow")]
    assert sharing.list_needs(items) == {"b": "spark", "c": "airflow"}  # type: ignore[arg-type]


def test_a_quick_run_leaves_out_big_tools_and_whole_stories(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Item] = []

    def tell(items: list[Item]) -> None:
        told.extend(items)

    hook = SimpleNamespace(pytest_deselected=tell)
    monkeypatch.setattr(quick, "read_durations", lambda: {"a": 1.0, "story": 60.0})
    items = [Item("a", "kafka"), Item("story"), Item("new"), Item("big", "kafka", "spark")]
    quick.Quick().pytest_collection_modifyitems(SimpleNamespace(hook=hook), items)  # type: ignore[arg-type]
    assert [item.nodeid for item in items] == ["a", "new"]
    assert [item.nodeid for item in told] == ["story", "big"]


def test_durations_are_kept_of_what_took_long(tmp_path: Path) -> None:
    file = tmp_path / "durations.json"
    file.write_text(json.dumps({f"{HOLD}::test_b": 7.0, f"{HOLD}::test_c": 9.0, "gone.py::a": 5.0}))
    recorded = durations.Durations(file)
    for test, took in (("a", 1.03), ("a", 0.31), ("b", 0.4)):
        recorded.pytest_runtest_logreport(
            SimpleNamespace(nodeid=f"{HOLD}::test_{test}", duration=took)  # type: ignore[arg-type]
        )
    recorded.pytest_sessionfinish()
    assert durations.read_durations(file) == {f"{HOLD}::test_a": 1.3, f"{HOLD}::test_c": 9.0}


def test_durations_are_there_of_this_suite() -> None:
    kept = durations.read_durations()
    assert len(kept) > 100
    there = [test for test in kept if (ROOT / test.partition("::")[0]).exists()]
    assert len(there) > 0.8 * len(kept), "many files have moved: make test ARGS=--record-durations"


_ROOT = Path(__file__).parents[1]
_SCRIPT = _ROOT / "scripts/run_tests.py"

# Said here once more: one that is dropped over there is missed.
_FINAL = (
    "tests/crash/",
    "tests/fanout/relay/",
    "tests/replay/expand/",
    "tests/spark_backfill/injection/",
)
# Whole stories of the same, and what must not lose one either.
_STORIES = (
    "tests/delivery/test_idempotent_killed.py",
    "tests/delivery/test_idempotent_databases.py",
    "tests/delivery/test_idempotent_sql.py",
    "tests/replay/offload/",
    "tests/replay/redrive/",
    "tests/replay/test_across_offload.py",
    "tests/replay/test_across_kinds.py",
    "tests/test_demos.py",
    "tests/test_three_brokers.py",
    "tests/replay/test_recovery.py",
    "tests/spark_backfill/archive/",
)
_CHANCE = """
from pathlib import Path

def test_chance():
    here = Path("was_here")
    again = here.exists()
    here.touch()
    assert again

def test_good():
    Path("good").open("a").write("x")
"""
_WRONG = "def test_wrong():\n    assert False\n"


def _run(folder: Path, **files: str) -> tuple[int, str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, lines in files.items():
        file = folder / Path(name).with_name(f"test_{Path(name).name}.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(lines)
    done = subprocess.run(
        [sys.executable, str(_SCRIPT)],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_failure_by_chance_is_run_once_more_and_told(tmp_path: Path) -> None:
    code, printed = _run(tmp_path, chance=_CHANCE)
    assert code == 0, printed
    assert "passed alone, after it had failed: test_chance.py::test_chance" in printed
    assert (tmp_path / "good").read_text() == "x", "what passed is not run again"


def test_what_is_wrong_fails(tmp_path: Path) -> None:
    code, printed = _run(tmp_path, chance=_CHANCE, wrong=_WRONG)
    assert code == 1
    assert "failed twice: test_wrong.py::test_wrong" in printed
    assert "passed alone, after it had failed: test_chance.py::test_chance" in printed


def test_many_failures_are_no_chance(tmp_path: Path) -> None:
    code, printed = _run(
        tmp_path,
        chance=_CHANCE,
        wrong=_WRONG + "\n".join(f"def test_wrong_{n}():\n    assert False\n" for n in range(4)),
    )
    assert code == 1
    assert "no second go" in printed


def test_a_file_that_cannot_be_read_fails_at_once(tmp_path: Path) -> None:
    code, printed = _run(tmp_path, broken="import nothing_of_this_name\n")
    assert code not in (0, 5)
    assert "nothing_of_this_name" in printed


def test_a_test_of_exactly_once_has_no_second_go(tmp_path: Path) -> None:
    files = [f"{folder}once_{number}" for number, folder in enumerate(_FINAL)]
    code, printed = _run(tmp_path, **{name: _CHANCE.replace("was", name[-1]) for name in files})
    assert code == 1, "once doubled is doubled"
    _, _, told = printed.rpartition("no second go where messages must be there exactly once:")
    expected = [name.replace("once_", "test_once_") + ".py::test_chance" for name in files]
    assert told.split() == expected


def test_the_folders_of_exactly_once_are_there() -> None:
    spec = importlib.util.spec_from_file_location("run_tests", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    places = {*_FINAL, *_STORIES}
    assert set(script.EXACTLY_ONCE) == places
    assert [place for place in places if not [*_ROOT.glob(f"{place}*")]] == []
