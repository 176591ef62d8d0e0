"""The launcher `kubernetes` on a real API server and real controllers, with the documented Role."""

from __future__ import annotations

import copy
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backlogctl.config import Kubernetes as Settings
from backlogctl.errors import BacklogError, Refused, UsageError
from backlogctl.fanout.launchers.kubernetes_api import (
    DEPLOYMENTS,
    KubernetesApi,
    KubernetesFailure,
    connect_to_cluster,
)
from backlogctl.fanout.launchers.kubernetes_fleet import merge_patch, name_deployment
from backlogctl.fanout.launchers.kubernetes_workload import KEDA_PAUSED, RECORD, Workload
from tests.fanout.launchers.conftest import MakeWorld
from tests.fanout.launchers.fleets import make_fleet, no_stop, read_seen, wait_for_count
from tests.fanout.launchers.pods import (
    NAME,
    SELECTOR,
    Killed,
    PodWorld,
    killed_at,
    make_fleet_of,
    set_quota,
)
from tests.kit.kafka import repeating, wait_until
from tests.kit.kubelet import Kubelet
from tests.kit.kubernetes import TOOL, Keda, Object, await_pods

RECOVERY = f"{NAME}-recovery-r-1"


def test_pods_are_the_workloads_but_for_what_they_read(make_world: MakeWorld) -> None:
    world = make_world(serviceAccountName="shop")
    world.settings["variables"] = {"BACKLOG_TOPIC": "{topic}", "KAFKA_GROUP": "{group}"}
    world.settings["template"] = {"spec": {"priorityClassName": None, "hostname": "recovery"}}
    world.launcher().scale(world.fleet, 1, no_stop)
    (told,) = read_seen(world.seen).values()
    wanted = {"BACKLOG_TOPIC": "orders.recovery.r-1", "KAFKA_GROUP": "service.recovery.r-1"}
    assert told["environment"].items() >= {**wanted, "LEVEL": "info"}.items()
    deployment = world.namespace.get("Deployment", RECOVERY)
    assert deployment["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "backlogctl"
    (pod,) = world.namespace.list("Pod", "backlogctl/recovery=r-1,backlogctl/stream=orders")
    assert pod["metadata"]["labels"]["app"] == NAME
    assert (pod["spec"]["serviceAccountName"], pod["spec"]["hostname"]) == ("shop", "recovery")
    assert world.launcher().logs(world.fleet) == (
        f"`kubectl --kubeconfig {world.kubeconfig} logs --prefix --selector "
        "backlogctl/recovery=r-1,backlogctl/stream=orders`"
    )


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_a_workload_is_given_back_as_it_was(make_world: MakeWorld, kind: str) -> None:
    """It had more replicas than the configuration says."""
    world = make_world(kind=kind)
    world.start(3)
    launcher = world.launcher()
    assert launcher.count_running(world.original) == 3
    launcher.stop(world.original, no_stop)
    assert (world.replicas, world.living()) == (0, 0)
    record = json.loads(world.annotations[RECORD])
    assert (record["stream"], record["replicas"]) == ("orders", 3)
    assert launcher.count_running(world.original) == 0
    world.launcher().stop(world.original, no_stop)
    world.launcher().scale(world.original, 2, no_stop)
    assert (world.replicas, world.living()) == (3, 3)
    assert RECORD not in world.annotations
    world.launcher().scale(world.original, 2, no_stop)
    assert world.replicas == 3, "what runs is left alone"


def test_a_workload_that_was_at_0_gets_what_the_configuration_says(world: PodWorld) -> None:
    world.launcher().stop(world.original, no_stop)
    world.launcher().scale(world.original, 2, no_stop)
    assert (world.replicas, world.living()) == (2, 2)


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_each_request_and_found_again(world: PodWorld, *, after: bool) -> None:
    """Nothing but the cluster remembers."""
    world.namespace.create(make_autoscaler(0))
    world.start(2)
    steps: list[tuple[Callable[[], None], Callable[[], bool]]] = [
        (lambda: world.launcher().stop(world.original, no_stop), lambda: world.living() == 0),
        (lambda: world.launcher().scale(world.fleet, 2, no_stop), lambda: world.living() == 2),
        (lambda: world.launcher().scale(world.fleet, 1, no_stop), lambda: world.living() == 1),
        (lambda: world.launcher().stop(world.fleet, no_stop), lambda: world.living() == 0),
        (lambda: world.launcher().scale(world.original, 9, no_stop), lambda: world.replicas == 2),
    ]
    writes = []
    for act, is_done in steps:
        number = 0
        while True:
            # What was done is not done again, so that the next one is the first then.
            with killed_at(0 if after else number, after=after):
                try:
                    act()
                except Killed:
                    number += 1
                    continue
                break
        act()
        assert is_done()
        writes.append(number)
    assert min(writes) >= 1, writes
    assert sum(writes) >= 7, writes
    assert RECORD not in world.annotations
    assert world.namespace.list("Deployment", "backlogctl/recovery") == []
    assert world.living() == 2


def make_autoscaler(minimum: int | None) -> Object:
    """`minimum` 0 is of a feature that is off by default: None is Kubernetes' own, 1."""
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME}
    spec: Object = {"scaleTargetRef": target, "maxReplicas": 5}
    if minimum:
        spec["minReplicas"] = minimum
    kind = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
    return {**kind, "metadata": {"name": NAME}, "spec": spec}


