"""The Helm chart: what it renders, what it refuses, and that its pod runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from backlogctl.config import Config, Kubernetes
from backlogctl.fanout.launchers import kubernetes_api
from backlogctl.fanout.launchers.kubernetes_api import (
    DEPLOYMENTS,
    STATEFUL_SETS,
    ObjectKind,
    connect_to_cluster,
)
from backlogctl.fanout.launchers.kubernetes_checks import list_needed_verbs
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import HOST, free_port
from tests.kit.helm import (
    CHART,
    NAME,
    HelmFailure,
    print_manifests,
    render_chart,
    run_helm,
)
from tests.kit.kubelet import Kubelet
from tests.kit.kubernetes import (
    ADMIN,
    Namespace,
    Object,
    await_pods,
    read_documented_role,
)
from tests.kit.mounts import ACCOUNT
from tests.kit.processes import ROOT

pytestmark = pytest.mark.kubernetes

POSTGRES = "ledger: postgresql+psycopg://ledger@database/ledger\n"
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")
Right = tuple[str, str, str]  # group, resource with its subresource, verb


def list_rights(role: Object) -> set[Right]:
    return {
        right
        for rule in role["rules"]
        for right in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }


def list_asked() -> set[Right]:
    """What the launcher asks for, of both kinds of workloads."""
    needed = [
        right
        for kind in (DEPLOYMENTS, STATEFUL_SETS)
        for right in list_needed_verbs(kind, expands=True)
    ]
    return {
        (one.resource.group, f"{one.resource.plural}/{one.sub}".rstrip("/"), verb)
        for one in needed
        for verb in one.verbs
    }


def test_the_plain_manifests_are_the_chart_with_its_defaults() -> None:
    assert (ROOT / "deploy/kubernetes/backlogctl.yaml").read_text() == print_manifests()
    assert "Role" not in render_chart()


def test_lint_finds_nothing() -> None:
    assert "[WARNING]" not in run_helm("lint", "--strict", str(CHART))


def test_its_configuration_is_one() -> None:
    text = render_chart()["ConfigMap"]["data"]["backlog.yaml"]
    assert list(Config.from_text(text, Path("/etc/backlogctl"), {}).clusters) == ["main"]


def test_the_role_is_that_of_the_page_and_of_what_is_asked() -> None:
    chart = render_chart(consumerNamespaces=["shop"])
    assert chart["Role"]["metadata"]["namespace"] == "shop"
    assert list_rights(chart["Role"]) == list_rights(read_documented_role()) == list_asked()
    assert chart["RoleBinding"]["subjects"] == [
        {"kind": "ServiceAccount", "name": NAME, "namespace": NAME}
    ]
    assert chart["ServiceAccount"]["automountServiceAccountToken"] is True


def find_volume(chart: dict[str, Object], name: str) -> Object:
    volumes = chart["Deployment"]["spec"]["template"]["spec"]["volumes"]
    found: Object = next(one for one in volumes if one["name"] == name)
    return found


def test_values_are_heeded() -> None:
    chart = render_chart(
        config=POSTGRES + "watch: {tls: {certificate: a, key: b}}",
        persistence={"enabled": False},
        environmentFrom=["passwords"],
        files=[{"secret": "kafka-ca", "path": "/etc/kafka"}],
        image={"repository": "registry/backlogctl", "tag": "7", "pullSecrets": ["login"]},
        monitor={"kind": "PodMonitor", "labels": {"release": "prometheus"}},
        port=9999,
        nodeSelector={"disk": "ssd"},
        tolerations=[{"operator": "Exists"}],
        serviceAccount={"annotations": {"role": "msk"}},
    )
    pod = chart["Deployment"]["spec"]["template"]["spec"]
    (watch,) = pod["containers"]
    assert watch["image"] == "registry/backlogctl:7"
    assert watch["command"][-1] == "0.0.0.0:9999"
    assert watch["envFrom"] == [{"secretRef": {"name": "passwords"}}]
    assert watch["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert pod["imagePullSecrets"] == [{"name": "login"}]
    assert (pod["nodeSelector"], len(pod["tolerations"])) == ({"disk": "ssd"}, 1)
    assert find_volume(chart, "data") == {"name": "data", "emptyDir": {}}
    assert find_volume(chart, "files-0")["secret"]["secretName"] == "kafka-ca"
    assert "PersistentVolumeClaim" not in chart
    assert chart["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["scheme"] == "https"
    assert chart["PodMonitor"]["metadata"]["labels"]["release"] == "prometheus"
    assert chart["ServiceAccount"]["metadata"]["annotations"] == {"role": "msk"}
    assert chart["Service"]["spec"]["ports"][0]["port"] == 9999


def test_a_claim_that_exists_and_a_service_monitor() -> None:
    chart = render_chart(
        persistence={"existingClaim": "mine"},
        monitor={"kind": "ServiceMonitor", "authorization": {"credentials": {"name": "token"}}},
    )
    assert find_volume(chart, "data")["persistentVolumeClaim"] == {"claimName": "mine"}
    assert "PersistentVolumeClaim" not in chart
    (endpoint,) = chart["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["authorization"] == {"credentials": {"name": "token"}}
    assert chart["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"persistence": {"enabled": "yes"}}, "persistence/enabled': got string, want boolean"),
        ({"replicas": 2}, "additional properties 'replicas' not allowed"),
        ({"monitor": {"kind": "Podmonitor"}}, "monitor/kind': value must be one of"),
        ({"persistence": {"enabled": False}}, "without persistence it would end with the pod"),
        ({"config": "clusters: {}"}, "config: it names no ledger"),
        ({"config": "- a"}, "config: it is no YAML mapping"),
    ],
)
def test_a_wrong_value_is_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(HelmFailure) as caught:
        render_chart(**values)
    assert told in str(caught.value)


@pytest.fixture
def places(kubernetes: Kubelet, unique: str) -> Iterator[tuple[Namespace, Namespace]]:
    """One for the release, whose pods must be restricted, and one of workloads."""
    own = Namespace(kubernetes.cluster, f"watch-{unique}")
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    path = f"/api/v1/namespaces/{own.name}"
    kubernetes.cluster.ask("PATCH", path, {"metadata": {"labels": labels}})
    shop = Namespace(kubernetes.cluster, f"shop-{unique}")
    yield own, shop
    own.close()
    shop.close()


def create_secret(namespace: Namespace, name: str, **data: str) -> None:
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}
    namespace.cluster.ask("POST", namespace.path("secrets"), body)


def test_installed_it_watches_and_may_what_the_role_says(
    kubernetes: Kubelet,
    kafka: EmbeddedKafka,
    places: tuple[Namespace, Namespace],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, shop = places
    create_secret(own, "names", CLIENT_ID="of-a-secret")
    create_secret(own, "page", token="a-token-of-the-page")
    server, port = kubernetes.cluster.server, free_port()
    config = {
        "ledger": "sqlite:////var/lib/backlogctl/ledger.db",
        "staging": {"dir": "/var/lib/backlogctl/staging"},
        "watch": {"interval": "1s", "token_file": "/etc/page/token"},
        "clusters": {
            "main": {"bootstrap.servers": kafka.bootstrap, "client.id": "${env:CLIENT_ID}"}
        },
    }
    run_helm(
        *("install", NAME, str(CHART), "--namespace", own.name, "--kubeconfig"),
        str(server.write_kubeconfig(tmp_path / "kubeconfig", ADMIN, own.name)),
        values={
            "config": yaml.safe_dump(config),
            "port": port,
            "environmentFrom": ["names"],
            "files": [{"secret": "page", "path": "/etc/page"}],
            "consumerNamespaces": [shop.name],
        },
    )
    await_pods(own, f"app.kubernetes.io/instance={NAME}", 1, 180.0)
    url = f"http://{HOST}:{port}/metrics"
    assert httpx.get(url).status_code == 401
    login = {"Authorization": "Bearer a-token-of-the-page"}
    assert "backlog_" in httpx.get(url, headers=login).text

    (pod,) = own.list("Pod")
    name = pod["metadata"]["name"]
    assert (kubernetes.find_mount(own.name, name, "/var/lib/backlogctl") / "ledger.db").exists()
    account = kubernetes.find_mount(own.name, name, ACCOUNT)
    assert list_allowed(account, shop, server.port, monkeypatch) == list_asked()
    assert not list_allowed(account, own, server.port, monkeypatch)


def list_allowed(
    account: Path, where: Namespace, port: int, monkeypatch: pytest.MonkeyPatch
) -> set[Right]:
    """What the launcher may there, logged in as in the pod: of all verbs, of all that the Role
    names and of more."""
    monkeypatch.setattr(kubernetes_api, "_ACCOUNT", account)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", HOST)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
    api = connect_to_cluster(
        Kubernetes.model_validate({"workload": "deployment/a", "namespace": where.name})
    )
    more = {("", name) for name in ("secrets", "configmaps", "pods/exec", "serviceaccounts")}
    more |= {("apps", "replicasets"), ("rbac.authorization.k8s.io", "rolebindings")}
    found = set()
    for group, resource in more | {right[:2] for right in list_asked()}:
        plural, _, sub = resource.partition("/")
        for verb in VERBS:
            if api.may(verb, ObjectKind(group, "v1", plural), sub):
                found.add((group, resource, verb))
    return found
