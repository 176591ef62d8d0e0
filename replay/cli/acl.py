"""`backlogctl acl`: what the tool's principal must be allowed for a job."""

from __future__ import annotations

from typing import Annotated

import typer

from replay.cli.shared import Session, verb


@verb
def print_rights(
    session: Session,
    job: Annotated[
        str, typer.Argument(help="see, hold, rebuild, expand, doctor, or airflow: all.")
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
    """Print the kafka-acls lines for a job on a stream. Asks no broker, changes nothing."""
    from backlog.errors import UsageError
    from backlog.kafka.clients import find_addresses
    from backlog.kafka.rights import make_acl_lines
    from replay.around.rights import find_principal, list_jobs, list_rights
    from replay.kinds import KINDS

    config = session.load_config()
    jobs = list_jobs(KINDS)
    if job not in jobs:
        raise UsageError(f"no such job: {job}", subject="acl", hint=f"one of {', '.join(jobs)}")
    chosen = config.stream(stream)
    properties = config.clusters[chosen.cluster].client_properties()
    who = principal or find_principal(properties)
    rights = list_rights(KINDS, job, config, chosen)
    lines = make_acl_lines(rights, who, find_addresses(properties))
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
    session.emit(document, "\n".join(lines))
