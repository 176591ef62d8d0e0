"""Alert rules, Grafana dashboards, and plots as inline SVG."""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as Tree
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.monitoring.plots import (
    Label,
    Mark,
    Series,
    Threshold,
    Unit,
    choose_ticks,
    draw_lines,
    label_ticks,
    place_labels,
)
from backlogctl.replay.cli import app
from tests.kit.prometheus import EVERYWHERE, LABELS, list_errors, read_names, run_promtool
from tests.test_docs import find_anchors

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "monitoring" / "rules").glob("*.rules.yml"))
TESTS = sorted((ROOT / "monitoring" / "rules").glob("*.test.yml"))
PAGE = ROOT / "docs" / "alerts.md"
_QUERY = re.compile(r'printf "((?:[^"\\]|\\.)*)"')


def list_rules() -> list[Any]:
    groups = [group for path in FILES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def list_expected() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Each alert that a test file asks for, and what it expects of it."""
    for path in TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            for asked in test.get("alert_rule_test", ()):
                yield asked["alertname"], asked["exp_alerts"]


RULES = list_rules()
NAMES = {rule["alert"] for rule in RULES}


@pytest.mark.prometheus
def test_promtool_accepts_the_rules() -> None:
    done = run_promtool("check", "rules", *FILES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
def test_promtool_finds_them_firing_and_silent_when_they_should() -> None:
    done = run_promtool("test", "rules", *TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_tested_firing_and_silent() -> None:
    expected = list(list_expected())
    assert {name for name, alerts in expected if alerts} == NAMES
    assert {name for name, alerts in expected if not alerts} == NAMES
    assert [path.name.partition(".")[0] for path in FILES] == [
        path.name.partition(".")[0] for path in TESTS
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_names_of_a_rule_are_exported(rule: Any) -> None:
    texts = [*rule["annotations"].values(), *rule["labels"].values()]
    used = {label for text in texts for label in re.findall(r"\$labels\.(\w+)", text)}
    errors = list_errors(rule["expr"], used)
    for text in texts:
        for query in _QUERY.findall(text):
            inner = json.loads(f'"{query}"')
            if "{" in inner:
                errors += list_errors(inner.replace("%q", '"x"'))
    assert errors == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_no_rule_asks_for_a_kind(rule: Any) -> None:
    """A kind that comes later alerts as well."""
    texts = [rule["expr"], *rule["annotations"].values(), *rule["labels"].values()]
    assert not [text for text in texts if re.search(r"\bkind\s*[!=]|\$labels\.kind\b", text)]


def test_series_of_the_tests_are_like_the_exported_ones() -> None:
    for path in TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            for series in test["input_series"]:
                ((name, labels),) = read_names(series["series"]).selected
                assert name in LABELS, series
                # An empty label is none.
                assert LABELS[name] - labels <= {"stream"}, series
                assert labels - LABELS[name] <= EVERYWHERE, series


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_alert_says_how_urgent_what_and_what_next(rule: Any) -> None:
    severity = rule["labels"]["severity"]
    assert set(re.sub(r"\{\{.*?\}\}", " ", severity).split()) <= {"page", "ticket"}
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "next_command", "runbook_url"}
    page, _, anchor = notes["runbook_url"].partition("#")
    assert page == "https://backlog.example.com/docs/alerts.md"
    assert anchor == rule["alert"].lower()
    assert anchor in find_anchors(PAGE)


def test_each_section_is_of_an_alert() -> None:
    titles = re.findall(r"^### (.+)$", PAGE.read_text(), re.MULTILINE)
    assert sorted(titles) == sorted(NAMES)


def split_as_bash(line: str) -> list[str]:
    """The words of a command, `$'...'` too."""
    script = f"printf '%s\\0' {line}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def test_next_commands_can_be_typed() -> None:
    commands = {
        alert["exp_annotations"]["next_command"]
        for _, alerts in list_expected()
        for alert in alerts
    }
    assert len(commands) > 10
    for line in commands:
        program, *words = split_as_bash(line)
        assert program == "backlogctl"
        assert "HOST:PORT" not in line, "nobody has to look anything up"
        # A stream without consumers or a source cannot be planned for; disks that fill are no time
        # to look for more.
        assert words[:2] == ["plan", "offload"] or words[0] != "plan"
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands"):
            # A group may make its commands when they are asked for.
            command = command.get_command(None, words.pop(0))
        command.make_context(line, words)  # refuses what the command does not take


def test_an_advised_inhibition_mutes_what_the_same_is_about() -> None:
    (text,) = re.findall(r"```yaml\n# alertmanager.yml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    labels: dict[str, set[str]] = {}
    for name, alerts in list_expected():
        for alert in alerts:
            labels.setdefault(name, set()).update(alert["exp_labels"])
    inhibitions = yaml.safe_load(text)["inhibit_rules"]
    assert inhibitions
    for rule in inhibitions:
        for name in _list_names(rule["source_matchers"]):
            assert labels[name] - {"severity"} == set(rule["equal"])
        for name in _list_names(rule["target_matchers"]):
            assert labels[name] >= set(rule["equal"])


def _list_names(matchers: list[str]) -> list[str]:
    (text,) = matchers
    found = re.fullmatch(r'alertname=~?"(.+)"', text)
    assert found is not None
    names = found[1].split("|")
    assert set(names) <= NAMES
    return names


@pytest.mark.parametrize(
    ("expr", "error"),
    [
        ("sum(backlog_lag_mesages) > 0", "no metric backlog_lag_mesages"),
        ("rate(backlog_sample_failures[5m])", "no metric backlog_sample_failures"),
        ('backlog_lag_messages{topik="a"}', "backlog_lag_messages has no label topik"),
        ("sum by (partitoin) (backlog_lag_messages)", "nothing has the label partitoin"),
        ("backlog_groups and on (state) backlog_groups", "nothing has the label state"),
    ],
)
def test_a_wrong_name_is_found(expr: str, error: str) -> None:
    assert [found.partition(":")[0] for found in list_errors(expr)] == [error]


def test_a_label_that_the_result_lost_is_found() -> None:
    expr = "sum by (group) (backlog_lag_messages)"
    assert list_errors(expr, {"group"}) == []
    assert list_errors(expr, {"topic"}) == [f"the result has no label topic: {expr}"]


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


NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
HOSTILE = '<script>alert("& $x^2$\x00\u202e</script> $\\frac'


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def make_series(name: str = "lag", *values: float | None) -> Series:
    return Series(name, [(after(60 * n), v) for n, v in enumerate(values or (5, 3, None, 1))])


def read_texts(svg: str) -> list[str]:
    return [element.text or "" for element in Tree.fromstring(svg).iter() if "text" in element.tag]


def test_an_element_for_inside_a_page() -> None:
    svg = draw_lines([make_series()], y="messages", title="Lag of orders")
    root = Tree.fromstring(svg)
    assert svg.startswith("<svg")
    assert root.get("role") == "img"
    assert root.get("aria-label") == "Lag of orders"
    assert root.get("viewBox")
    assert root.get("width") is None
    assert root[0].text == "Lag of orders"
    assert "<style" not in svg
    assert "<metadata" not in svg


def test_colours_are_the_pages() -> None:
    svg = draw_lines(
        [make_series("a"), make_series("b", 1, 2)],
        marks=[Mark(after(60), "run")],
        threshold=Threshold(6, "limit"),
        y="messages",
        title="t",
    )
    used = set(re.findall(r"var\((--[a-z0-9-]+), #[0-9a-f]{6}\)", svg))
    assert used == {"--plot-ink", "--plot-grid", "--plot-1", "--plot-2", "--plot-alarm"}
    assert not re.findall(r"(?<!, )#[0-9a-f]{6}\b", svg), "a colour that no page can change"
    assert "font-family: inherit" in svg
    assert "DejaVu" not in svg


def test_the_same_twice_and_no_ids_that_another_plot_may_have() -> None:
    svg = draw_lines([make_series("a", 1, 2)], y="rate", title="one")
    assert svg == draw_lines([make_series("a", 1, 2)], y="rate", title="one")
    assert not re.search(r' id="|url\(|href', svg)


def test_hostile_names_are_text() -> None:
    svg = draw_lines(
        [make_series(HOSTILE), make_series("b")],
        marks=[Mark(after(0), HOSTILE)],
        threshold=Threshold(4, HOSTILE),
        y="messages",
        title=HOSTILE,
    )
    assert "<script" not in svg
    assert sum("<script>alert(" in text for text in read_texts(svg)) == 3
    assert any("$x^2$" in text for text in read_texts(svg)), "no mathematics"
    assert "\x00" not in svg
    assert "\u202e" not in svg


@pytest.mark.parametrize(
    ("values", "lines", "dots"),
    [((1, 2, 3, 4, 3), 1, 0), ((1, 2, None, 4, 3), 2, 0), ((1, 2, None, 4), 1, 1)],
)
def test_none_breaks_the_line_and_a_lone_point_is_seen(
    values: tuple[float | None, ...], lines: int, dots: int
) -> None:
    svg = draw_lines([make_series("a", *values)], y="messages", title="t")
    assert svg.count("fill: none; stroke: var(--plot-1") == lines
    assert svg.count("<circle") == dots


def test_without_points_it_says_so() -> None:
    for series in ([], [Series("a", [])], [make_series("a", None, None)]):
        svg = draw_lines(series, y="seconds", title="t", marks=[Mark(NOON, "run")])
        assert read_texts(svg) == ["no data yet"]


def test_a_limit_out_of_sight_is_told_in_words() -> None:
    def draw(limit: float) -> list[str]:
        threshold = Threshold(limit, "retention")
        return read_texts(
            draw_lines([make_series("a", 0, 60)], y="seconds", title="t", threshold=threshold)
        )

    assert "retention: 2 min" in draw(120)
    assert "retention: 7 d, above what is drawn" in draw(7 * 86400)


@pytest.mark.parametrize(
    ("top", "unit", "labels"),
    [
        (0, "messages", ["0", "1"]),
        (3, "messages", ["0", "1", "2", "3"]),
        (1_200_000, "messages", ["0", "500,000", "1 M", "1.5 M"]),
        (11_400, "seconds", ["0", "1 h", "2 h", "3 h", "4 h"]),
        (0.4, "seconds", ["0", "0.1 s", "0.2 s", "0.3 s", "0.4 s"]),
        (86400 * 9, "seconds", ["0", "5 d", "10 d"]),
        (3_900, "rate", ["0", "1,000/s", "2,000/s", "3,000/s", "4,000/s"]),
        (0.7, "rate", ["0", "0.2/s", "0.4/s", "0.6/s", "0.8/s"]),
    ],
)
def test_ticks_are_what_people_say(top: float, unit: Unit, labels: list[str]) -> None:
    assert label_ticks(choose_ticks(top, unit, 4), unit) == labels


@given(st.floats(0, 1e15), st.sampled_from(["messages", "seconds", "rate"]), st.integers(2, 6))
def test_ticks_begin_at_zero_and_hold_everything(top: float, unit: Unit, most: int) -> None:
    ticks = choose_ticks(top, unit, most)
    assert ticks[0] == 0
    assert ticks[-1] >= top * (1 - 1e-6)
    assert 2 <= len(ticks) <= most + 1
    names = label_ticks(ticks, unit)
    assert len(set(names)) == len(names)


@given(
    st.lists(st.tuples(st.floats(0, 600), st.text("abc ", min_size=1, max_size=20)), max_size=14)
)
def test_labels_never_cover_each_other(wanted: list[tuple[float, str]]) -> None:
    placed = place_labels(sorted(wanted), right=640, character=6, rows=4, near=3)
    assert bool(placed) == bool(wanted)
    for one, other in combinations(placed, 2):
        if one.row == other.row:
            assert not overlap(one, other)
        low, high = sorted((one, other), key=lambda label: label.row)
        if low.row < high.row:  # the line up to the higher one is not behind the lower one's text
            assert not low.left < high.x < low.left + low.width
    if len(placed) > 1:
        assert max(label.row for label in placed) < 4


def overlap(one: Label, other: Label) -> bool:
    return one.left < other.left + other.width and other.left < one.left + one.width


def read_times(svg: str) -> list[tuple[float, str]]:
    """The texts below a plot and where they are centred."""
    texts = Tree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    centred = [text for text in texts if "middle" in text.get("style", "")]
    return [(float(text.get("x", "")), text.text or "") for text in centred]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("seconds", [2, 45, 120, 150, 180, 900, 7200, 86400, 30 * 86400])
def test_times_never_cover_each_other(seconds: float, wide: bool) -> None:
    # Names of the upright axis are long: little room is left.
    points = [(after(17), 1.0), (after(17 + seconds), 85.0)]
    svg = draw_lines([Series("a", points)], y="seconds", title="t", wide=wide)
    times = read_times(svg)
    assert len(times) >= 2
    for (x, text), (next_x, next_text) in pairwise(times):
        assert next_x - x > (len(text) + len(next_text)) / 2 * 6.4, times
    assert "UTC" in svg