def test_an_autoscaler_does_nothing_while_the_workload_is_stopped(world: PodWorld) -> None:
    world.start(1)
    world.namespace.create(make_autoscaler(2))
    wait_until(lambda: world.replicas == 2, 60.0, "the autoscaler scales")
    await_pods(world.namespace, SELECTOR, 2)
    told = world.launcher().check(world.original, world.fleet, 4)
    assert any(
        "horizontalpodautoscalers.autoscaling/order-service: does nothing" in t for t in told
    )
    world.launcher().stop(world.original, no_stop)

    def is_off() -> bool:
        status = world.namespace.get("HorizontalPodAutoscaler", NAME).get("status", {})
        return any(one["reason"] == "ScalingDisabled" for one in status.get("conditions", []))

    wait_until(is_off, 60.0, "the autoscaler is off")
    assert world.replicas == 0
    world.launcher().scale(world.original, 9, no_stop)
    assert (world.replicas, world.living()) == (2, 2)
    world.namespace.merge("HorizontalPodAutoscaler", NAME, {"spec": {"minReplicas": 3}})
    wait_until(lambda: world.replicas == 3, 60.0, "the autoscaler is on again")


@pytest.fixture
def keda(kubernetes: Kubelet) -> Iterator[None]:
    with Keda(kubernetes.cluster):
        yield


@pytest.mark.parametrize("before", [None, "1"])
def test_keda_is_paused_and_let_go(world: PodWorld, keda: None, before: str | None) -> None:
    """To the paused number, else to its minimum of 2."""
    world.start(2)
    annotations = {} if before is None else {KEDA_PAUSED: before}
    metadata = {"name": NAME, "annotations": annotations}
    spec = {"scaleTargetRef": {"name": NAME}, "minReplicaCount": 2}
    kind = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject"}
    world.namespace.create({**kind, "metadata": metadata, "spec": spec})

    world.launcher().stop(world.original, no_stop)
    time.sleep(1.0)
    assert world.replicas == 0
    world.launcher().scale(world.original, 9, no_stop)
    wait_until(lambda: world.replicas == (2 if before is None else 1), 30.0)
    kept = world.namespace.get("ScaledObject", NAME)["metadata"].get("annotations", {})
    assert kept.get(KEDA_PAUSED) == before


def test_who_scales_against_us_is_named(world: PodWorld) -> None:
    world.start(1)

    def act() -> None:
        if world.replicas == 0:
            world.namespace.merge("Deployment", NAME, {"spec": {"replicas": 2}}, "gitops")

    with (
        repeating(act, each=0.05),
        pytest.raises(
            BacklogError, match=r"set to 0, and somebody sets them to 2 again: gitops, at"
        ),
    ):
        world.launcher().stop(world.original, no_stop)
    world.launcher().stop(world.original, no_stop)
    assert world.replicas == 0, "it is quiet now, and the next run stops it"


