"""Stands in for a node: binds pods, runs their command as a process here, reports what it does.

Of the pod it heeds: command, args, variables, volumes, its service account, commands of containers
that run before the first one, a readiness probe by exec or httpGet, the grace period. Of other
things it only acts the outcome: an image whose name begins with `missing` is not found, a
nodeSelector finds no node.
"""

from __future__ import annotations

import hashlib
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import parse_qs, urlsplit

import httpx

from backlogctl.sandbox.secured import HOST
from tests.kit.kubernetes import Kubernetes, Object, write_key
from tests.kit.mounts import Mounts

NODE = "stand-in"
_POLL = 0.1
_PROBE_EACH = 0.3
_BACK_OFF, _MOST_BACK_OFF = 0.3, 3.0
_PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH")


@dataclass
class _Local:
    """A container of a pod, as a process of this machine."""

    place: Path
    process: subprocess.Popen[bytes] | None = None
    restarts: int = -1
    exit_code: int | None = None
    pulls: int = 0
    next_at: float = 0.0
    probe_at: float = 0.0
    ready: bool = False
    asked_to_end: float | None = None
    told: Object = field(default_factory=dict)
    mounts: Mounts | None = None

    def log(self, restarts: int) -> Path:
        return self.place / f"{restarts}.log"


class Kubelet:
    """One node, whose pods are those that nobody else has taken."""

    def __init__(self, cluster: Kubernetes) -> None:
        self.cluster = cluster
        self._place = Path(tempfile.mkdtemp(prefix="backlog-kubelet-"))
        self._pods: dict[str, _Local] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.moved: dict[str, str] = {}  # a tag, and what it stands for now
        self.errors: list[Exception] = []

    def __enter__(self) -> Self:
        self._http = self.cluster.server.connect()
        self._serve_logs()
        endpoint = {"kubeletEndpoint": {"Port": self._logs.server_port}}
        addresses = [{"type": "InternalIP", "address": HOST}]
        status = {"addresses": addresses, "daemonEndpoints": endpoint}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        self._ask("POST", "/api/v1/nodes", node)
        self._ask("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._logs.shutdown()
        self._logs.server_close()
        self._http.close()
        for local in self._pods.values():
            _kill(local)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._look()
            except httpx.HTTPError:
                pass  # the API server is away: pods go on
            except Exception as error:
                self.errors.append(error)
                raise
            self._ended.wait(_POLL)

    def _look(self) -> None:
        found = self._ask("GET", "/api/v1/pods")["items"]
        there = {pod["metadata"]["uid"] for pod in found}
        for uid in [uid for uid in self._pods if uid not in there]:
            _kill(self._pods.pop(uid))
        for pod in found:
            with suppress(_Conflict):  # gone or changed meanwhile: the next look sees it
                self._step(pod)

    def _step(self, pod: Object) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        uid = metadata["uid"]
        local = self._pods.get(uid)
        if local is None:
            local = self._pods[uid] = _Local(self._place / uid)
            local.place.mkdir()
            self._names[metadata["namespace"], metadata["name"]] = uid
        if "deletionTimestamp" in metadata:
            self._end(pod, local)
        elif pod["status"].get("phase") == "Failed":  # evicted
            _kill(local)
        elif not spec.get("nodeName"):
            self._bind(pod, local)
        else:
            self._keep_running(pod, local)

    def _bind(self, pod: Object, local: _Local) -> None:
        if pod["spec"].get("nodeSelector"):
            why = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
            condition = _condition("PodScheduled", holds=False, reason="Unschedulable", message=why)
            self._tell(pod, local, {"phase": "Pending", "conditions": [condition]})
            return
        target = {"kind": "Node", "name": NODE}
        name = {"name": pod["metadata"]["name"]}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": name, "target": target}
        self._ask("POST", f"{_path(pod)}/binding", binding)

    def _keep_running(self, pod: Object, local: _Local) -> None:
        container, now = pod["spec"]["containers"][0], time.monotonic()
        if local.process is not None and local.process.poll() is not None:
            local.exit_code, local.process, local.ready = local.process.returncode, None, False
            wait = min(_MOST_BACK_OFF, _BACK_OFF * 2 ** min(8, local.restarts))
            local.next_at = now + wait
        if local.process is None and now >= local.next_at:
            if container["image"].startswith("missing"):
                local.pulls, local.next_at = local.pulls + 1, now + _BACK_OFF
            else:
                self._start(pod, container, local)
        if local.process is not None and now >= local.probe_at:
            local.ready = _probe(container)
            local.probe_at = now + _PROBE_EACH
        self._tell(pod, local, self._describe(container, local))

    def _start(self, pod: Object, container: Object, local: _Local) -> None:
        mounts = local.mounts or self._mount(pod, local)
        before = [] if local.mounts else pod["spec"].get("initContainers", [])
        known = [one for one in before if "command" in one]  # else it is what an image says
        for number, one in enumerate(known):
            with (local.place / f"before-{number}.log").open("wb") as log:
                if self._launch(one, mounts, log).wait(60):
                    local.next_at = time.monotonic() + _BACK_OFF
                    return
        local.mounts = mounts
        local.restarts += 1
        with local.log(local.restarts).open("wb") as log:
            local.process = self._launch(container, mounts, log)

    def _launch(self, container: Object, mounts: Mounts, log: IO[bytes]) -> subprocess.Popen[bytes]:
        own = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        own["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), own["PATH"]])
        server = {
            "KUBERNETES_SERVICE_HOST": HOST,
            "KUBERNETES_SERVICE_PORT": str(self.cluster.server.port),
        }
        command = [*container.get("command", []), *container.get("args", [])]
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *map(mounts.find_here, command)],
            env={**own, **server, **mounts.list_variables(container)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def _mount(self, pod: Object, local: _Local) -> Mounts:
        namespace, spec = pod["metadata"]["namespace"], pod["spec"]
        root = f"/api/v1/namespaces/{namespace}"

        def read(plural: str, name: str) -> Object:
            return self._ask("GET", f"{root}/{plural}/{name}")

        mounts = Mounts(read, pod["metadata"], local.place, self._place / "claims" / namespace)
        mounts.fill(spec)
        account = spec.get("serviceAccountName")
        # Without admission of accounts there may be none of the name: where it is asked for.
        if account and spec.get("automountServiceAccountToken"):
            bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"]}
            asked = {"spec": {"boundObjectRef": {**bound, "uid": pod["metadata"]["uid"]}}}
            answer = self._ask("POST", f"{root}/serviceaccounts/{account}/token", asked)
            certificate = self.cluster.server.certificate
            mounts.add_account(answer["status"]["token"], certificate, namespace)
        return mounts

    def find_mount(self, namespace: str, pod: str, path: str) -> Path:
        """The folder here of what a running pod has mounted there."""
        mounts = self._pods[self._names[namespace, pod]].mounts
        assert mounts is not None
        return mounts.folders[path]

    def _describe(self, container: Object, local: _Local) -> Object:
        runs = local.process is not None
        last: Object = {}
        if local.exit_code is not None:
            last = {"terminated": {"exitCode": local.exit_code, "reason": "Error"}}
        if runs:
            state: Object = {"running": {}}
        elif local.pulls:
            reason = "ErrImagePull" if local.pulls == 1 else "ImagePullBackOff"
            message = f'failed to pull image "{container["image"]}": not found'
            state = {"waiting": {"reason": reason, "message": message}}
        elif local.exit_code is not None:
            message = "back-off restarting failed container"
            state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
        else:
            state = {"waiting": {"reason": "ContainerCreating"}}
        image: str = container["image"]
        image = self.moved.get(image, image)
        digest = hashlib.sha256(image.encode()).hexdigest()
        status = {
            "name": container["name"],
            "image": container["image"],
            "imageID": f"{container['image']}@sha256:{digest}" if local.restarts >= 0 else "",
            "ready": local.ready,
            "started": runs,
            "restartCount": max(0, local.restarts),
            "state": state,
            "lastState": last,
        }
        ready = [_condition(kind, holds=local.ready) for kind in ("Ready", "ContainersReady")]
        placed = [_condition(kind, holds=True) for kind in ("PodScheduled", "Initialized")]
        phase = "Running" if local.restarts >= 0 else "Pending"
        conditions = [*placed, *ready]
        return {"phase": phase, "conditions": conditions, "containerStatuses": [status]}

    def _end(self, pod: Object, local: _Local) -> None:
        now = time.monotonic()
        if local.process is not None and local.process.poll() is None:
            if local.asked_to_end is None:
                local.asked_to_end = now
                _signal(local, signal.SIGTERM)
            elif now - local.asked_to_end > pod["metadata"].get("deletionGracePeriodSeconds", 30):
                _signal(local, signal.SIGKILL)
            return
        uid = {"uid": pod["metadata"]["uid"]}
        self._ask("DELETE", _path(pod), {"gracePeriodSeconds": 0, "preconditions": uid})

    def _tell(self, pod: Object, local: _Local, status: Object) -> None:
        if status == local.told:
            return
        local.told = status
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [{**one, "lastTransitionTime": at} for one in status["conditions"]]
        patch = {"status": {**status, "conditions": conditions}}
        self._ask("PATCH", f"{_path(pod)}/status", patch)

    def _ask(self, method: str, path: str, body: Object | None = None) -> Object:
        kind = "merge-patch+json" if method == "PATCH" else "json"
        headers = {"Content-Type": f"application/{kind}"}
        answer = self._http.request(method, path, json=body, headers=headers)
        if answer.status_code in (404, 409):
            raise _Conflict(answer.text)
        answer.raise_for_status()
        found: Object = answer.json()
        return found

    def _serve_logs(self) -> None:
        """As the API server asks a kubelet for them."""
        kubelet = self
        write_key(self._place, "kubelet")

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = kubelet._read_log(self.path)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._place / "kubelet.crt", self._place / "kubelet.key")
        self._logs = ThreadingHTTPServer((HOST, 0), Handler)
        self._logs.socket = context.wrap_socket(self._logs.socket, server_side=True)
        threading.Thread(target=self._logs.serve_forever, daemon=True).start()

    def _read_log(self, url: str) -> bytes | None:
        parts = urlsplit(url)
        _, _, namespace, pod, _ = parts.path.split("/")
        query = parse_qs(parts.query)
        local = self._pods.get(self._names.get((namespace, pod), ""))
        if local is None:
            return None
        path = local.log(local.restarts - ("previous" in query))
        if not path.exists():
            return None
        lines = path.read_bytes().splitlines(keepends=True)
        return b"".join(lines[-int(query.get("tailLines", ["1000"])[0]) :])


class _Conflict(Exception):
    """Somebody else was faster."""


def _path(pod: Object) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _condition(kind: str, *, holds: bool, **more: str) -> Object:
    return {"type": kind, "status": "True" if holds else "False", **more}


def _probe(container: Object) -> bool:
    probe = container.get("readinessProbe", {})
    if "httpGet" in probe:
        asked = probe["httpGet"]
        ports = {one.get("name"): one["containerPort"] for one in container.get("ports", [])}
        port = ports.get(asked["port"], asked["port"])
        try:
            return httpx.get(f"http://{HOST}:{port}{asked['path']}").is_success
        except httpx.HTTPError:
            return False
    command = probe.get("exec", {}).get("command")
    if command is None:
        return True
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _signal(local: _Local, number: signal.Signals) -> None:
    if local.process is not None:
        with suppress(ProcessLookupError):
            os.killpg(local.process.pid, number)


def _kill(local: _Local) -> None:
    _signal(local, signal.SIGKILL)
    if local.process is not None:
        local.process.wait(30)
