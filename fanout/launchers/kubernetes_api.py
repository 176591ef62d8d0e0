"""The API server of a Kubernetes cluster: requests, asked again while it is away, and errors.

Objects are JSON as the server sends it: what a pod template holds that this version does not know
is kept.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from backlogctl.clock import Deadline
from backlogctl.config import Kubernetes, mask_secrets
from backlogctl.errors import BacklogError, UsageError
from backlogctl.fanout.launchers.interface import CheckStop

if TYPE_CHECKING:
    from httpx2 import Client as HttpClient
    from httpx2 import Response
    from lightkube.config.kubeconfig import KubeConfig, SingleConfig

Object = dict[str, Any]

PATIENCE_SECONDS = 60.0
ANSWER_SECONDS = 15.0
# One that starts does not know all roles yet, and forbids what it will let us do.
_STARTS_SECONDS = 5.0
_PAUSE_SECONDS = 0.3
_TICK_SECONDS = 0.05
_CONFLICT, _TOO_MANY, _NOT_FOUND, _FORBIDDEN, _UNAUTHORIZED = 409, 429, 404, 403, 401
_AWAY = (_TOO_MANY, 500, 502, 503, 504)
_EXEC = "client.authentication.k8s.io/v1beta1"
_FILES = {"cluster": ("certificate-authority",), "user": ("client-certificate", "client-key")}


class KubernetesFailure(BacklogError):
    """The API server could not be asked, or said no; `status` is its HTTP status, 0 without one."""

    code = "kubernetes"
    status: int = 0

    @property
    def is_conflict(self) -> bool:
        return self.status == _CONFLICT

    @property
    def is_missing(self) -> bool:
        return self.status == _NOT_FOUND

    @property
    def is_forbidden(self) -> bool:
        return self.status == _FORBIDDEN


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A kind of objects of a namespace, as the API names it."""

    group: str
    version: str
    plural: str

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS = ObjectKind("", "v1", "pods")
DEPLOYMENTS = ObjectKind("apps", "v1", "deployments")
STATEFUL_SETS = ObjectKind("apps", "v1", "statefulsets")
AUTOSCALERS = ObjectKind("autoscaling", "v2", "horizontalpodautoscalers")
SCALED_OBJECTS = ObjectKind("keda.sh", "v1alpha1", "scaledobjects")
QUOTAS = ObjectKind("", "v1", "resourcequotas")
BUDGETS = ObjectKind("policy", "v1", "poddisruptionbudgets")


