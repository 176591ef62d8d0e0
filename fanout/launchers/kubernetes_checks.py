"""What is asked of a Kubernetes cluster before anything is stopped: rights, room, admission."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from backlogctl.errors import Refused
from backlogctl.fanout.launchers.interface import Fleet
from backlogctl.fanout.launchers.kubernetes_api import (
    AUTOSCALERS,
    BUDGETS,
    DEPLOYMENTS,
    PODS,
    QUOTAS,
    SCALED_OBJECTS,
    STATEFUL_SETS,
    KubernetesApi,
    KubernetesFailure,
    Object,
    ObjectKind,
)
from backlogctl.fanout.launchers.kubernetes_fleet import RecoveryPods
from backlogctl.fanout.launchers.kubernetes_pods import find_container
from backlogctl.fanout.launchers.kubernetes_workload import (
    Workload,
    read_stopped_record,
    refuse_other_stream,
)
from backlogctl.formats import format_plural

# Labels that the controller of StatefulSets gives.
_PLACES = ("apps.kubernetes.io/pod-index", "statefulset.kubernetes.io/pod-name")


@dataclass(frozen=True, slots=True)
class NeededVerbs:
    """What the Role of docs/kubernetes.md gives."""

    resource: ObjectKind
    verbs: tuple[str, ...]
    why: str
    sub: str = ""

    @property
    def what(self) -> str:
        return f"{self.resource}/{self.sub}" if self.sub else str(self.resource)


def list_needed_verbs(workload: ObjectKind, *, expands: bool) -> tuple[NeededVerbs, ...]:
    """All that is needed for a workload of that kind; `expands`: for a recovery's pods, too."""
    rights = [
        NeededVerbs(workload, ("get", "patch"), "note on the workload what was there"),
        NeededVerbs(workload, ("get", "update"), "scale the workload to 0 and back", "scale"),
        NeededVerbs(PODS, ("list",), "see which pods run, and why not"),
        NeededVerbs(PODS, ("get",), "show a pod's last lines", "log"),
        NeededVerbs(AUTOSCALERS, ("list", "patch"), "hold an autoscaler still"),
        NeededVerbs(SCALED_OBJECTS, ("list", "patch"), "pause KEDA"),
        NeededVerbs(BUDGETS, ("list",), "say what a disruption budget asks for"),
    ]
    if expands:
        rights += [
            NeededVerbs(DEPLOYMENTS, ("list", "create", "delete"), "make the recovery's pods"),
            NeededVerbs(DEPLOYMENTS, ("get", "update"), "scale the recovery's pods", "scale"),
            NeededVerbs(PODS, ("create",), "try one pod: a dry run"),
            NeededVerbs(QUOTAS, ("list",), "reckon whether the pods have room"),
        ]
    return tuple(rights)


def check_cluster(
    workload: Workload, original: Fleet, pods: RecoveryPods | None, count: int, replicas: int
) -> tuple[str, ...]:
    """Sentences for a plan; nothing is changed.

    Args:
        pods: of the recovery; None where it has none.
        count: how many of them.
        replicas: `consumers.replicas`.

    Raises:
        Refused: something would not work, as far as the cluster tells.
        UsageError: there is no such workload, or it is of no use.
        KubernetesFailure: the cluster does not answer.
    """
    require_verbs(workload, expands=pods is not None)
    now = workload.read()
    record = read_stopped_record(now)
    refuse_other_stream(record, original, workload.subject)
    told: list[str] = []
    found, running = workload.read_replicas(), workload.list_pods()
    if record:
        told.append(
            f"an earlier recovery has stopped {workload}, and not given it back: what was there "
            f"then is, with {format_plural(record.get('replicas', 0), 'replica')}"
        )
    elif found != replicas:
        told.append(
            f"{workload} has {format_plural(found, 'replica')}, and `consumers.replicas` is "
            f"{replicas}: {found or replicas} are given back"
        )
    told += [one.describes for one in workload.list_autoscalers()]
    told += _describe_budgets(workload.api, running)
    _refuse_lost_claims(now, workload)
    _require(workload.try_scale, "it could not be scaled to 0", workload.subject)
    if pods is None:
        return tuple(told)
    _refuse_rollout(now, workload)
    template = now["spec"].get("template", {}).get("spec", {})
    told += _describe_places(template, pods, workload)
    admitted = _try_pod(pods, now, count, told)
    each = reckon_pod(admitted.get("spec", template))
    told += check_quotas(workload.api, each, count, len(running))
    return tuple(told)


