"""`backlogctl init`: a commented configuration to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from replay.cli.shared import Session, verb


@verb
def write_configuration(
    session: Session,
    output: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("backlog.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented backlog.yaml to start from."""
    from backlog.config import render_template
    from backlog.errors import BacklogError, UsageError

    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(render_template())
    except FileExistsError as error:
        raise UsageError(
            "the file exists already", subject=str(output), hint="name another, or say --force"
        ) from error
    except OSError as error:
        raise BacklogError(f"could not write it: {error.strerror}", subject=str(output)) from error
    session.emit(
        {"file": str(output)},
        f"wrote {output}: fill in cluster, source and stream, then `backlogctl status`",
    )
