"""`backlogctl doctor`: what would lose messages or stop a recovery, before it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from backlogctl.replay.cli.shared import Session, mask_document, verb
from backlogctl.replay.cli.status import (
    Bootstrap,
    Cluster,
    Group,
    Topic,
    open_for_looking,
    suggest_adoption,
)

if TYPE_CHECKING:
    from backlogctl.replay.doctor.stream import Examination
    from backlogctl.replay.engine.kind import Workspace

# Streams that are named when their examination begins; of more, how many are done.
_NAMED, _TOLD_EVERY = 10, 50


@verb
def examine(
    session: Session,
    streams: Annotated[list[str] | None, typer.Argument(help="All without a name.")] = None,
    client: Annotated[
        Path | None,
        typer.Option(
            "--client",
            help="A producer's or consumer's settings: Java properties, librdkafka's, Spring's.",
            metavar="FILE",
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    group: Group = None,
    topic: Topic = None,
) -> None:
    """Show what would lose messages or stop a recovery, worst first. Changes nothing.

    Exit code: 0 well, 1 something will lose messages or stop a recovery, 2 cannot tell.
    """
    from backlogctl.replay.doctor.stream import describe_examinations
    from backlogctl.replay.present.tables import render_examinations

    found: list[Examination] = []
    if client is not None:
        found += _examine_client(client)
    # A file can be judged without a cluster.
    if client is None or streams or bootstrap or cluster:
        workspace, unopened = _open(
            session, lambda: open_for_looking(session, bootstrap, cluster, group, topic)
        )
        adopting = suggest_adoption(bootstrap, cluster, group)
        found += _examine_streams(session, workspace, streams or [], unopened, adopting)
    document = mask_document(describe_examinations(found))
    session.emit(document, lambda: render_examinations(document))
    if document["result"]:
        raise typer.Exit(document["result"])


def _examine_client(path: Path) -> list[Examination]:
    from backlogctl.monitoring.doctor.checks import sort_findings
    from backlogctl.monitoring.doctor.client_file import read_client_file
    from backlogctl.monitoring.doctor.clients import judge_client
    from backlogctl.replay.doctor.stream import Examination

    return [
        Examination("client", ", ".join(filter(None, [str(path), one.name])), found)
        for one in read_client_file(path)
        for found in [sort_findings(judge_client(one))]
    ]


def _examine_streams(
    session: Session,
    workspace: Workspace,
    names: Sequence[str],
    unopened: Examination | None,
    adopting: Sequence[str] | None,
) -> list[Examination]:
    from backlogctl.monitoring.doctor.checks import sort_findings
    from backlogctl.replay.doctor.deliveries import examine_deliveries
    from backlogctl.replay.doctor.stream import examine_streams, examine_tool, judge_clusters
    from backlogctl.replay.observe.stream import choose_streams, reach_clusters

    config = workspace.config
    # An application's outbox needs no stream.
    alone = not names and not config.streams and (config.outboxes or config.look_back)
    chosen = [] if alone else choose_streams(config, names)
    clusters = reach_clusters(config, chosen)
    for finding in judge_clusters(clusters):
        session.say(f"! {finding.subject}: {finding.found}", "yellow")  # the rest may take long
    if unopened is None:
        found = [examine_tool(workspace, chosen, clusters)]
    else:
        about = sort_findings([*unopened.findings, *judge_clusters(clusters)])
        found = [replace(unopened, findings=about)]
    for stream in chosen[:_NAMED]:
        session.say(f"examining {stream.name}")
    for done, one in enumerate(examine_streams(workspace, chosen, adopting, clusters), 1):
        if done % _TOLD_EVERY == 0:
            session.say(f"examined {done} of {len(chosen)} streams")
        found.append(one)
    if not names:
        found += examine_deliveries(workspace)
    return found


def _open(
    session: Session, open_workspace: Callable[[], Workspace]
) -> tuple[Workspace, Examination | None]:
    """Where the ledger cannot be opened, that is a finding, and the rest is judged without it."""
    from backlogctl.errors import LedgerError
    from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel
    from backlogctl.replay.doctor.stream import Examination
    from backlogctl.replay.opening import open_workspace as open_passing

    try:
        return open_workspace(), None
    except LedgerError as error:
        finding = CheckFinding(
            *("ledger", CheckLevel.STOPS, error.subject or "the ledger", error.message),
            error.hint or "check `ledger` in the configuration",
        )
        workspace = open_passing(session.load_config(), passing=True)
        return workspace, Examination("tool", "", (finding,))


@verb
def print_rights(
    session: Session,
    job: Annotated[
        str,
        typer.Argument(
            help="see, watch, hold, transactions, rebuild, expand, doctor, or airflow: all."
        ),
    ],
    stream: Annotated[str, typer.Argument(help="A stream of the configuration.")],
    principal: Annotated[
        str | None,
        typer.Option(
            "--principal",
            help="Whom to allow; without it the one that the cluster's `sasl.username` gives.",
            metavar="User:NAME",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print what grants a job on a stream its rights. Asks no broker, changes nothing.

    Lines of kafka-acls; for a login by AWS_MSK_IAM statements of an IAM policy.
    """
    from backlogctl.errors import UsageError
    from backlogctl.kafka.rights import make_grants
    from backlogctl.replay.kinds import KINDS
    from backlogctl.replay.observe.rights import find_principal, list_jobs, list_rights

    config = session.load_config()
    jobs = list_jobs(KINDS)
    if job not in jobs:
        raise UsageError(f"no such job: {job}", subject="acl", hint=f"one of {', '.join(jobs)}")
    chosen = config.stream(stream)
    properties = config.clusters[chosen.cluster].client_properties()
    who = principal or find_principal(properties)
    rights = list_rights(KINDS, job, config, chosen)
    lines = make_grants(rights, who, properties)
    document = {
        "job": job,
        "stream": stream,
        "principal": who,
        "rights": [
            {
                "resource": str(right.resource),
                "name": right.name,
                "pattern": "prefixed" if right.prefixed else "literal",
                "operation": right.operation.name,
                "purpose": right.purpose,
            }
            for right in rights
        ],
        "commands": lines,
    }
    session.emit(document, lines)
