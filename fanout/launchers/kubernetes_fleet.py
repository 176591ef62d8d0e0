"""The recovery's own pods: a Deployment made from the workload's pod template."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.config import Kubernetes
from backlogctl.config.consumers import fill_in
from backlogctl.errors import BacklogError, Refused, UsageError
from backlogctl.fanout.launchers.interface import CheckStop, Fleet
from backlogctl.fanout.launchers.kubernetes_api import (
    DEPLOYMENTS,
    PODS,
    KubernetesApi,
    KubernetesFailure,
    Object,
)
from backlogctl.fanout.launchers.kubernetes_pods import (
    RECOVERY_LABEL,
    STREAM_LABEL,
    count_restarts,
    describe_unready,
    find_container,
    find_deviation,
    is_ready,
    list_pods,
    name_of,
)
from backlogctl.fanout.launchers.kubernetes_workload import (
    Workload,
    find_writer,
    pause,
    refuse_failing,
    refuse_lasting,
    set_scale,
)
from backlogctl.formats import format_plural

# A pod's name is its Deployment's with two hashes, and is cut at 63 letters.
_LONGEST_NAME = 63 - len("-0123456789-01234")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_POLL_SECONDS = 0.3
# Without a readiness probe one that ends at once is ready for a moment, each time that it starts.
_SETTLED_SECONDS = 1.0
_REFUSED_SECONDS = 15.0  # pods that still end may have the quota's room


class RecoveryPods:
    """The pods of one fleet of a recovery, and the Deployment that makes them."""

    def __init__(self, api: KubernetesApi, settings: Kubernetes, fleet: Fleet) -> None:
        self.api = api
        self.settings = settings
        self._fleet = fleet
        self.name = name_deployment(settings.workload.partition("/")[2], fleet)
        self.labels = {
            RECOVERY_LABEL: label_value(fleet.recovery_id),
            STREAM_LABEL: label_value(fleet.stream),
        }

    @property
    def selector(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.labels.items())

    @property
    def subject(self) -> str:
        """For errors."""
        return self.api.name(DEPLOYMENTS, self.name)

    @property
    def variables(self) -> dict[str, str]:
        """What the pods are told."""
        templates = self.settings.variables
        return dict(
            zip(templates, fill_in(templates.values(), self._fleet.placeholders), strict=True)
        )

    def find(self) -> Object | None:
        """Its Deployment, by its labels; None where there is none."""
        found = self.api.find_all(DEPLOYMENTS, self.selector)
        return found[0] if found else None

    def list_pods(self) -> list[Object]:
        """Those that end, too."""
        return list_pods(self.api, self.selector, recovery=True)

    def make(self, workload: Object, count: int) -> Object:
        """The Deployment, with the workload's pod template.

        The pods keep the template's labels, by which network policies, meshes and services know
        them. What the template takes from claims of a StatefulSet each pod gets as a claim of its
        own.

        Raises:
            UsageError: the workload has no pod template, or not that container.
        """
        spec = workload["spec"]
        if "template" not in spec:
            raise UsageError(
                "it has no pod template (`spec.template`) to make the recovery's pods from",
                subject=f"{workload['kind']} {workload['metadata']['name']}",
                hint="use `launcher: command`",
            )
        template = merge_patch(copy.deepcopy(spec["template"]), self.settings.template)
        metadata = template.setdefault("metadata", {})
        metadata["labels"] = {**(metadata.get("labels") or {}), **self.labels}
        pod = template["spec"]
        for claim in spec.get("volumeClaimTemplates", []):
            source = {"spec": claim["spec"]}
            volume = {"name": claim["metadata"]["name"]}
            pod.setdefault("volumes", []).append(
                {**volume, "ephemeral": {"volumeClaimTemplate": source}}
            )
        self._tell(pod)
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": self.name,
                "namespace": self.api.namespace,
                "labels": {"app.kubernetes.io/managed-by": "backlogctl", **self.labels},
                "annotations": {
                    "backlogctl/topic": self._fleet.topic,
                    "backlogctl/group": self._fleet.group,
                },
            },
            "spec": {
                "replicas": count,
                "revisionHistoryLimit": 0,
                "selector": {"matchLabels": self.labels},
                "template": template,
            },
        }

    def scale(self, workload: Workload, count: int, within: float, look: CheckStop) -> None:
        """Makes that many pods run; when each is ready, and was told what it should.

        Raises:
            Refused: an object of the name is there, and not this recovery's.
            BacklogError: they cannot be ready, or are not within `within` seconds.
        """
        found = self.find() or self._create(workload, count)
        if int(found["spec"].get("replicas", 1)) != count:
            try:
                workload.again(lambda: set_scale(self.api, DEPLOYMENTS, self.name, count))
            except KubernetesFailure as error:
                if not error.is_missing:  # which is said below
                    raise
        limit, allowed = Deadline(within), Deadline(_REFUSED_SECONDS)
        seen, settled = dict[str, int](), Deadline(_SETTLED_SECONDS)
        while True:
            deployment, pods = self.find(), self.list_pods()
            if deployment is None:
                raise BacklogError(
                    "somebody deleted it", subject=self.subject, hint="run this again"
                )
            self._check_count(deployment, count)
            refuse_failing(self.api, pods, self.subject)
            ready = sum(map(is_ready, pods))
            now = {name_of(pod): count_restarts(pod) for pod in pods}
            if ready < len(pods) or len(pods) != count or now != seen:
                seen, settled = now, Deadline(_SETTLED_SECONDS)
            elif settled.expired:
                self._check_pods(pods)
                return
            refused = find_refused(deployment)
            if refused and len(pods) < count and allowed.expired:
                raise BacklogError(
                    f"{len(pods)} of {format_plural(count, 'pod')} could be made: {refused}",
                    subject=self.subject,
                    hint="make room, or lower `consumers.max_consumers`; then run this again",
                )
            if limit.expired:
                told = describe_unready(pods) or refused or "no more pods were made"
                raise BacklogError(
                    f"{ready} of {format_plural(count, 'pod')} are ready after "
                    f"{limit.seconds:g} s: {told}",
                    subject=self.subject,
                    hint="see why, then run this again; `consumers.command_within` is the limit",
                )
            pause(look, _POLL_SECONDS)

    def end(self, within: float, look: CheckStop) -> None:
        """Deletes the Deployment; until no pod is left.
        Raises BacklogError: pods are left after `within` seconds.
        """
        limit = Deadline(within)
        while True:
            found = self.find()
            if found is not None and "deletionTimestamp" not in found["metadata"]:
                self.api.delete(DEPLOYMENTS, str(found["metadata"]["name"]))
            pods = self.list_pods()
            if found is None and not pods:
                return
            refuse_lasting(pods, limit, self.subject)
            pause(look, _POLL_SECONDS)

    def try_create(self, workload: Object, count: int) -> Object:
        """A dry run of the Deployment and of one pod; the pod as admission leaves it.
        Raises KubernetesFailure: the server refuses them.
        """
        made = self.make(workload, count)
        try:
            made = self.api.create(DEPLOYMENTS, made, dry_run=True)
        except KubernetesFailure as error:
            if not error.is_conflict:  # it is there: this run goes on with it
                raise
        template = made["spec"]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"]}
        labels = {**template["metadata"]["labels"], "pod-template-hash": "dry-run"}
        annotations = template["metadata"].get("annotations") or {}
        metadata = {"generateName": f"{self.name}-", "labels": labels, "annotations": annotations}
        return self.api.create(PODS, {**pod, "metadata": metadata}, dry_run=True)

    def _create(self, workload: Workload, count: int) -> Object:
        made = self.make(workload.read(), count)
        try:
            return self.api.create(DEPLOYMENTS, made)
        except KubernetesFailure as error:
            if not error.is_conflict:
                raise
        # Sent twice, or another process's.
        found = self.api.read(DEPLOYMENTS, self.name)
        if self.labels.items() - (found["metadata"].get("labels") or {}).items():
            raise Refused(
                "it is there, and not of this recovery",
                subject=self.subject,
                hint="see what made it, and delete it",
            )
        return found

    def _tell(self, pod: Object) -> None:
        own = find_container(pod, self.settings.container)
        if own is None:
            names = ", ".join(one["name"] for one in pod["containers"])
            raise UsageError(
                f"its pods have no container {self.settings.container}, but {names}",
                subject=self.settings.workload,
                hint="see `consumers.kubernetes.container`",
            )
        kept = [one for one in own.get("env") or [] if one["name"] not in self.variables]
        told = [{"name": name, "value": value} for name, value in self.variables.items()]
        own["env"] = [*told, *kept]

    def _check_count(self, deployment: Object, count: int) -> None:
        if int(deployment["spec"].get("replicas", 1)) != count:
            raise BacklogError(
                f"its replicas were set to {deployment['spec'].get('replicas')} while this process "
                f"asked for {count}: {find_writer(deployment)}",
                subject=self.subject,
                hint="see who else starts or stops them, then run this again",
            )

    def _check_pods(self, pods: list[Object]) -> None:
        for pod in pods:
            told = find_deviation(pod, self.settings.container, self.variables)
            if told is not None:
                raise BacklogError(
                    told,
                    subject=self.subject,
                    hint="something changes pods as they are made (an admission webhook): see what",
                )


def name_deployment(workload: str, fleet: Fleet) -> str:
    """The same for the same recovery; the workload's name is cut where it is long."""
    rest = f"-recovery-{label_value(fleet.recovery_id).lower()}"
    if len(workload) + len(rest) <= _LONGEST_NAME:
        return workload + rest
    digest = _digest(f"{workload} {fleet.stream} {fleet.recovery_id}")
    if len(rest) + len(digest) + 2 > _LONGEST_NAME:
        return f"recovery-{digest}"
    room = _LONGEST_NAME - len(rest) - len(digest) - 1
    return f"{workload[:room].rstrip('.-')}-{digest}{rest}".lstrip("-")


def label_value(text: str) -> str:
    """The text where it may be a label's value, else a digest of it."""
    return text if _LABEL.fullmatch(text) else f"x-{_digest(text)}"


def merge_patch(target: Any, patch: Mapping[str, Any]) -> Any:
    """JSON merge patch (RFC 7396)."""
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            is_deep = isinstance(value, Mapping)
            merged[key] = merge_patch(merged.get(key), value) if is_deep else value
    return merged


def find_refused(deployment: Object) -> str:
    """Why pods of it could not be made, as its controller says; "" where all could."""
    for condition in deployment.get("status", {}).get("conditions", []):
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return str(condition.get("message", condition.get("reason", "")))
    return ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
