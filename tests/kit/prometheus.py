"""A real Prometheus with the product's rules, its expressions, and lines of /metrics."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from backlogctl.monitoring.metrics.catalogue import CATALOGUE
from backlogctl.monitoring.metrics.scrape import Scrape
from backlogctl.sandbox.secured import HOST
from backlogctl_delivery.idempotent import metrics as once
from backlogctl_delivery.lookback import metrics as look_back
from backlogctl_delivery.outbox import metrics as outbox
from tests.kit.kafka import wait_until

ROOT = Path(__file__).resolve().parents[2]


def find_program(name: str) -> str:
    """The path of `prometheus` or `promtool`: the PATH's, else what scripts/need.sh unpacked."""
    here = ROOT / ".tools" / name
    found = shutil.which(name) or (str(here) if here.exists() else None)
    assert found is not None, f"no {name} here: run scripts/need.sh prometheus"
    return found


def run_promtool(*words: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs promtool; its input and output are text."""
    command = [find_program("promtool"), *map(str, words)]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=240, check=False
    )


class EmbeddedPrometheus:
    """Scrapes one address and evaluates rules each second; nothing of it outlives the test."""

    def __init__(self, directory: Path, scraped: str, rules: Sequence[Path]) -> None:
        self._directory = directory
        self._url = ""
        self._log = directory / "prometheus.log"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [
                {"job_name": "backlogctl", "static_configs": [{"targets": [scraped]}]}
            ],
        }
        (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [
            find_program("prometheus"),
            f"--config.file={self._directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            f"--web.listen-address={HOST}:0",  # nobody can take it in between
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=self._directory, stdout=log, stderr=log, start_new_session=True
            )
        try:
            wait_until(self._is_ready, what=f"Prometheus is ready: {self._log}")
        except AssertionError:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def list_alerts(self, name: str) -> list[dict[str, Any]]:
        """The pending and firing alerts of that name."""
        alerts = self._ask("alerts")["alerts"]
        return [alert for alert in alerts if alert["labels"]["alertname"] == name]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """What an expression is now."""
        found: list[dict[str, Any]] = self._ask(f"query?{urllib.parse.urlencode({'query': expr})}")[
            "result"
        ]
        return found

    def list_rule_errors(self) -> list[str]:
        """What went wrong when rules were evaluated."""
        groups = self._ask("rules")["groups"]
        return [rule["lastError"] for g in groups for rule in g["rules"] if rule.get("lastError")]

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}", timeout=60) as answer:
            return json.load(answer)["data"]

    def _is_ready(self) -> bool:
        assert self._process is not None
        text = self._log.read_text()
        assert self._process.poll() is None, text
        found = re.search(r'msg="Listening on" address=(\S+)\n', text)
        if found is None:
            return False
        self._url = f"http://{found[1]}"
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=60):
                return True
        except OSError:
            return False

    def _stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
            self._process = None


LABELS = {
    metric.exported_name: frozenset(metric.labels)
    for metric in (*CATALOGUE, *outbox.CATALOGUE, *look_back.CATALOGUE, *once.CATALOGUE)
}
# Prometheus adds the first two to all it scrapes.
EVERYWHERE = frozenset({"instance", "job"})
_OWN = {"ALERTS"}

_TOKEN = re.compile(
    r"""\s+|\#.*|(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)"""
    r"""|(?P<variable>\$\{?\w+(?::\w+)?\}?)|(?P<number>\d[\w.]*)|(?P<word>[a-zA-Z_:][\w:]*)"""
    r"""|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^=<>(){}\[\],:@.])"""
)
_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_BETWEEN = {"and", "or", "unless", "bool", "offset", "atan2", "inf", "nan", "start", "end"}


@dataclass(frozen=True)
class Names:
    """`selected` are metrics with the labels that their selectors name; `kept` is what `by` keeps."""

    selected: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    listed: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)

    @property
    def result_labels(self) -> set[str]:
        """Labels that the result may have."""
        return self.kept or set().union(*(LABELS.get(name, ()) for name, _ in self.selected))


