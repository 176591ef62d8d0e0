"""What a task reads and writes, for who collects lineage in Airflow, such as OpenLineage."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from sqlalchemy import make_url

from backlogctl.config import Config, Stream
from backlogctl.dags.airflow_internals import Side, find_unsuited
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.kinds.offload.plan import OffloadPlan
from backlogctl.replay.kinds.rebuild.plan import RebuildPlan
from backlogctl.replay.kinds.redrive.plan import RedrivePlan
from backlogctl.values import Recovery

LOG = logging.getLogger(__name__)


class Flow(NamedTuple):
    """URIs as Airflow's providers take them; OpenLineage's names are made of them there."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def report_recovery(workspace: Workspace, recovery: Recovery) -> None:
    """What the recovery reads and writes."""
    _report(recovery.id, lambda: find_flow(workspace, recovery))


def report_audit(workspace: Workspace, stream: Stream) -> None:
    """What an audit reads."""
    config = workspace.config
    topic = name_topic(config, stream.cluster, stream.topic)
    _report(f"an audit of {stream.name}", lambda: Flow((topic, *_list_tables(config, stream))))


def find_flow(workspace: Workspace, recovery: Recovery) -> Flow:
    """By its plan."""
    config, plan = workspace.config, workspace.plan_of(recovery)
    topic = name_topic(config, plan.cluster, plan.topic)
    match plan:
        case RebuildPlan():
            stream = config.streams.get(plan.stream)
            return Flow(_list_tables(config, stream) if stream else (), (topic,))
        case RedrivePlan() if plan.source.archive:
            found = workspace.ledger.archives.find(plan.source.archive)
            return Flow((name_archive(found.location),) if found else (), (topic,))
        case RedrivePlan():
            return Flow((name_topic(config, plan.cluster, plan.source.topic),), (topic,))
        case OffloadPlan():
            return Flow((topic,), (name_archive(plan.place.location),) if plan.place else ())
    return Flow((topic,))


def name_topic(config: Config, cluster: str, topic: str) -> str:
    """By the first broker of the configuration, without the protocol that may stand before it."""
    first = config.clusters[cluster].bootstrap.split(",")[0].strip()
    return f"kafka://{first.rpartition('://')[2]}/{topic}"


def name_archive(location: str) -> str:
    """Of an archive; a bucket has one name, whichever client reads it."""
    if "://" not in location:
        return Path(location).absolute().as_uri()
    scheme, _, rest = location.partition("://")
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}"


def name_table(url: str, table: str) -> str | None:
    """Without user and password; None of a database that has no name in a network."""
    parsed = make_url(url)
    if not parsed.host or not parsed.database:
        return None
    *schema, name = (quote(part, safe="") for part in table.split("."))
    match parsed.get_backend_name():
        case "postgresql":
            scheme, port, path = "postgres", 5432, [*(schema or ["public"]), name]
        case _:
            scheme, port, path = "mysql", 3306, [*schema, name]
    host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
    return "/".join([f"{scheme}://{host}:{parsed.port or port}", quote(parsed.database), *path])


def _list_tables(config: Config, stream: Stream) -> tuple[str, ...]:
    if stream.source is None:
        return ()
    url = config.sources[stream.source.database].reveal_url()
    named = name_table(url, stream.source.table)
    return (named,) if named else ()


def _is_collected() -> bool:
    """Without a reader nothing is: a collector alone takes Airflow seconds to make."""
    if find_unsuited(Side.LINEAGE):
        return False
    from backlogctl.dags.airflow_internals import get_hook_lineage_readers_plugins

    return bool(get_hook_lineage_readers_plugins())


def _report(subject: str, find: Callable[[], Flow]) -> None:
    """Tells the collector; never a reason for a task to fail."""
    if not _is_collected():
        return
    from backlogctl.dags.airflow_internals import get_hook_lineage_collector

    hook: Any = None
    try:
        flow, collector = find(), get_hook_lineage_collector()
        for uri in flow.inputs:
            collector.add_input_asset(hook, uri=uri)
        for uri in flow.outputs:
            collector.add_output_asset(hook, uri=uri)
    except Exception as error:  # noqa: BLE001 whatever a provider makes of a URI
        LOG.warning("no lineage of %s: %s", subject, type(error).__name__)