def test_who_scales_the_recoverys_pods_is_named(world: PodWorld) -> None:
    world.launcher().scale(world.fleet, 1, no_stop)
    scale = {"spec": {"replicas": 3}}

    def interfere() -> None:
        if world.namespace.get("Deployment", RECOVERY)["spec"]["replicas"] == 2:
            world.namespace.merge("Deployment", RECOVERY, scale, "somebody")

    with pytest.raises(BacklogError, match="set to 3 while this process asked for 2: somebody"):
        world.launcher().scale(world.fleet, 2, interfere)

    def delete() -> None:
        if world.namespace.list("Deployment", "backlogctl/recovery"):
            world.namespace.delete("Deployment", RECOVERY)

    with pytest.raises(BacklogError, match=f"{RECOVERY} in namespace .*: somebody deleted it"):
        world.launcher().scale(world.fleet, 2, delete)


def test_a_change_in_between_is_read_again(
    world: PodWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sends a request finds that the object is another one now: 409."""
    world.start(1)
    send = KubernetesApi._send
    conflicts: list[str] = []

    def come_between(self: KubernetesApi, method: str, path: str, *rest: Any) -> Any:
        if method in ("PUT", "PATCH") and len(conflicts) < 4 and path not in conflicts[-1:]:
            label = {"metadata": {"labels": {"touched": str(len(conflicts))}}}
            world.namespace.merge("Deployment", NAME, label)
            conflicts.append(path)
            with pytest.raises(KubernetesFailure) as failed:
                send(self, method, path, *rest)
            assert failed.value.is_conflict
            raise failed.value
        return send(self, method, path, *rest)

    monkeypatch.setattr(KubernetesApi, "_send", come_between)
    world.launcher().stop(world.original, no_stop)
    world.launcher().scale(world.original, 9, no_stop)
    assert len(conflicts) >= 2
    assert (world.replicas, world.living()) == (1, 1)
    assert RECORD not in world.annotations


def test_two_recoveries_in_one_namespace(world: PodWorld) -> None:
    world.start(1)
    other = make_fleet_of(world.directory, "r-2")
    world.launcher().scale(world.fleet, 2, no_stop)
    world.launcher().scale(other, 1, no_stop)
    counts = [world.launcher().count_running(one) for one in (world.original, world.fleet, other)]
    assert counts == [1, 2, 1]
    world.launcher().stop(world.fleet, no_stop)
    assert world.launcher().count_running(other) == 1
    assert world.launcher().count_running(world.original) == 1
    world.launcher().stop(other, no_stop)
    assert world.living() == 1


def test_another_stream_that_stopped_the_workload_is_in_the_way(world: PodWorld) -> None:
    world.start(1)
    world.launcher().stop(world.original, no_stop)
    payments = make_fleet(
        world.directory, stream="payments", role=world.original.role, recovery_id=""
    )
    for attempt in (
        lambda: world.launcher().stop(payments, no_stop),
        lambda: world.launcher().check(payments, None, 0),
    ):
        with pytest.raises(Refused, match=r"stream orders \(group service\) has stopped it"):
            attempt()


def test_what_is_there_and_not_ours_is_left_alone(world: PodWorld) -> None:
    foreign = copy.deepcopy(world.read())
    foreign["metadata"] = {"name": RECOVERY}
    world.namespace.create(foreign)
    with pytest.raises(Refused, match="it is there, and not of this recovery"):
        world.launcher().scale(world.fleet, 1, no_stop)
    world.launcher().stop(world.fleet, no_stop)
    assert world.namespace.get("Deployment", RECOVERY)


def test_pods_that_were_evicted_are_none(world: PodWorld) -> None:
    """They stay as objects, with others in their place."""
    world.launcher().scale(world.fleet, 1, no_stop)
    (pod,) = world.namespace.list("Pod", "backlogctl/recovery")
    path = world.namespace.path("pods", pod["metadata"]["name"], "status")
    world.cluster.ask("PATCH", path, {"status": {"phase": "Failed", "reason": "Evicted"}})
    wait_until(lambda: len(world.namespace.list("Pod", "backlogctl/recovery")) == 2, 60.0)
    world.launcher().scale(world.fleet, 2, no_stop)
    wait_for_count(world, 2)


# What cannot run is told.


@pytest.mark.parametrize(
    ("workload", "within", "said"),
    [
        ({"container": {"image": "missing:1"}}, "90s", r"ImagePullBackOff: failed to pull .*missing"),
        (
            {"container": {"command": ["sh", "-c", "echo no such table >&2; exit 3"]}},
            "90s",
            r"CrashLoopBackOff, exit code 3, started again \d times; its last lines:\n  no such",
        ),
        ({"nodeSelector": {"disk": "none"}}, "2s", r"0 of 2 pods are ready after 2 s: pod .*"
         r"Unschedulable: 0/1 nodes are available"),
        ({"container": {"readinessProbe": {"exec": {"command": ["false"]}}}}, "3s",
         r"0 of 2 pods are ready after 3 s: pod .*runs, and its readiness probe fails"),
    ],
)  # fmt: skip
def test_pods_that_do_not_get_ready(
    make_world: MakeWorld, workload: Object, within: str, said: str
) -> None:
    world = make_world(**workload)
    world.within["command_within"] = within
    with pytest.raises(BacklogError, match=said) as failed:
        world.launcher().scale(world.fleet, 2, no_stop)
    assert failed.value.subject.startswith(f"deployments.apps/{RECOVERY} in namespace")
    if "readiness" not in said and "nodes" not in said:
        # Without a probe it is ready for a moment, each time that it starts.
        wait_until(lambda: re.search(said, world.launcher().explain(world.fleet) or ""), 60.0)
    world.launcher().stop(world.fleet, no_stop)
    assert world.namespace.list("Pod", "backlogctl/recovery") == []


def test_pods_that_a_quota_keeps_out_meanwhile(
    world: PodWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backlogctl.fanout.launchers.kubernetes_fleet._REFUSED_SECONDS", 1.0)
    set_quota(world, {"pods": "1"})
    with pytest.raises(BacklogError, match=r"1 of 3 pods could be made: .*exceeded quota: team"):
        world.launcher().scale(world.fleet, 3, no_stop)


def test_variables_that_a_webhook_changed_are_seen(
    world: PodWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod of the Deployment that reads another topic than its template says."""
    read = KubernetesApi.find_all

    def change(self: KubernetesApi, kind: Any, selector: str = "") -> list[Object]:
        found = read(self, kind, selector)
        for pod in found if kind.plural == "pods" else ():
            pod["spec"]["containers"][0]["env"][0]["value"] = "orders"
        return found

    monkeypatch.setattr(KubernetesApi, "find_all", change)
    with pytest.raises(BacklogError, match="variable BACKLOG_TOPIC is 'orders', and should be"):
        world.launcher().scale(world.fleet, 1, no_stop)


def test_a_tag_that_was_moved_is_said_once(world: PodWorld, kubernetes: Kubelet) -> None:
    world.start(1)
    world.launcher().stop(world.original, no_stop)
    kubernetes.moved["order-service:1"] = "order-service:2"
    try:
        launcher = world.launcher()
        launcher.scale(world.fleet, 1, no_stop)
        launcher.scale(world.fleet, 2, no_stop)
    finally:
        kubernetes.moved.clear()
    (said,) = world.said
    assert re.fullmatch(
        r"the recovery's pods run image (order-service:1@sha256:\S{64}), and the group's own ran "
        r"(?!\1)order-service:1@sha256:\S{64}",
        said,
    )


# Names and connections.


@pytest.mark.parametrize("workload", [NAME, "o" * 46, "a" * 26, "a" * 40, "x.y" * 30])
@pytest.mark.parametrize("recovery", ["r-20261121-0001-k7qm2p", "try", "R" * 60])
def test_names_fit_however_long_they_are(tmp_path: Path, workload: str, recovery: str) -> None:
    fleet = make_fleet_of(tmp_path, recovery)
    name = name_deployment(workload, fleet)
    assert len(f"{name}-0123456789-01234") <= 63
    assert re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name)
    assert name == name_deployment(workload, fleet)
    others = {
        name_deployment(f"{workload}x", fleet),
        name_deployment(workload, make_fleet(tmp_path)),
    }
    assert name not in others


