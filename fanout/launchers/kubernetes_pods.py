"""Pods of consumers: which are ready, why others are not, and what they were really told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backlogctl.fanout.launchers.interface import cut_tail
from backlogctl.fanout.launchers.kubernetes_api import (
    PODS,
    KubernetesApi,
    KubernetesFailure,
    Object,
)

# Labels of a recovery's pods, and of what makes them.
RECOVERY_LABEL, STREAM_LABEL = "backlogctl/recovery", "backlogctl/stream"
# While these are the reason, the pod is on its way.
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})
# The next try of the kubelet may be better: not yet a failure.
_FIRST_TRY = "ErrImagePull"
_CRASHES = "CrashLoopBackOff"
_OVER = ("Failed", "Succeeded")
_LOG_LINES = 10


@dataclass(frozen=True, slots=True)
class PodFailure:
    """Why a pod is not ready.

    Attributes:
        container: whose log tells more; "" where there is none.
        restarts: how often it was started again.
        lasts: nothing that Kubernetes does by itself will mend it.
    """

    pod: str
    why: str
    container: str = ""
    restarts: int = 0
    lasts: bool = False
    ended: bool = False

    def __str__(self) -> str:
        return f"pod {self.pod}: {self.why}"


def list_pods(api: KubernetesApi, selector: str, *, recovery: bool) -> list[Object]:
    """Pods that a selector finds; `recovery`: those of recoveries, else the others.

    A recovery's pods have the labels of the workload that they are made from, too. One that was
    evicted stays as an object, and is replaced: it is no pod any more.
    """
    found = api.find_all(PODS, selector)
    return [
        pod
        for pod in found
        if (RECOVERY_LABEL in _labels(pod)) is recovery
        and pod.get("status", {}).get("phase") not in _OVER
    ]


def is_ready(pod: Object) -> bool:
    """Whether it is ready, and not about to end."""
    if is_ending(pod):
        return False
    return _find_condition(pod, "Ready").get("status") == "True"


def is_ending(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def name_of(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def count_restarts(pod: Object) -> int:
    """Of all its containers."""
    return sum(one["restartCount"] for one in pod.get("status", {}).get("containerStatuses", []))


def find_container(spec: Mapping[str, Any], name: str | None) -> Object | None:
    """The consumer's container of a pod's spec; None where it has none of the name."""
    containers: Sequence[Object] = spec.get("containers", [])
    return next((one for one in containers if name in (None, one["name"])), None)


def find_failure(pod: Object) -> PodFailure | None:
    """The first reason why it is not ready; None where it may only need time."""
    name, status = name_of(pod), pod.get("status", {})
    placed = _find_condition(pod, "PodScheduled")
    if placed.get("status") == "False":
        return PodFailure(name, f"{placed.get('reason')}: {placed.get('message', '')}")
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind, []):
            if failure := _find_container_failure(name, container):
                return failure
    return None


def _find_container_failure(pod: str, container: Object) -> PodFailure | None:
    state, restarts = container.get("state", {}), int(container.get("restartCount", 0))
    waiting, own = state.get("waiting", {}), str(container["name"])
    reason = waiting.get("reason", "")
    last = container.get("lastState", {}).get("terminated") or state.get("terminated")
    if reason == _CRASHES or (last and not container.get("ready") and last.get("exitCode")):
        code = (last or {}).get("exitCode", "unknown")
        because = (last or {}).get("reason", "")
        killed = f" ({because})" if because not in ("", "Error", "Completed") else ""
        told = f"{_CRASHES if reason == _CRASHES else 'ended'}, exit code {code}{killed}"
        told += f", started again {restarts} times"
        return PodFailure(pod, told, own, restarts, lasts=False, ended=True)
    if reason and reason not in _STARTING:
        message = waiting.get("message", "")
        told = f"{reason}: {message}" if message else reason
        return PodFailure(pod, told, own, restarts, lasts=reason != _FIRST_TRY)
    return None


def describe_unready(pods: Iterable[Object]) -> str:
    """Each of them that is not ready, and why; the first three."""
    told = []
    for pod in pods:
        if is_ready(pod):
            continue
        failure = find_failure(pod)
        if failure is not None:
            told.append(str(failure))
        elif is_ending(pod):
            told.append(f"pod {name_of(pod)}: still ends")
        elif pod.get("status", {}).get("phase") == "Running":
            told.append(f"pod {name_of(pod)}: runs, and its readiness probe fails")
        else:
            told.append(f"pod {name_of(pod)}: {pod.get('status', {}).get('phase', 'unknown')}")
    more = f"; and {len(told) - 3} more" if len(told) > 3 else ""
    return "; ".join(told[:3]) + more


def explain_pod(api: KubernetesApi, failure: PodFailure) -> str:
    """With the last lines of its log, masked of secrets, where there is one."""
    if not failure.container or not failure.ended:
        return str(failure)
    for previous in (True, False):
        try:
            text = api.read_log(failure.pod, failure.container, previous=previous, lines=_LOG_LINES)
        except KubernetesFailure:
            continue  # not kept, or the node is away
        if tail := cut_tail(text):
            return f"{failure}; its last lines:\n  {tail}"
    return f"{failure}; it has printed nothing"


def find_deviation(pod: Object, container: str | None, variables: Mapping[str, str]) -> str | None:
    """What its container was not told as it should: by the pod itself, not by its template, which
    an admission webhook may have changed. None where all is right."""
    own = find_container(pod["spec"], container)
    if own is None:
        return f"pod {name_of(pod)} has no container {container}"
    has = {one["name"]: one.get("value", "") for one in own.get("env", [])}
    for name, wanted in variables.items():
        if has.get(name) != wanted:
            found = f"is {has[name]!r}" if name in has else "is missing"
            return f"pod {name_of(pod)}: variable {name} {found}, and should be {wanted!r}"
    return None


def find_images(pods: Iterable[Object], container: str | None) -> frozenset[str]:
    """The images that containers really run, by digest; those that are not known are left out."""
    found = set()
    for pod in pods:
        own = find_container(pod["spec"], container)
        for status in pod.get("status", {}).get("containerStatuses", []):
            if own is not None and status["name"] == own["name"] and status.get("imageID"):
                found.add(str(status["imageID"]))
    return frozenset(found)


def _labels(pod: Object) -> Mapping[str, str]:
    return pod["metadata"].get("labels") or {}


def _find_condition(pod: Object, kind: str) -> Mapping[str, str]:
    conditions: Sequence[Mapping[str, str]] = pod.get("status", {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == kind), {})