def read_names(expr: str) -> Names:
    """Reads an expression; Grafana's variables may stand where values and durations do.

    Raises:
        ValueError: what stands there is not PromQL.
    """
    tokens = list(_split(expr))
    names = Names()
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        if text == "[":
            at = _find(tokens, at, "]")
        elif text == "{":
            raise ValueError(f"a selector without a name: {expr}")
        elif kind == "word" and text in _LISTS:
            end = _find(tokens, at, ")")
            words = {word for kind, word in tokens[at:end] if kind == "word"} - {text}
            names.listed.update(words)
            if text == "by":
                names.kept.update(words)
            at = end
        elif kind == "word" and following not in {"(", *_LISTS} and text.lower() not in _BETWEEN:
            end = _find(tokens, at, "}") if following == "{" else at
            inside = tokens[at + 2 : end]
            labels = frozenset(word for kind, word in inside if kind == "word")
            names.selected.append((text, labels))
            at = end
        at += 1
    return names


def list_errors(expr: str, used: Iterable[str] = ()) -> list[str]:
    """What the expression names and the catalogue has not; `used` are labels used of the result."""
    names = read_names(expr)
    errors = []
    for name, labels in names.selected:
        if name in _OWN:
            continue
        if name not in LABELS:
            errors.append(f"no metric {name}: {expr}")
            continue
        errors += [
            f"{name} has no label {label}: {expr}"
            for label in sorted(labels - LABELS[name] - EVERYWHERE)
        ]
    known = set().union(*(LABELS.get(name, ()) for name, _ in names.selected))
    errors += [
        f"nothing has the label {word}: {expr}"
        for word in sorted(names.listed - known - EVERYWHERE)
    ]
    lost = set(used) - names.result_labels - EVERYWHERE
    return errors + [f"the result has no label {word}: {expr}" for word in sorted(lost)]


def _split(expr: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(expr):
        found = _TOKEN.match(expr, at)
        if found is None:
            raise ValueError(f"not PromQL at {expr[at : at + 20]!r}: {expr}")
        at = found.end()
        if found.lastgroup is not None:
            yield found.lastgroup, found[0]


def _find(tokens: list[tuple[str, str]], at: int, sign: str) -> int:
    for number in range(at, len(tokens)):
        if tokens[number][1] == sign:
            return number
    raise ValueError(f"{sign} is missing")


@dataclass(frozen=True)
class Scraped:
    """A scrape's text; a series that is there twice is an error."""

    text: str

    def find(self, name: str, **labels: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The series of a name that have these labels."""
        found: dict[tuple[tuple[str, str], ...], float] = {}
        for family in text_string_to_metric_families(self.text):
            for sample in family.samples:
                if sample.name != name or not labels.items() <= sample.labels.items():
                    continue
                key = tuple(sorted(sample.labels.items()))
                assert key not in found, f"twice: {sample}"
                found[key] = sample.value
        return found

    def value(self, name: str, **labels: str) -> float:
        """The value of the one series that has these labels."""
        found = self.find(name, **labels)
        assert len(found) == 1, f"{name} {labels}: {found}"
        return next(iter(found.values()))

    def by_partition(self, name: str, **labels: str) -> dict[int, float]:
        """The values by partition."""
        return {
            int(dict(key)["partition"]): value for key, value in self.find(name, **labels).items()
        }

    def labels_of(self, name: str, label: str, **labels: str) -> set[str]:
        """The values of a label."""
        return {dict(key)[label] for key in self.find(name, **labels)}

    def check(self) -> None:
        """Every name's lines together, each series once, no NaN."""
        begun: set[str] = set()
        last = ""
        seen: set[str] = set()
        for line in self.text.splitlines():
            if line.startswith("# HELP "):
                last = line.split()[2]
                assert last not in begun, f"{last} begins twice"
                begun.add(last)
            elif not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                assert series.partition("{")[0] == last, line
                assert series not in seen, f"twice: {series}"
                assert "nan" not in value.lower(), line
                seen.add(series)


def scrape(source: Scrape) -> Scraped:
    """Scrapes as Prometheus does, with gzip."""
    scraped = Scraped(gzip.decompress(source.answer()).decode())
    scraped.check()
    return scraped


def scrape_registry(registry: CollectorRegistry) -> Scraped:
    """What prometheus-client serves of a registry."""
    scraped = Scraped(generate_latest(registry).decode())
    scraped.check()
    return scraped
