"""What keeps the stream's own consumers: scaled to 0 and back, with its autoscalers held still.

What was there before is on record in an annotation of the object itself, before anything is
changed: whoever comes next, from whatever machine, gives it back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from backlogctl.clock import Deadline
from backlogctl.config import Kubernetes
from backlogctl.errors import BacklogError, Refused, UsageError
from backlogctl.fanout.launchers.interface import CheckStop, Fleet
from backlogctl.fanout.launchers.kubernetes_api import (
    AUTOSCALERS,
    DEPLOYMENTS,
    SCALED_OBJECTS,
    STATEFUL_SETS,
    KubernetesApi,
    KubernetesFailure,
    Object,
    ObjectKind,
)
from backlogctl.fanout.launchers.kubernetes_pods import (
    describe_unready,
    explain_pod,
    find_failure,
    find_images,
    is_ready,
    list_pods,
)
from backlogctl.formats import format_plural

RECORD = "backlogctl/stopped"
KEDA_PAUSED = "autoscaling.keda.sh/paused-replicas"
_KINDS = {"deployment": DEPLOYMENTS, "statefulset": STATEFUL_SETS}
_POLL_SECONDS = 0.3
_TICK_SECONDS = 0.05
_SETS = 3  # somebody may have read the number just before we set it
# A pod that ends now and then may come up in the end: the database is busy while all start.
MOST_RESTARTS = 3

Answer = TypeVar("Answer")


class Workload:
    """The object that `consumers.kubernetes.workload` names."""

    def __init__(self, api: KubernetesApi, settings: Kubernetes) -> None:
        kind, _, self.name = settings.workload.partition("/")
        self.resource = _KINDS.get(kind) or parse_resource(kind)
        self.api = api
        self._container = settings.container

    def __str__(self) -> str:
        return f"{self.resource}/{self.name}"

    @property
    def subject(self) -> str:
        """For errors."""
        return self.api.name(self.resource, self.name)

    def read(self) -> Object:
        """Raises UsageError: there is none."""
        found = self.api.find(self.resource, self.name)
        if found is None:
            raise UsageError(
                "there is no such object, whose pods are the consumers",
                subject=self.subject,
                hint="see `consumers.kubernetes`: `workload`, `namespace` and `context`",
            )
        return found

    def list_pods(self) -> list[Object]:
        """Its own, not those that recoveries made from it."""
        scale = self._read_scale()
        selector = scale.get("status", {}).get("selector", "")
        if not selector:
            raise UsageError(
                "its scale subresource does not tell which pods are its own (`status.selector`)",
                subject=self.subject,
                hint="use `launcher: command`",
            )
        return list_pods(self.api, selector, recovery=False)

    def read_replicas(self) -> int:
        return int(self._read_scale().get("spec", {}).get("replicas", 0))

    def stop(self, fleet: Fleet, within: float, look: CheckStop) -> None:
        """Notes what is there, holds its autoscalers still, scales to 0; until no pod is left.

        Raises:
            Refused: another stream has stopped it.
            BacklogError: pods are left after `within` seconds, or somebody scales it up again.
        """
        self._note(fleet)
        for autoscaler in self.list_autoscalers():
            autoscaler.hold()
        self._set_replicas(0)
        limit, sets = Deadline(within), 1
        while True:
            if (now := self.read_replicas()) != 0:
                if sets == _SETS:
                    raise self._say_reverted(now, 0)
                sets += 1
                self._set_replicas(0)
            elif not (pods := self.list_pods()):
                return
            else:
                refuse_lasting(pods, limit, self.subject)
            pause(look, _POLL_SECONDS)

    def give_back(self, count: int, within: float, look: CheckStop) -> None:
        """As many as there were before `stop`, else `count`; its autoscalers are let go.

        Where pods run and no stop is on record nothing is changed.

        Raises:
            BacklogError: they are not ready within `within` seconds, or cannot be.
        """
        record = read_stopped_record(self.read())
        for autoscaler in self.list_autoscalers():
            autoscaler.release(record.get("autoscalers", {}))
        wanted = int(record.get("replicas", 0)) or count
        limit, sets = Deadline(within), 0
        while True:
            if (now := self.read_replicas()) == 0:
                if sets == _SETS:
                    raise self._say_reverted(0, wanted)
                sets += 1
                self._set_replicas(wanted)
                now = wanted
            pods = self.list_pods()
            if len(pods) == now and all(map(is_ready, pods)):
                break
            refuse_failing(self.api, pods, self.subject)
            if limit.expired:
                raise BacklogError(
                    f"{sum(map(is_ready, pods))} of its {now} pods are ready after "
                    f"{limit.seconds:g} s: {describe_unready(pods) or 'none was made'}",
                    subject=self.subject,
                    hint="see why, then run this again",
                )
            pause(look, _POLL_SECONDS)
        if record:
            self.again(lambda: self._annotate(self.read(), None))

    def find_stopped(self) -> Mapping[str, Any]:
        """What `stop` put on record; empty where nothing is."""
        return read_stopped_record(self.read())

    def list_autoscalers(self) -> list[Autoscaler]:
        """Those whose target it is."""
        return [
            one
            for resource in (AUTOSCALERS, SCALED_OBJECTS)
            for found in self.api.find_all(resource)
            if (one := Autoscaler(self.api, resource, found)).targets(self.read_kind(), self.name)
        ]

    def read_kind(self) -> str:
        return str(self.read()["kind"])

    def again(self, change: Callable[[], Answer]) -> Answer:
        """Reads and changes anew where somebody has changed the object in between.

        Raises:
            KubernetesFailure: each time, or another failure.
        """
        limit = Deadline(self.api.patience)
        while True:
            try:
                return change()
            except KubernetesFailure as error:
                if not error.is_conflict or limit.expired:
                    raise
                pause(self.api.look, _TICK_SECONDS)

    def try_scale(self) -> None:
        """A dry run of what `stop` does. Raises KubernetesFailure: the server refuses it."""
        now = self.read()
        self._annotate(now, read_stopped_record(now) or {}, dry_run=True)
        self._put_scale(0, dry_run=True)

    def _note(self, fleet: Fleet) -> None:
        """What is there now. A number that is not 0 is the newest; of autoscalers that are held
        what they had before."""

        def note() -> None:
            now = self.read()
            before = read_stopped_record(now)
            refuse_other_stream(before, fleet, self.subject)
            replicas = self.read_replicas()
            held = {one.key: one.remember() for one in self.list_autoscalers()}
            images = find_images(filter(is_ready, self.list_pods()), self._container)
            record = {
                "stream": fleet.stream,
                "group": fleet.group,
                "replicas": replicas or before.get("replicas", 0),
                "images": sorted(images) or before.get("images", []),
                "autoscalers": {**held, **before.get("autoscalers", {})},
            }
            if record != before:
                self._annotate(now, record)

        self.again(note)

    def _annotate(
        self, now: Object, record: Mapping[str, Any] | None, *, dry_run: bool = False
    ) -> None:
        text = None if record is None else json.dumps(record, sort_keys=True)
        version = now["metadata"]["resourceVersion"]
        patch = {"metadata": {"annotations": {RECORD: text}, "resourceVersion": version}}
        self.api.merge(self.resource, self.name, patch, dry_run=dry_run)

    def _read_scale(self) -> Object:
        return self.api.read(self.resource, self.name, "scale")

    def _set_replicas(self, count: int) -> None:
        self.again(lambda: self._put_scale(count))

    def _put_scale(self, count: int, *, dry_run: bool = False) -> None:
        set_scale(self.api, self.resource, self.name, count, dry_run=dry_run)

    def _say_reverted(self, now: int, wanted: int) -> BacklogError:
        return BacklogError(
            f"its replicas were set to {wanted}, and somebody sets them to {now} again: "
            f"{find_writer(self.read())}",
            subject=self.subject,
            hint="pause what does that (an autoscaler, a GitOps controller, an operator) for the "
            "time of the recovery, then run this again",
        )


@dataclass(frozen=True)
class Autoscaler:
    """A HorizontalPodAutoscaler or KEDA's ScaledObject.

    An HPA whose target has 0 replicas does nothing, unless its own minimum is 0: that is the way in
    which Kubernetes means it to be switched off. KEDA has an annotation.
    """

    api: KubernetesApi
    resource: ObjectKind
    found: Object

    def __str__(self) -> str:
        return f"{self.resource}/{self.name}"

    @property
    def name(self) -> str:
        return str(self.found["metadata"]["name"])

    @property
    def key(self) -> str:
        """In the record."""
        return f"{self.resource.plural}/{self.name}"

    @property
    def describes(self) -> str:
        """How it is held still, for a plan."""
        if self.resource == SCALED_OBJECTS:
            return f"{self}: paused by the annotation {KEDA_PAUSED}, and let go at the end"
        if self._minimum == 0:
            return f"{self}: its minReplicas is 1 meanwhile, and 0 again at the end"
        return f"{self}: does nothing while {self._target.get('name')} has 0 replicas"

    @property
    def is_of_keda(self) -> bool:
        """An HPA that KEDA makes, and removes when its ScaledObject is paused."""
        owners = self.found["metadata"].get("ownerReferences", [])
        return any(owner["kind"] == "ScaledObject" for owner in owners)

    def targets(self, kind: str, name: str) -> bool:
        target = self._target
        return (target.get("kind", "Deployment"), target.get("name")) == (kind, name)

    def remember(self) -> Mapping[str, Any]:
        """What `hold` changes, as it is now."""
        if self.resource == SCALED_OBJECTS:
            annotations = self.found["metadata"].get("annotations") or {}
            return {KEDA_PAUSED: annotations.get(KEDA_PAUSED)}
        return {"minReplicas": self._minimum}

    def hold(self) -> None:
        """It does not scale its target up from 0. Called again it changes nothing more."""
        if self.resource == SCALED_OBJECTS:
            self._patch({"metadata": {"annotations": {KEDA_PAUSED: "0"}}})
        elif self._minimum == 0 and not self.is_of_keda:
            self._patch({"spec": {"minReplicas": 1}})

    def release(self, record: Mapping[str, Any]) -> None:
        """As it was, where it is still as `hold` left it. Called again it changes nothing more."""
        before = record.get(self.key)
        if before is None:
            return
        if self.resource == SCALED_OBJECTS:
            if self.remember() == {KEDA_PAUSED: "0"}:
                self._patch({"metadata": {"annotations": before}})
        elif before["minReplicas"] == 0 and self._minimum == 1 and not self.is_of_keda:
            self._patch({"spec": before})

    @property
    def _target(self) -> Mapping[str, Any]:
        target: Mapping[str, Any] = self.found["spec"].get("scaleTargetRef", {})
        return target

    @property
    def _minimum(self) -> int:
        return int(self.found["spec"].get("minReplicas", 1))

    def _patch(self, patch: Object) -> None:
        self.api.merge(self.resource, self.name, patch)


def parse_resource(kind: str) -> ObjectKind:
    """`rollouts.v1alpha1.argoproj.io`."""
    plural, version, group = kind.split(".", 2)
    return ObjectKind(group, version, plural)


def set_scale(
    api: KubernetesApi, resource: ObjectKind, name: str, count: int, *, dry_run: bool = False
) -> None:
    """Sets `spec.replicas` by the scale subresource, where it is another number.
    Raises KubernetesFailure: `is_conflict` where somebody has changed it since it was read.
    """
    scale = api.read(resource, name, "scale")
    if int(scale.get("spec", {}).get("replicas", 0)) == count and not dry_run:
        return
    changed = {**scale, "spec": {**scale.get("spec", {}), "replicas": count}}
    api.put(resource, name, changed, "scale", dry_run=dry_run)


def read_stopped_record(found: Object) -> dict[str, Any]:
    """What a `stop` noted on the object; empty where nothing is noted."""
    text = (found["metadata"].get("annotations") or {}).get(RECORD)
    return dict(json.loads(text)) if text else {}


def refuse_other_stream(record: Mapping[str, Any], fleet: Fleet, subject: str) -> None:
    """Raises Refused: another stream has stopped the object, and would start it in our midst."""
    own = (fleet.stream, fleet.group)
    if record and (record["stream"], record["group"]) != own:
        raise Refused(
            f"stream {record['stream']} (group {record['group']}) has stopped it for a recovery",
            subject=subject,
            hint=f"bring that to its end first; its annotation {RECORD} says what was there",
        )


def find_writer(found: Object) -> str:
    """Who set `spec.replicas` last, as the API server noted it."""
    writers = [
        entry
        for entry in found["metadata"].get("managedFields", [])
        if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
    ]
    if not writers:
        return "by whom is not known"
    last = max(writers, key=lambda entry: entry.get("time", ""))
    return f"{last['manager']}, at {last.get('time', 'an unknown time')}"


def refuse_failing(api: KubernetesApi, pods: list[Object], subject: str) -> None:
    """Raises BacklogError: a pod is not ready for a reason that does not go away."""
    for pod in pods:
        failure = find_failure(pod)
        if failure is not None and (failure.lasts or failure.restarts >= MOST_RESTARTS):
            raise BacklogError(
                explain_pod(api, failure),
                subject=subject,
                hint="mend it, then run this again",
            )


def refuse_lasting(pods: list[Object], limit: Deadline, subject: str) -> None:
    """Raises BacklogError: the time in which they were to end is over."""
    if limit.expired:
        raise BacklogError(
            f"{format_plural(len(pods), 'pod')} of it did not end within {limit.seconds:g} s: "
            f"{describe_unready(pods)}",
            subject=subject,
            hint="see their terminationGracePeriodSeconds and `consumers.stop_within`, then run "
            "this again",
        )


def pause(look: CheckStop, seconds: float) -> None:
    """Waits, and looks meanwhile."""
    limit = Deadline(seconds)
    while True:
        look()
        if limit.expired:
            return
        time.sleep(limit.remaining(_TICK_SECONDS))
