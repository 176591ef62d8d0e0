"""Consumers as pods of a real API server: the world of the launcher `kubernetes`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from backlogctl.config import Consumers
from backlogctl.fanout.launchers import Fleet, KubernetesLauncher, Role
from backlogctl.fanout.launchers.kubernetes_api import KubernetesApi
from tests.fanout.launchers.fleets import CONSUMER, make_fleet, read_seen
from tests.kit.kafka import wait_until
from tests.kit.kubelet import Kubelet
from tests.kit.kubernetes import (
    TOOL,
    Namespace,
    Object,
    await_pods,
    read_documented_role,
)

NAME = "order-service"
SELECTOR = f"app={NAME}"


class Killed(Exception):
    """The runner ends here, and does nothing more."""


class PodWorld:
    """A workload in a namespace of the test's own, and who has the documented Role there.

    It has no pods at first; `start` gives it some.
    """

    def __init__(
        self,
        directory: Path,
        kubelet: Kubelet,
        name: str,
        *,
        kind: str = "Deployment",
        role: Object | None = None,
        **workload: Any,
    ) -> None:
        self.directory, self.kubelet, self.kind = directory, kubelet, kind
        self.cluster = kubelet.cluster
        self.namespace = Namespace(self.cluster, name)
        self.namespace.grant(role or read_documented_role())
        self.seen = directory / "seen"
        self.seen.mkdir()
        self.fleet = make_fleet(directory)
        self.original = make_fleet(
            directory, role=Role.ORIGINAL, topic="orders", group="service", recovery_id=""
        )
        self.said: list[str] = []
        self.kubeconfig = directory / "kubeconfig"
        self.cluster.server.write_kubeconfig(self.kubeconfig, TOOL, name)
        self.settings: dict[str, Any] = {
            "workload": f"{kind.lower()}/{NAME}",
            "kubeconfig": self.kubeconfig,
        }
        self.within = {"command_within": "90s", "stop_within": "90s"}
        self.namespace.create(make_workload(kind, self.seen, **workload))

    def launcher(self) -> KubernetesLauncher:
        """A new launcher, as after a crash."""
        document = {"launcher": "kubernetes", "replicas": 2, "kubernetes": self.settings}
        return KubernetesLauncher(
            Consumers.model_validate({**document, **self.within}), self.said.append
        )

    def living(self) -> int:
        """How many consumers live, whosesoever they are."""
        return len(read_seen(self.seen))

    def start(self, count: int) -> None:
        """The workload's own pods."""
        self.namespace.merge(self.kind, NAME, {"spec": {"replicas": count}}, "people")
        await_pods(self.namespace, f"{SELECTOR},!backlogctl/recovery", count)
        # The controller says so a moment later.
        wait_until(
            lambda: self.read().get("status", {}).get("updatedReplicas", 0) == count,
            60.0,
            "they are of its template",
        )

    def read(self) -> Object:
        """The workload."""
        return self.namespace.get(self.kind, NAME)

    @property
    def replicas(self) -> int:
        count: int = self.read()["spec"]["replicas"]
        return count

    @property
    def annotations(self) -> dict[str, str]:
        """The workload's."""
        return dict(self.read()["metadata"].get("annotations", {}))

    def close(self) -> None:
        """Its pods end."""
        self.namespace.close()
        wait_until(lambda: not self.living(), 60.0, "its pods have ended")
        assert not self.kubelet.errors


def make_workload(kind: str, seen: Path, *, container: Object | None = None, **spec: Any) -> Object:
    """Consumers that tell in `seen` what they have learned; `spec` is more of the pods'."""
    told = {"name": "BACKLOG_TOPIC", "value": "orders"}
    own: Object = {
        "name": "consumer",
        "image": "order-service:1",
        "command": [sys.executable, "-I", "-S", "-c", CONSUMER, str(seen)],
        "env": [told, {"name": "LEVEL", "value": "info"}],
        **(container or {}),
    }
    more = {"serviceName": NAME} if kind == "StatefulSet" else {}
    claims = spec.pop("claims", None)
    if claims is not None:
        more["volumeClaimTemplates"] = claims
    pod = {"containers": [own], "terminationGracePeriodSeconds": 20, **spec}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": NAME},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": NAME}},
            "template": {"metadata": {"labels": {"app": NAME}}, "spec": pod},
            **more,
        },
    }


@contextmanager
def killed_at(number: int, *, after: bool) -> Iterator[list[str]]:
    """The process ends at its write request of that number, before it is sent or after; gives the
    requests that were sent."""
    sent: list[str] = []
    send = KubernetesApi._send

    def count(self: KubernetesApi, method: str, path: str, *rest: Any) -> Any:
        if method == "GET" or "reviews" in path:
            return send(self, method, path, *rest)
        if len(sent) == number and not after:
            raise Killed
        answer = send(self, method, path, *rest)
        sent.append(f"{method} {path}")
        if len(sent) > number:
            raise Killed
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KubernetesApi, "_send", count)
        yield sent


def make_fleet_of(directory: Path, recovery: str) -> Fleet:
    """Another recovery's."""
    return make_fleet(
        directory,
        topic=f"orders.recovery.{recovery}",
        group=f"service.recovery.{recovery}",
        recovery_id=recovery,
    )


def set_quota(world: PodWorld, hard: dict[str, str], **spec: Any) -> None:
    """And waits until the controller has reckoned."""
    kind = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}}
    world.namespace.create({**kind, "spec": {"hard": hard, **spec}})

    def is_reckoned() -> bool:
        found = world.namespace.get("ResourceQuota", "team").get("status", {})
        return bool(found.get("hard") == hard)

    wait_until(is_reckoned, 60.0, "the quota is reckoned")
