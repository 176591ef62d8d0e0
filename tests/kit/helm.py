"""Helm itself, built beside the Kubernetes of the tests, and our chart.

`python -m tests.kit.helm > deploy/kubernetes/backlogctl.yaml` writes the plain manifests.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.kit.kubernetes import Object, build_kubernetes
from tests.kit.processes import ROOT

CHART = ROOT / "deploy" / "helm" / "backlogctl"
NAME = "backlogctl"
_OF_THE_PAGES = """\
# Made by `python -m tests.kit.helm > deploy/kubernetes/backlogctl.yaml` from the chart beside it,
# with its defaults. Correct the ConfigMap `backlogctl`, then:
#   kubectl create namespace backlogctl
#   kubectl apply --server-side --namespace backlogctl --filename backlogctl.yaml
"""


class HelmFailure(Exception):
    """It ended with an exit code; what it said."""


def run_helm(*words: str, values: Object | None = None) -> str:
    """What it printed on stdout. Raises HelmFailure."""
    program = build_kubernetes().with_name("helm")
    with tempfile.TemporaryDirectory(prefix="backlog-helm-") as place:
        file = Path(place) / "values.json"
        file.write_text(json.dumps(values or {}))
        places = ("HOME", "HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "KUBECACHEDIR")
        with_values = ["--values", str(file)] if values else []
        done = subprocess.run(
            [program, *words, *with_values],
            env={"PATH": os.environ["PATH"], **dict.fromkeys(places, place)},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise HelmFailure(done.stderr + done.stdout)
    return done.stdout


def print_chart(namespace: str = NAME, **values: Any) -> str:
    """What `helm template` prints."""
    return run_helm("template", NAME, str(CHART), "--namespace", namespace, values=values)


def render_chart(namespace: str = NAME, **values: Any) -> dict[str, Object]:
    """The objects of the chart, by kind; of a kind the last one."""
    documents = yaml.safe_load_all(print_chart(namespace, **values))
    return {one["kind"]: one for one in documents if one}


def print_manifests() -> str:
    """What the folder deploy/kubernetes has."""
    return _OF_THE_PAGES + print_chart()


if __name__ == "__main__":
    print(print_manifests(), end="")
