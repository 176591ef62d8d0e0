"""From a trigger in Airflow to a plan that waits for its approval, and to the end of the recovery.

`python -m benchmarks.airflow` starts the shop of `make airflow`, triggers a rebuild of its 1,000
lost orders and an expansion of its waiting payments by REST. Everything is on one machine, Spark in
local mode. With `--smoke` only the imports of DAG files are measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from rich.table import Table

from backlogctl.dags.local import demo
from backlogctl.dags.local.standalone import AirflowStandalone
from backlogctl.formats import Say
from backlogctl.sandbox.embedded import EmbeddedKafka
from benchmarks.harness import Benchmark, Figures, tabulate
from examples.lost_orders import lose_orders
from examples.shop import await_commits, ending_consumers, make_backlog
from examples.stage import SHORT_LIVED_JVM

_API = "/api/v2/dags/recover_backlog/dagRuns"
_WITHIN = 600.0
# What any DAG file of these operators imports.
_AIRFLOW_ALONE = """
import time; began = time.perf_counter()
import airflow.sdk
import airflow.providers.standard.decorators.python
import airflow.providers.standard.operators.empty
import airflow.providers.standard.operators.hitl
import airflow.providers.standard.operators.trigger_dagrun
print(time.perf_counter() - began)
"""
_OUR_FILES = """
import time; began = time.perf_counter()
import runpy
from backlogctl.dags.bundle import RUNBOOKS
for file in sorted(RUNBOOKS.glob("*.py")):
    runpy.run_path(str(file))
print(time.perf_counter() - began)
"""


def measure(options: Namespace, _: Say) -> Figures:
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        place = Path(scratch)
        if options.smoke:
            config = demo.write_demo_configuration(place, "localhost:1")
            return {"seconds": parse_all_dag_files(config)}
        kafka = stack.enter_context(EmbeddedKafka.start(place / "kafka"))
        config = demo.write_demo_configuration(place, kafka.bootstrap)
        lose_orders(place, kafka.client_properties)
        make_backlog(kafka.bootstrap, demo.PAYMENTS)
        stack.enter_context(ending_consumers(place, kafka.bootstrap, demo.PAYMENTS.topic))
        demo.start_demo_consumers(config)
        await_commits(kafka.bootstrap, demo.PAYMENTS)
        stack.enter_context(demo.watching(config))
        figures |= parse_all_dag_files(config)
        began = time.monotonic()
        extra = {"JDK_JAVA_OPTIONS": SHORT_LIVED_JVM}
        airflow = stack.enter_context(
            AirflowStandalone.start(place / "airflow", config=config, extra_env=extra)
        )
        figures["airflow_start"] = time.monotonic() - began
        token = {"Authorization": f"Bearer {airflow.log_in('oncall')}"}
        client = stack.enter_context(
            httpx.Client(base_url=airflow.address, headers=token, timeout=60)
        )
        for stream, kind in (("orders", "rebuild"), ("payments", "expand")):
            recover(client, stream, kind, figures)
    return {"seconds": {name: round(value, 1) for name, value in figures.items()}}


def draw(document: Figures) -> Iterable[Table]:
    found = document["seconds"].items()
    rows = [[name.replace("_", " "), f"{value:.1f}"] for name, value in found]
    yield tabulate("from a trigger in Airflow", {"s": "seconds"}, rows)


def parse_all_dag_files(config: Path) -> dict[str, float]:
    """How long a new process takes for what Airflow needs of itself, and for our files on top."""
    found = {}
    for name, code in (("parse_airflow", _AIRFLOW_ALONE), ("parse_our_files", _OUR_FILES)):
        environment = {**os.environ, "BACKLOG_CONFIG": str(config)}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found[name] = float(done.stdout.split()[-1])
    found["parse_ours_alone"] = found["parse_our_files"] - found["parse_airflow"]
    return found


def recover(client: httpx.Client, stream: str, kind: str, figures: dict[str, float]) -> None:
    """One recovery: to its question, and from the answer to its end."""
    began = time.monotonic()
    body = {"logical_date": None, "conf": {"stream": stream, "action": kind}}
    run = client.post(_API, json=body).raise_for_status().json()["dag_run_id"]
    task = f"{_API}/{quote(run, safe='')}/taskInstances/{kind}.approve"
    await_value(client, task, "deferred")
    figures[f"{kind}_trigger_to_question"] = time.monotonic() - began
    time.sleep(6)  # until Airflow has seen the process end that asked
    began = time.monotonic()
    answer = {"chosen_options": ["Approve"], "params_input": {}}
    client.patch(f"{task}/-1/hitlDetails", json=answer).raise_for_status()
    await_value(client, f"{_API}/{quote(run, safe='')}", "success")
    figures[f"{kind}_answer_to_end"] = time.monotonic() - began


def await_value(client: httpx.Client, path: str, state: str) -> None:
    limit = time.monotonic() + _WITHIN
    while (found := read_state(client, path)) != state:
        if found == "failed" or time.monotonic() > limit:
            raise SystemExit(f"{path} is {found}, not {state}")
        time.sleep(0.2)


def read_state(client: httpx.Client, path: str) -> Any:
    return client.get(path).raise_for_status().json()["state"]


BENCHMARK = Benchmark("airflow", __doc__, {}, {}, measure, draw)

if __name__ == "__main__":
    BENCHMARK.main()
