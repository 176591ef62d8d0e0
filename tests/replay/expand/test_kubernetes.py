"""A whole expansion whose consumers are pods of a Kubernetes cluster."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from backlogctl.errors import Refused
from backlogctl.fanout.launchers import Role
from backlogctl.fanout.launchers.kubernetes_workload import RECORD
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Recovery
from tests.conftest import MakeTopic
from tests.fanout.launchers.pods import NAME, make_workload
from tests.kit.kafka import wait_until
from tests.kit.kubelet import Kubelet
from tests.kit.kubernetes import TOOL, Namespace, Object, await_pods, read_documented_role
from tests.kit.shortened import WORLD, shorten
from tests.replay.expand.oracle import judge
from tests.replay.expand.world import CONSUMER, PARTITIONS, REPLICAS, World

FACTOR = 3
BACKLOG = 1_600
# One after the other: pods stopped, all of the recovery's at work, its pods gone.
KILLED_AT = ("p4.3.stopped", "p4.7.consumers.started", "p4.8.consumers.stopped")


@dataclass
class PodsWorld(World):
    """The consumers are pods, and who runs `backlogctl` has the documented Role."""

    node: Kubelet | None = None
    kind: str = "Deployment"  # of a StatefulSet static members, each by its pod's name

    @property
    def namespace(self) -> Namespace:
        return self._namespace

    def write_config(self) -> None:
        """And makes the workload, without pods."""
        assert self.node is not None
        cluster = self.node.cluster
        self._namespace = Namespace(cluster, f"test-{self.group}")
        self._namespace.grant(read_documented_role())
        kubeconfig = self.directory / "kubeconfig"
        cluster.server.write_kubeconfig(kubeconfig, TOOL, self._namespace.name)
        told = {
            "BACKLOG_TOPIC": self.topic,
            "BACKLOG_GROUP": self.group,
            "BACKLOG_BOOTSTRAP_SERVERS": self.bootstrap,
            "BACKLOG_ROLE": "original",
            "ORDER_LOG": str(self.log),
            WORLD: str(self.directory),
        }
        container: Object = {
            "command": [sys.executable, str(CONSUMER)],
            "env": [{"name": name, "value": value} for name, value in told.items()],
        }
        if self.kind == "StatefulSet":
            name = {"fieldRef": {"fieldPath": "metadata.name"}}
            container["env"] += [
                {"name": "BACKLOG_INDEX", "valueFrom": name},
                {"name": "STATIC", "value": "yes"},
            ]
        self._namespace.create(make_workload(self.kind, self.directory, container=container))
        super().write_config()
        path = self.directory / "backlog.yaml"
        document = json.loads(path.read_text())
        names = {"TOPIC": "{topic}", "GROUP": "{group}", "ROLE": "{role}"}
        variables = {f"BACKLOG_{name}": value for name, value in names.items()}
        pods = {"workload": f"{self.kind.lower()}/{NAME}", "kubeconfig": "kubeconfig"}
        document["streams"][self.stream]["consumers"] = {
            "launcher": "kubernetes",
            "replicas": REPLICAS,
            "kubernetes": {**pods, "variables": variables},
        }
        path.write_text(json.dumps(document, indent=1))

    def start_originals(self) -> None:
        self.set_speed(Role.ORIGINAL, 5)
        self.namespace.merge(self.kind, NAME, {"spec": {"replicas": REPLICAS}}, "people")
        await_pods(self.namespace, f"app={NAME}", REPLICAS)

    def list_pids(self, role: Role, recovery: Recovery | None = None) -> list[int]:
        others = tuple(other for other in Role if other is not role)
        return [*self.list_processes(without=others)]

    def list_deployments(self) -> dict[str, int]:
        """Each with its replicas."""
        found = self.namespace.list("Deployment")
        return {one["metadata"]["name"]: one["spec"]["replicas"] for one in found}

    def read_workload(self) -> Object:
        return self.namespace.get(self.kind, NAME)

    def end(self) -> None:
        self.namespace.close()
        wait_until(lambda: not self.namespace.list("Pod"), 60.0, "its pods have ended")
        super().end()


@pytest.fixture
def world(
    kafka: EmbeddedKafka,
    kubernetes: Kubelet,
    topic: MakeTopic,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[PodsWorld]:
    monkeypatch.setenv(WORLD, str(tmp_path))
    shorten(monkeypatch.setattr)
    name = topic(PARTITIONS, None, "orders")
    kind = getattr(request, "param", "Deployment")
    made = PodsWorld(
        tmp_path, kafka.bootstrap, name, group, monkeypatch, node=kubernetes, kind=kind
    )
    made.write_config()
    made.publish(BACKLOG)
    made.start_originals()
    yield made
    made.end()


def test_from_2_pods_to_6_and_back_whatever_is_killed(world: PodsWorld) -> None:
    before = world.read_workload()
    recovery = world.plan_approved(factor=FACTOR)
    assert recovery.plan["consumers"] == REPLICAS * FACTOR
    assert any("scaled to 0 and back" in line for line in recovery.plan["stopped"])
    world.set_speed(Role.RECOVERY, 100)
    most = 0
    for point in KILLED_AT:
        process = world.start("run", recovery.id, "--json", crash_at=point)
        out, err = process.communicate(timeout=400)
        assert process.returncode == -signal.SIGKILL, out + err
        assert world.list_deployments()[NAME] == 0
        most = max(most, *world.list_deployments().values())
        world.publish(40)
    assert most == REPLICAS * FACTOR
    world.call("run", recovery.id, "--json")
    assert judge(world, recovery) == []
    assert world.list_deployments() == {NAME: REPLICAS}
    after = world.read_workload()
    assert after["spec"] == before["spec"]
    assert RECORD not in after["metadata"]["annotations"]


@pytest.mark.parametrize("world", ["StatefulSet"], indirect=True)
def test_static_members_of_a_stateful_set(world: PodsWorld) -> None:
    """They leave the group when their sessions are over; the recovery's have names of their own."""
    wait_until(lambda: "order-service-original" in world.find_members(), what="they have joined")
    recovery = world.plan_approved(factor=FACTOR)
    assert "static member" in json.dumps(recovery.plan)
    world.set_speed(Role.RECOVERY, 400)
    world.call("run", recovery.id, "--json")
    assert judge(world, recovery) == []
    assert world.read_workload()["spec"]["replicas"] == REPLICAS
    assert world.list_deployments() == {}


def test_nothing_is_stopped_where_the_recoverys_pods_would_have_no_room(world: PodsWorld) -> None:
    """At the plan, and at a run that comes later."""
    recovery = world.plan_approved(factor=FACTOR)
    quota: Any = {"hard": {"pods": "5"}}
    kind = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}}
    world.namespace.create({**kind, "spec": quota})

    def is_reckoned() -> bool:
        found = world.namespace.get("ResourceQuota", "team").get("status", {})
        return bool(found.get("used", {}).get("pods") == str(REPLICAS))

    wait_until(is_reckoned, 60.0, "the quota is reckoned")
    with pytest.raises(Refused, match=r"6 pods need 6 pods, and quota team has 5 pods"):
        world.run(recovery)
    world.call("cancel", recovery.id)
    said = world.call("plan", "expand", "orders", "--rate", "20", "--factor", "3", code=5)
    assert "quota team has 5 pods" in said.err
    assert len(world.list_pids(Role.ORIGINAL)) == REPLICAS
    assert RECORD not in world.read_workload()["metadata"]["annotations"]
