"""Which process runs which tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import durations, quick, sharing

ROOT = Path(__file__).parents[1]
HOLD = "tests/replay/test_hold.py"
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
