"""Where a task's Spark work is done: in its own process, or by a driver that `spark-submit` starts.

A connection to Spark that has a `deploy-mode` asks for the latter. The task keeps what needs
Airflow, waits for the driver, and ends it when it is ended itself.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException

from backlogctl.config import Config, mask_secrets
from backlogctl.config.root import name_file
from backlogctl.dags.configuration import (
    BINARY,
    DEPLOY_MODE,
    find_spark_connection,
    list_taken_fields,
    read_extra,
)
from backlogctl.errors import BacklogError, ConfigurationError, Refused
from backlogctl.replay.audits.audit import open_folder
from backlogctl.replay.engine.brakes import INTERRUPTED, PausedBecause
from backlogctl.replay.engine.interrupts import Interrupts
from backlogctl.replay.engine.kind import Traits, Workspace
from backlogctl.replay.engine.plan import find_identity
from backlogctl.replay.runbooks.driver import (
    ALIVE,
    APPLICATION,
    CONNECTIONS,
    VERBS,
    read_outcome,
    write_submission,
)
from backlogctl_delivery.visible import escape_trace

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

LOG = logging.getLogger(__name__)
CLIENT, CLUSTER = "client", "cluster"
_DOCS = "see docs/deployment.md, Spark by spark-submit"
_PREFIX = "submission-"
_BEAT_SECONDS = 0.5
_TAIL_LINES = 5
# Of what spark-submit said last, no reasons: places in a trace, and what went well.
_NOISE = re.compile(r"\s*(at |\.\.\. )|\S+ \S+ INFO ")


def call(workspace: Workspace, verb: str, args: Mapping[str, Any], traits: Traits) -> Any:
    """One verb of `VERBS`, where the connection says; with its errors, wherever it was done.

    Args:
        traits: of what it works on. Without Spark it is done here; in client mode so is what stops
            consumers: started by a driver they would inherit its Spark from the environment.
    """
    connection = find_spark_connection() if traits.uses_spark else None
    mode = connection and read_extra(connection).get(DEPLOY_MODE)
    if connection is None or not mode or (traits.stops_consumers and mode == CLIENT):
        return VERBS[verb](workspace, args, LOG.info)
    fields = list_taken_fields()
    _refuse(connection, mode, workspace.config, traits, fields)
    with open_folder(workspace.config, _PREFIX) as folder:
        request = {
            "verb": verb,
            "args": dict(args),
            "approver": find_identity().to_json(),
            "config": str(name_file(os.environ).absolute()),
            "spark": workspace.config.spark.model_dump(),
        }
        write_submission(folder, request)
        hook = _make_hook(connection, mode, workspace, f"backlogctl {verb}")
        return _await_outcome(hook, folder, mode, workspace.config.spark.master, fields)


def _await_outcome(
    hook: SparkSubmitHook, folder: Path, mode: str, master: str, fields: Mapping[str, str]
) -> Any:
    place = folder / APPLICATION
    # Of a folder that the driver's machine has too: nothing is uploaded.
    name = f"local://{place}" if mode == CLUSTER and master.startswith("k8s:") else str(place)
    given = {CONNECTIONS: json.dumps(dict(fields))} if fields else {}
    interrupts, ended = Interrupts(), ""
    with interrupts.installed(), interrupts.deferred(), _counting(folder / ALIVE, interrupts):
        try:
            # A group of its own: Ctrl-C is for the task, which lets the driver end in good order.
            hook.submit(name, env={**os.environ, **given}, start_new_session=True)
        except AirflowException as failure:
            ended = str(failure)
    try:
        return read_outcome(folder)
    except FileNotFoundError:
        pass
    if interrupts.asked:
        raise PausedBecause(INTERRUPTED, "ended with its task", hint="the next try goes on")
    said = [line for line in ended.splitlines()[1:] if not _NOISE.match(line)]
    raise BacklogError(
        "\n  ".join(("the driver ended and left no outcome", *said[-_TAIL_LINES:])),
        subject=f"spark-submit to {master}",
        hint=f"what it wrote is above, or in the log of its pod; {_DOCS}",
        retryable=True,
    )


@contextmanager
def _counting(alive: Path, interrupts: Interrupts) -> Iterator[None]:
    """The driver goes on as long as this counts; an interrupt takes the file away."""
    over = threading.Event()

    def count() -> None:
        for number in itertools.count(1):
            if interrupts.asked:
                alive.unlink(missing_ok=True)
                return
            with suppress(OSError):  # a share that is away for a moment
                alive.write_text(str(number), encoding="utf-8")
            if over.wait(_BEAT_SECONDS):
                return

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _make_hook(
    connection: Connection, mode: str, workspace: Workspace, name: str
) -> SparkSubmitHook:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    class Hook(SparkSubmitHook):
        """What Spark says may hold what it was given, or what a message holds."""

        def _process_spark_submit_log(self, itr: Iterator[str]) -> None:
            super()._process_spark_submit_log(
                escape_trace(mask_secrets(line.expandtabs(2))) for line in itr
            )

    from backlogctl.spark_backfill.spark.cluster import needs_s3
    from backlogctl.spark_backfill.spark.session import make_submit_conf

    config = workspace.config
    archives = workspace.ledger.archives.list(with_purged=False)
    places = [config.staging.archive or "", *(one.location for one in archives)]
    conf = make_submit_conf(config.spark, s3=any(map(needs_s3, places)), elsewhere=mode == CLUSTER)
    mask = os.umask(0o077)  # it writes a keytab of the connection into the temporary directory
    try:
        return Hook(conf=conf, conn_id=connection.conn_id, name=name)
    finally:
        os.umask(mask)


def _refuse(
    connection: Connection, mode: str, config: Config, traits: Traits, fields: Mapping[str, str]
) -> None:
    """What cannot work, before spark-submit says so in words of its own, or waits.

    Raises:
        ConfigurationError, Refused: with the way out.
    """
    subject = f"connection {connection.conn_id}"
    if wrong := _find_wrong_setup(connection, mode, config.spark.master):
        raise ConfigurationError(wrong[0], subject=subject, hint=f"{wrong[1]}; {_DOCS}")
    if mode == CLUSTER and (wrong := _find_unreachable(config, traits, fields)):
        message = f"its driver runs elsewhere (deploy-mode cluster): {wrong[0]}"
        raise Refused(message, subject=subject, hint=f"{wrong[1]}; {_DOCS}")


def _find_wrong_setup(connection: Connection, mode: str, master: str) -> tuple[str, str] | None:
    """What is wrong, and the way out."""
    binary = read_extra(connection).get(BINARY) or "spark-submit"
    kubernetes = master.startswith("k8s:")
    if mode not in (CLIENT, CLUSTER):
        return f"deploy-mode is {mode!r}", f"take {CLIENT} or {CLUSTER}, or remove it"
    if not connection.host:
        return "it has a deploy-mode, and no host", "its host is the master, such as local[*]"
    if mode == CLUSTER and not (kubernetes or master.startswith("yarn")):
        return (
            f"{master} takes no Python driver in cluster mode",
            f"make deploy-mode {CLIENT}, or take a master of Kubernetes",
        )
    if find_spec("airflow.providers.apache") is None or not find_spec(
        "airflow.providers.apache.spark"
    ):
        return (
            "it has a deploy-mode, and Airflow's Spark provider is not installed",
            "pip install --no-deps apache-airflow-providers-apache-spark, or remove deploy-mode",
        )
    if kubernetes and not find_spec("airflow.providers.cncf"):
        return (
            "Airflow's Spark provider submits to Kubernetes only beside the provider for it",
            "pip install apache-airflow-providers-cncf-kubernetes",
        )
    if shutil.which(binary) is None:
        return (
            f"there is no {binary} on the worker's PATH",
            "install Spark there",
        )
    return None


def _find_unreachable(
    config: Config, traits: Traits, fields: Mapping[str, str]
) -> tuple[str, str] | None:
    """What a driver on another machine would not have, and the way out."""
    if config.ledger_url().startswith("sqlite"):
        return "the ledger is a SQLite file", "take PostgreSQL for the ledger, or client mode"
    if fields:
        return (
            f"it cannot ask Airflow for {', '.join(sorted(fields))}",
            "write ${env:NAME} in the file, give NAME to the driver, on Kubernetes by "
            "`spark.kubernetes.driver.secretKeyRef.NAME`",
        )
    if traits.stops_consumers:
        return (
            "consumers are stopped and started from the worker",
            "take client mode, or `backlogctl` in the shell for this kind",
        )
    return None
