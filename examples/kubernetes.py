"""The story of a backlog whose consumers are pods: 3, then 30, then 3 again, through the objects of
a real API server. The runner is killed in the middle. Nodes are not real: a stand-in runs each
pod's command as a process of this machine, and another does what KEDA does."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from backlogctl.kafka.admin import describe_group_state, describe_topic
from backlogctl.kafka.clients import make_admin
from backlogctl.sandbox.embedded import EmbeddedKafka
from examples import order_consumer
from examples.expand import Result, read_logs, read_times, show_result
from examples.shop import (
    CONFIG,
    GROUP,
    HANDLED,
    TOPIC,
    NewOrders,
    Size,
    await_commits,
    make_backlog,
    names_of,
    replace_words,
)
from examples.stage import Stage, await_handled, find_recovery, tell_whole, write_report
from tests.kit.kafka import wait_until
from tests.kit.kubelet import Kubelet
from tests.kit.kubernetes import (
    TOOL,
    Keda,
    Kubernetes,
    Namespace,
    Object,
    await_pods,
    is_ready,
    read_documented_role,
)

NAME = "order-service"
# Thirty pods and an API server share this machine's cores with the broker.
SIZE = Size(orders=60_000, customers=6_000, rate=100, arriving=30, most_seconds=90.0)
_TEXT = """\
# A shop whose orders are handled by the pods of a Deployment.
ledger: sqlite:///ledger.db
staging: {dir: ./staging}

clusters:
  main:
    bootstrap.servers: ${env:SHOP_KAFKA}

streams:
  @TOPIC@:
    cluster: main
    topic: @TOPIC@
    group: @GROUP@
    consumers:
      launcher: kubernetes
      replicas: @REPLICAS@
      command_within: 120s
      stop_within: 60s
      ramp: {step: 15, every: 1s}
      kubernetes:
        workload: deployment/@NAME@
        kubeconfig: kubeconfig
        variables: {BACKLOG_TOPIC: "{topic}", BACKLOG_GROUP: "{group}"}
    expand: {factor: @FACTOR@, order: key}
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """What must be again as it was."""

    topics: tuple[str, ...]
    partitions: int
    members: int
    deployments: dict[str, Object]
    annotations: dict[str, str]
    scaled_object: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shop:
    """The broker, the namespace, and the directory that the commands are typed in."""

    directory: Path
    bootstrap: str
    namespace: Namespace
    size: Size

    def count_pods(self, selector: str) -> int:
        """Those that are ready."""
        return sum(is_ready(pod) for pod in self.namespace.list("Pod", selector))

    def look(self) -> Layout:
        admin = make_admin({"bootstrap.servers": self.bootstrap})
        deployments = self.namespace.list("Deployment")
        scaled = self.namespace.get("ScaledObject", NAME)
        own = {**self.namespace.get("Deployment", NAME)["metadata"]["annotations"]}
        return Layout(
            topics=tuple(names_of(admin.list_topics(timeout=30).topics)),
            partitions=describe_topic(admin, TOPIC).partitions,
            members=len(describe_group_state(admin, GROUP).members),
            deployments={one["metadata"]["name"]: one["spec"] for one in deployments},
            annotations=own,
            scaled_object={
                "spec": scaled["spec"],
                "annotations": scaled["metadata"].get("annotations", {}),
            },
        )

    def draw(self) -> Table:
        """Its Deployments and KEDA's object, as the API server has them."""
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("object", no_wrap=True)
        table.add_column("ready", no_wrap=True)
        table.add_column("")
        for one in self.namespace.list("Deployment"):
            ready = f"{one['status'].get('readyReplicas', 0)}/{one['spec']['replicas']}"
            notes = one["metadata"].get("annotations", {}).get("backlogctl/stopped")
            told = "" if notes is None else f"stopped, had {json.loads(notes)['replicas']}"
            table.add_row(f"deployment/{one['metadata']['name']}", ready, told)
        scaled = self.namespace.get("ScaledObject", NAME)["metadata"].get("annotations", {})
        paused = scaled.get("autoscaling.keda.sh/paused-replicas")
        told = "not paused" if paused is None else f"paused at {paused}"
        table.add_row(f"scaledobject/{NAME}", "", told)
        return table


def tell_story(console: Console, size: Size = SIZE, report: Path | None = None) -> Result:
    """Plays the whole story in a temporary directory that is gone at the end, as is every process.
    `report`: where the incident report is kept.
    """

    def play(directory: Path, kafka: EmbeddedKafka) -> Result:
        with _running(directory, kafka.bootstrap, size) as shop:
            stage = Stage(console, directory, {"SHOP_KAFKA": kafka.bootstrap})
            result = _play(stage, shop)
            write_report(stage, find_recovery(directory), report)
            return result

    return tell_whole(
        console,
        "demo kubernetes",
        "A consumer group is far behind. Its consumers are the pods of a Deployment that KEDA "
        "scales. [bold]backlogctl[/] holds KEDA still, drains the backlog with ten times as many "
        "pods, and gives everything back. Kafka, the API server and its controllers are real; the "
        "node and KEDA are stand-ins.",
        "Now yours: docs/kubernetes.md has the configuration and the Role.",
        play,
    )


