"""Consumers as pods of a Kubernetes cluster; nothing of them is kept on this machine."""

from __future__ import annotations

from backlogctl.config import Consumers, Kubernetes
from backlogctl.fanout.launchers.interface import CheckStop, Fleet, Role
from backlogctl.fanout.launchers.kubernetes_api import KubernetesApi, Object, connect_to_cluster
from backlogctl.fanout.launchers.kubernetes_checks import check_cluster
from backlogctl.fanout.launchers.kubernetes_fleet import RecoveryPods
from backlogctl.fanout.launchers.kubernetes_pods import (
    explain_pod,
    find_failure,
    find_images,
    is_ready,
)
from backlogctl.fanout.launchers.kubernetes_workload import Workload
from backlogctl.formats import Say
from backlogctl_delivery.visible import join_words

_KEEPS_ENDING = 2
_NOW_SECONDS = 10.0


class KubernetesLauncher:
    """Scales the stream's own workload to 0 and back; a recovery has a Deployment of its own."""

    name = "kubernetes"

    def __init__(self, consumers: Consumers, say: Say) -> None:
        assert consumers.kubernetes is not None  # the configuration was checked
        self._settings: Kubernetes = consumers.kubernetes
        self._ready_within = consumers.command_within.total_seconds()
        self._stop_within = consumers.stop_within.total_seconds()
        self._replicas = consumers.replicas
        self._say = say
        self._connected: KubernetesApi | None = None
        self._images_said = False

    def scale(self, fleet: Fleet, count: int, check_stop: CheckStop) -> None:
        """Makes `count` pods run; when all are ready. Of the workload itself, as many as it had
        before it was stopped.

        Raises:
            BacklogError: pods cannot be made or do not get ready, with the reason; or the API
                server is away.
        """
        if count == 0:
            self.stop(fleet, check_stop)
            return
        workload = self._workload(check_stop)
        if fleet.role is Role.ORIGINAL:
            workload.give_back(count, self._ready_within, check_stop)
            return
        pods = self._pods(fleet, check_stop)
        pods.scale(workload, count, self._ready_within, check_stop)
        self._compare_images(workload, pods)

    def stop(self, fleet: Fleet, check_stop: CheckStop) -> None:
        """Scales the workload to 0, or deletes the recovery's Deployment; until no pod is left."""
        if fleet.role is Role.ORIGINAL:
            self._workload(check_stop).stop(fleet, self._stop_within, check_stop)
        else:
            self._pods(fleet, check_stop).end(self._stop_within, check_stop)

    def count_running(self, fleet: Fleet) -> int | None:
        """How many pods are ready."""
        return sum(map(is_ready, self._list(fleet)))

    def explain(self, fleet: Fleet) -> str | None:
        """The first pod that cannot be ready, or ended twice: its reason, its last lines."""
        for pod in self._list(fleet):
            failure = find_failure(pod)
            if failure is not None and (failure.lasts or failure.restarts >= _KEEPS_ENDING):
                return explain_pod(self._api(), failure)
        return None

    def describe(self, fleet: Fleet) -> str:
        where = "" if self._settings.namespace is None else f" in {self._settings.namespace}"
        if fleet.role is Role.ORIGINAL:
            return f"{self._settings.workload}{where}, scaled to 0 and back"
        told = ", ".join(self._settings.variables)
        return f"pods made from the template of {self._settings.workload}{where}, told by {told}"

    def logs(self, fleet: Fleet) -> str:
        """The command that shows them."""
        own = self._settings
        named = {"kubeconfig": own.kubeconfig, "context": own.context, "namespace": own.namespace}
        where = [word for key, value in named.items() if value for word in (f"--{key}", str(value))]
        what = [own.workload]
        if fleet.role is Role.RECOVERY:
            what = ["--prefix", "--selector", RecoveryPods(self._api(), own, fleet).selector]
        return f"`{join_words(['kubectl', *where, 'logs', *what])}`"

    def check(self, original: Fleet, recovery: Fleet | None, count: int) -> tuple[str, ...]:
        """Rights, admission, quotas, autoscalers: all that is asked, and nothing is changed."""
        workload = self._workload()
        pods = None if recovery is None else self._pods(recovery)
        return check_cluster(workload, original, pods, count, self._replicas)

    def _api(self, look: CheckStop | None = None) -> KubernetesApi:
        """Without `look` for who wants an answer now."""
        if self._connected is None:
            self._connected = connect_to_cluster(self._settings)
        if look is None:
            return self._connected.looking(lambda: None, _NOW_SECONDS)
        return self._connected.looking(look)

    def _workload(self, look: CheckStop | None = None) -> Workload:
        return Workload(self._api(look), self._settings)

    def _pods(self, fleet: Fleet, look: CheckStop | None = None) -> RecoveryPods:
        return RecoveryPods(self._api(look), self._settings, fleet)

    def _list(self, fleet: Fleet) -> list[Object]:
        if fleet.role is Role.ORIGINAL:
            return self._workload().list_pods()
        return self._pods(fleet).list_pods()

    def _compare_images(self, workload: Workload, pods: RecoveryPods) -> None:
        """A tag may have been moved since the workload's own pods were started."""
        if self._images_said:
            return
        before = frozenset(workload.find_stopped().get("images", []))
        now = find_images(pods.list_pods(), self._settings.container)
        if before and now - before:
            self._images_said = True
            self._say(
                f"the recovery's pods run image {', '.join(sorted(now))}, and the group's own ran "
                f"{', '.join(sorted(before))}"
            )
