"""Grafana dashboards: provisionable, and about metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.prometheus import run_promtool
from tests.monitoring.promql import LABELS, list_errors

# Part of every Grafana; anything else would be a plugin.
KINDS = {"stat", "table", "timeseries", "state-timeline", "bargauge"}
UNITS = {"bytes", "short", "none", "s", "mps", "cpm", "percentunit"}
PATHS = sorted((Path(__file__).parents[2] / "monitoring/dashboards").glob("*.json"))
DASHBOARDS = [json.loads(path.read_text()) for path in PATHS]
BY_TITLE = pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board["uid"])


def list_targets(board: Any) -> Iterator[tuple[Any, Any]]:
    for panel in board["panels"]:
        for one in panel["targets"]:
            yield panel, one


def fill_variables(expr: str) -> str:
    """As Grafana sends it."""
    return expr.replace("$__rate_interval", "4m")


def test_there_are_four_dashboards() -> None:
    names = {path.stem: board["uid"] for path, board in zip(PATHS, DASHBOARDS, strict=True)}
    expected = ("overview", "stream", "recovery", "delivery")
    assert names == {name: f"backlog-{name}" for name in expected}


@BY_TITLE
def test_a_dashboard_can_be_provisioned(board: Any) -> None:
    assert re.fullmatch(r"backlog-[a-z]+", board["uid"])
    assert board["schemaVersion"] >= 36
    assert "__inputs" not in board, "an export to share asks questions; provisioning cannot"
    first, *variables = board["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("DS", "datasource", "prometheus")
    source = {"type": "prometheus", "uid": "${DS}"}
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    for panel, one in list_targets(board):
        assert panel["datasource"] == one["datasource"] == source
    assert all(one["datasource"] == source for one in variables)
    assert any(link["url"].endswith("docs/alerts.md") for link in board["links"] if "url" in link)


@BY_TITLE
def test_panels_say_what_they_show(board: Any) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["type"] in KINDS
        assert panel["title"]
        assert panel["description"].endswith(".")
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"] in UNITS
        assert defaults["thresholds"]["steps"][0]["value"] is None
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


@BY_TITLE
def test_names_of_a_dashboard_are_exported(board: Any) -> None:
    names = {one["name"] for one in board["templating"]["list"]} | {"__rate_interval"}
    errors: list[str] = []
    for panel, one in list_targets(board):
        used = set(re.findall(r"\{\{(\w+)\}\}", one["legendFormat"]))
        for step in panel["transformations"]:
            columns = step["options"].get("indexByName", ())
            used |= {column for column in columns if not column.startswith("Value")}
        errors += list_errors(one["expr"], used)
        unknown = set(re.findall(r"\$(\w+)", one["expr"])) - names
        errors += [f"no variable {name}: {one['expr']}" for name in unknown]
    for one in board["templating"]["list"][1:]:
        found = re.fullmatch(r"label_values\((\w+)(\{.*\})?, (\w+)\)", one["definition"])
        assert found is not None, one["definition"]
        assert found[3] in LABELS[found[1]]
        errors += list_errors(found[1] + (found[2] or ""))
    assert errors == []


@BY_TITLE
def test_the_worst_comes_first(board: Any) -> None:
    tables = [panel for panel in board["panels"] if panel["type"] == "table"]
    assert tables
    for panel in tables:
        (order,) = panel["options"]["sortBy"]
        renamed = panel["transformations"][1]["options"]["renameByName"]
        assert order["desc"]
        assert order["displayName"] == next(iter(renamed.values()))


@pytest.mark.prometheus
def test_promtool_accepts_each_query(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": fill_variables(one["expr"])}
        for number, (_, one) in enumerate(
            pair for board in DASHBOARDS for pair in list_targets(board)
        )
    ]
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))  # JSON is YAML
    done = run_promtool("check", "rules", "--lint=none", path)
    assert done.returncode == 0, done.stdout + done.stderr
