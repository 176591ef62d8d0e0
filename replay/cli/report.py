"""`backlogctl report`: the incident report of a recovery, as one HTML file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.shared import Session, verb

if TYPE_CHECKING:
    from rich.console import Console

_STDOUT = "-"


@verb
def report_recovery(
    session: Session,
    recovery: Annotated[str, typer.Argument(help="The recovery's id.")],
    html: Annotated[
        str | None,
        typer.Option(
            "--html",
            help="Write it as one HTML file that needs nothing else; `-` is stdout.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Report on a recovery for the incident review: what was lost, done, verified, by whom."""
    from backlog.errors import UsageError
    from replay.report.document import make_report
    from replay.report.files import check_writable, write_whole

    if html == _STDOUT and session.json:
        raise UsageError(
            "both would be on stdout", subject="--html - --json", hint="name a file after --html"
        )
    path = Path(html).expanduser() if html and html != _STDOUT else None
    if path is not None:
        check_writable(path)
    document = make_report(session.open_workspace(), recovery)
    if html is not None:
        from replay.report.page import render_page

        page = render_page(document)
        if path is None:
            sys.stdout.flush()
            _write_stdout(page)
            return
        write_whole(path, page)

    def show(console: Console) -> None:
        from replay.report.summary import draw_summary
        from replay.telling.layout import Text
        from replay.telling.terminal import print_next

        if path is not None:
            told = Text.assemble(("wrote ", "dim"), (str(path), "bold"))
            console.print(told, soft_wrap=True)
            return
        console.print(draw_summary(document))
        print_next(console, *_list_next(document))

    session.emit(document, show)


def _list_next(document: dict[str, Any]) -> list[str]:
    commands: list[str] = document["standing"]["next"]
    return [*commands, f"backlogctl report {document['id']} --html report.html"]


def _write_stdout(text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(1, data) :]
