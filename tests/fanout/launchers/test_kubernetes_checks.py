"""What is asked of a real Kubernetes cluster before anything is stopped."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from backlogctl.errors import Refused, UsageError
from backlogctl.fanout.launchers.kubernetes_api import DEPLOYMENTS, STATEFUL_SETS
from backlogctl.fanout.launchers.kubernetes_checks import list_needed_verbs
from tests.fanout.launchers.conftest import MakeWorld
from tests.fanout.launchers.fleets import no_stop
from tests.fanout.launchers.pods import NAME, PodWorld, set_quota
from tests.kit.kafka import wait_until
from tests.kit.kubernetes import read_documented_role


def test_a_good_cluster_has_little_to_say(world: PodWorld) -> None:
    world.start(2)
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": NAME}}}
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "two"}}
    world.namespace.create({**kind, "spec": budget})
    before = world.read()["spec"], world.annotations
    (told,) = world.launcher().check(world.original, world.fleet, 4)
    assert told.startswith("disruption budget two (minAvailable 1) is for these pods")
    assert (world.read()["spec"], world.annotations) == before
    assert world.living() == 2
    assert len(world.namespace.list("Deployment")) == 1
    world.start(3)
    told, _ = world.launcher().check(world.original, world.fleet, 4)
    assert told == (
        "deployments.apps/order-service has 3 replicas, and `consumers.replicas` is 2: 3 are given "
        "back"
    )


def list_verbs() -> list[tuple[int, str]]:
    rules = read_documented_role()["rules"]
    return [(number, verb) for number, rule in enumerate(rules) for verb in rule["verbs"]]


def test_each_verb_of_the_role_is_needed_and_named(world: PodWorld) -> None:
    """Without it a plan is refused, and says which."""
    world.start(1)
    world.launcher().check(world.original, world.fleet, 2)
    whole = read_documented_role()["rules"]
    for number, verb in list_verbs():
        rules = copy.deepcopy(whole)
        rules[number]["verbs"].remove(verb)
        rules = [rule for rule in rules if rule["verbs"]]
        world.namespace.merge("Role", "backlogctl", {"rules": rules})
        named = whole[number]["resources"][0].partition("/")[0]
        said: list[str] = []

        def is_refused(said: list[str] = said) -> bool:
            try:
                world.launcher().check(world.original, world.fleet, 2)
            except Refused as refused:
                said.append(str(refused))
            return bool(said)

        wait_until(is_refused, 20.0, f"{verb} {named} is missed")
        assert f"{verb} {named}" in said[0]
        assert "(to " in said[0]
        assert "docs/kubernetes.md" in said[0]


def test_the_role_has_what_is_asked_for_and_no_more() -> None:
    granted = {
        (group, resource, verb)
        for rule in read_documented_role()["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    asked = {
        (one.resource.group, f"{one.resource.plural}/{one.sub}".rstrip("/"), verb)
        for kind in (DEPLOYMENTS, STATEFUL_SETS)
        for one in list_needed_verbs(kind, expands=True)
        for verb in one.verbs
    }
    assert granted == asked


def test_claims_that_would_go_with_the_pods_are_kept(make_world: MakeWorld) -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = [{"metadata": {"name": "data"}, "spec": claim}]
    world = make_world(kind="StatefulSet", claims=claims)
    policy = {"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}}
    world.namespace.merge("StatefulSet", NAME, {"spec": policy})
    with pytest.raises(Refused, match=r"its claims are deleted with its pods .*whenScaled"):
        world.launcher().check(world.original, None, 0)


@pytest.mark.parametrize("running", [2, 0])
def test_a_quota_is_asked_beforehand(make_world: MakeWorld, running: int) -> None:
    """What the workload gives free counts; its pods are of the same size."""
    half = {"requests": {"cpu": "250m", "memory": "1Gi"}}
    sidecar = {"name": "mesh", "image": "mesh:1", "restartPolicy": "Always", "resources": half}
    large = {"name": "migrate", "image": "migrate:1", "resources": {"limits": {"cpu": "200m"}}}
    world = make_world(container={"resources": half}, initContainers=[sidecar, large])
    set_quota(world, {"requests.cpu": "9", "pods": "100", "count/deployments.apps": "2"})
    if running:
        world.start(running)
    world.launcher().check(world.original, world.fleet, 18)
    said = (
        r"30 pods need 15 CPUs \(requests.cpu\), and quota team has 9 CPUs \(requests.cpu\), with "
        rf"the {running} pods of the workload ended"
    )
    with pytest.raises(Refused, match=said):
        world.launcher().check(world.original, world.fleet, 30)


def test_a_quota_of_some_pods_only_is_not_known(world: PodWorld) -> None:
    set_quota(world, {"pods": "1"}, scopes=["BestEffort"])
    told = world.launcher().check(world.original, world.fleet, 4)
    assert any("quota team is for some pods only: whether" in one for one in told)


def test_what_admission_refuses_is_known_before(world: PodWorld) -> None:
    """A Deployment is let in whose pods are not."""
    limit = {"type": "Pod", "max": {"memory": "1Gi"}}
    kind = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "most"}}
    world.namespace.create({**kind, "spec": {"limits": [limit]}})

    def check() -> str:
        try:
            world.launcher().check(world.original, world.fleet, 2)
        except Refused as refused:
            return str(refused)
        return ""

    wait_until(check, 30.0, "it is refused")
    assert "its pods would be refused: " in check()
    assert "maximum memory usage per Pod is 1Gi" in check()
    assert "nothing was changed" in check()


def test_a_rollout_that_hangs_is_no_template(world: PodWorld) -> None:
    world.start(2)
    template = {"spec": {"nodeSelector": {"disk": "none"}}}
    world.namespace.merge("Deployment", NAME, {"spec": {"template": template}})

    def hangs() -> bool:
        return bool(world.read()["status"].get("updatedReplicas", 0) == 1)

    wait_until(hangs, 30.0, "it hangs")
    with pytest.raises(Refused, match=r"rollout is under way or hangs: 1 of 2 pods are of its"):
        world.launcher().check(world.original, world.fleet, 2)


def test_what_is_not_there_is_named(world: PodWorld) -> None:
    with pytest.raises(UsageError, match="no container other, but consumer"):
        _check_with(world, container="other")
    with pytest.raises(
        UsageError, match=r"statefulsets\.apps/orders in namespace .*no such object"
    ):
        _check_with(world, workload="statefulset/orders", container=None)
    with pytest.raises(UsageError, match="Context 'other' not found"):
        _check_with(world, context="other")


def _check_with(world: PodWorld, **settings: Any) -> None:
    world.settings |= settings
    world.launcher().check(world.original, world.fleet, 2)


def test_claims_of_a_stateful_set_are_each_pods_own(make_world: MakeWorld) -> None:
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    world = make_world(kind="StatefulSet", container=mounts, claims=[claim])
    world.launcher().check(world.original, world.fleet, 2)
    world.launcher().scale(world.fleet, 2, no_stop)
    (first, _) = world.namespace.list("Pod", "backlogctl/recovery=r-1")
    (volume,) = [one for one in first["spec"]["volumes"] if one["name"] == "data"]
    requests = volume["ephemeral"]["volumeClaimTemplate"]["spec"]["resources"]["requests"]
    assert requests == {"storage": "1Gi"}


def test_a_place_in_a_stateful_set_is_no_other_pods(make_world: MakeWorld) -> None:
    """Where each pod of the recovery had the same name, one would fence the other."""
    paths = {"PLACE": "metadata.labels['apps.kubernetes.io/pod-index']", "POD": "metadata.name"}
    env = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in paths.items()
    ]
    world = make_world(kind="StatefulSet", container={"env": env})
    world.start(2)
    (told,) = world.launcher().check(world.original, world.fleet, 2)
    assert told.startswith("PLACE is a label that only pods of statefulsets.apps/order-service")
    world.settings["variables"] = {"BACKLOG_TOPIC": "{topic}", "PLACE": "{group}"}
    assert not world.launcher().check(world.original, world.fleet, 2)
