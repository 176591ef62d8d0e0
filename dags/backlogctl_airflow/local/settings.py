"""The environment in which Airflow's components run on this machine."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.ports import HOST

Bundle = Mapping[str, Any]

RUNBOOKS: Bundle = {
    "name": "backlogctl",
    "classpath": "backlogctl_airflow.bundle.RunbookBundle",
    "kwargs": {},
}
PASSWORDS = "passwords.json"


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may log in; `role` is one of Airflow's: viewer, user, op, admin."""

    name: str
    role: str
    password: str


def make_bundle(folder: Path, name: str = "more") -> Bundle:
    """A folder of DAG files, for Airflow."""
    return {
        "name": name,
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(folder)},
    }


def make_environment(
    home: Path,
    ports: tuple[int, int],
    config: Path,
    users: Iterable[User],
    bundles: Iterable[Bundle],
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The environment without the user's own settings of Airflow; `extra` goes last.

    `ports`: of the pages and the API, and of the API that tasks use.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    port, execution_port = ports
    address = f"http://{HOST}:{port}"
    path = [str(Path(sys.executable).parent), own.get("PATH", os.defpath)]
    return {
        **own,
        "PATH": os.pathsep.join(path),
        "AIRFLOW_HOME": str(home),
        "BACKLOG_CONFIG": str(config),
        # A Python worker of Spark is the interpreter that has our packages.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **_name_options(
            {
                "core": {
                    # 32 would be started, of 130 MB each.
                    "parallelism": "4",
                    "executor": "LocalExecutor",
                    "load_examples": "False",
                    "dags_folder": str(home / "dags"),
                    "dags_are_paused_at_creation": "False",
                    "execution_api_server_url": f"http://{HOST}:{execution_port}/execution/",
                    "simple_auth_manager_users": ",".join(f"{u.name}:{u.role}" for u in users),
                    "simple_auth_manager_passwords_file": str(home / PASSWORDS),
                    # A changed file's DAG is there at once.
                    "min_serialized_dag_update_interval": "1",
                },
                # One that Airflow makes itself is too short for its own taste, in every log.
                "api_auth": {"jwt_secret": secrets.token_urlsafe(64)},
                # Several processes write: on a busy machine they wait for each other for long.
                "database": {"sql_alchemy_conn": f"sqlite:///{home}/airflow.db?timeout=20"},
                "api": {"host": HOST, "port": str(port), "base_url": f"{address}/", "workers": "1"},
                "dag_processor": {
                    "dag_bundle_config_list": json.dumps(list(bundles)),
                    "parsing_processes": "1",
                    "min_file_process_interval": "10",
                    "refresh_interval": "10",
                },
                "scheduler": {
                    "scheduler_idle_sleep_time": "0.5",
                    # Of a task whose process and supervisor were killed: 5 minutes otherwise.
                    "task_instance_heartbeat_timeout": "30",
                    "task_instance_heartbeat_timeout_detection_interval": "5",
                    # Tasks of a scheduler that was killed: 5 minutes otherwise.
                    "orphaned_tasks_check_interval": "10",
                },
                # A task that has parked itself holds its process for as long, and an answer that
                # comes before it is gone costs the task a try.
                "workers": {"min_heartbeat_interval": "1"},
                "usage_data_collection": {"enabled": "False"},
            }
        ),
        **(extra or {}),
    }


def _name_options(sections: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {
        f"AIRFLOW__{section}__{option}".upper(): value
        for section, options in sections.items()
        for option, value in options.items()
    }
