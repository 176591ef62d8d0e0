"""A real Kubernetes: API server and controllers, built once on this machine, and etcd of Debian.

`python -m tests.kit.kubernetes` builds them before the tests, which have no time for it.
There are no nodes: `tests.kit.kubelet` stands in for one.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import ssl
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, Self

import httpx
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from backlogctl.sandbox.secured import HOST, free_port
from tests.clients.building import TOOLS, find_go, make_from
from tests.kit.kafka import repeating, wait_until
from tests.kit.processes import ROOT
from tests.kit.services import Server, find_program

HERE = Path(__file__).parent / "kubernetes-go"
ADMIN, TOOL = "admin-of-the-tests", "tool-of-the-tests"  # tokens
_HELM = "helm.sh/helm/v4/cmd/helm"
_CONTROLLERS = (
    *("deployment-controller", "replicaset-controller", "statefulset-controller"),
    *("garbage-collector-controller", "namespace-controller", "disruption-controller"),
    *("horizontal-pod-autoscaler-controller", "resourcequota-controller"),
)
Object = dict[str, Any]


@cache
def build_kubernetes() -> Path:
    """The program that is API server and controllers; beside it Helm, of the same packages."""
    sources = [path for path in sorted(HERE.iterdir()) if path.is_file()]

    def build(work: Path) -> None:
        # Not optimized, which would take twice as long; with little care for memory, which
        # saves a fifth of the rest.
        flags = ["-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w", "-o", f"{work}{os.sep}"]
        collecting = {"GOGC": "off", "GOMEMLIMIT": "1GiB"}
        known = {**os.environ, **collecting, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
        command = [find_go(), "build", *flags, ".", _HELM]
        done = subprocess.run(
            command, cwd=HERE, env=known, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return make_from("kubernetes", sources, build) / "kubernetes"


class Etcd(Server):
    """Where the API server keeps its objects."""

    def start(self) -> Self:
        self.port = self.port or free_port()
        own = TOOLS / "etcd"
        program = str(own) if own.exists() else find_program("etcd", "etcd")
        url, peers = f"http://{HOST}:{self.port}", f"http://{HOST}:{free_port()}"
        words = [f"--data-dir={self._data / 'db'}", f"--listen-client-urls={url}"]
        words += [f"--advertise-client-urls={url}", f"--listen-peer-urls={peers}"]
        words += [f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}"]
        return self._launch(program, *words)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"http://{HOST}:{self.port}/health").is_success
        except httpx.HTTPError:
            return False


class ApiServer(Server):
    """Roles are enforced; who has the token ADMIN may do all, who has TOOL what roles say."""

    def __init__(self, etcd: Etcd) -> None:
        super().__init__()
        self._etcd = etcd
        write_key(self._data, "account")
        lines = [f"{ADMIN},admin,1,system:masters", f"{TOOL},tool,2"]
        (self._data / "tokens.csv").write_text("\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    @property
    def certificate(self) -> Path:
        return self._data / "certificates" / "apiserver.crt"

    def start(self) -> Self:
        """On the same port as before."""
        self.port = self.port or free_port()
        key = self._data / "account.key"
        return self._launch(
            *(str(build_kubernetes()), "kube-apiserver"),
            f"--etcd-servers=http://{HOST}:{self._etcd.port}",
            *(f"--bind-address={HOST}", f"--advertise-address={HOST}"),
            *(f"--secure-port={self.port}", f"--cert-dir={self._data / 'certificates'}"),
            *("--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=RBAC"),
            f"--token-auth-file={self._data / 'tokens.csv'}",
            *("--service-account-issuer=https://tests", f"--service-account-key-file={key}"),
            f"--service-account-signing-key-file={key}",
            "--disable-admission-plugins=ServiceAccount",
            *("--kubelet-preferred-address-types=InternalIP", "--endpoint-reconciler-type=none"),
        )

    def _answers(self) -> bool:
        try:
            return self.connect().get("/readyz").is_success
        except (httpx.HTTPError, OSError):
            return False

    def connect(self, token: str = ADMIN) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(self.certificate))
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, verify=context, headers=headers, timeout=30)

    def write_kubeconfig(self, path: Path, token: str, namespace: str = "default") -> Path:
        """With one context, `tests`."""
        cluster = {"server": self.url, "certificate-authority": str(self.certificate)}
        context = {"cluster": "tests", "user": "tests", "namespace": namespace}
        document = {
            "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "contexts": [{"name": "tests", "context": context}],
            "users": [{"name": "tests", "user": {"token": token}}],
        }
        path.write_text(json.dumps(document))
        return path


class Controllers(Server):
    """Of Deployments, StatefulSets, autoscalers, quotas and what they own."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__()
        self._server = server

    def start(self) -> Self:
        self.port = free_port()
        kubeconfig = self._server.write_kubeconfig(self._data / "kubeconfig", ADMIN)
        return self._launch(
            *(str(build_kubernetes()), "kube-controller-manager"),
            f"--kubeconfig={kubeconfig}",
            *(f"--bind-address={HOST}", f"--secure-port={self.port}"),
            f"--cert-dir={self._data / 'certificates'}",
            *("--leader-elect=false", f"--controllers={','.join(_CONTROLLERS)}"),
            *("--kube-api-qps=200", "--kube-api-burst=400"),
            *("--horizontal-pod-autoscaler-sync-period=1s", "--resource-quota-sync-period=5s"),
        )

    def _answers(self) -> bool:
        try:
            return httpx.get(f"https://{HOST}:{self.port}/healthz", verify=False).is_success
        except httpx.HTTPError:
            return False


