"""Alert rules: promtool accepts and proves them, names exist, texts lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from backlogctl.replay.cli import app
from tests.monitoring.prometheus import run_promtool
from tests.monitoring.promql import EVERYWHERE, LABELS, list_errors, read_names
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
            for given in test["input_series"]:
                ((name, labels),) = read_names(given["series"]).selected
                assert name in LABELS, given
                # An empty label is none.
                assert LABELS[name] - labels <= {"stream"}, given
                assert labels - LABELS[name] <= EVERYWHERE, given


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
