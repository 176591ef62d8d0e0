"""A real Prometheus with the product's rules; and where its programs are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from backlogctl.sandbox.secured import HOST
from tests.kafka_tools import wait_until

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