def test_a_long_name_is_taken(world: PodWorld) -> None:
    fleet = make_fleet_of(world.directory, "r-20261121-0001-k7qm2p")
    name = name_deployment("order-service-with-a-long-name", fleet)
    assert len(name) == 46
    body = copy.deepcopy(world.read())
    body["metadata"] = {"name": "order-service-with-a-long-name"}
    world.namespace.create(body)
    world.settings["workload"] = "deployment/order-service-with-a-long-name"
    world.launcher().scale(fleet, 1, no_stop)
    (pod,) = world.namespace.list("Pod", "backlogctl/recovery")
    assert pod["metadata"]["name"].startswith(f"{name}-")


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [
        ({"a": 1}, {"a": None, "b": 2}, {"b": 2}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": "x"}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}),
    ],
)
def test_a_merge_patch_is_one(target: Object, patch: Object, merged: Object) -> None:
    assert merge_patch(target, patch) == merged


def test_several_kubeconfigs_and_a_login_program(
    world: PodWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kubectl takes them: the first that has a name wins; of a program of v1 the token."""
    plugin = tmp_path / "login"
    answer = {"kind": "ExecCredential", "status": {"token": TOOL}}
    asked = tmp_path / "asked"
    text = f"#!/bin/sh\necho \"$KUBERNETES_EXEC_INFO\" > {asked}\necho '{json.dumps(answer)}'\n"
    plugin.write_text(text)
    plugin.chmod(0o700)
    known = json.loads(world.kubeconfig.read_text())
    login = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}
    first = {"users": [{"name": "tests", "user": {"exec": login}}], "clusters": None}
    (tmp_path / "first").write_text(json.dumps(first))
    (tmp_path / "second").write_text(json.dumps(known))
    places = [str(tmp_path / name) for name in ("missing", "first", "second")]
    monkeypatch.setenv("KUBECONFIG", ":".join(places))
    api = connect_to_cluster(Settings(workload=f"deployment/{NAME}"))
    assert api.find(DEPLOYMENTS, NAME) is not None
    told = json.loads(asked.read_text())
    assert told["apiVersion"] == "client.authentication.k8s.io/v1"
    plugin.write_text("#!/bin/sh\necho expired >&2\nexit 1\n")
    api = connect_to_cluster(Settings(workload=f"deployment/{NAME}"))
    with pytest.raises(KubernetesFailure, match=r"its login failed: .*expired"):
        api.find(DEPLOYMENTS, NAME)


def test_a_kubeconfig_that_is_no_file(world: PodWorld) -> None:
    def connect(text: str) -> KubernetesApi:
        return connect_to_cluster(
            Settings.model_validate({"workload": f"deployment/{NAME}", "kubeconfig_text": text})
        )

    assert connect(world.kubeconfig.read_text()).find(DEPLOYMENTS, NAME) is not None
    with pytest.raises(UsageError, match="is no YAML") as caught:
        connect("token: hunter2: [")
    assert "hunter2" not in str(caught.value)


def test_the_api_server_is_restarted(world: PodWorld, kubernetes: Kubelet) -> None:
    """Pods go on; who asks waits, and who wants an answer now gets an error that says so."""
    server = kubernetes.cluster.server
    launcher = world.launcher()
    launcher.scale(world.fleet, 1, no_stop)
    looks: list[int] = []
    server.kill()
    away = threading.Timer(1.0, server.start)
    try:
        quick = connect_to_cluster(Settings.model_validate(world.settings)).looking(no_stop, 0.3)
        with pytest.raises(KubernetesFailure, match="does not answer") as failed:
            quick.find(DEPLOYMENTS, NAME)
        assert failed.value.retryable
        assert world.living() == 1
    finally:
        away.start()
    launcher.scale(world.fleet, 2, lambda: looks.append(1))
    away.join()
    assert looks
    wait_for_count(world, 2)


def test_another_kind_is_read_by_its_own_name(world: PodWorld) -> None:
    """Deployments by their long name, as any kind with a scale subresource."""
    world.settings["workload"] = f"deployments.v1.apps/{NAME}"
    world.start(1)
    world.launcher().check(world.original, world.fleet, 1)
    world.launcher().stop(world.original, no_stop)
    assert world.replicas == 0
    api = connect_to_cluster(Settings.model_validate(world.settings))
    settings = Settings.model_validate(world.settings)
    assert Workload(api, settings).find_stopped()["replicas"] == 1