@dataclass(frozen=True)
class KubernetesApi:
    """Requests to one namespace.

    Attributes:
        where: for people: the namespace, and the context where it was named.
        look: called while the server is away; may raise.
        patience: seconds that the server may be away, or too busy.
    """

    http: HttpClient
    namespace: str
    where: str
    look: CheckStop = field(default=lambda: None)
    patience: float = PATIENCE_SECONDS

    def looking(self, look: CheckStop, patience: float = PATIENCE_SECONDS) -> KubernetesApi:
        return replace(self, look=look, patience=patience)

    def name(self, resource: ObjectKind, name: str) -> str:
        """An object, for people."""
        return f"{resource}/{name} in {self.where}"

    def read(self, resource: ObjectKind, name: str, sub: str = "") -> Object:
        """Raises KubernetesFailure: `is_missing` where there is none of the name."""
        return self._ask("GET", resource, name, sub)

    def find(self, resource: ObjectKind, name: str) -> Object | None:
        """None where there is none of the name."""
        try:
            return self.read(resource, name)
        except KubernetesFailure as error:
            if error.is_missing:
                return None
            raise

    def find_all(self, resource: ObjectKind, selector: str = "") -> list[Object]:
        """Those that the label selector finds; none where the cluster has no such kind."""
        found: list[Object] = []
        query = {"labelSelector": selector, "limit": "500"}
        while True:
            try:
                page = self._ask("GET", resource, query=query)
            except KubernetesFailure as error:
                if error.is_missing:
                    return []
                raise
            found += page.get("items", [])
            if not (more := page.get("metadata", {}).get("continue")):
                return found
            query = {**query, "continue": more}

    def create(self, resource: ObjectKind, body: Object, *, dry_run: bool = False) -> Object:
        """Raises KubernetesFailure: `is_conflict` where there is one of that name."""
        return self._ask("POST", resource, body=body, dry_run=dry_run)

    def put(
        self, resource: ObjectKind, name: str, body: Object, sub: str = "", *, dry_run: bool = False
    ) -> Object:
        """Raises KubernetesFailure: `is_conflict` where it has changed since it was read."""
        return self._ask("PUT", resource, name, sub, body=body, dry_run=dry_run)

    def merge(
        self, resource: ObjectKind, name: str, patch: Object, *, dry_run: bool = False
    ) -> Object:
        """JSON merge patch. Raises KubernetesFailure: `is_conflict` as `put`, where the patch
        names a resourceVersion."""
        return self._ask("PATCH", resource, name, body=patch, dry_run=dry_run)

    def delete(self, resource: ObjectKind, name: str) -> None:
        """And, by the garbage collector, what it owns; nothing where there is none."""
        try:
            self._ask("DELETE", resource, name, query={"propagationPolicy": "Background"})
        except KubernetesFailure as error:
            if not error.is_missing:
                raise

    def read_log(self, pod: str, container: str, *, previous: bool, lines: int) -> str:
        """The last lines of a container, or of the one before its restart."""
        query = {"container": container, "tailLines": str(lines)}
        if previous:
            query["previous"] = "true"
        return self._send("GET", self._path(PODS, pod, "log"), query).text

    def may(self, verb: str, resource: ObjectKind, sub: str = "", name: str = "") -> bool:
        """Whether the server would let us: it is asked, nothing is tried."""
        attributes = {
            "namespace": self.namespace,
            "verb": verb,
            "group": resource.group,
            "resource": resource.plural,
            "subresource": sub,
            "name": name,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer: Object = self._send("POST", path, {}, body).json()
        return bool(answer["status"]["allowed"])

    def _ask(
        self,
        method: str,
        resource: ObjectKind,
        name: str = "",
        sub: str = "",
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        *,
        dry_run: bool = False,
    ) -> Object:
        asked = {**(query or {}), **({"dryRun": "All"} if dry_run else {})}
        if method in ("POST", "PUT", "PATCH"):
            asked["fieldManager"] = "backlogctl"
        path = self._path(resource, name, sub)
        found: Object = self._send(method, path, asked, body).json()
        return found

    def _path(self, resource: ObjectKind, name: str = "", sub: str = "") -> str:
        root = f"/apis/{resource.group}" if resource.group else "/api"
        parts = (self.namespace, resource.plural, name, sub)
        namespace, *rest = (quote(part, safe="") for part in parts if part)
        return "/".join((root, resource.version, "namespaces", namespace, *rest))

    def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Object | None = None
    ) -> Response:
        """One request, sent again while the server is away: each is one that may be sent twice.

        Raises:
            KubernetesFailure: it said no, or is away for longer than `patience`.
        """
        import httpx2
        from lightkube.core.exceptions import ConfigError

        limit, starts = Deadline(self.patience), None
        kind = "merge-patch+json" if method == "PATCH" else "json"
        headers = {"Content-Type": f"application/{kind}"}
        content = None if body is None else json.dumps(body).encode()
        while True:
            try:
                answer = self.http.request(
                    method, path, params=dict(query), content=content, headers=headers
                )
            except ConfigError as error:
                raise self._fail(f"its login failed: {error}", path, 0) from error
            except httpx2.HTTPError as error:
                told = str(error) or type(error).__name__
                why, status = f"the API server does not answer: {told}", 0
            else:
                if answer.is_success:
                    return answer
                status, why = answer.status_code, _read_status(answer)
                if status == _FORBIDDEN and "is forbidden: User " in why:
                    starts = starts or Deadline(min(self.patience, _STARTS_SECONDS))
                if status not in _AWAY and (starts is None or starts.expired):
                    raise self._fail(why, path, status)
            if limit.expired:
                raise self._fail(why, path, status, retryable=True)
            pause = Deadline(limit.remaining(_PAUSE_SECONDS))
            while not pause.expired:
                self.look()
                time.sleep(pause.remaining(_TICK_SECONDS))

    def _fail(
        self, why: str, path: str, status: int, *, retryable: bool = False
    ) -> KubernetesFailure:
        hints = {
            0: f"can this machine reach {self.http.base_url}, and is the context the right one?",
            _FORBIDDEN: "docs/kubernetes.md has the Role that is needed",
            _UNAUTHORIZED: "log in to the cluster again, as for kubectl",
        }
        error = KubernetesFailure(
            mask_secrets(why),
            subject=f"kubernetes, {self.where}",
            hint=hints.get(status, f"the request was for {path}"),
            retryable=retryable,
        )
        error.status = status
        return error


