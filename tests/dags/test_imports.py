"""Every DAG loads, whatever backlog.yaml is like; the first task then says what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from backlogctl_airflow.acting import opened

# One process for all files: Airflow takes seconds to import.
_LOAD = """
import json, os, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
from backlogctl_airflow.bundle import RUNBOOKS

found = {}
for file in sys.argv[1:]:
    os.environ["BACKLOG_CONFIG"] = file
    bag = DagBag(str(RUNBOOKS), bundle_name="backlogctl")
    form = bag.dags["recover_backlog"].params.get_param("stream") if bag.dags else None
    found[file] = {
        "errors": list(bag.import_errors.values()),
        "dags": sorted(bag.dags),
        "streams": form.schema.get("enum") if form else None,
        "told": form.schema.get("description_md") if form else None,
        "stored": [bool(DagSerialization.to_dict(dag)) for dag in bag.dags.values()],
    }
# Airflow imports SQLAlchemy itself; our ledger is what would use it.
heavy = {"backlog.ledger", "confluent_kafka", "numpy", "pandas", "psycopg", "pyarrow", "pyspark"}
heavy &= set(sys.modules)
print("FOUND" + json.dumps({"files": found, "heavy": sorted(heavy)}))
"""
_STREAM = {"cluster": "main", "topic": "orders", "group": "g"}


def write(path: Path, document: object) -> str:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def night(zone: str) -> dict[str, Any]:
    return {**_STREAM, "source": {}, "off_peak": {"from": "01:00", "to": "05:00", "timezone": zone}}


def test_dags_load_whatever_the_file_is_like(tmp_path: Path) -> None:
    good = write(
        tmp_path / "good.yaml",
        {"streams": {"a": night("Asia/Tokyo"), "b": night("Europe/Berlin"), "c": _STREAM}},
    )
    no_yaml = write(tmp_path / "bad.yaml", "streams: [")
    empty = write(tmp_path / "empty.yaml", {"streams": {}})
    missing = str(tmp_path / "missing.yaml")
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, good, no_yaml, empty, missing],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.split("FOUND")[1])
    assert told["heavy"] == [], "the scheduler reads the files again and again"
    found = told["files"]
    usual = [
        *("detect_backlog", "emergency_offload"),
        *("nightly_audit", "nightly_backfill", "recover_backlog"),
    ]
    for file in (good, no_yaml, empty, missing):
        assert not found[file]["errors"]
        assert found[file]["dags"] == usual, "ids for ever: a new one would come up paused"
    for file in (no_yaml, empty, missing):
        assert found[file]["streams"] is None
    assert "missing.yaml" in found[missing]["told"]
    assert "not YAML" in found[no_yaml]["told"]
    assert found[good]["streams"] == ["a", "b", "c"]
    assert all(stored for one in found.values() for stored in one["stored"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no such file"),
        ("streams: [", "not YAML"),
        ('{"strems": {}}', "the nearest is `streams`|streams"),
    ],
)
def test_the_first_task_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, message: str
) -> None:
    """Without another try: it would say the same."""
    file = tmp_path / "backlog.yaml"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("BACKLOG_CONFIG", str(file))
    run = SimpleNamespace(dag_id="recover_backlog", run_id="r", triggering_user_name="ada")
    with (
        pytest.raises(AirflowFailException, match=message) as told,
        opened(cast("Context", {"dag_run": run, "ti": MagicMock(try_number=1, max_tries=2)})),
    ):
        pass
    assert str(file) in str(told.value)