class Kubernetes:
    """All of it; without a node no pod runs."""

    def __init__(self) -> None:
        self.etcd = Etcd()
        self.server = ApiServer(self.etcd)
        self.controllers = Controllers(self.server)
        self.http: httpx.Client

    def __enter__(self) -> Self:
        self.etcd.start()
        self.server.start()
        self.http = self.server.connect()
        self.controllers.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        for server in (self.controllers, self.server, self.etcd):
            server.stop()

    def ask(self, method: str, path: str, body: Object | None = None, **query: str) -> Object:
        """As administrator; a PATCH is a JSON merge patch."""
        kind = "merge-patch+json" if method == "PATCH" else "json"
        headers = {"Content-Type": f"application/{kind}"}
        content = None if body is None else json.dumps(body).encode()
        answer = self.http.request(method, path, params=query, content=content, headers=headers)
        assert answer.is_success, f"{method} {path}: {answer.text}"
        found: Object = answer.json()
        return found


class Namespace:
    """One of a test's own."""

    def __init__(self, cluster: Kubernetes, name: str) -> None:
        self.cluster, self.name = cluster, name
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        cluster.ask("POST", "/api/v1/namespaces", body)

    def path(self, plural: str, name: str = "", sub: str = "", version: str = "") -> str:
        """`version`: `apps/v1` or the like, where it is not that of the core."""
        root = f"/apis/{version}" if version else "/api/v1"
        parts = (root, "namespaces", self.name, plural, name, sub)
        return "/".join(part for part in parts if part)

    def create(self, body: Object) -> Object:
        """An object of a kind that is known below."""
        plural, version = KINDS[body["kind"]]
        return self.cluster.ask("POST", self.path(plural, version=version), body)

    def get(self, kind: str, name: str) -> Object:
        plural, version = KINDS[kind]
        return self.cluster.ask("GET", self.path(plural, name, version=version))

    def merge(self, kind: str, name: str, patch: Object, manager: str = "somebody") -> Object:
        plural, version = KINDS[kind]
        path = self.path(plural, name, version=version)
        return self.cluster.ask("PATCH", path, patch, fieldManager=manager)

    def delete(self, kind: str, name: str) -> None:
        plural, version = KINDS[kind]
        self.cluster.ask("DELETE", self.path(plural, name, version=version))

    def list(self, kind: str, selector: str = "") -> list[Object]:
        plural, version = KINDS[kind]
        found = self.cluster.ask("GET", self.path(plural, version=version), labelSelector=selector)
        items: list[Object] = found["items"]
        return items

    def grant(self, role: Object) -> None:
        """To who has the token TOOL; that and no more."""
        self.create({**role, "metadata": {"name": role["metadata"]["name"]}})
        group = "rbac.authorization.k8s.io"
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "tool"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": role["metadata"]["name"]},
            "subjects": [{"kind": "User", "name": "tool", "apiGroup": group}],
        }
        self.create(binding)

    def close(self) -> None:
        """Its pods at once, other objects in the background."""
        self.cluster.ask("DELETE", f"/api/v1/namespaces/{self.name}")
        self.cluster.ask("DELETE", self.path("pods"), gracePeriodSeconds="0")