def _read_status(answer: Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP status {answer.status_code}: {answer.text[:200]}"


# Where the server is, and who we are there.

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def connect_to_cluster(settings: Kubernetes) -> KubernetesApi:
    """By kubeconfig or, inside a pod, by its service account.

    Raises:
        UsageError: neither is there, or the context is not in it.
    """
    import httpx2
    from lightkube.config.client_adapter import Client, ConnectionParams
    from lightkube.config.models import User
    from lightkube.core.exceptions import ConfigError

    try:
        found = _find_context(settings)
        # One without a user logs in as nobody; the library wants to see one.
        found = found._replace(user=found.user or User())
        http = Client(found, ConnectionParams(timeout=httpx2.Timeout(ANSWER_SECONDS)))
    except (ConfigError, KeyError, OSError, ValueError) as error:
        told = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(
            f"the cluster of the consumers is not known: {told}",
            subject="kubeconfig",
            hint="see `consumers.kubernetes`: `context` and `kubeconfig`",
        ) from error
    namespace = settings.namespace or found.namespace
    context = f" of context {settings.context}" if settings.context else ""
    return KubernetesApi(http, namespace, f"namespace {namespace}{context}")


def _find_context(settings: Kubernetes) -> SingleConfig:
    from lightkube.config.kubeconfig import KubeConfig
    from lightkube.core.exceptions import ConfigError

    listed = os.environ.get("KUBECONFIG", "")
    text = settings.kubeconfig_text
    named = settings.kubeconfig or settings.context or listed
    config: KubeConfig
    if text is not None:
        config = _merge([(text.get_secret_value(), Path())])
    elif not named and (_ACCOUNT / "token").exists():
        config = KubeConfig.from_service_account(_ACCOUNT)
    else:
        paths = [str(settings.kubeconfig)] if settings.kubeconfig else listed.split(os.pathsep)
        files = [Path(path).expanduser() for path in paths if path]
        config = _merge(_read_files(files or [Path("~/.kube/config").expanduser()]))
    found = config.get(settings.context)
    if found is None:
        raise ConfigError("it has no current context")
    if found.user is not None and found.user.exec is not None:
        _tell_plugin(found.user.exec)
    return found


def _read_files(files: Sequence[Path]) -> list[tuple[str, Path]]:
    """Those that are there, each with its folder."""
    from lightkube.core.exceptions import ConfigError

    found = [(path.read_text(), path.parent) for path in files if path.is_file()]
    if not found:
        raise ConfigError(f"there is no file {', '.join(map(str, files))}")
    return found


def _merge(texts: Sequence[tuple[str, Path]]) -> KubeConfig:
    """Several kubeconfigs as kubectl takes them: the first that has a name wins."""
    import yaml
    from lightkube.config.kubeconfig import KubeConfig
    from lightkube.core.exceptions import ConfigError

    whole: dict[str, Any] = {"clusters": {}, "contexts": {}, "users": {}}
    for text, folder in texts:
        try:
            document = yaml.safe_load(text) or {}
        except yaml.YAMLError:
            # Without what the parser shows of it, which may be a token.
            raise ConfigError(f"one in {folder.absolute()} is no YAML") from None
        if document.get("current-context"):
            whole.setdefault("current-context", document["current-context"])
        for kind in ("clusters", "contexts", "users"):
            for entry in document.get(kind) or ():
                whole[kind].setdefault(entry["name"], dict(_anchor(entry, folder)))
    named = {kind: [*entries.values()] for kind, entries in whole.items() if kind.endswith("s")}
    # Its files' paths are anchored already.
    return KubeConfig.from_dict({**whole, **named}, fname="kubeconfig")


def _anchor(entry: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, Any]]:
    """The entry with its files' paths from the folder of the kubeconfig that names them."""
    for key, value in entry.items():
        files = {name: str(folder / value[name]) for name in _FILES.get(key, ()) if name in value}
        yield key, {**value, **files} if files else value


def _tell_plugin(plugin: Any) -> None:
    """A login program of any version: what it is told differs, its answer does not.

    The library takes none of version v1, and tells none its version.
    """
    from lightkube.config.models import NameValue

    told = {"apiVersion": plugin.apiVersion, "kind": "ExecCredential"}
    told = {**told, "spec": {"interactive": False}}
    plugin.env = [*(plugin.env or ()), NameValue("KUBERNETES_EXEC_INFO", json.dumps(told))]
    plugin.apiVersion = _EXEC