def require_verbs(workload: Workload, *, expands: bool) -> None:
    """Raises Refused: names each verb that is missing, and what it is for."""
    missing = []
    for right in list_needed_verbs(workload.resource, expands=expands):
        is_own = right.resource == workload.resource and right.verbs[-1] in ("patch", "update")
        for verb in right.verbs:
            # A Role may name the one object.
            name = workload.name if is_own and not _is_for_recovery(right) else ""
            if not workload.api.may(verb, right.resource, right.sub, name):
                missing.append(f"{verb} {right.what} (to {right.why})")
    if missing:
        raise Refused(
            f"this login may not: {'; '.join(dict.fromkeys(missing))}",
            subject=f"kubernetes, {workload.api.where}",
            hint="docs/kubernetes.md has the Role; nothing was changed",
        )


def _is_for_recovery(right: NeededVerbs) -> bool:
    return "recovery" in right.why


def _refuse_lost_claims(now: Object, workload: Workload) -> None:
    policy = now["spec"].get("persistentVolumeClaimRetentionPolicy", {})
    if now["spec"].get("volumeClaimTemplates") and policy.get("whenScaled") == "Delete":
        raise Refused(
            "its claims are deleted with its pods when it is scaled to 0 "
            "(`persistentVolumeClaimRetentionPolicy.whenScaled: Delete`)",
            subject=workload.subject,
            hint="set it to `Retain` for the time of the recovery, then plan again",
        )


def _refuse_rollout(now: Object, workload: Workload) -> None:
    """The template of a rollout that hangs is not what runs."""
    status, spec = now.get("status", {}), now["spec"]
    wanted = int(spec.get("replicas", 1))
    updated = int(status.get("updatedReplicas", 0))
    # The server leaves out a 0; other kinds may not have it at all.
    is_told = "updatedReplicas" in status or workload.resource in (DEPLOYMENTS, STATEFUL_SETS)
    if wanted and is_told and updated < wanted:
        raise Refused(
            f"a rollout is under way or hangs: {updated} of {wanted} pods are of its template, "
            "which the recovery's pods would be made from",
            subject=workload.subject,
            hint="let it come to its end, or undo it; then plan again",
        )


def _try_pod(pods: RecoveryPods, workload: Object, count: int, told: list[str]) -> Object:
    """The pod as admission leaves it; nothing where that is not known."""
    try:
        return pods.try_create(workload, count)
    except KubernetesFailure as error:
        if error.is_forbidden and "exceeded quota" in error.message:
            return {}  # the quota is reckoned with what the workload gives free
        if "does not support dry run" in error.message:
            told.append(f"whether the recovery's pods are let in is not known: {error.message}")
            return {}
        raise _refuse(error, "its pods would be refused", pods.subject) from error


def _require(attempt: Any, what: str, subject: str) -> None:
    try:
        attempt()
    except KubernetesFailure as error:
        if error.retryable or error.is_conflict:
            raise
        raise _refuse(error, what, subject) from error


def _refuse(error: KubernetesFailure, what: str, subject: str) -> Refused:
    return Refused(
        f"{what}: {error.message}",
        subject=subject,
        hint="that is what the cluster's admission says to a dry run; nothing was changed",
    )


# Room.


def reckon_pod(spec: Mapping[str, Any]) -> dict[str, Decimal]:
    """What a pod counts for in a quota: requests, limits, claims, and itself."""
    once = spec.get("initContainers", [])
    stay = [one for one in once if one.get("restartPolicy") == "Always"]
    found = _add_up([*spec.get("containers", []), *stay])
    for container in once:
        if container not in stay:  # one after the other, before those
            for name, amount in _add_up([container]).items():
                found[name] = max(amount, found.get(name, amount))
    for name in ("cpu", "memory", "ephemeral-storage"):
        if f"requests.{name}" in found:
            found[name] = found[f"requests.{name}"]
    claims = sum("ephemeral" in volume for volume in spec.get("volumes", []))
    own = {"pods": 1, "count/pods": 1, "persistentvolumeclaims": claims}
    return {**found, **{name: Decimal(amount) for name, amount in own.items() if amount}}


