"""Tasks that submit, as processes without Airflow around them; what Airflow knows is in their
environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from backlogctl.dags.configuration import load
from backlogctl.dags.submission import call
from backlogctl.replay.engine.kind import Traits
from backlogctl.replay.engine.plan import AIRFLOW, Approver, acting_as
from backlogctl.replay.opening import open_workspace
from tests.kit.processes import ROOT

GRACE = Approver(AIRFLOW, "grace", "here")


def make_environment(config: Path) -> dict[str, str]:
    """Of a worker that reads this file."""
    return {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": str(ROOT),
        "BACKLOG_CONFIG": str(config),
        "AIRFLOW_HOME": str(config.parent / "airflow"),
    }


def know(connection_id: str, conn_type: str = "spark", **fields: Any) -> dict[str, str]:
    """A connection, as Airflow takes it from the environment."""
    return {f"AIRFLOW_CONN_{connection_id.upper()}": json.dumps({"conn_type": conn_type, **fields})}


class Tasks:
    """One after another; none of them outlives its test."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self._started: list[subprocess.Popen[str]] = []

    def start(self, verb: str, **args: Any) -> subprocess.Popen[str]:
        self._started.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.dags.submitting", verb, json.dumps(args)],
                env={**os.environ, **self.environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return self._started[-1]

    def await_end(self) -> tuple[int, str]:
        """Exit code of the last one, and what it said."""
        said, _ = self._started[-1].communicate(timeout=300)
        return self._started[-1].returncode, said

    def run(self, verb: str, **args: Any) -> Any:
        """What the verb gave."""
        self.start(verb, **args)
        code, said = self.await_end()
        assert code == 0, said
        return json.loads(said.rpartition("done: ")[2])

    def end(self) -> None:
        """Its driver ends by itself, soon after."""
        for process in self._started:
            process.kill()
            process.communicate()


def main() -> None:
    verb, args = sys.argv[1], json.loads(sys.argv[2])
    with acting_as(GRACE):
        done = call(open_workspace(load()), verb, args, Traits(uses_spark=True))
    print(f"done: {json.dumps(done)}")


if __name__ == "__main__":
    main()