@contextmanager
def _running(directory: Path, bootstrap: str, size: Size) -> Iterator[Shop]:
    """The API server with a node and KEDA, and the shop's namespace, workload and backlog."""
    with Kubernetes() as cluster, Kubelet(cluster), Keda(cluster):
        shop = Shop(directory, bootstrap, Namespace(cluster, "shop"), size)
        shop.namespace.grant(read_documented_role())
        cluster.server.write_kubeconfig(directory / "kubeconfig", TOOL, "shop")
        words = {"TOPIC": TOPIC, "GROUP": GROUP, "NAME": NAME}
        words |= {"REPLICAS": str(size.partitions), "FACTOR": str(size.factor)}
        (directory / CONFIG).write_text(replace_words(_TEXT, words))
        make_backlog(bootstrap, size)
        shop.namespace.create(_make_deployment(shop))
        shop.namespace.create(_make_scaled_object(size))
        try:
            yield shop
        finally:
            shop.namespace.close()
            wait_until(lambda: not shop.namespace.list("Pod"), 60.0, "its pods have ended")


def _make_deployment(shop: Shop) -> Object:
    variables = {
        "BACKLOG_TOPIC": TOPIC,
        "BACKLOG_GROUP": GROUP,
        "BACKLOG_BOOTSTRAP_SERVERS": shop.bootstrap,
        "ORDER_LOG": str(shop.directory / HANDLED),
        "ORDER_RATE": str(shop.size.rate),
    }
    container = {
        "name": "consumer",
        "image": "order-service:1",
        "command": [sys.executable, order_consumer.__file__],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
    }
    labels = {"app": NAME}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME},
        "spec": {
            "replicas": shop.size.partitions,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def _make_scaled_object(size: Size) -> Object:
    trigger: dict[str, Any] = {"type": "kafka", "metadata": {"topic": TOPIC, "lagThreshold": "50"}}
    most = size.partitions
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": NAME},
        "spec": {
            "scaleTargetRef": {"name": NAME},
            "minReplicaCount": most,
            "maxReplicaCount": most,
            "triggers": [trigger],
        },
    }


def _play(stage: Stage, shop: Shop) -> Result:
    size = shop.size
    with NewOrders(shop.bootstrap, size, published=size.orders) as orders:
        _fall_behind(stage, shop)
        before = shop.look()
        stage.open_chapter("Plan: is there room, may it be done, what would be done?")
        stage.tell("The Role is the one of docs/kubernetes.md. Nothing is changed yet.")
        stage.run("plan", "expand", TOPIC)
        recovery_id = find_recovery(shop.directory)
        stage.open_chapter("Approve, and run; the machine that runs it dies in the middle")
        stage.run("approve", recovery_id, "--by", "demo")
        began = time.time()
        _run_killed(stage, shop, recovery_id)
        stage.run("run", recovery_id)
        times = read_times(shop.directory, recovery_id, began, time.time())
        await_pods(shop.namespace, f"app={NAME}", size.partitions)
        time.sleep(1.0)  # some more orders, for the usual consumers alone
    await_handled({"bootstrap.servers": shop.bootstrap}, TOPIC, GROUP, size.partitions)
    _show_objects(stage, shop, "All is as it was:")
    restored = before == shop.look()
    handled = read_logs(shop.directory / HANDLED)
    return show_result(stage, size, times, orders.published, handled, restored=restored)


def _fall_behind(stage: Stage, shop: Shop) -> None:
    size = shop.size
    stage.open_chapter(f"A backlog of {size.orders:,} orders")
    await_pods(shop.namespace, f"app={NAME}", size.partitions)
    await_commits(shop.bootstrap, size)
    _show_objects(
        stage,
        shop,
        f"The topic [bold]{TOPIC}[/] has {size.partitions} partitions, so more than "
        f"{size.partitions} pods are of no use, and each handles {size.rate:,} orders a second. "
        f"{size.arriving:,} new orders a second keep coming all the while.",
    )
    stage.run("status")
    time.sleep(size.measured)


def _run_killed(stage: Stage, shop: Shop, recovery_id: str) -> None:
    """Once all pods of the recovery are at work."""
    selector = f"backlogctl/recovery={recovery_id}"
    stage.run("run", recovery_id, kill=lambda: shop.count_pods(selector) == shop.size.consumers)
    _show_objects(stage, shop, "[bold]kill -9[/]. The pods go on, and KEDA holds still:")
    stage.tell("The same command, typed anywhere, takes it up from the cluster and the ledger:")


def _show_objects(stage: Stage, shop: Shop, text: str) -> None:
    stage.tell(text)
    stage.show(Padding(shop.draw(), (1, 0, 1, 4)))