def _add_up(containers: Iterable[Mapping[str, Any]]) -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for container in containers:
        resources = container.get("resources") or {}
        limits = resources.get("limits") or {}
        # What has only a limit requests as much.
        requests = {**limits, **(resources.get("requests") or {})}
        for kind, amounts in (("requests", requests), ("limits", limits)):
            for name, amount in amounts.items():
                key = f"{kind}.{name}"
                found[key] = found.get(key, Decimal(0)) + _read_quantity(amount)
    return found


def check_quotas(
    api: KubernetesApi, each: Mapping[str, Decimal], count: int, freed: int
) -> list[str]:
    """What is not known of the room for `count` pods, when `freed` such pods have ended.

    Raises:
        Refused: a quota has less room.
    """
    short: list[str] = []
    told: list[str] = []
    # The Deployment, and the ReplicaSet that it makes.
    needed = {"count/deployments.apps": Decimal(1), "count/replicasets.apps": Decimal(1)}
    needed |= {name: amount * count for name, amount in each.items()}
    for quota in api.find_all(QUOTAS):
        name = quota["metadata"]["name"]
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            told.append(
                f"quota {name} is for some pods only: whether the recovery's are among them, and "
                "have room, is not known"
            )
            continue
        used = quota.get("status", {}).get("used", {})
        for what, hard in quota.get("status", {}).get("hard", {}).items():
            free = _read_quantity(hard) - _read_quantity(used.get(what, "0"))
            free += each.get(what, Decimal(0)) * freed
            if needed.get(what, free) > free:
                amount = f"{_format(what, needed[what])}, and quota {name} has"
                short.append(f"{amount} {_format(what, max(Decimal(0), free))}")
    if short:
        raise Refused(
            f"{format_plural(count, 'pod')} need {'; '.join(short)}, with the "
            f"{format_plural(freed, 'pod')} of the workload ended",
            subject=f"kubernetes, {api.where}",
            hint="raise the quota, or plan with fewer: `--factor`, or `consumers.max_consumers`",
        )
    return told


def _read_quantity(text: str) -> Decimal:
    from lightkube.utils.quantity import parse_quantity

    return parse_quantity(text) or Decimal(0)


def _format(resource: str, amount: Decimal) -> str:
    if resource.endswith("cpu"):
        return f"{amount.normalize():f} CPUs ({resource})"
    if resource.endswith(("memory", "storage")):
        return f"{amount / 2**30:.1f} GiB ({resource})"
    return f"{amount.normalize():f} {resource}"


def _describe_budgets(api: KubernetesApi, pods: Iterable[Object]) -> list[str]:
    """Budgets of the pods that are stopped: they hold evictions back, and no scaling."""
    labels = [pod["metadata"].get("labels") or {} for pod in pods]
    told = []
    for budget in api.find_all(BUDGETS):
        spec = budget["spec"]
        if not any(_selects(spec.get("selector"), one) for one in labels):
            continue
        rule = next(
            (f"{key} {spec[key]}" for key in ("minAvailable", "maxUnavailable") if key in spec), ""
        )
        told.append(
            f"disruption budget {budget['metadata']['name']} ({rule}) is for these pods: it holds "
            "evictions back, no scaling to 0; the recovery's pods have the same labels, and count"
        )
    return told


def _describe_places(template: Object, pods: RecoveryPods, workload: Workload) -> list[str]:
    """Variables that take a pod's place in its StatefulSet: static members may be named by it."""
    own = find_container(template, pods.settings.container) or {}
    told = []
    for one in own.get("env") or ():
        field = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        if one["name"] not in pods.variables and any(label in field for label in _PLACES):
            told.append(
                f"{one['name']} is a label that only pods of {workload} have ({field}): the "
                "recovery's have it empty; where it is the consumers' `group.instance.id`, take "
                "`metadata.name`"
            )
    return told


def _selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    if selector is None:
        return False
    if (selector.get("matchLabels") or {}).items() - labels.items():
        return False
    return all(_holds(one, labels) for one in selector.get("matchExpressions") or ())


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
    return value is None  # DoesNotExist