class Keda:
    """Its kind of objects while this is entered, and who acts upon them as KEDA does: to the paused
    number, else to no less than its minimum."""

    def __init__(self, cluster: Kubernetes) -> None:
        self._cluster = cluster
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version: Object = {"name": "v1alpha1", "served": True, "storage": True}
        version["schema"] = {"openAPIV3Schema": schema}
        names = {"plural": "scaledobjects", "singular": "scaledobject", "kind": "ScaledObject"}
        spec = {"group": "keda.sh", "scope": "Namespaced", "names": names, "versions": [version]}
        body = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "scaledobjects.keda.sh"},
            "spec": spec,
        }
        self._cluster.ask("POST", _DEFINITIONS, body)
        wait_until(
            lambda: self._cluster.http.get(_SCALED_OBJECTS).is_success, 60.0, "KEDA's are served"
        )
        self._stack.enter_context(repeating(self._act, each=0.2))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._cluster.ask("DELETE", f"{_DEFINITIONS}/scaledobjects.keda.sh")

    def _act(self) -> None:
        # What is gone meanwhile, or a server that is away: the next look sees it.
        with suppress(AssertionError, httpx.HTTPError):
            for one in self._cluster.ask("GET", _SCALED_OBJECTS)["items"]:
                self._scale(one["metadata"], one["spec"])

    def _scale(self, metadata: Object, spec: Object) -> None:
        path = f"/apis/apps/v1/namespaces/{metadata['namespace']}/deployments"
        path = f"{path}/{spec['scaleTargetRef']['name']}"
        replicas = self._cluster.ask("GET", path)["spec"]["replicas"]
        paused = metadata.get("annotations", {}).get("autoscaling.keda.sh/paused-replicas")
        wanted = max(spec["minReplicaCount"], replicas) if paused is None else int(paused)
        if replicas != wanted:
            patch = {"spec": {"replicas": wanted}}
            self._cluster.ask("PATCH", path, patch, fieldManager="keda")


_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_SCALED_OBJECTS = "/apis/keda.sh/v1alpha1/scaledobjects"

KINDS: Mapping[str, tuple[str, str]] = {
    "Deployment": ("deployments", "apps/v1"),
    "StatefulSet": ("statefulsets", "apps/v1"),
    "ReplicaSet": ("replicasets", "apps/v1"),
    "Pod": ("pods", ""),
    "Event": ("events", ""),
    "ResourceQuota": ("resourcequotas", ""),
    "LimitRange": ("limitranges", ""),
    "PodDisruptionBudget": ("poddisruptionbudgets", "policy/v1"),
    "HorizontalPodAutoscaler": ("horizontalpodautoscalers", "autoscaling/v2"),
    "ScaledObject": ("scaledobjects", "keda.sh/v1alpha1"),
    "Role": ("roles", "rbac.authorization.k8s.io/v1"),
    "RoleBinding": ("rolebindings", "rbac.authorization.k8s.io/v1"),
}


def read_documented_role() -> Object:
    """The Role of docs/kubernetes.md: the tests have these rights and no others."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    documents = [document for block in blocks for document in yaml.safe_load_all(block)]
    role: Object = next(one for one in documents if one.get("kind") == "Role")
    return role


def write_key(folder: Path, name: str) -> None:
    """NAME.key and a certificate of its own, NAME.crt."""
    key = rsa.generate_private_key(65537, 2048)
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(own, own, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    kind = serialization.PrivateFormat.TraditionalOpenSSL
    secret = key.private_bytes(pem, kind, serialization.NoEncryption())
    (folder / f"{name}.key").write_bytes(secret)
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(pem))


def await_pods(namespace: Namespace, selector: str, count: int, seconds: float = 60.0) -> None:
    """Until that many are ready, and there are no more."""

    def are_there() -> bool:
        pods = namespace.list("Pod", selector)
        return len(pods) == count and all(is_ready(pod) for pod in pods)

    wait_until(are_there, seconds, f"{count} pods of {selector} are ready")


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


if __name__ == "__main__":
    build_kubernetes()
