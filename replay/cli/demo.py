"""`backlogctl demo`: what it is for, told as stories with real parts."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from backlog.errors import UsageError
from replay.cli.shared import Session, verb


class Story(StrEnum):
    """The stories there are."""

    REBUILD = "rebuild"
    EXPAND = "expand"
    DRAIN = "drain"


@verb
def run_demo(
    session: Session,
    story: Annotated[
        Story,
        typer.Argument(
            help="`rebuild`: lose 1,000 of 10,000 orders for real, and put exactly those back. "
            "`expand`: drain a backlog of 300,000 orders ten times as fast. "
            "`drain`: a disk is nearly full; move what is unread into an archive, and put it back."
        ),
    ] = Story.REBUILD,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            help="Keep the story's incident report, as one HTML file.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    consumed: Annotated[
        bool,
        typer.Option(
            "--consumed",
            help="With `rebuild`: the consumer keeps a table of what it handled, and the plan "
            "looks into it.",
        ),
    ] = False,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="With `rebuild`: on a broker with logins over TLS and an authorizer, as a user "
            "with exactly the rights of `backlogctl acl`.",
        ),
    ] = False,
) -> None:
    """Tell a story on a real Kafka that is gone afterwards (about a minute)."""
    if report is not None:
        from replay.report.files import check_writable

        report.parent.mkdir(parents=True, exist_ok=True)
        check_writable(report)
    console = session.err if session.json else session.out
    if (consumed or secure) and story is not Story.REBUILD:
        named = "--consumed" if consumed else "--secure"
        raise UsageError("goes with the story `rebuild` only", subject=named)
    if story is Story.EXPAND:
        from replay.demo.expand.story import tell_story as tell_expansion

        expansion = tell_expansion(console, report=report)
        document, passed = expansion.to_json(), expansion.passed
    elif story is Story.DRAIN:
        from replay.demo.drain.story import tell_story as tell_drain

        drain = tell_drain(console, report=report)
        document, passed = drain.to_json(), drain.passed
    else:
        from replay.demo.rebuild.story import tell_story

        audit = tell_story(console, report, consumed=consumed, secure=secure)
        document, passed = audit.to_json(), audit.passed
    if session.json:
        session.write_document(document)
    if not passed:
        raise typer.Exit(1)
